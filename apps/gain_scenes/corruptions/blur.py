"""Blurs by a kernel, by a stack of views, and by glass.

The published generator of glass blur visits the pixels from the bottom right to the top left and
exchanges each with one drawn near by; its exchange of two NumPy views, however, copies one way
only, and every ImageNet-C image carries that. The visit is a chain: a pixel may copy one that was
itself copied before. `displaced` gives the very result of the loop without the loop, by following
all chains at once in doubling steps.
"""

from __future__ import annotations

import math
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from gain_scenes.corruptions.constants import Field, constants

# The published kernel never is smaller than this, and is anti-aliased with 3 or 5 taps.
_LEAST_DISC_PX = 8
# Narrower than this a normal curve weighs no second pixel.
_LEAST_SIGMA_PX = 0.1


def defocus_blur(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Convolve with the disc an out-of-focus lens makes of a point."""
    radius, sigma = constants("defocus_blur", severity)
    radius *= scale
    share = radius - int(radius)
    kernel = _disc(int(radius), sigma)
    if share:  # between two radii, both discs: a hard disc grows in jumps
        larger = _disc(int(radius) + 1, sigma)
        margin = (len(larger) - len(kernel)) // 2
        kernel = (1 - share) * np.pad(kernel, margin) + share * larger
    return cv2.filter2D(image, -1, kernel, borderType=cv2.BORDER_REFLECT_101)


@lru_cache(maxsize=32)
def _disc(radius: int, sigma: float) -> Field:
    """Disc of ones with a slightly smoothed rim; sums to one."""
    reach = max(_LEAST_DISC_PX, radius)
    line = np.arange(-reach, reach + 1)
    disc = (line**2 + line[:, None] ** 2 <= radius**2).astype(np.float32)
    disc /= disc.sum()
    taps = 3 if radius <= _LEAST_DISC_PX else 5
    smooth: Field = cv2.GaussianBlur(disc, (taps, taps), sigma)
    smooth.flags.writeable = False
    return smooth


def motion_blur(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Smear along a line within 45 degrees of the horizontal."""
    radius, sigma = constants("motion_blur", severity)
    angle = math.radians(rng.uniform(-45, 45))
    return line_blur(image, angle, radius=radius * scale, sigma=sigma * scale)


def line_blur(image: Field, angle: float, *, radius: float, sigma: float) -> Field:
    """Average an image, (H, W) or (H, W, C) float32, over its copies shifted along a line.

    The angle, in rad, goes from the x axis towards the y axis (down). The copies lie 0, 1, .. ``2 *
    radius`` px away *on one side*, weighted by the falling half of a normal curve, as ImageMagick's
    motion blur has them; the nearest whole pixel is taken. A fractional radius lets the last copy
    count in part. Edges are replicated.
    """
    distance = np.arange(math.ceil(2 * radius) + 1)
    weight = np.exp(-((distance / max(sigma, _LEAST_SIGMA_PX)) ** 2) / 2)
    weight *= np.clip(2 * radius + 1 - distance, 0, 1)
    columns = np.ceil(distance * math.cos(angle) - 0.5).astype(int)
    rows = np.ceil(distance * math.sin(angle) - 0.5).astype(int)
    left, top = columns.min(), rows.min()
    kernel = np.zeros((np.ptp(rows) + 1, np.ptp(columns) + 1), dtype=np.float32)
    np.add.at(kernel, (rows - top, columns - left), weight / weight.sum())
    return cv2.filter2D(
        image, -1, kernel, anchor=(int(-left), int(-top)), borderType=cv2.BORDER_REPLICATE
    )


def zoom_blur(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Average the image and its enlargements about the centre."""
    largest, count = constants("zoom_blur", severity)
    zooms = np.linspace(1, largest, round(count)).round(9).tolist()
    total: Field = image.copy()
    for zoom in zooms:
        total += enlarged(image, zoom)
    total /= np.float32(len(zooms) + 1)
    return total


def enlarged(image: Field, zoom: float) -> Field:
    """An image, (H, W) or (H, W, C), enlarged about its centre at the same size.

    The middle ``ceil(H / zoom)`` rows are stretched over ``round(ceil(H / zoom) * zoom)`` rows,
    first on first and last on last, and what is beyond H is cut off; columns alike.
    """
    height, width = image.shape[:2]
    matrix = np.zeros((2, 3))
    for axis, side in enumerate((width, height)):
        crop = math.ceil(side / zoom)
        matrix[axis, axis] = (crop - 1) / max(round(crop * zoom) - 1, 1)
        matrix[axis, 2] = (side - crop) // 2
    return cv2.warpAffine(
        image,
        matrix,
        (width, height),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )


Offsets = npt.NDArray[np.int32]


def glass_blur(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Blur, scatter the pixels, blur."""
    sigma, reach, passes = constants("glass_blur", severity)
    scattered = _gaussian(image, sigma * scale)
    whole = int(passes)
    # For each pass the share of the pixels that it moves.
    for share in [1.0] * whole + [passes - whole] * (passes > whole):
        margin = math.ceil(reach * scale)
        shape = (max(image.shape[0] - 2 * margin, 0), max(image.shape[1] - 2 * margin, 0))
        down, right = _draw(shape, reach * scale, rng=rng)
        if share < 1:
            kept = rng.random(shape, dtype=np.float32) >= share
            down[kept] = right[kept] = 0
        scattered = displaced(scattered, down, right)
    return _gaussian(scattered, sigma * scale)


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
    """Let every inner pixel, last one first, take over the value at its offset, as the loop does.

    The offsets, (h, w) int32 in px, are of the pixels that lie ``(H - h) / 2 + 1`` rows and ``(W -
    w) / 2 + 1`` columns from the top left, which is where the published loop has them. No offset
    may lead outside the image, (H, W, C) float32.
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
    return image.reshape(size, -1)[chain].reshape(image.shape)


def _gaussian(image: Field, sigma: float) -> Field:
    """Gaussian blur cut at four sigma, edges replicated."""
    taps = 2 * int(4 * sigma + 0.5) + 1
    if taps == 1:
        return image
    return cv2.GaussianBlur(image, (taps, taps), sigma, borderType=cv2.BORDER_REPLICATE)
