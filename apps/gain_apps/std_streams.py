"""Standard streams that are closed, full or have lost their reader."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from gain_core.errors import ConfigError, StreamError

__all__ = ["finish_output", "open_missing_streams", "refuse_closed", "say", "write_result"]

NAMES = ("standard input", "standard output", "standard error")


def open_missing_streams() -> frozenset[int]:
    """Put the null device where a standard stream was closed (`>&-`).

    Without it, the next file that is opened would get its number, and whatever a library prints.

    Returns
    -------
    frozenset of int
        The numbers of those that were closed.
    """
    closed = set()
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            closed.add(number)
            # The lowest free number is given, which is this one.
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    return frozenset(closed)


def refuse_closed(closed: frozenset[int], number: int, /, *, wanted_by: str) -> None:
    """Raise ConfigError where a stream is wanted that was closed."""
    if number in closed:
        raise ConfigError(
            f"{wanted_by}: {NAMES[number]} is closed; leave that out, or do not close it"
        )


def say(line: str, /) -> None:
    """Write a line to standard error; where nobody can read it, nobody is told."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def write_result(line: str, /) -> None:
    """Write a line of results to standard output; as `finish_output` where that fails.

    Raises
    ------
    StreamError
        As `finish_output`.
    """
    try:
        print(line)
    except BrokenPipeError:
        _drop_output()
    except OSError as err:
        _drop_output()
        raise _lost(err) from err


def finish_output() -> None:
    """Write out what standard output holds; a reader that has gone (`| head`) is no error of ours.

    Raises
    ------
    StreamError
        If it cannot be written: the results are not where the caller looks for them.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    except OSError as err:
        _drop_output()
        raise _lost(err) from err


def _lost(err: OSError) -> StreamError:
    """The error for results that cannot be written."""
    return StreamError(f"standard output: cannot be written ({err.strerror}); results are lost")


def _drop_output() -> None:
    """Python flushes once more when it exits, and would complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
