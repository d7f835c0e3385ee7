"""Ending a process whose stream hangs where no exception can reach it."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from gain_apps.system_notify import notify, watchdog_interval_s
from gain_core.errors import ConfigError

__all__ = ["HUNG_STATUS", "Watchdog"]

logger = logging.getLogger(__name__)

HUNG_STATUS = 4


class Watchdog:
    """Ends the process when a stream did not call `beat` for a while (a context manager).

    A driver that hangs in a forward pass cannot be interrupted from Python; the process ends with
    status 4 and the stacks on stderr, so that a supervisor starts it again from the last snapshot.
    Under systemd (`Type=notify`, `WatchdogSec=`), which is told that the process is alive only
    while every stream is, it also works without a limit of its own.

    Parameters
    ----------
    limit_s : float or None
        Longest time between two beats of a stream; None leaves the end to systemd.
    on_expiry : callable, optional
        What ends the process.

    Raises
    ------
    ConfigError
        If `limit_s` is not positive.
    """

    def __init__(
        self, limit_s: float | None, /, *, on_expiry: Callable[[], None] | None = None
    ) -> None:
        if limit_s is not None and not limit_s > 0.0:
            raise ConfigError(f"--watchdog: expected seconds above 0, got {limit_s}")
        self._system_s = watchdog_interval_s()
        limits = [limit for limit in (limit_s, self._system_s) if limit is not None]
        self._limit_s = limit_s
        self._every_s = min(limits) / 4.0 if limits else None
        self._on_expiry = _end_process if on_expiry is None else on_expiry
        self._beats: dict[str, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def beat(self, stream: str = "", /) -> None:
        """Say that a stream is alive; the first time, watch it from now on."""
        self._beats[stream] = time.monotonic()

    def forget(self, stream: str = "", /) -> None:
        """Watch a stream no longer."""
        self._beats.pop(stream, None)

    def __enter__(self) -> Watchdog:
        if self._every_s is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        """Thread: compare the last beats with the limits until told to stop."""
        while not self._done.wait(self._every_s):
            stream, silent_s = self._most_silent()
            if self._system_s is not None and silent_s < self._system_s:
                notify("WATCHDOG=1")
            if self._limit_s is not None and silent_s > self._limit_s:
                named = f"{stream}: " if stream else ""
                logger.critical(
                    "%shung: no sign of life for %.1f s (--watchdog %g)",
                    *(named, silent_s, self._limit_s),
                )
                self._on_expiry()
                return

    def _most_silent(self) -> tuple[str, float]:
        """The stream whose last beat is the oldest, and how old that is."""
        now_s = time.monotonic()
        ages = [(now_s - beat_s, stream) for stream, beat_s in dict(self._beats).items()]
        silent_s, stream = max(ages, default=(0.0, ""))
        return stream, silent_s


def _end_process() -> None:
    """Show where every thread stands, and end without waiting for any of them."""
    faulthandler.dump_traceback(sys.__stderr__ or sys.stderr, all_threads=True)
    os._exit(HUNG_STATUS)
