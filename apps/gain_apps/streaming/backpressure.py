"""What gives way while the device cannot keep up with its camera, and in which order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal

from gain_runtime.adapter import Adapter

__all__ = [
    "Backpressure",
    "Load",
    "step_words",
]

logger = logging.getLogger(__name__)

EVERY_S = 5.0
# A network's first passes are slow, and a camera hands over what it has kept: neither is a load.
SETTLING_S = 10.0
# Share of the frames that may be dropped before something gives way.
BEHIND = 0.05
UPDATE_FACTOR = 4
MOST_UPDATE_EVERY = 64
STRIDES = (2, 4, 8)
# Looks without a dropped frame before a step back, and the most that relapses raise that to: an
# hour, so that a device between two steps writes a few lines a day and not one every ten seconds.
FIRST_PATIENCE = 2
MOST_PATIENCE = 720

Load = Literal["keeping-up", "updating-less", "skipping"]


class Backpressure:
    """Makes a live stream cheaper step by step while more than 5 % of its frames are dropped.

    First `update_every` is raised, four-fold up to 64: every frame is still learned from, in larger
    portions (an adaptive file keeps its portions and learns from fewer frames). Then frames are
    skipped before they cost anything, all but every second, fourth, eighth: evenly, where a full
    queue would drop them in bursts. Each step is a warning, and so is each step back, which comes
    when no frame was dropped for a while; a step back that was too early doubles that while.

    `dropped` gives the frames that the reader has dropped so far, `clock` monotonic seconds.
    """

    def __init__(
        self,
        adapter: Adapter,
        dropped: Callable[[], int],
        /,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._adapter = adapter
        self._dropped = dropped
        self._clock = clock
        self._steps = _steps(adapter.update_every)
        # Steps taken; 0 while the device keeps up.
        self.level = 0
        # The first look comes after the first frame, whenever that is.
        self._next_s: float | None = None
        self._dropped_before = 0
        self._offered = self._position = 0
        self._calm = 0
        self._patience = FIRST_PATIENCE
        self._on_trial = False
        self._settled = False

    @property
    def stride(self) -> int:
        """One frame in so many is classified."""
        return self._steps[self.level][1]

    @property
    def load(self) -> Load:
        """The level in a word."""
        if self.level == 0:
            return "keeping-up"
        return "updating-less" if self.stride == 1 else "skipping"

    def takes(self) -> bool:
        """Count a frame that the reader delivered; whether it is to be classified."""
        self._offered += 1
        now_s = self._clock()
        if self._next_s is None:
            self._next_s = now_s + SETTLING_S
        elif now_s >= self._next_s:
            self._look()
        self._position = (self._position + 1) % self.stride
        return self._position == 0

    def _look(self) -> None:
        """Compare what was dropped with what was delivered since the last look."""
        dropped = self._dropped()
        lost = dropped - self._dropped_before
        share = lost / (lost + self._offered)
        self._dropped_before, self._offered = dropped, 0
        self._next_s = self._clock() + EVERY_S
        if not self._settled:
            # What was dropped up to here is counted, and says nothing of the load.
            self._settled = True
            return
        self._calm = self._calm + 1 if lost == 0 else 0
        if share > BEHIND:
            self._give_way(share)
        elif self._calm >= self._patience:
            self._recover()

    def _give_way(self, share: float) -> None:
        """One step further; after a step back on trial, the next one has to wait longer."""
        if self._on_trial:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._on_trial = False
        if self.level + 1 < len(self._steps):
            words = self._move(self.level + 1)
            logger.warning(
                "%.0f %% of the frames are dropped: %s from here on", 100.0 * share, words
            )

    def _recover(self) -> None:
        """One step back, or at the end of the way back trust in the device again."""
        self._calm = 0
        if self.level == 0:
            self._on_trial, self._patience = False, FIRST_PATIENCE
            return
        self._on_trial = True
        logger.warning("no frame is dropped: %s", self._move(self.level - 1))

    def _move(self, level: int) -> str:
        """Work as this level says; what it means."""
        self.level = level
        self._adapter.update_every = self._steps[level][0]
        return step_words(*self._steps[level])


def step_words(update_every: int, stride: int, /) -> str:
    """What is done, for logs and pages."""
    if stride > 1:
        return f"one frame in {stride} is classified, the others are skipped"
    return f"an update every {update_every} frames" if update_every > 1 else "an update every frame"


def _steps(update_every: int) -> tuple[tuple[int, int], ...]:
    """`update_every` and stride of each level."""
    steps = [(update_every, 1)]
    while steps[-1][0] < MOST_UPDATE_EVERY:
        steps.append((min(UPDATE_FACTOR * steps[-1][0], MOST_UPDATE_EVERY), 1))
    return (*steps, *((steps[-1][0], stride) for stride in STRIDES))
