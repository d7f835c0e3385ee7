"""Tables in Markdown, and where a page holds one: between two marks that name it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["markdown", "with_table"]


def markdown(heading: Iterable[str], rows: Iterable[Iterable[str]], /) -> str:
    """A table: its heading and its rows."""
    names = list(heading)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def with_table(page: Path, name: str, table: str, /) -> str:
    """A page with a table between `<!-- NAME -->` and `<!-- /NAME -->`.

    Parameters
    ----------
    page : Path
        Markdown; only read.
    name, table : str

    Returns
    -------
    str

    Raises
    ------
    SystemExit
        If the page lacks the marks.
    """
    text = page.read_text(encoding="utf-8")
    mark = re.escape(name)
    found = re.search(rf"^(<!-- {mark} -->)$.*?^(<!-- /{mark} -->)$", text, re.M | re.S)
    if found is None:
        raise SystemExit(f"{page}: expected <!-- {name} --> and <!-- /{name} --> on lines")
    return f"{text[: found.end(1)]}\n\n{table}\n\n{text[found.start(2) :]}"
