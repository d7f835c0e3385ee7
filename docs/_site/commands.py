"""A build hook: `<!-- commands -->` becomes the reference of the installed commands.

It is made of their argument parsers, so that a flag is described once, where it is defined.
"""

from __future__ import annotations

import argparse
import html
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
MARK = "<!-- commands -->"
# A command's own parser, and those of the commands within it.
BUILDERS = ("build_parser", "_suite_parser", "_compare_parser", "_report_parser")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the commands in."""
    return markdown.replace(MARK, commands()) if MARK in markdown else markdown


def commands() -> str:
    """Every command of the project, as Markdown."""
    return "\n\n".join(line for parser in parsers() for line in _command(parser))


def parsers() -> Iterator[argparse.ArgumentParser]:
    """The parser of each command, in the project's order."""
    scripts = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["scripts"]
    for target in scripts.values():
        module = import_module(target.split(":")[0])
        for name in BUILDERS:
            if hasattr(module, name):
                yield getattr(module, name)()


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A heading, what the command does, its flags group by group, its examples."""
    yield f"## {parser.prog}"
    yield html.escape(parser.description or "", quote=False)
    for group in parser._action_groups:
        rows = [_row(parser, each) for each in group._group_actions if _is_shown(each)]
        if not rows:
            continue
        title = "arguments" if group.title == "positional arguments" else group.title
        yield f"**{title}**" + (f": {group.description}" if group.description else "")
        yield "\n".join(["| | |", "|---|---|", *rows])
    if parser.epilog:
        yield f"```text\n{parser.epilog.strip()}\n```"


def _is_shown(action: argparse.Action) -> bool:
    """Not those that only say what stands in their place, and not --help."""
    return action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """One flag."""
    formatter = parser._get_formatter()
    if action.option_strings:
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        if action.nargs != 0:
            names += f" `{formatter._format_args(action, (action.dest or '').upper())}`"
    else:
        names = f"`{formatter._format_args(action, str(action.metavar or action.dest))}`"
    text = formatter._expand_help(action) if action.help else ""
    return f"| {_cell(names)} | {_cell(html.escape(text, quote=False))} |"


def _cell(text: str) -> str:
    """Text that cannot end its cell."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|")
