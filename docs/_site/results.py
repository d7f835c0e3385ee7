"""A build hook: `<!-- result: NAME -->` becomes that table of `benchmarks/report.py`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MARK = re.compile(r"^<!-- result: ([\w-]+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the tables of a page in."""
    return MARK.sub(lambda match: _table(match[1]), markdown)


def _table(name: str) -> str:
    """One table; a name that is none stops the build."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from report import TABLES
    finally:
        sys.path.remove(str(BENCHMARKS))
    return TABLES[name]()
