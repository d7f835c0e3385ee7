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

from gain_core.errors import ConfigError

__all__ = ["HUNG_STATUS", "Watchdog"]

logger = logging.getLogger(__name__)

HUNG_STATUS = 4


class Watchdog:
    """Ends the process when `beat` was not called for a while (a context manager).

    A driver that hangs in a forward pass cannot be interrupted from Python; the process ends with
    status 4 and the stacks on stderr, so that a supervisor starts it again from the last snapshot.

    Parameters
    ----------
    limit_s : float
        Longest time between two beats.
    on_expiry : callable, optional
        What ends the process.

    Raises
    ------
    ConfigError
        If `limit_s` is not positive.
    """

    def __init__(self, limit_s: float, /, *, on_expiry: Callable[[], None] | None = None) -> None:
        if not limit_s > 0.0:
            raise ConfigError(f"--watchdog: expected seconds above 0, got {limit_s}")
        self._limit_s = limit_s
        self._on_expiry = _end_process if on_expiry is None else on_expiry
        self._last_s = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def beat(self) -> None:
        """Say that the stream is alive."""
        self._last_s = time.monotonic()

    def __enter__(self) -> Watchdog:
        self.beat()
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        """Thread: compare the last beat with the limit until told to stop."""
        while not self._done.wait(self._limit_s / 4.0):
            silent_s = time.monotonic() - self._last_s
            if silent_s > self._limit_s:
                logger.critical(
                    "hung: no sign of life for %.1f s (--watchdog %g)", silent_s, self._limit_s
                )
                self._on_expiry()
                return


def _end_process() -> None:
    """Show where every thread stands, and end without waiting for any of them."""
    faulthandler.dump_traceback(sys.__stderr__ or sys.stderr, all_threads=True)
    os._exit(HUNG_STATUS)
