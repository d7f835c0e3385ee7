"""How much of the correction to apply: the expected gain and its optimal strength."""

from __future__ import annotations

from array_api_compat import array_namespace, is_numpy_namespace

from gain_core._checks import scalar
from gain_core._logspace import log_softmax
from gain_core._numpy_bisection import interior_root
from gain_core._typing import Array, Namespace

__all__ = ["evidence_path", "expected_gain", "slope", "solve_strength"]


def expected_gain(log_evaluator: Array, evidence: Array, /) -> Array:
    """G, the evaluator's expectation of the correction evidence, eq:posterior_predictive_gain.

    Parameters
    ----------
    log_evaluator, evidence : array, (B, K)
        log q_bar and xi.

    Returns
    -------
    array, (B,)
        In nats; equal to KL(q_bar || s) - KL(q_bar || q_hat).
    """
    xp = array_namespace(log_evaluator, evidence)
    return xp.sum(xp.exp(log_evaluator) * evidence, axis=1)


def evidence_path(source_log_probs: Array, evidence: Array, strength: Array, /) -> Array:
    """log p(lambda) on the path from the source to the proposal, eq:evidence_path.

    Parameters
    ----------
    source_log_probs, evidence : array, (B, K)
        log s and xi.
    strength : array, (B,)
        lambda in [0, 1].

    Returns
    -------
    array, (B, K)
        Normalised log-probabilities.
    """
    xp = array_namespace(source_log_probs, evidence)
    return log_softmax(source_log_probs + strength[:, None] * evidence, xp=xp)


def slope(source_log_probs: Array, evidence: Array, /, *, gain: Array, strength: Array) -> Array:
    """J'(lambda) = G - E_p(lambda)[xi], non-increasing in lambda (app:intervention).

    Parameters
    ----------
    source_log_probs, evidence : array, (B, K)
        log s and xi.
    gain, strength : array, (B,)
        G and lambda.

    Returns
    -------
    array, (B,)
    """
    xp = array_namespace(source_log_probs, evidence)
    path = source_log_probs + strength[:, None] * evidence
    weights = xp.exp(path - xp.max(path, axis=1, keepdims=True))
    mean: Array = xp.sum(weights * evidence, axis=1) / xp.sum(weights, axis=1)
    return gain - mean


def solve_strength(
    source_log_probs: Array, evidence: Array, /, *, gain: Array, num_iters: int
) -> Array:
    """lambda*, the maximiser of the concave J over [0, 1], eq:app_optimal_lambda.

    Parameters
    ----------
    source_log_probs, evidence : array, (B, K)
        log s and xi.
    gain : array, (B,)
        G.
    num_iters : int
        Halvings; the result is within 2^-(num_iters + 1) of the root.

    Returns
    -------
    array, (B,)
        0 where J'(0) <= 0 (nothing to gain, or no evidence at all), else 1 where J'(1) >= 0,
        else the root of J'. On NumPy only rows with an inner root are bisected; elsewhere all
        rows are, so that nothing is read on the host.
    """
    xp = array_namespace(source_log_probs, evidence, gain)
    zeros, ones = xp.zeros_like(gain), xp.ones_like(gain)
    at_zero = slope(source_log_probs, evidence, gain=gain, strength=zeros)
    at_one = slope(source_log_probs, evidence, gain=gain, strength=ones)
    strength = xp.where(at_one >= 0, ones, zeros)
    strength = xp.where(at_zero > 0, strength, zeros)
    inner = (at_zero > 0) & (at_one < 0)
    if is_numpy_namespace(xp):
        return interior_root(
            source_log_probs,
            evidence,
            gain=gain,
            strength=strength,
            inner=inner,
            num_iters=num_iters,
        )
    root = _bisect(source_log_probs, evidence, gain=gain, num_iters=num_iters, xp=xp)
    return xp.where(inner, root, strength)


def _bisect(
    source_log_probs: Array, evidence: Array, *, gain: Array, num_iters: int, xp: Namespace
) -> Array:
    """Midpoint of the bracket after a fixed number of halvings on every row."""
    low = xp.zeros_like(gain)
    half = scalar(1.0, like=gain, xp=xp)
    for _ in range(num_iters):
        half = 0.5 * half
        rising = slope(source_log_probs, evidence, gain=gain, strength=low + half) > 0
        low = xp.where(rising, low + half, low)
    return low + 0.5 * half
