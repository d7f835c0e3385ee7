"""Normalisation in log space along the last axis."""

from __future__ import annotations

from array_api_compat import is_numpy_namespace

from gain_core._rows import max_of, sum_of
from gain_core._typing import Array, Namespace


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
