"""Where a frame's pixels are, which of them are needed, and along which axis they go first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_runtime.cuda.resample_weights import vertical_first
from gain_runtime.cuda.weight_cache import DeviceWeights, WeightCache
from gain_runtime.manifest import Preprocess
from gain_runtime.preprocess import (
    Region,
    ResizedCrop,
    check_frame,
    clipped_region,
    no_array_error,
    resized_crop,
)

__all__ = ["Cut", "FramePlan", "cut_out", "plan_frame"]

Strides = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A frame's region, checked.

    Attributes
    ----------
    host : array, (H, W, 3) uint8, or None
        The region's pixels, where they are on the host.
    address : int
        Its first pixel on the device; means nothing where it is on the host.
    strides : three ints
        Bytes between rows, columns and channels.
    height, width : int
        In px.
    crop : ResizedCrop
    """

    host: npt.NDArray[np.uint8] | None
    address: int
    strides: Strides
    height: int
    width: int
    crop: ResizedCrop


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePlan:
    """A frame as the kernels take it: lines one by one, places in them.

    Attributes
    ----------
    host : array, (rows, columns, 3) uint8, or None
        The pixels to upload: those that are needed. None where they are on the device.
    address, strides
        Of the needed pixels, as in `Cut`; of uploaded ones the strides on the device.
    places, lines : DeviceWeights
        Of the first pass and of the second.
    kept_places, kept_lines : int
        Output pixels along them.
    transposed : bool
        Whether lines are columns.
    """

    host: npt.NDArray[np.uint8] | None
    address: int
    strides: Strides
    places: DeviceWeights
    lines: DeviceWeights
    kept_places: int
    kept_lines: int
    transposed: bool

    @property
    def host_bytes(self) -> int:
        """How many bytes there are to upload."""
        return 0 if self.host is None else self.host.size

    @property
    def narrowed_bytes(self) -> int:
        """How many bytes the first pass writes."""
        return 3 * self.lines.length * self.kept_places

    def geometry(self, uploaded: int, /, *, reverse: bool) -> tuple[int, int, int, int]:
        """First needed pixel, and bytes between lines, places and channels.

        Parameters
        ----------
        uploaded : int
            Where `host` went.
        reverse : bool
            Whether the last channel comes first.
        """
        row, column, channel = self.strides
        line, place = (column, row) if self.transposed else (row, column)
        begin = self.address if self.host is None else uploaded
        if reverse:
            begin, channel = begin + 2 * channel, -channel
        return begin, line, place, channel


def cut_out(image: Any, region: Region | None, spec: Preprocess, /) -> Cut:
    """Check a frame and its region, as `preprocess` does.

    Parameters
    ----------
    image : array, (H, W, 3) uint8
        A NumPy array, or one with `__cuda_array_interface__`.
    region : region or None
    spec : Preprocess

    Raises
    ------
    ArrayError
    """
    host = image if isinstance(image, np.ndarray) else None
    if host is not None:
        shape, dtype, strides, address = host.shape, host.dtype, host.strides, 0
    else:
        interface = getattr(image, "__cuda_array_interface__", None)
        if interface is None:
            raise no_array_error(image)
        shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
        strides, address = interface.get("strides"), interface["data"][0]
    check_frame(shape, dtype)
    row, column, channel = strides or (3 * shape[1], 3, 1)
    left, top, right, bottom = clipped_region(shape[0], shape[1], region)
    height, width = bottom - top, right - left
    return Cut(
        host=None if host is None else host[top:bottom, left:right],
        address=address + top * row + left * column,
        strides=(row, column, channel),
        height=height,
        width=width,
        crop=resized_crop(height, width, spec),
    )


def plan_frame(cut: Cut, spec: Preprocess, weights: WeightCache, /) -> FramePlan:
    """The weights of a cut, and the pixels they need."""
    crop = cut.crop
    columns = weights.find(cut.width, crop.width_px, first=crop.left_px, kept=spec.width_px)
    rows = weights.find(cut.height, crop.height_px, first=crop.top_px, kept=spec.height_px)
    transposed = vertical_first(cut.height, cut.width, crop)
    host, strides = None, cut.strides
    if cut.host is not None:
        below, beside = rows.first + rows.length, columns.first + columns.length
        host = cut.host[rows.first : below, columns.first : beside]
        strides = (3 * columns.length, 3, 1)
    return FramePlan(
        host=host,
        address=cut.address + rows.first * cut.strides[0] + columns.first * cut.strides[1],
        strides=strides,
        places=rows if transposed else columns,
        lines=columns if transposed else rows,
        kept_places=spec.height_px if transposed else spec.width_px,
        kept_lines=spec.width_px if transposed else spec.height_px,
        transposed=transposed,
    )
