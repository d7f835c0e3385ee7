"""Turning frames into `pixel_values` exactly as timm's evaluation transform does."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from operator import index

import numpy as np
import numpy.typing as npt
from PIL import Image

from gain_core.errors import ArrayError, ConfigError
from gain_runtime.files.manifest import Preprocess
from gain_runtime.frames import Closing

__all__ = [
    "BatchPreprocessor",
    "Region",
    "ResizedCrop",
    "check_frame",
    "clipped_region",
    "no_array_error",
    "normalised_levels",
    "one_region_each",
    "preprocess",
    "preprocess_batch",
    "resized_crop",
    "usable_cores",
]

Region = tuple[int, int, int, int]

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

# Reach in pixels of the result, and weight by distance.
_KERNELS: dict[str, tuple[float, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]]] = {
    "bilinear": (1.0, lambda x: 1.0 - x),
    "bicubic": (
        2.0,
        lambda x: np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, ((2.5 - 0.5 * x) * x - 4) * x + 2),
    ),
    "lanczos": (3.0, lambda x: np.sinc(x) * np.sinc(x / 3.0)),
}

# Pixels of the result that the widest filter (lanczos) reaches, and one for rounding.
REACH = 4.0
# Shrunk so much, Pillow takes longer than products of matrices with the same weights. These rows
# of a frame and these columns of the result at a time stay in the processor's cache.
STRONG = 6.0
ROWS, COLUMNS = 64, 8
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
    exact: bool = True,
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
    exact : bool, optional
        False scales only what the crop keeps: in half the time where it keeps half of a frame,
        and within two levels of 255 of timm. A tall frame may be scaled whole, see `_rows_first`.
        What shrinks sixfold or more takes half of Pillow's time.

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
    _write(pixel_values, image, spec, region=region, table=table, exact=exact)
    return pixel_values


def preprocess_batch(
    images: Sequence[npt.NDArray[np.uint8]],
    spec: Preprocess,
    /,
    *,
    regions: Sequence[Region | None] | None = None,
    executor: Executor | None = None,
    exact: bool = True,
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
    exact : bool, optional
        As for `preprocess`.

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
        _write(
            *(pixel_values[row], images[row], spec), region=regions[row], table=table, exact=exact
        )

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
    exact: bool,
) -> None:
    """Preprocess one frame into `pixel_values`, (3, height_px, width_px)."""
    image = _checked(image)
    left, top, right, bottom = clipped_region(image.shape[0], image.shape[1], region)
    resize = _resize_and_crop if exact else _resize_what_is_kept
    levels = np.asarray(resize(image[top:bottom, left:right], spec))
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


def _resize_and_crop(image: npt.NDArray[np.uint8], spec: Preprocess) -> Image.Image:
    """Scale with an antialiased filter, then cut out the centre."""
    crop = resized_crop(image.shape[0], image.shape[1], spec)
    pillow = Image.fromarray(image)
    if pillow.size != (crop.width_px, crop.height_px):
        # No reducing_gap and no box: both are faster and neither gives the same pixels (a box is
        # off by one level here and there; a gap, or a JPEG drafted smaller, by up to five).
        pillow = pillow.resize((crop.width_px, crop.height_px), _FILTERS[spec.interpolation])
    if pillow.size == (spec.width_px, spec.height_px):
        return pillow
    right, bottom = crop.left_px + spec.width_px, crop.top_px + spec.height_px
    return pillow.crop((crop.left_px, crop.top_px, right, bottom))


def _resize_what_is_kept(
    image: npt.NDArray[np.uint8], spec: Preprocess
) -> Image.Image | npt.NDArray[np.uint8]:
    """Scale the part of a frame that the crop keeps; Pillow rounds its corners to float32."""
    height, width = image.shape[:2]
    crop = resized_crop(height, width, spec)
    across, down = width / crop.width_px, height / crop.height_px
    rows_first = _rows_first((width, height), (crop.width_px, crop.height_px))
    if across >= STRONG and down >= 1.0 and spec.interpolation != "nearest" and not rows_first:
        return _shrunk(image, crop, spec)
    right, bottom = crop.left_px + spec.width_px, crop.top_px + spec.height_px
    box = (crop.left_px * across, crop.top_px * down, right * across, bottom * down)
    # The filter reaches beyond the part; what lies further out need not be copied.
    x, y = (
        max(math.floor(edge - REACH * max(by, 1.0)), 0)
        for edge, by in ((box[0], across), (box[1], down))
    )
    far_x, far_y = (
        min(math.ceil(edge + REACH * max(by, 1.0)), most)
        for edge, by, most in ((box[2], across, width), (box[3], down, height))
    )
    size = spec.width_px, spec.height_px
    part = _rows_first((far_x - x, far_y - y), size)
    if part != rows_first:
        return _resize_and_crop(image, spec)
    return Image.fromarray(image[y:far_y, x:far_x]).resize(
        size,
        _FILTERS[spec.interpolation],
        box=(box[0] - x, box[1] - y, min(box[2] - x, far_x - x), min(box[3] - y, far_y - y)),
    )


def _shrunk(
    image: npt.NDArray[np.uint8], crop: ResizedCrop, spec: Preprocess
) -> npt.NDArray[np.uint8]:
    """As Pillow scales, across before down and rounded between, in float32."""
    height, width = image.shape[:2]
    across = _bands(width, crop.width_px, crop.left_px, spec.width_px, spec.interpolation)
    down = _bands(height, crop.height_px, crop.top_px, spec.height_px, spec.interpolation)
    narrow = np.empty((3, height, spec.width_px), dtype=np.float32)
    planes = np.empty((3, ROWS, width), dtype=np.float32)
    left, right = across[0][1].start, across[-1][1].stop
    for top in range(0, height, ROWS):
        rows = slice(top, min(top + ROWS, height))
        part = planes[:, : rows.stop - top]
        part[..., left:right] = image[rows, left:right].transpose(2, 0, 1)
        for kept, taken, weights in across:
            np.matmul(part[..., taken], weights, out=narrow[:, rows, kept])
    # Pillow rounds halves up.
    np.clip(np.floor(narrow + 0.5, out=narrow), 0.0, 255.0, out=narrow)
    small = np.empty((spec.height_px, spec.width_px, 3), dtype=np.float32)
    for kept, taken, weights in down:
        small[kept] = np.matmul(weights.T, narrow[:, taken]).transpose(1, 2, 0)
    levels: npt.NDArray[np.uint8] = np.clip(np.floor(small + 0.5), 0.0, 255.0).astype(np.uint8)
    return levels


@lru_cache(maxsize=16)
def _bands(
    size: int, resized: int, first: int, count: int, interpolation: str
) -> list[tuple[slice, slice, npt.NDArray[np.float32]]]:
    """Pillow's weights of `size` pixels for `count` of the `resized` ones, from `first` on.

    Each band has the pixels of the result, those of the image that they need, and the weights.
    """
    radius, kernel = _KERNELS[interpolation]
    scale = size / resized
    bands = []
    for start in range(0, count, COLUMNS):
        kept = slice(start, min(start + COLUMNS, count))
        centre = (np.arange(first + kept.start, first + kept.stop) + 0.5) * scale
        low = max(int(centre[0] - radius * scale), 0)
        high = min(int(centre[-1] + radius * scale) + 1, size)
        distance = np.abs(np.arange(low, high)[:, None] + 0.5 - centre) / scale
        weights = np.where(distance < radius, kernel(distance), 0.0)
        # Pillow keeps 22 bits behind the point.
        weights = np.rint(weights / weights.sum(axis=0) * 2**22) / 2**22
        bands.append((kept, slice(low, high), weights.astype(np.float32)))
    return bands


def _rows_first(size: tuple[int, int], resized: tuple[int, int]) -> bool:
    """Whether Pillow 13 scales (width, height) down before across: it rounds and clips between."""
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
    exact : bool, optional
        As for `preprocess`.

    Raises
    ------
    ConfigError
        If `threads` is below 1.
    """

    def __init__(self, spec: Preprocess, /, *, threads: int | None = 1, exact: bool = True) -> None:
        if threads is None:
            threads = usable_cores()
        if threads < 1:
            raise ConfigError(f"preprocess_threads: expected at least 1, got {threads}")
        self._spec = spec
        self._exact = exact
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
        return preprocess_batch(
            images, self._spec, regions=regions, executor=executor, exact=self._exact
        )

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
