"""Glass blur: every pixel takes its value from near by, between two gaussian blurs.

The published generator visits the pixels from the bottom right to the top left and exchanges each
with one drawn near by; its exchange of two NumPy views, however, copies one way only, and every
ImageNet-C image carries that. The visit is a chain: a pixel may copy one that was itself copied
before. `displaced` gives the very result of the loop without the loop, by following all chains at
once in doubling steps.
"""

from __future__ import annotations

import math

import cv2
import numpy as np
import numpy.typing as npt

from gain_apps.corruptions.constants import constants
from gain_apps.corruptions.scaling import Field

__all__ = ["displaced", "glass_blur"]

Offsets = npt.NDArray[np.int32]


def glass_blur(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Blur, scatter the pixels, blur."""
    sigma, reach, passes = constants("glass_blur", severity)
    scattered = _gaussian(image, sigma * scale)
    for share in _shares(passes):
        margin = math.ceil(reach * scale)
        shape = (max(image.shape[0] - 2 * margin, 0), max(image.shape[1] - 2 * margin, 0))
        down, right = _draw(shape, reach * scale, rng=rng)
        if share < 1:
            kept = rng.random(shape, dtype=np.float32) >= share
            down[kept] = right[kept] = 0
        scattered = displaced(scattered, down, right)
    return _gaussian(scattered, sigma * scale)


def _shares(passes: float) -> list[float]:
    """One entry per pass: the share of the pixels it moves."""
    whole = int(passes)
    return [1.0] * whole + [passes - whole] * (passes > whole)


def _draw(
    shape: tuple[int, int], reach: float, *, rng: np.random.Generator
) -> tuple[Offsets, Offsets]:
    """Offsets down and right in [-reach, reach); a fractional reach mixes its two neighbours."""
    draw = rng.random((2, *shape), dtype=np.float32)
    whole = int(reach)
    bound = np.full(shape, whole, dtype=np.int32)
    if reach > whole:
        bound += rng.random(shape, dtype=np.float32) < reach - whole
    offsets = np.floor(draw * (2 * bound)).astype(np.int32) - bound
    return offsets[0], offsets[1]


def displaced(image: Field, down: Offsets, right: Offsets) -> Field:
    """Let every inner pixel, last one first, take over the value at its offset.

    Parameters
    ----------
    image : array, (H, W, C) float32
    down, right : array, (h, w) int32
        Offsets in px of the pixels visited. These lie ``(H - h) / 2 + 1`` rows and
        ``(W - w) / 2 + 1`` columns from the top left, which is where the published loop has
        them. No offset may lead outside the image.

    Returns
    -------
    array, (H, W, C) float32
        What the loop over all pixels from the last to the first would leave.
    """
    height, width = image.shape[:2]
    top, left = (height - down.shape[0]) // 2 + 1, (width - down.shape[1]) // 2 + 1
    size = height * width
    index = np.arange(size, dtype=np.int32).reshape(height, width)
    visited = np.zeros((height, width), dtype=bool)
    inner = np.s_[top : top + down.shape[0], left : left + down.shape[1]]
    visited[inner] = True
    source = index[inner] + down * width + right
    # Node p is pixel p before the loop, node size + p is pixel p after its visit.
    copied_before = visited.ravel()[source] & (source > index[inner])
    after = index.copy()
    after[inner] = np.where(copied_before, source + size, source)
    chain = after.ravel()
    while (unresolved := chain >= size).any():
        chain[unresolved] = chain[chain[unresolved] - size]
    moved: Field = image.reshape(size, -1)[chain].reshape(image.shape)
    return moved


def _gaussian(image: Field, sigma: float) -> Field:
    """Gaussian blur cut at four sigma, edges replicated."""
    taps = 2 * int(4 * sigma + 0.5) + 1
    if taps == 1:
        return image
    blurred: Field = cv2.GaussianBlur(image, (taps, taps), sigma, borderType=cv2.BORDER_REPLICATE)
    return blurred
