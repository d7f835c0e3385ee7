"""Normalisation in log space along the last axis."""

from __future__ import annotations

from gain_core._typing import Array, Namespace


def logsumexp(values: Array, *, xp: Namespace) -> Array:
    """log sum exp over the last axis, kept as a length-one axis."""
    peak = xp.max(values, axis=-1, keepdims=True)
    total = xp.sum(xp.exp(values - peak), axis=-1, keepdims=True)
    return peak + xp.log(total)


def log_softmax(values: Array, *, xp: Namespace) -> Array:
    """Logarithm of the softmax over the last axis, by one operation where the library has it."""
    if hasattr(xp, "fused_log_softmax"):
        return xp.fused_log_softmax(values)
    shifted = values - xp.max(values, axis=-1, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))


def softmax(values: Array, *, xp: Namespace) -> Array:
    """Softmax over the last axis, by one operation where the library has it."""
    if hasattr(xp, "fused_softmax"):
        return xp.fused_softmax(values)
    weights = xp.exp(values - xp.max(values, axis=-1, keepdims=True))
    return weights / xp.sum(weights, axis=-1, keepdims=True)


def floored(log_probs: Array, *, floor: Array, xp: Namespace) -> Array:
    """Bound probabilities below by exp(floor) and renormalise."""
    bounded = xp.maximum(log_probs, floor)
    return bounded - logsumexp(bounded, xp=xp)
