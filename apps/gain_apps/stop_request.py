"""Stopping in good order: the first signal asks, the second one ends the process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["StopRequest", "signals_handled"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether and why a run was asked to stop before its source ended."""

    def __init__(self) -> None:
        self._signum: int | None = None
        self._quit = False

    def __bool__(self) -> bool:
        return self._quit or self._signum is not None

    @property
    def reason(self) -> str | None:
        """Name of the signal, `quit` for the window's key, or None."""
        if self._signum is not None:
            return signal.Signals(self._signum).name
        return "quit" if self._quit else None

    @property
    def exit_status(self) -> int:
        """128 plus the signal's number, as a shell reports it; 0 without a signal."""
        return 0 if self._signum is None else 128 + self._signum

    def quit(self) -> None:
        """Stop because the user closed the window: a normal end."""
        self._quit = True

    def on_signal(self, signum: int, frame: FrameType | None, /) -> None:
        """Handle a signal; the second one does not come back."""
        if self._signum is not None:
            os._exit(128 + signum)
        self._signum = signum


@contextmanager
def signals_handled(stop: StopRequest, /) -> Iterator[None]:
    """Let SIGINT and SIGTERM set `stop` while the block runs; main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {signum: signal.signal(signum, stop.on_signal) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
