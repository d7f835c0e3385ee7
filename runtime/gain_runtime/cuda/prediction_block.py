"""A batch's prediction in one block of memory, so that one copy takes it anywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gain_core import Prediction
from gain_core._typing import Array
from gain_runtime.device_buffers import DeviceArray

__all__ = ["BlockLayout", "PredictionBlock", "block_of", "layout_of", "new_block"]


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Where what lies in the bytes of a block.

    Attributes
    ----------
    nbytes : int
        Length of the block.
    arrays : tuple
        Offset, shape and dtype of probs, log-probs, source, strength, gain, the rows' flags and
        the flag of all.
    """

    nbytes: int
    arrays: tuple[tuple[int, tuple[int, ...], Any], ...]


@lru_cache(maxsize=64)
def layout_of(batch_size: int, num_classes: int, dtype: Any, /) -> BlockLayout:
    """The layout for a batch: the reals first, so that all of them are aligned."""
    matrix, column, flag = (batch_size, num_classes), (batch_size,), np.dtype(np.bool_)
    shapes: list[tuple[tuple[int, ...], Any]] = [(matrix, dtype)] * 3
    shapes += [(column, dtype)] * 2 + [(column, flag), ((), flag)]
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
    row_finite : array, (B,) bool
    """

    layout: BlockLayout
    block: DeviceArray
    prediction: Prediction
    row_finite: Array

    @classmethod
    def over(cls, block: DeviceArray, layout: BlockLayout, /) -> PredictionBlock:
        """Name what lies in a block, on whatever device it is."""
        probs, log_probs, source, strength, gain, row_finite, finite = (
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
        return cls(layout, block, prediction, row_finite)


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


def block_of(prediction: Prediction, /) -> tuple[DeviceArray, BlockLayout]:
    """The block that a prediction lies in.

    Parameters
    ----------
    prediction : Prediction
        Of B >= 1 rows, made in a block.

    Returns
    -------
    block : array, (nbytes,) uint8
    layout : BlockLayout
    """
    probs: DeviceArray = prediction.probs
    layout = layout_of(*probs.shape, probs.dtype)
    return _array_at(probs, 0, (layout.nbytes,), np.dtype(np.uint8)), layout


def _array_at(block: DeviceArray, offset: int, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
    """An array over a part of a block, of which the one given is the whole or the first."""
    if isinstance(block, np.ndarray):
        whole = block if block.base is None else block.base
        return np.ndarray(shape, dtype, buffer=whole, offset=offset)
    return type(block)(shape, dtype, memptr=block.data + offset)
