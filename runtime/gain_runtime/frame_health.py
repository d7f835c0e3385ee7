"""Telling a camera's broken frames from its good ones."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["FrameFault", "FrameHealth"]

FrameFault: TypeAlias = Literal["black", "frozen", "corrupt"]

# Of 255: a covered lens has a few levels of noise, a street at night has lamps.
DARK_LEVEL = 20.0
DARK_PERCENTILE = 99.0
# Pixels looked at, in either direction; enough to see what is wrong with a frame.
STRIDE = 4
# A picture cut short is filled with one colour from some row to the bottom.
FILLED_SHARE = 8


class FrameHealth:
    """Looks at each frame of one stream in turn."""

    def __init__(self) -> None:
        self._last: npt.NDArray[np.uint8] | None = None

    def check(self, image: npt.NDArray[np.uint8], /) -> FrameFault | None:
        """What is wrong with a frame.

        Parameters
        ----------
        image : array, (H, W, 3) uint8 RGB

        Returns
        -------
        str or None
            `black`: nothing bright in it; `corrupt`: one colour all over, or from some row to the
            bottom under a picture, as decoders leave it when data is missing; `frozen`: the frame
            before, pixel for pixel, which a sensor's noise never gives.
        """
        sample = np.ascontiguousarray(image[::STRIDE, ::STRIDE])
        last, self._last = self._last, sample
        if np.percentile(sample, DARK_PERCENTILE) < DARK_LEVEL:
            return "black"
        if _is_filled(sample):
            return "corrupt"
        return "frozen" if last is not None and np.array_equal(sample, last) else None


def _is_filled(sample: npt.NDArray[np.uint8]) -> bool:
    """One colour all over, or at the bottom only: bars above and below belong to the picture."""
    height = sample.shape[0]
    band = max(height // FILLED_SHARE, 1)
    colour = sample[-1, 0]
    if not (sample[-band:] == colour).all():
        return False
    # A floor in the sun is white all over; what decoders fill in is grey or green.
    saturated = bool(((colour == 0) | (colour == 255)).all())
    whole = bool((sample == colour).all())
    return whole or not (saturated or (sample[0] == sample[0, 0]).all())
