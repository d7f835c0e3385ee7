"""One JSON object per frame, one line each, readable while it is being written."""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeAlias

from gain_core.errors import NumericsError, StreamError
from gain_runtime.files.paths import lock_alone
from gain_runtime.frames import Closing, FrameResult, Ranked

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

# A row is a few hundred bytes: what ends in no line break for so long is no file of JSON lines.
LONGEST_ROW = 1 << 20


def utc_text(utc_ns: int, /) -> str:
    """Nanoseconds since 1970 as ISO 8601 in UTC, to the millisecond: `2026-01-31T08:15:00.250Z`."""
    moment = datetime.fromtimestamp(utc_ns // 1_000_000_000, tz=timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{utc_ns // 1_000_000 % 1000:03d}Z"


def result_record(result: FrameResult, /) -> dict[str, Json]:
    """A result as JSON values; the keys are the same for every frame.

    `utc` (ISO 8601), `index`, `timestamp_ns`, `time_s` (the same in seconds), `source_id`, `source`
    and `adapted` (lists of `index`, `label`, `prob`, best first), `strength`, `gain`, `changed`,
    `truth` and `condition` (null where the source does not know them). Raises NumericsError if a
    probability, the strength or the gain is not finite: JSON has no NaN.
    """
    frame = result.frame
    return {
        "utc": utc_text(result.utc_ns),
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
    """Appends `result_record` of every result as one line of JSON.

    Each line is one write, and is removed again if the disk is full, so that every line that ends
    in a line break is whole. A process that is killed during a write may leave part of a line; the
    next run cuts it off. The file is locked: a second run cannot write to it. For log rotation,
    rename the file and call `reopen`.

    Parameters
    ----------
    target : str or Path
        File, or `-` for standard output.

    Raises
    ------
    StreamError
        If the file cannot be opened, or another run writes to it.
    """

    def __init__(self, target: str | Path, /) -> None:
        is_console = str(target) == "-"
        self._shown = "standard output" if is_console else str(target)
        self._fd = None if is_console else _open(target)
        self._target = target
        self._closed = False

    def write(self, result: FrameResult, /) -> None:
        """Append one line.

        Raises
        ------
        NumericsError
            If a probability, the strength or the gain is not finite.
        StreamError
            If the sink is closed or the line cannot be written.
        """
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

    def reopen(self) -> None:
        """Close the file and open the one that has its name now, as log rotation asks for.

        Raises
        ------
        StreamError
            If that cannot be done; rows go on into the file that is open.
        """
        if self._fd is None:
            return
        here, there = os.fstat(self._fd), _status(self._target)
        if there is not None and (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
            return
        opened = _open(self._target)
        before, self._fd = self._fd, opened
        with suppress(OSError):
            os.close(before)

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


def _status(path: str | Path) -> os.stat_result | None:
    """What lies at a path now."""
    try:
        return Path(path).stat()
    except OSError:
        return None


def _open(path: str | Path) -> int:
    """A file to append to, locked and without the torn row that a kill may have left."""
    # Appending survives whoever empties the file to rotate it: no hole of NULs comes before.
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
    found = _status(path)
    if found is not None and not stat.S_ISREG(found.st_mode):
        flags = os.O_WRONLY
    try:
        fd = os.open(path, flags, 0o666)
    except OSError as err:
        raise StreamError(
            f"{path}: cannot be opened for JSON lines ({err.strerror}); "
            "name a file in an existing, writable folder"
        ) from err
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            if not lock_alone(fd):
                raise StreamError(
                    f"{path}: another run writes its rows there; name another file, or end that run"
                )
            _cut_torn_row(fd, path)
    except StreamError:
        os.close(fd)
        raise
    except OSError as err:
        os.close(fd)
        raise StreamError(f"{path}: cannot be appended to ({err.strerror})") from err
    return fd


def _cut_torn_row(fd: int, path: str | Path) -> None:
    """Remove what follows the last line break."""
    size = os.fstat(fd).st_size
    start = max(size - LONGEST_ROW, 0)
    os.lseek(fd, start, os.SEEK_SET)
    tail = os.read(fd, LONGEST_ROW)
    if not tail or tail.endswith(b"\n"):
        return
    kept = tail.rfind(b"\n") + 1
    # A torn row is JSON: anything else is a file of somebody's that was named by mistake.
    if (kept == 0 and start > 0) or not tail[kept:].startswith(b"{"):
        raise StreamError(
            f"{path}: expected JSON lines to append to, got a file whose last line is not JSON; "
            "name another file"
        )
    os.ftruncate(fd, start + kept)


def _append(fd: int, line: bytes) -> None:
    """Write a whole line or nothing of it."""
    written = 0
    try:
        while written < len(line):
            written += os.write(fd, line[written:])
    except OSError:
        # A pipe cannot be cut back; its reader is gone anyway.
        with suppress(OSError):
            if written:
                os.ftruncate(fd, os.fstat(fd).st_size - written)
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
