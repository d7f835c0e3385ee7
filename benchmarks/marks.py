"""Tables of a page, made from result files: each stands between two marks that name it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Cells", "markdown", "put_tables"]

Cells = list[list[str]]


def put_tables(
    page: Path, tables: Mapping[str, Callable[[Mapping[str, Any]], str]], report: Mapping[str, Any]
) -> None:
    """Put each table between `<!-- NAME -->` and `<!-- /NAME -->` of a page.

    The first mark may go on behind a colon, as `<!-- NAME: how to make it -->`.

    Parameters
    ----------
    page : Path
        Markdown; written only if all marks are there.
    tables : mapping
        What makes each table's Markdown from `report`, by name.
    report : mapping

    Raises
    ------
    SystemExit
        If the page lacks the marks of a table.
    """
    text = page.read_text(encoding="utf-8")
    for name, make in tables.items():
        mark = re.escape(name)
        found = re.search(
            rf"^(<!-- {mark}(?:: [^\n]*)? -->)$.*?^(<!-- /{mark} -->)$", text, re.M | re.S
        )
        if found is None:
            raise SystemExit(f"{page}: expected <!-- {name} --> and <!-- /{name} --> on lines")
        text = f"{text[: found.end(1)]}\n\n{make(report)}\n\n{text[found.start(2) :]}"
    page.write_text(text, encoding="utf-8")


def markdown(heading: list[str], rows: Cells, /) -> str:
    """A table: its heading and its rows."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
