"""Sums, choices and normalisation along the classes of a batch.

A frame is one row of few classes, so a call costs more than its arithmetic: through the array API
a sum takes 7 us, of which NumPy, asked directly, needs 3.
"""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy
import numpy as np
from array_api_compat import array_namespace, is_numpy_namespace

from gain_core._typing import Array, Namespace

__all__ = [
    "all_of",
    "any_of",
    "choose",
    "max_of",
    "min_of",
    "namespace",
    "sum_of",
]


def logsumexp(values: Array, *, xp: Namespace) -> Array:
    """log sum exp over the last axis, kept as a length-one axis."""
    peak = max_of(values, keepdims=True, xp=xp)
    return peak + xp.log(sum_of(xp.exp(values - peak), keepdims=True, xp=xp))


def log_softmax(values: Array, *, xp: Namespace) -> Array:
    """Logarithm of the softmax over the last axis, by one operation where the library has it."""
    if not is_numpy_namespace(xp) and hasattr(xp, "fused_log_softmax"):
        return xp.fused_log_softmax(values)
    shifted = values - max_of(values, keepdims=True, xp=xp)
    return shifted - xp.log(sum_of(xp.exp(shifted), keepdims=True, xp=xp))


def softmax(values: Array, *, xp: Namespace) -> Array:
    """Softmax over the last axis, by one operation where the library has it."""
    if not is_numpy_namespace(xp) and hasattr(xp, "fused_softmax"):
        return xp.fused_softmax(values)
    weights = xp.exp(values - max_of(values, keepdims=True, xp=xp))
    return weights / sum_of(weights, keepdims=True, xp=xp)


def floored(log_probs: Array, *, floor: Array, xp: Namespace) -> Array:
    """Bound probabilities below by exp(floor) and renormalise."""
    bounded = xp.maximum(log_probs, floor)
    return bounded - logsumexp(bounded, xp=xp)


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
