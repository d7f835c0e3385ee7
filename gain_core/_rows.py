"""Reductions and choices that NumPy, asked directly, answers in half the time.

A frame is one row of few classes, so a call costs more than its arithmetic: through the array API
a sum takes 7 us, of which NumPy needs 3.
"""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy
import numpy as np
from array_api_compat import array_namespace, is_numpy_namespace

from gain_core._typing import Array, Namespace

__all__ = ["all_of", "any_of", "choose", "max_of", "min_of", "namespace", "sum_of"]


def namespace(array: Any, /) -> Namespace:
    """`array_namespace`, at once where it is NumPy."""
    if type(array) is np.ndarray:
        return array_api_compat.numpy
    return array_namespace(array)


def sum_of(values: Any, *, xp: Namespace, axis: int = -1, keepdims: bool = False) -> Array:
    """The sum over an axis."""
    call: Any = np.add.reduce if is_numpy_namespace(xp) else xp.sum
    return call(values, axis=axis, keepdims=keepdims)


def max_of(values: Any, *, xp: Namespace, keepdims: bool = False) -> Array:
    """The largest of the last axis."""
    call: Any = np.maximum.reduce if is_numpy_namespace(xp) else xp.max
    return call(values, axis=-1, keepdims=keepdims)


def min_of(values: Any, *, xp: Namespace) -> Array:
    """The smallest of the last axis."""
    call: Any = np.minimum.reduce if is_numpy_namespace(xp) else xp.min
    return call(values, axis=-1)


def all_of(flags: Any, *, xp: Namespace) -> Array:
    """Whether all are set, ()."""
    if is_numpy_namespace(xp):
        return np.logical_and.reduce(flags, axis=None)
    return xp.all(flags)


def any_of(flags: Any, *, xp: Namespace) -> Array:
    """Whether any is set, ()."""
    if is_numpy_namespace(xp):
        return np.logical_or.reduce(flags, axis=None)
    return xp.any(flags)


def choose(flag: Array, first: Array, second: Array, *, xp: Namespace) -> Array:
    """`first` where one flag () is set, else `second`, of the same shape; neither is copied."""
    if is_numpy_namespace(xp):
        return first if flag else second
    return xp.where(flag, first, second)
