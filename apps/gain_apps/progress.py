"""Showing that a run is alive: a line that changes on a terminal, a log line otherwise."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from types import TracebackType

from rich.console import Console
from rich.status import Status

from gain_apps.summary import RunRecord

__all__ = ["NOTE", "ConsoleHandler", "RunProgress"]

logger = logging.getLogger(__name__)

# What everybody wants to see of a run, and no more: between INFO and WARNING.
NOTE = 25
logging.addLevelName(NOTE, "NOTE")

LOG_INTERVAL_S = 10.0
REDRAW_INTERVAL_S = 0.25


class RunProgress:
    """Reports a record's counts at intervals (a context manager).

    Parameters
    ----------
    record : RunRecord
    console : Console
    total : int or None
        Frames expected, where known.
    """

    def __init__(self, record: RunRecord, console: Console, /, *, total: int | None) -> None:
        self._record = record
        self._total = total
        shown = console.is_terminal and logger.isEnabledFor(NOTE)
        self._status: Status | None = console.status("opening") if shown else None
        self._next_s = time.monotonic()

    def update(self) -> None:
        """Report, if the last report is old enough."""
        now = time.monotonic()
        if now < self._next_s:
            return
        if self._status is not None:
            self._status.update(self._line())
            self._next_s = now + REDRAW_INTERVAL_S
            return
        if self._record.frames > 0 and now - self._record.started_s >= LOG_INTERVAL_S:
            logger.log(NOTE, "%s", self._line())
            self._next_s = now + LOG_INTERVAL_S

    def __enter__(self) -> RunProgress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def _line(self) -> str:
        """Counts so far."""
        record = self._record
        of = "" if self._total is None else f" of {self._total}"
        count = max(record.frames, 1)
        return (
            f"{record.frames}{of} frames, {record.rate_hz:.1f}/s, "
            f"{100.0 * record.changed / count:.1f} % changed, "
            f"strength {record.strength_sum / count:.2f}"
        )


class ConsoleHandler(logging.Handler):
    """Logs one unwrapped line per record, above a progress line where there is one."""

    def __init__(self, console: Console, /) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record; a reader that has gone, or a full disk, stops no stream."""
        with suppress(OSError, ValueError):
            self._console.print(self.format(record), markup=False, highlight=False, soft_wrap=True)
