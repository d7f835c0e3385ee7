"""A live source that is opened again when its signal is lost."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator

from gain_core.errors import GainError, StreamError
from gain_runtime.closing import Closing
from gain_runtime.frame import Frame, FrameSource, SourceInfo

__all__ = ["ReconnectingSource", "SignalLostError"]

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0


class SignalLostError(StreamError):
    """A live source that worked gives no more frames; a supervisor may start the stream again."""

    exit_status = 3


class ReconnectingSource(Closing):
    """Frames of a live source across interruptions; `index` goes on counting.

    The pauses between two tries double from half a second to thirty.

    Parameters
    ----------
    open_source : callable
        Opens the source; called once at once, and again after each loss.
    patience_s : float
        Seconds without a frame after which the signal counts as lost for good.

    Raises
    ------
    GainError
        Whatever `open_source` raises the first time: a wrong address does not get right by waiting.
    """

    def __init__(self, open_source: Callable[[], FrameSource], /, *, patience_s: float) -> None:
        self._open_source = open_source
        self._patience_s = patience_s
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._source: FrameSource | None = open_source()
        self._info = self._source.info
        self._skipped_before = 0
        self._next_index = 0
        self._reconnects = 0

    @property
    def info(self) -> SourceInfo:
        """Of the first connection."""
        return self._info

    @property
    def skipped(self) -> int:
        """Failed reads so far, over all connections."""
        source = self._source
        return self._skipped_before + (0 if source is None else source.skipped)

    @property
    def reconnects(self) -> int:
        """Times the signal came back."""
        return self._reconnects

    def __iter__(self) -> Iterator[Frame]:
        while not self._closing.is_set():
            source = self._source
            assert source is not None
            base = self._next_index
            try:
                for frame in source:
                    index = base + frame.index
                    self._next_index = index + 1
                    yield dataclasses.replace(frame, index=index)
                reason = "the stream ended"
            except StreamError as err:
                reason = str(err)
            if not self._closing.is_set():
                self._reconnect(reason)

    def close(self) -> None:
        """End the iteration and the waiting; may be called twice and from another thread."""
        self._closing.set()
        with self._lock:
            if self._source is not None:
                self._source.close()

    def _reconnect(self, reason: str) -> None:
        """Open the source again, or raise once the patience is over."""
        logger.warning("%s; trying again for %g s", reason, self._patience_s)
        self._let_go()
        lost_s, pause_s = time.monotonic(), FIRST_PAUSE_S
        while not self._closing.is_set():
            left_s = self._patience_s - (time.monotonic() - lost_s)
            if left_s <= 0.0:
                raise SignalLostError(
                    f"{self._info.source_id}: signal lost after {self._next_index} frames and not "
                    f"back within {self._patience_s:g} s ({reason}); check the cable, the network "
                    "and the power of the camera"
                )
            self._closing.wait(min(pause_s, left_s))
            pause_s = min(2.0 * pause_s, LONGEST_PAUSE_S)
            try:
                found = None if self._closing.is_set() else self._open_source()
            except GainError as err:
                reason = str(err)
                logger.debug("not back: %s", reason)
                continue
            if found is not None:
                self._take(found)
                return

    def _let_go(self) -> None:
        """Close the connection that was lost."""
        with self._lock:
            source, self._source = self._source, None
            if source is not None:
                self._skipped_before += source.skipped
                source.close()

    def _take(self, source: FrameSource) -> None:
        """Go on with a new connection, unless this was closed meanwhile."""
        with self._lock:
            self._source = source
            if self._closing.is_set():
                source.close()
                return
        self._reconnects += 1
        logger.warning("%s: the signal is back", self._info.source_id)
