"""What the kernel says of the machine and of this process, read from its files and counters."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["peak_memory_bytes", "read_number", "read_numbers", "read_text", "whole_number"]


def read_text(path: Path, /) -> str:
    """What a kernel file says; nothing where it cannot be read."""
    try:
        return path.read_text("ascii", "replace").strip().rstrip("\0")
    except OSError:
        return ""


def whole_number(text: str, /) -> int | None:
    """A whole number, or None."""
    try:
        return int(text)
    except ValueError:
        return None


def read_number(path: Path, /) -> int | None:
    """The whole number in a kernel file, or None."""
    return whole_number(read_text(path))


def read_numbers(paths: Iterable[Path], /) -> list[int]:
    """The numbers that can be read; a sensor may be asleep."""
    return [value for path in paths if (value := read_number(path)) is not None]


def peak_memory_bytes() -> int:
    """The most memory this process has held at once (resident set size)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak if sys.platform == "darwin" else peak * 1024
