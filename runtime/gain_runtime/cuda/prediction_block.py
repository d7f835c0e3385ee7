"""A batch's prediction in one block of memory, of which one copy takes the host its part."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_core import Prediction
from gain_core._typing import Array
from gain_runtime.device_buffers import DeviceArray

__all__ = [
    "BlockLayout",
    "PredictionBlock",
    "host_part",
    "layout_of",
    "new_block",
    "read_host_part",
]


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Where what lies in the bytes of a block.

    Attributes
    ----------
    nbytes : int
        Length of the block.
    arrays : tuple
        Offset, shape and dtype of probs, log-probs, source, strength, gain, the guard's trips, the
        rows' flags and the flag of all.
    """

    nbytes: int
    arrays: tuple[tuple[int, tuple[int, ...], Any], ...]

    @property
    def host_from(self) -> int:
        """Where the part begins that the host needs: behind probs, which follow from log-probs."""
        return self.arrays[1][0]

    @property
    def host_nbytes(self) -> int:
        """Length of that part."""
        return self.nbytes - self.host_from


@lru_cache(maxsize=64)
def layout_of(batch_size: int, num_classes: int, dtype: Any, /) -> BlockLayout:
    """The layout for a batch: the reals first, so that all of them are aligned."""
    matrix, column, flag = (batch_size, num_classes), (batch_size,), np.dtype(np.bool_)
    shapes: list[tuple[tuple[int, ...], Any]] = [(matrix, dtype)] * 3
    shapes += [(column, dtype)] * 2 + [((), dtype), (column, flag), ((), flag)]
    arrays, begin = [], 0
    for shape, kind in shapes:
        arrays.append((begin, shape, kind))
        begin += math.prod(shape) * kind.itemsize
    return BlockLayout(begin, tuple(arrays))


@dataclass(frozen=True, slots=True, eq=False)
class PredictionBlock:
    """The block and the arrays in it.

    Attributes
    ----------
    layout : BlockLayout
    block : array, (nbytes,) uint8
    prediction : Prediction
    trips : array, ()
        How often the guard has tripped; of any value where there is no guard.
    row_finite : array, (B,) bool
    """

    layout: BlockLayout
    block: DeviceArray
    prediction: Prediction
    trips: Array
    row_finite: Array

    @classmethod
    def over(cls, block: DeviceArray, layout: BlockLayout, /) -> PredictionBlock:
        """Name what lies in a block, on whatever device it is."""
        probs, log_probs, source, strength, gain, trips, row_finite, finite = (
            _array_at(block, *place) for place in layout.arrays
        )
        prediction = Prediction(
            probs=probs,
            log_probs=log_probs,
            strength=strength,
            gain=gain,
            source_log_probs=source,
            finite=finite,
        )
        return cls(layout, block, prediction, trips, row_finite)


def new_block(batch_size: int, /, *, like: Array) -> PredictionBlock:
    """A block for a batch, not filled.

    Parameters
    ----------
    batch_size : int
        B, at least 1.
    like : array, (K, ...) floating
        Gives the number of classes, the dtype and the library. Allocated on the current device.

    Returns
    -------
    PredictionBlock
    """
    layout = layout_of(batch_size, like.shape[0], like.dtype)
    # The class's own constructor allocates, and costs a tenth of the library's `empty`.
    make: Any = type(like)
    return PredictionBlock.over(make((layout.nbytes,), np.uint8), layout)


def host_part(prediction: Prediction, /) -> tuple[DeviceArray, BlockLayout]:
    """The bytes of a prediction that the host needs, as one array.

    Parameters
    ----------
    prediction : Prediction
        Of B >= 1 rows, made in a block on the device.

    Returns
    -------
    part : array, (host_nbytes,) uint8
        Everything but `probs`, about two thirds of the block; see `read_host_part`.
    layout : BlockLayout
    """
    probs: DeviceArray = prediction.probs
    layout = layout_of(*probs.shape, probs.dtype)
    part = (layout.host_nbytes,)
    return _array_at(probs, layout.host_from, part, np.dtype(np.uint8)), layout


def read_host_part(
    part: npt.NDArray[np.uint8], layout: BlockLayout, /
) -> tuple[Prediction, npt.NDArray[Any]]:
    """A prediction from its bytes on the host.

    Parameters
    ----------
    part : array, (host_nbytes,) uint8
        A copy of `host_part`'s; referred to by the result.
    layout : BlockLayout

    Returns
    -------
    prediction : Prediction
        `probs` is the exponential of `log_probs`, as `gain_core` has it.
    trips : array, ()
        See `PredictionBlock`.
    """
    begin = layout.host_from
    log_probs, source, strength, gain, trips, _, finite = (
        np.ndarray(shape, dtype, buffer=part, offset=offset - begin)
        for offset, shape, dtype in layout.arrays[1:]
    )
    # A rejected batch holds anything.
    with np.errstate(over="ignore", invalid="ignore"):
        probs = np.exp(log_probs)
    prediction = Prediction(
        probs=probs,
        log_probs=log_probs,
        strength=strength,
        gain=gain,
        source_log_probs=source,
        finite=finite,
    )
    return prediction, trips


def _array_at(block: DeviceArray, offset: int, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
    """An array over a part of the memory that begins where `block` does."""
    if isinstance(block, np.ndarray):
        return np.ndarray(shape, dtype, buffer=block, offset=offset)
    return type(block)(shape, dtype, memptr=block.data + offset)
