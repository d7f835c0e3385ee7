"""Turning frames into `pixel_values` exactly as timm's evaluation transform does."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from operator import index

import cv2
import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image

from gain_core.errors import ArrayError, ConfigError
from gain_runtime.files.manifest import Preprocess
from gain_runtime.frames import Closing

Region = tuple[int, int, int, int]

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

# Reach in pixels of the result, and weight by distance; Pillow's operations in its order.
_KERNELS: dict[str, tuple[float, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]]] = {
    "bilinear": (1.0, lambda x: 1.0 - x),
    "bicubic": (
        2.0,
        lambda x: np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5),
    ),
    "lanczos": (3.0, lambda x: np.sinc(x) * np.sinc(x / 3.0)),
}
# Pillow's weights are whole multiples of this.
_UNIT = 2.0**-22
# Where a frame has so many columns for each that is kept, products of matrices outrun Pillow.
_FEWER = 2.5
# Most multiplications of a product: OpenBLAS shares out larger ones among threads of its own.
_PRODUCT = 2**18
# So many values stay in the processor's cache.
_CACHED = 2**19
# Of so many sums one may lie near a half; where more do, as in ramps and stripes, Pillow is faster.
_RARE = 16
# A sliver of a frame grows without bound when its shorter side is scaled up to the network's input.
_MAX_RESIZED_PX = 2**26


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizedCrop:
    """To what size a frame is scaled, and where the network's input is cut out of that.

    Attributes
    ----------
    height_px, width_px : int
        Size after scaling.
    top_px, left_px : int
        First row and column of the cut in the scaled frame.
    """

    height_px: int
    width_px: int
    top_px: int
    left_px: int


def preprocess(
    image: npt.NDArray[np.uint8],
    spec: Preprocess,
    /,
    *,
    region: Region | None = None,
) -> npt.NDArray[np.float32]:
    """Resize, crop, scale and normalise one frame.

    Parameters
    ----------
    image : array, (H, W, 3) uint8 RGB
        Any memory layout; not changed.
    spec : Preprocess
        As the artifact's manifest states it.
    region : (left, top, right, bottom) in px, optional
        The part of the frame to use, right and bottom exclusive; clipped to the frame.

    Returns
    -------
    array, (3, height_px, width_px) float32
        C-contiguous, planes in the order of `spec.channel_order`.

    Raises
    ------
    ArrayError
        If the image has another shape or dtype or no pixels, if nothing of the region lies in the
        frame, or if the region is too narrow to be scaled up.

    Notes
    -----
    Equal to the last bit to `timm.data.create_transform` applied to a Pillow image with the same
    settings: its sizes, roundings, filter and order of float32 operations are kept.
    """
    pixel_values = np.empty((3, spec.height_px, spec.width_px), dtype=np.float32)
    table = normalised_levels(spec)
    _write(pixel_values, image, spec, region=region, table=table)
    return pixel_values


def preprocess_batch(
    images: Sequence[npt.NDArray[np.uint8]],
    spec: Preprocess,
    /,
    *,
    regions: Sequence[Region | None] | None = None,
    executor: Executor | None = None,
) -> npt.NDArray[np.float32]:
    """Preprocess several frames, whose sizes may differ, into one batch.

    Parameters
    ----------
    images : sequence of B arrays, (H, W, 3) uint8 RGB
    spec : Preprocess
        As the artifact's manifest states it.
    regions : sequence of B regions or None, optional
        One per image, see `preprocess`.
    executor : concurrent.futures.Executor, optional
        Of threads, one frame each; default: all frames in the caller's thread.

    Returns
    -------
    array, (B, 3, height_px, width_px) float32
        C-contiguous; B may be 0. The same to the last bit with and without `executor`.

    Raises
    ------
    ArrayError
        As `preprocess`, or if there is not one region per image.
    """
    regions = one_region_each(images, regions)
    shape = (len(images), 3, spec.height_px, spec.width_px)
    pixel_values = np.empty(shape, dtype=np.float32)
    table = normalised_levels(spec)

    def write(row: int) -> None:
        _write(pixel_values[row], images[row], spec, region=regions[row], table=table)

    # The first error in the frames' order is raised, whichever thread is first to find one.
    for _ in (map if executor is None else executor.map)(write, range(len(images))):
        pass
    return pixel_values


def one_region_each(
    images: Sequence[object], regions: Sequence[Region | None] | None, /
) -> Sequence[Region | None]:
    """Check that there is one region per image.

    Parameters
    ----------
    images : sequence of B images
    regions : sequence of B regions or None, optional
        None stands for whole images.

    Returns
    -------
    sequence of B regions or None

    Raises
    ------
    ArrayError
        If there is not one region per image.
    """
    if regions is None:
        return [None] * len(images)
    if len(regions) != len(images):
        raise ArrayError(
            f"regions: expected {len(images)}, one per image, got {len(regions)}; "
            "pass None for an image to be used whole"
        )
    return regions


def check_frame(shape: tuple[int, ...], dtype: object, /) -> None:
    """Refuse what is no frame.

    Raises
    ------
    ArrayError
        If the shape is not (H, W, 3), the dtype not uint8, or there are no pixels.
    """
    if dtype != np.uint8 or len(shape) != 3 or shape[2] != 3:
        raise ArrayError(
            f"image: expected (H, W, 3) uint8 RGB, got {shape} {dtype}; "
            "convert it to three channels of 8 bits"
        )
    if 0 in shape:
        raise ArrayError(f"image: expected at least one pixel, got {shape}; skip empty frames")


def no_array_error(image: object, /) -> ArrayError:
    """What to raise for something that is no array."""
    return ArrayError(
        f"image: expected a NumPy array (H, W, 3) uint8 RGB, got {type(image).__name__}; "
        "convert it with numpy.asarray"
    )


def clipped_region(height: int, width: int, region: Region | None, /) -> Region:
    """The part of a region inside a frame of that size; the whole frame for None.

    Raises
    ------
    ArrayError
        If the region is not four integers or lies outside the frame.
    """
    if region is None:
        return 0, 0, width, height
    try:
        left, top, right, bottom = (index(edge) for edge in region)
    except (TypeError, ValueError) as err:
        raise ArrayError(
            f"region: expected four integers (left, top, right, bottom) in px, got {region!r}; "
            "round the edges first"
        ) from err
    left, right = max(left, 0), min(right, width)
    top, bottom = max(top, 0), min(bottom, height)
    if left >= right or top >= bottom:
        raise ArrayError(
            f"region: expected (left, top, right, bottom) overlapping the {width} x {height} px "
            f"frame, got {tuple(region)}; drop regions that left the frame"
        )
    return left, top, right, bottom


def resized_crop(height: int, width: int, spec: Preprocess, /) -> ResizedCrop:
    """To what size a frame of that size is scaled, and what is cut out of it.

    Raises
    ------
    ArrayError
        If the frame is so narrow that it would be scaled up beyond all bounds.
    """
    resized_height, resized_width = _resized_size(height, width, spec)
    if resized_height * resized_width > _MAX_RESIZED_PX:
        raise ArrayError(
            f"image: {width} x {height} px is too narrow, its shorter side would be scaled up to "
            f"{resized_width} x {resized_height} px; pass a region closer to a square"
        )
    # Half-way cases go to the even side, as torchvision's CenterCrop does.
    return ResizedCrop(
        height_px=resized_height,
        width_px=resized_width,
        top_px=round((resized_height - spec.height_px) / 2.0),
        left_px=round((resized_width - spec.width_px) / 2.0),
    )


def normalised_levels(spec: Preprocess, /) -> npt.NDArray[np.float32]:
    """What each of the 256 pixel levels becomes in each plane, (3, 256) float32.

    Notes
    -----
    The operations and their order are those of torchvision's ToTensor and Normalize; a fused
    multiply-add would round differently.
    """
    scaled = np.arange(256, dtype=np.float32) / np.float32(255.0)
    mean = np.array(spec.mean, dtype=np.float32).reshape(3, 1)
    std = np.array(spec.std, dtype=np.float32).reshape(3, 1)
    table: npt.NDArray[np.float32] = (scaled - mean) / std
    return table


def _write(
    pixel_values: npt.NDArray[np.float32],
    image: npt.NDArray[np.uint8],
    spec: Preprocess,
    *,
    region: Region | None,
    table: npt.NDArray[np.float32],
) -> None:
    """Preprocess one frame into `pixel_values`, (3, height_px, width_px)."""
    image = _checked(image)
    left, top, right, bottom = clipped_region(image.shape[0], image.shape[1], region)
    levels = _levels(image[top:bottom, left:right], spec)
    if spec.channel_order == "BGR":
        levels = levels[..., ::-1]
    for channel in range(3):
        # Every level is a valid index, so "clip" changes nothing but saves a buffered copy.
        np.take(table[channel], levels[..., channel], out=pixel_values[channel], mode="clip")


def _checked(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The image, if it is one."""
    if not isinstance(image, np.ndarray):
        raise no_array_error(image)
    check_frame(image.shape, image.dtype)
    return image


def _levels(image: npt.NDArray[np.uint8], spec: Preprocess) -> npt.NDArray[np.uint8]:
    """Scale with an antialiased filter, then cut out the centre: (height_px, width_px, 3)."""
    height, width = image.shape[:2]
    crop = resized_crop(height, width, spec)
    # The last of Pillow 12 scale what is so tall in another order than their C code does.
    usual = spec.interpolation != "nearest" and height <= 100 * width
    if usual and width >= _FEWER * spec.width_px:
        shrunk = _shrunk(image, crop, spec)
        if shrunk is not None:
            return shrunk
    pillow = Image.fromarray(image)
    if pillow.size != (crop.width_px, crop.height_px):
        # No reducing_gap and no box: both are faster and neither gives the same pixels (a box is
        # off by one level here and there; a gap, or a JPEG drafted smaller, by up to five).
        pillow = pillow.resize((crop.width_px, crop.height_px), _FILTERS[spec.interpolation])
    right, bottom = crop.left_px + spec.width_px, crop.top_px + spec.height_px
    return np.asarray(pillow.crop((crop.left_px, crop.top_px, right, bottom)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filter:
    """Pillow's weights along one side of an image.

    Attributes
    ----------
    reach : slice
        Pixels that the kept part of the result needs.
    first : array, (N,) int64
        For each pixel of the result the first that it needs, counted from the start of `reach`.
    weights : array, (N, T) float64
        Whole numbers of `_UNIT`.
    bands : list
        Some pixels of the result each, those that they need, and the weights in float32.
    error : float
        Most that a sum in float32 is off, in any order.
    """

    reach: slice
    first: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]
    bands: list[tuple[slice, slice, npt.NDArray[np.float32]]]
    error: float


@lru_cache(maxsize=16)
def _filter(size: int, resized: int, first: int, count: int, interpolation: str) -> _Filter:
    """How `size` pixels are scaled to `resized`, for `count` of these from `first` on."""
    radius, kernel = _KERNELS[interpolation]
    scale = size / resized
    stretch = max(scale, 1.0)
    centre = (np.arange(first, first + count) + 0.5) * scale
    low = np.maximum((centre - radius * stretch + 0.5).astype(np.int64), 0)
    high = np.minimum((centre + radius * stretch + 0.5).astype(np.int64), size)
    num_taps = int((high - low).max())
    start = np.minimum(low, size - num_taps)
    taps = start[:, None] + np.arange(num_taps)
    distance = np.abs((taps - centre[:, None] + 0.5) * (1.0 / stretch))
    inside = (taps >= low[:, None]) & (taps < high[:, None]) & (distance < radius)
    weights = np.where(inside, kernel(distance), 0.0)
    # One after the other, as Pillow adds; NumPy's sum adds in pairs.
    weights /= np.add.accumulate(weights, axis=1)[:, -1:]
    weights = np.trunc(weights / _UNIT + np.copysign(0.5, weights))
    reach = slice(int(start[0]), int(start[-1]) + num_taps)
    start -= reach.start
    bands = []
    columns = 8 if scale < 10.0 else 4
    for begin in range(0, count, columns):
        kept = slice(begin, min(begin + columns, count))
        taken = slice(int(start[begin]), int(start[kept.stop - 1]) + num_taps)
        band = np.zeros((kept.stop - begin, taken.stop - taken.start), dtype=np.float32)
        for row, offset in enumerate(start[kept] - taken.start):
            band[row, offset : offset + num_taps] = weights[begin + row] * _UNIT
        bands.append((kept, taken, band))
    # The weights and the levels are float32 to the last bit; each product and each sum is rounded.
    largest = 255.0 * float(np.abs(weights).sum(axis=1).max()) * _UNIT
    error = (num_taps + 2) * 2.0**-24 * largest
    return _Filter(reach=reach, first=start, weights=weights, bands=bands, error=error)


def _shrunk(
    image: npt.NDArray[np.uint8], crop: ResizedCrop, spec: Preprocess
) -> npt.NDArray[np.uint8] | None:
    """What the crop keeps, bit for bit as Pillow scales it; None where that takes too long."""
    height, width = image.shape[:2]
    across = _filter(width, crop.width_px, crop.left_px, spec.width_px, spec.interpolation)
    down = _filter(height, crop.height_px, crop.top_px, spec.height_px, spec.interpolation)
    image = image[down.reach, across.reach]
    rows_first = _rows_first((width, height), (crop.width_px, crop.height_px))
    if rows_first:
        image, across, down = cv2.transpose(image), down, across
    # Pillow rounds and clips between the two as well.
    narrow = _filtered(image, across)
    small = None if narrow is None else _filtered(narrow, down)
    return small if small is None or not rows_first else small.transpose(1, 0, 2)


class _Scratch(threading.local):
    """Memory of each thread that is used again: new memory costs as much as the sums in it."""

    room = np.empty(0, dtype=np.float32)

    def take(self, rows: int, columns: int) -> npt.NDArray[np.float32]:
        """An array of that shape, whatever it holds."""
        if rows * columns > self.room.size:
            self.room = np.empty(rows * columns, dtype=np.float32)
        return self.room[: rows * columns].reshape(rows, columns)


_scratch = _Scratch()


def _filtered(image: npt.NDArray[np.uint8], by: _Filter) -> npt.NDArray[np.uint8] | None:
    """Filter each row of (M, size, 3), and turn rows into columns: (N, M, 3)."""
    num_rows, size = image.shape[:2]
    count, num_taps = by.weights.shape
    largest = max(band.size for _, _, band in by.bands)
    at_once = min(_PRODUCT // largest, _CACHED // (size + 2 * count)) // 3
    at_once = max(at_once // 8 * 8, 8)
    result = np.empty((count, num_rows, 3), dtype=np.uint8)
    flat = result.reshape(count, -1)
    unsure = np.empty(flat.shape, dtype=np.bool_)
    for top in range(0, num_rows, at_once):
        part = image[top : top + at_once]
        places = slice(3 * top, 3 * (top + len(part)))
        room = _scratch.take(size + 2 * count, 3 * len(part))
        values, sums, whole = np.split(room, (size, size + count))
        values[...] = cv2.transpose(part).reshape(values.shape)
        for kept, taken, band in by.bands:
            np.matmul(band, values[taken], out=sums[kept])
        np.rint(sums, out=whole)
        np.abs(np.subtract(sums, whole, out=sums), out=sums)
        np.greater_equal(sums, 0.5 - by.error, out=unsure[:, places])
        flat[:, places] = np.clip(whole, 0.0, 255.0, out=whole)
    # float32 does not tell to which side these round; as whole numbers the sums are exact.
    found = np.flatnonzero(unsure)
    if len(found) > unsure.size // _RARE:
        return None
    column, row, channel = np.unravel_index(found, result.shape)
    windows = np.lib.stride_tricks.sliding_window_view(image, num_taps, axis=1)
    exact = np.einsum("ij,ij->i", windows[row, by.first[column], channel], by.weights[column])
    result[column, row, channel] = np.clip(np.floor(exact * _UNIT + 0.5), 0.0, 255.0)
    return result


def _rows_first(size: tuple[int, int], resized: tuple[int, int]) -> bool:
    """Whether Pillow scales (width, height) down before across, as it does from version 13 on."""
    if int(PIL.__version__.partition(".")[0]) < 13:
        return False
    fewer_columns, fewer_rows = (a - b for a, b in zip(size, resized, strict=True))
    return fewer_rows > max(2 * fewer_columns, 0)


def _resized_size(height: int, width: int, spec: Preprocess) -> tuple[int, int]:
    """Height and width before the centre crop; never less than the crop's.

    timm takes two roads for `center`: torchvision's Resize (truncating) for a square target, its
    own ResizeKeepRatio (rounding) for any other.
    """
    target_height = math.floor(spec.height_px / spec.crop_fraction)
    target_width = math.floor(spec.width_px / spec.crop_fraction)
    if spec.crop_mode == "squash":
        return target_height, target_width
    if target_height == target_width:
        if width <= height:
            return int(target_width * height / width), target_width
        return target_height, int(target_height * width / height)
    ratio = min(height / target_height, width / target_width)
    return round(height / ratio), round(width / ratio)


class BatchPreprocessor(Closing):
    """`preprocess_batch` in several threads; Pillow and NumPy release the interpreter's lock.

    Parameters
    ----------
    spec : Preprocess
        As the artifact's manifest states it.
    threads : int or None, optional
        Most threads; 1 works in the caller's thread, None is one for each core that this process
        may use.

    Raises
    ------
    ConfigError
        If `threads` is below 1.
    """

    def __init__(self, spec: Preprocess, /, *, threads: int | None = 1) -> None:
        if threads is None:
            threads = usable_cores()
        if threads < 1:
            raise ConfigError(f"preprocess_threads: expected at least 1, got {threads}")
        self._spec = spec
        self._executor: Executor | None = None
        if threads > 1:
            self._executor = ThreadPoolExecutor(threads, thread_name_prefix="preprocess")

    def __call__(
        self,
        images: Sequence[npt.NDArray[np.uint8]],
        /,
        *,
        regions: Sequence[Region | None] | None = None,
    ) -> npt.NDArray[np.float32]:
        """See `preprocess_batch`; equal to it to the last bit.

        Raises
        ------
        ArrayError
            As `preprocess_batch`.
        """
        executor = self._executor if len(images) > 1 else None
        return preprocess_batch(images, self._spec, regions=regions, executor=executor)

    def close(self) -> None:
        """End the threads; later calls work in the caller's thread."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()


def usable_cores() -> int:
    """Cores that this process may use, or all where the system does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
