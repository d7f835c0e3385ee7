"""A line in the log when the guard has tripped, once for every trip."""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["TripLog"]

logger = logging.getLogger(__name__)


class TripLog:
    """Compares the guard's counter with what was reported; a human may want to know why it rose.

    Parameters
    ----------
    hold_frames : callable
        Frames for which the source still answers; asked only when there is something to report.
    """

    def __init__(self, hold_frames: Callable[[], int], /) -> None:
        self._hold_frames = hold_frames
        self._reported = 0

    def report(self, trips: int | None, /) -> None:
        """Warn if the guard has tripped since the last call.

        Parameters
        ----------
        trips : int or None
            How often it has tripped so far, less than before after a reset; None without a guard.
        """
        if trips is None:
            return
        if trips > self._reported:
            logger.warning(
                "guard: the adapted prediction left what the source knows; everything learned was "
                "dropped, the source answers for %d frames (trip %d)",
                self._hold_frames(),
                trips,
            )
        self._reported = trips

    def resume(self, trips: int | None, /) -> None:
        """Take trips that a loaded state brings along as reported.

        Parameters
        ----------
        trips : int or None
            As for `report`.
        """
        self._reported = trips or 0
