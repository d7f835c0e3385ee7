"""Which input pixels make an output pixel, and how much each counts, as Pillow's resize has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import PIL

from gain_runtime.manifest import Interpolation
from gain_runtime.preprocess import ResizedCrop

__all__ = ["FRACTION_BITS", "AxisWeights", "axis_weights", "vertical_first"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int32]

# Weights are fixed-point numbers of this many fractional bits. Of 32 that leaves 8 bits for the
# level, and 2 for the sign and for sums beyond one.
FRACTION_BITS = 32 - 8 - 2
_ONE = 1 << FRACTION_BITS

_PILLOW = tuple(int(part) for part in PIL.__version__.split(".")[:2])


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisWeights:
    """One axis of a resize, for the N output pixels that are kept.

    Attributes
    ----------
    first, length : int
        The input pixels that are needed: from `first` on, so many.
    starts, counts : array, (N,) int32
        Input pixels of each output pixel: from ``first + start`` on, so many.
    weights : array, (T, N) int32
        T is the largest count; each column sums to about ``2 ** FRACTION_BITS``, and is 0 from its
        count on.
    """

    first: int
    length: int
    starts: Integers
    counts: Integers
    weights: Integers


def axis_weights(
    in_px: int, out_px: int, interpolation: Interpolation, /, *, first: int, kept: int
) -> AxisWeights:
    """The weights of output pixels `first` to ``first + kept - 1``.

    Parameters
    ----------
    in_px, out_px : int
        Length of the axis before and after, at least 1.
    interpolation : str
    first, kept : int
        Within the `out_px` output pixels.

    Returns
    -------
    AxisWeights

    Notes
    -----
    Output pixel ``i`` has its centre at ``(i + 1/2) in_px / out_px``. When an axis shrinks, the
    filter is widened by that factor, which is the antialiasing. Weights are those of the input
    pixels' centres, divided by their sum, rounded half away from zero.
    """
    outputs = np.arange(first, first + kept)
    if in_px == out_px:
        return _single(outputs)
    if interpolation == "nearest":
        return _single(_nearest(in_px, out_px, first + kept)[first:])
    support, curve = _FILTERS[interpolation]
    scale = in_px / out_px
    widening = max(scale, 1.0)
    centers = (outputs + 0.5) * scale
    starts = np.maximum(np.trunc(centers - support * widening + 0.5), 0.0)
    ends = np.minimum(np.trunc(centers + support * widening + 0.5), in_px)
    counts = (ends - starts).astype(np.int32)
    taps = np.arange(counts.max())[:, None]
    distances = ((taps + starts) - centers + 0.5) * (1.0 / widening)
    weights = np.where(taps < counts, curve(distances), 0.0)
    # Row after row: another order of the additions would round differently.
    total = np.zeros(kept)
    for row in weights:
        total += row
    fixed = np.trunc(weights / total * _ONE + np.copysign(0.5, weights))
    return AxisWeights(
        first=int(starts[0]),
        length=int(ends[-1] - starts[0]),
        starts=(starts - starts[0]).astype(np.int32),
        counts=counts,
        weights=fixed.astype(np.int32),
    )


def vertical_first(
    height: int, width: int, crop: ResizedCrop, /, *, pillow: tuple[int, ...] = _PILLOW
) -> bool:
    """Whether Pillow scales a frame's columns before its rows, which rounds otherwise.

    Parameters
    ----------
    height, width : int
        In px, before scaling.
    crop : ResizedCrop
    pillow : (major, minor), optional
        The version to follow; by default the one installed.

    Returns
    -------
    bool

    Notes
    -----
    Found by comparing both orders with what each version returns: rows came first always before
    12.2, columns of frames more than 100 times as tall as wide in 12.2 and 12.3, and those of
    frames that lose more than twice as many rows as columns from 13.0 on (pull requests 9524 and
    9549 of Pillow).
    """
    lost_rows, lost_columns = height - crop.height_px, width - crop.width_px
    if pillow >= (13, 0):
        return lost_rows > 2 * max(lost_columns, 0)
    return pillow >= (12, 2) and height > 100 * width and lost_rows > 0


def _single(inputs: npt.NDArray[np.intp]) -> AxisWeights:
    """Weights that copy one input pixel each."""
    kept = len(inputs)
    return AxisWeights(
        first=int(inputs[0]),
        length=int(inputs[-1] - inputs[0]) + 1,
        starts=(inputs - inputs[0]).astype(np.int32),
        counts=np.ones(kept, dtype=np.int32),
        weights=np.full((1, kept), _ONE, dtype=np.int32),
    )


def _nearest(in_px: int, out_px: int, end: int) -> npt.NDArray[np.intp]:
    """The input pixel below the centre of each of the first `end` output pixels.

    Pillow steps from centre to centre; a product in place of the sum picks a neighbour at times.
    """
    steps = np.full(end, in_px / out_px)
    steps[0] *= 0.5
    return np.minimum(np.cumsum(steps).astype(np.intp), in_px - 1)


def _triangle(distances: Floats) -> Floats:
    """Linear interpolation."""
    return np.maximum(1.0 - np.abs(distances), 0.0)


def _cubic(distances: Floats) -> Floats:
    """Cubic convolution with a slope of -1/2 at a distance of one."""
    slope = -0.5
    x = np.abs(distances)
    near = ((slope + 2.0) * x - (slope + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * slope
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _lanczos(distances: Floats) -> Floats:
    """A sinc windowed by the middle lobe of one three times as wide."""
    window = np.sinc(distances / 3.0)
    return np.where(np.abs(distances) < 3.0, np.sinc(distances) * window, 0.0)


# How far each filter reaches where nothing shrinks, in pixels.
_FILTERS: dict[str, tuple[float, Callable[[Floats], Floats]]] = {
    "bilinear": (1.0, _triangle),
    "bicubic": (2.0, _cubic),
    "lanczos": (3.0, _lanczos),
}
