"""Stopping in good order: the first signal asks, the second one ends the process."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["StopRequest", "signals_handled"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HANGUP = getattr(signal, "SIGHUP", None)


class StopRequest:
    """Whether and why a run was asked to stop before its source ended.

    Parameters
    ----------
    parent : StopRequest, optional
        The process's, for one of several streams: what stops that stops this.

    Attributes
    ----------
    nothing_to_lose : bool
        While it is set, a signal ends the process at once: nothing was learned or written yet, and
        an opening that hangs in a driver cannot be interrupted.
    """

    def __init__(self, parent: StopRequest | None = None, /) -> None:
        self._parent = parent
        self._signum: int | None = None
        self._quit = False
        self._hangups = 0
        self.nothing_to_lose = False

    def __bool__(self) -> bool:
        return self._quit or self._signum is not None or bool(self._parent)

    @property
    def reason(self) -> str | None:
        """Name of the signal, `quit` for the window's key, or None."""
        if self._parent:
            return self._parent.reason
        if self._signum is not None:
            return signal.Signals(self._signum).name
        return "quit" if self._quit else None

    @property
    def exit_status(self) -> int:
        """128 plus the signal's number, as a shell reports it; 0 without a signal."""
        return 0 if self._signum is None else 128 + self._signum

    @property
    def hangups(self) -> int:
        """SIGHUPs so far: files that are rotated are to be opened again after each."""
        return self._hangups if self._parent is None else self._parent.hangups

    def quit(self) -> None:
        """Stop because the user closed the window: a normal end."""
        self._quit = True

    def on_signal(self, signum: int, /) -> None:
        """Handle a signal; the second does not come back, nor the first with nothing to lose."""
        if self._signum is not None:
            os._exit(128 + signum)
        self._signum = signum
        if self.nothing_to_lose:
            name = signal.Signals(signum).name
            with suppress(OSError):
                os.write(2, f"gain-stream: ended by {name} before the source was open\n".encode())
            os._exit(128 + signum)

    def on_hangup(self) -> None:
        """Note that files are to be opened again."""
        self._hangups += 1


@contextmanager
def signals_handled(stop: StopRequest, /) -> Iterator[None]:
    """Let SIGINT and SIGTERM set `stop` while the block runs; main thread only.

    SIGHUP asks for rotated files to be opened again, or where there is a terminal, whose end it
    means then, for the end. A thread reads what the system's own handler notes, because Python's
    waits for the main thread, and that may hang in a driver.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hangup_ends = _has_terminal()
    # `nohup` ignores it, and means it.
    hangup = HANGUP if HANGUP and signal.getsignal(HANGUP) is not signal.SIG_IGN else None
    reading, writing = socket.socketpair()
    writing.setblocking(False)

    seen = threading.Semaphore(0)

    def watch() -> None:
        while noted := reading.recv(1):
            if noted[0] == 0:
                return
            if noted[0] == hangup and not hangup_ends:
                stop.on_hangup()
            else:
                stop.on_signal(noted[0])
            seen.release()

    def wait_until_seen(*_: object) -> None:
        # So that whatever follows in the main thread knows of it.
        seen.acquire(timeout=1.0)

    taken = (*SIGNALS, hangup) if hangup else SIGNALS
    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    earlier = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    previous = {signum: signal.signal(signum, wait_until_seen) for signum in taken}
    watcher.start()
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(earlier)
        writing.send(b"\0")
        watcher.join()
        reading.close()
        writing.close()


def _has_terminal() -> bool:
    """Whether messages go to a terminal, which may be closed."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False
