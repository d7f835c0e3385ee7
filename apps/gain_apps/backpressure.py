"""Learning less often while the device cannot keep up with its camera."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["Backpressure"]

logger = logging.getLogger(__name__)

EVERY_S = 5.0
# Share of the frames that may be dropped before, and after which, learning is thinned out.
BEHIND = 0.05
MOST_THINNING = 16


class Backpressure:
    """Decides which frames of a live stream are learned from.

    While more than 5 % of the frames are dropped, only every second, fourth, ... sixteenth frame is
    learned from; the others are predicted and cost no update. Once nothing is dropped, it goes
    back step by step. What is left then, skipping frames, the reader does.

    Parameters
    ----------
    dropped : callable
        Frames the reader has dropped so far.
    clock : callable, optional
        Monotonic seconds.
    """

    def __init__(
        self, dropped: Callable[[], int], /, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._dropped = dropped
        self._clock = clock
        self._next_s = clock() + EVERY_S
        self._dropped_before = dropped()
        self._taken = 0
        self._thinning = 1
        self._position = 0

    @property
    def thinning(self) -> int:
        """One frame in so many is learned from."""
        return self._thinning

    def learns(self) -> bool:
        """Count a frame; whether it is to be learned from."""
        self._taken += 1
        if self._clock() >= self._next_s:
            self._look()
        self._position = (self._position + 1) % self._thinning
        return self._position == 0

    def _look(self) -> None:
        """Compare what was dropped with what was taken since the last look."""
        dropped = self._dropped()
        lost = dropped - self._dropped_before
        share = lost / (lost + self._taken)
        self._dropped_before, self._taken = dropped, 0
        self._next_s = self._clock() + EVERY_S
        if share > BEHIND and self._thinning < MOST_THINNING:
            self._thinning *= 2
            logger.warning(
                "%.0f %% of the frames are dropped: learning from one in %d from here on",
                100.0 * share,
                self._thinning,
            )
        elif lost == 0 and self._thinning > 1:
            self._thinning //= 2
            logger.warning("no frame is dropped: learning from one in %d", self._thinning)
