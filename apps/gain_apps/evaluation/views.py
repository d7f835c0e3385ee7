"""Label-preserving views of an image: mild crops, every second one mirrored."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["LEAST_SHARE", "make_view"]

Image = npt.NDArray[np.uint8]

# Of both sides: a crop keeps the aspect ratio and at least half of the area.
LEAST_SHARE = 0.75


def make_view(image: Image, number: int, /, *, seed: int, index: int) -> Image:
    """One view of an image.

    Parameters
    ----------
    image : array, (H, W, 3) uint8 RGB
    number : int
        0 is the image itself; odd numbers are mirrored.
    seed, index : int
        Of the run and of the image: together with `number` they decide the crop.

    Returns
    -------
    array, (h, w, 3) uint8 RGB
        A view of the same memory; both sides at least `LEAST_SHARE` of the image's.
    """
    if number == 0:
        return image
    rng = np.random.default_rng(np.random.SeedSequence((seed, index, number)))
    share = rng.uniform(LEAST_SHARE, 1.0)
    height, width = (max(1, round(side * share)) for side in image.shape[:2])
    top = int(rng.integers(image.shape[0] - height + 1))
    left = int(rng.integers(image.shape[1] - width + 1))
    crop = image[top : top + height, left : left + width]
    return crop[:, ::-1] if number % 2 else crop
