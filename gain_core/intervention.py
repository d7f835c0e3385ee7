"""How much of the correction to apply: the expected gain and its optimal strength."""

from __future__ import annotations

from array_api_compat import array_namespace, is_numpy_namespace

from gain_core._logspace import log_softmax, softmax
from gain_core._typing import Array, Namespace

__all__ = ["evidence_path", "expected_gain", "slope", "solve_strength"]

# Newton steps on log-odds, where J' is nearly straight (for two classes exactly): five reach
# float32 for the corrections that occur, twelve leave 1e-4 of a probability where all is peaked.
NUM_STEPS = 12
# A step that leaves more than half of what was missing, in nats, goes round in circles between two
# classes; below this nothing is missing.
CLOSE = 1e-4
# Shares of the evidence's range are kept this far from 0, where their logarithm ends.
EPS = 1e-12
# NumPy, which can look, stops once no strength moves by more than this.
TOLERANCE = 1e-7


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
    return gain - xp.sum(_weights(source_log_probs, evidence, strength, xp=xp) * evidence, axis=1)


def solve_strength(source_log_probs: Array, evidence: Array, /, *, gain: Array) -> Array:
    """lambda*, the maximiser of the concave J over [0, 1], eq:app_optimal_lambda.

    Parameters
    ----------
    source_log_probs, evidence : array, (B, K)
        log s and xi.
    gain : array, (B,)
        G.

    Returns
    -------
    array, (B,)
        0 where J'(0) <= 0 (nothing to gain, or no evidence at all), else 1 where J'(1) >= 0,
        else the root of J', by Newton's method inside a bracket.
    """
    xp = array_namespace(source_log_probs, evidence, gain)
    zeros, ones = xp.zeros_like(gain), xp.ones_like(gain)
    rises = slope(source_log_probs, evidence, gain=gain, strength=zeros) > 0
    falls = slope(source_log_probs, evidence, gain=gain, strength=ones) < 0
    inner = rises & falls
    strength = xp.where(rises, ones, zeros)
    if not is_numpy_namespace(xp):
        root = _root(source_log_probs, evidence, gain=gain, xp=xp)
    elif not inner.any():  # type: ignore[attr-defined]
        return strength
    elif inner.all():  # type: ignore[attr-defined]
        return _root(source_log_probs, evidence, gain=gain, xp=xp)
    else:
        # On the host a boolean index costs nothing, so decided rows are left out.
        root = xp.zeros_like(gain)
        root[inner] = _root(  # type: ignore[index]
            source_log_probs[inner], evidence[inner], gain=gain[inner], xp=xp
        )
    return xp.where(inner, root, strength)


def _weights(source_log_probs: Array, evidence: Array, strength: Array, *, xp: Namespace) -> Array:
    """p(lambda), (B, K)."""
    return softmax(source_log_probs + strength[:, None] * evidence, xp=xp)


def _root(source_log_probs: Array, evidence: Array, *, gain: Array, xp: Namespace) -> Array:
    """Where E_p(lambda)[xi] = G, for rows that have such a place between 0 and 1.

    With r the evidence scaled to [0, 1], the log-odds of E[r] are nearly linear in lambda, and
    exactly so for two classes. A step that leaves the bracket for good, or follows one that did
    not halve what is missing, is replaced by the bracket's middle.
    """
    low, high = xp.min(evidence, axis=1), xp.max(evidence, axis=1)
    span = xp.maximum(high - low, xp.ones_like(low) * EPS)
    scaled = (evidence - low[:, None]) / span[:, None]
    share = xp.clip((gain - low) / span, EPS, 1.0)
    target = xp.log(share) - xp.log(xp.clip((high - gain) / span, EPS, 1.0))
    left, right = xp.zeros_like(gain), xp.ones_like(gain)
    strength, before = 0.5 * right, right / EPS
    for _ in range(NUM_STEPS):
        weights = _weights(source_log_probs, evidence, strength, xp=xp)
        mean = xp.clip(xp.sum(weights * scaled, axis=1), EPS, 1.0)
        rest = xp.clip(xp.sum(weights * (1.0 - scaled), axis=1), EPS, 1.0)
        variance = xp.sum(weights * (scaled - mean[:, None]) ** 2, axis=1)
        missing = target - (xp.log(mean) - xp.log(rest))
        left = xp.where(missing > 0, strength, left)
        right = xp.where(missing > 0, right, strength)
        # d log-odds / d lambda = span var(r) (1 / mean + 1 / rest)
        rate = span * variance * (mean + rest) / (mean * rest)
        step = strength + missing / xp.maximum(rate, xp.ones_like(rate) * EPS)
        step, size = xp.clip(step, 0.0, 1.0), xp.abs(missing)
        near = xp.minimum(xp.maximum(step, left), right)
        works = ((step == near) & (size <= 0.5 * before)) | (size <= CLOSE)
        new = xp.where(works, near, 0.5 * (left + right))
        moved, strength, before = new - strength, new, size
        if is_numpy_namespace(xp) and abs(moved).max() < TOLERANCE:
            break
    return strength
