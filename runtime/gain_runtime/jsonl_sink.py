"""One JSON object per frame, one line each, readable while it is being written."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from gain_core.errors import NumericsError, StreamError
from gain_runtime.closing import Closing
from gain_runtime.result import FrameResult, Ranked

__all__ = ["JsonlSink", "result_record"]

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None


def result_record(result: FrameResult, /) -> dict[str, Json]:
    """A result as JSON values; the keys are the same for every frame.

    Parameters
    ----------
    result : FrameResult

    Returns
    -------
    dict
        `index`, `timestamp_ns`, `time_s` (the same in seconds), `source_id`, `source` and
        `adapted` (lists of `index`, `label`, `prob`, best first), `strength`, `gain`, `changed`,
        `truth` and `condition` (null where the source does not know them).

    Raises
    ------
    NumericsError
        If a probability, the strength or the gain is not finite: JSON has no NaN.
    """
    frame = result.frame
    return {
        "index": int(frame.index),
        "timestamp_ns": int(frame.timestamp_ns),
        "time_s": round(frame.timestamp_ns / 1e9, 6),
        "source_id": frame.source_id,
        "source": _ranking(result.source_top, name=f"frame {frame.index}: source probability"),
        "adapted": _ranking(result.adapted_top, name=f"frame {frame.index}: adapted probability"),
        "strength": _finite(result.strength, name=f"frame {frame.index}: strength"),
        "gain": _finite(result.gain, name=f"frame {frame.index}: gain"),
        "changed": bool(result.changed),
        "truth": None if frame.truth is None else int(frame.truth),
        "condition": frame.condition,
    }


class JsonlSink(Closing):
    """Writes `result_record` of every result as a line.

    A line goes out in one write and one that the disk has no room for is taken back, so that
    whatever ends in a line break is a whole row. A system may end a killed process between two
    pages of a write: then, and only then, part of a last row stays, without a line break. The
    file is created, or emptied, at once.

    Parameters
    ----------
    target : str or Path
        File, or `-` for standard output.

    Raises
    ------
    StreamError
        If the file cannot be created; from `write` and `close`, if it cannot be written.
    """

    def __init__(self, target: str | Path, /) -> None:
        is_console = str(target) == "-"
        self._shown = "standard output" if is_console else str(target)
        self._fd = None if is_console else _create(target)
        self._closed = False

    def write(self, result: FrameResult, /) -> None:
        """Append one line."""
        if self._closed:
            raise StreamError(f"{self._shown}: already closed")
        text = json.dumps(
            result_record(result),
            # A console may not be UTF-8.
            ensure_ascii=self._fd is None,
            allow_nan=False,
            separators=(",", ":"),
        )
        # File names that are not UTF-8 hold lone surrogates; their JSON escape is \udcXX.
        line = text.encode("utf-8", "backslashreplace") + b"\n"
        try:
            if self._fd is not None:
                _append(self._fd, line)
            else:
                sys.stdout.write(line.decode())
                sys.stdout.flush()
        except OSError as err:
            raise StreamError(f"{self._shown}: cannot be written ({err.strerror})") from err

    def close(self) -> None:
        """Close the file; may be called twice.

        Raises
        ------
        StreamError
            If the system, only now, says that lines were not written; the file is closed.
        """
        fd, self._fd, self._closed = self._fd, None, True
        if fd is None:
            return
        try:
            os.close(fd)
        except OSError as err:
            raise StreamError(
                f"{self._shown}: cannot be finished ({err.strerror}); its last lines may be missing"
            ) from err


def _create(path: str | Path) -> int:
    """Create or empty a file and return its descriptor."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, flags, 0o666)
    except OSError as err:
        raise StreamError(
            f"{path}: cannot be created for JSON lines ({err.strerror}); "
            "name a file in an existing, writable folder"
        ) from err


def _append(fd: int, line: bytes) -> None:
    """Write a whole line or nothing of it."""
    written = 0
    try:
        while written < len(line):
            written += os.write(fd, line[written:])
    except OSError:
        # A pipe cannot be cut back; its reader is gone anyway.
        with suppress(OSError):
            os.ftruncate(fd, os.lseek(fd, -written, os.SEEK_CUR))
        raise


def _ranking(top: Sequence[Ranked], *, name: str) -> list[Json]:
    return [
        {"index": int(item.index), "label": item.label, "prob": _finite(item.prob, name=name)}
        for item in top
    ]


def _finite(value: float, *, name: str) -> float:
    if not math.isfinite(value):
        raise NumericsError(f"{name}: expected a finite number, got {value}")
    return float(value)
