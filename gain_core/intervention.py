"""How much of the correction to apply: the expected gain and its optimal strength."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import is_numpy_namespace

from gain_core._arrays import (
    Array,
    Namespace,
    log_softmax,
    max_of,
    min_of,
    namespace,
    softmax,
    sum_of,
)

# Newton steps from the chord of the log-odds, which are nearly straight in lambda (for two classes
# exactly): four reach float32 for the corrections that occur, twelve for rows made to be hard.
NUM_STEPS = 12
# Means of the evidence in its range are kept this far from its ends, where their logarithm ends.
EPS = 1e-12
# NumPy, which can look, stops after a step of this many roots of the rounding error: the next one
# would be about its square.
TOLERANCE = 0.1


def expected_gain(log_evaluator: Array, evidence: Array, /) -> Array:
    """G, the evaluator's expectation of the correction evidence, eq:posterior_predictive_gain.

    Parameters
    ----------
    log_evaluator, evidence : array, (B, K) floating
        log q_bar and xi, in nats.

    Returns
    -------
    array, (B,), dtype of the inputs
        In nats; equal to KL(q_bar || s) - KL(q_bar || q_hat).
    """
    xp = namespace(log_evaluator)
    return sum_of(xp.exp(log_evaluator) * evidence, xp=xp)


def evidence_path(source_log_probs: Array, evidence: Array, strength: Array, /) -> Array:
    """log p(lambda) on the path from the source to the proposal, eq:evidence_path.

    Parameters
    ----------
    source_log_probs, evidence : array, (B, K) floating
        log s and xi, in nats.
    strength : array, (B,) floating
        lambda in [0, 1].

    Returns
    -------
    array, (B, K), dtype of the inputs
        Normalised log-probabilities.
    """
    xp = namespace(source_log_probs)
    return log_softmax(source_log_probs + strength[:, None] * evidence, xp=xp)


def slope(source_log_probs: Array, evidence: Array, /, *, gain: Array, strength: Array) -> Array:
    """J'(lambda) = G - E_p(lambda)[xi], non-increasing in lambda (app:intervention).

    Parameters
    ----------
    source_log_probs, evidence : array, (B, K) floating
        log s and xi, in nats.
    gain, strength : array, (B,) floating
        G in nats, and lambda in [0, 1].

    Returns
    -------
    array, (B,), dtype of the inputs
        In nats.
    """
    xp = namespace(source_log_probs)
    weights = softmax(source_log_probs + strength[:, None] * evidence, xp=xp)
    return gain - sum_of(weights * evidence, xp=xp)


def solve_strength(source_log_probs: Array, evidence: Array, /, *, gain: Array) -> Array:
    """lambda*, the maximiser of the concave J over [0, 1], eq:app_optimal_lambda.

    Parameters
    ----------
    source_log_probs, evidence : array, (B, K) floating
        log s and xi = log q_hat - log s, with s and q_hat normalised.
    gain : array, (B,) floating
        G in nats.

    Returns
    -------
    array, (B,), dtype of the inputs
        0 where J'(0) <= 0 (nothing to gain, or no evidence at all), else 1 where J'(1) >= 0,
        else the root of J', by Newton's method inside a bracket.
    """
    xp = namespace(source_log_probs)
    # p(0) = s and p(1) = q_hat need no normalisation.
    first = sum_of(xp.exp(source_log_probs) * evidence, xp=xp)
    last = sum_of(xp.exp(source_log_probs + evidence) * evidence, xp=xp)
    rises, falls = gain > first, gain < last
    if not is_numpy_namespace(xp):
        zeros, ones = xp.zeros_like(gain), xp.ones_like(gain)
        root = _root(source_log_probs, evidence, gain=gain, ends=(first, last), xp=xp)
        return xp.where(rises, xp.where(falls, root, ones), zeros)
    strength: Any = np.asarray(rises).astype(gain.dtype)
    inner: Any = rises & falls
    if not inner.any():
        return strength
    if inner.shape[0] == 1:
        return _root_of_one(source_log_probs, evidence, gain=gain, ends=(first, last), xp=xp)
    # On the host a boolean index costs little, so decided rows are left out.
    strength[inner] = _root(
        source_log_probs[inner],
        evidence[inner],
        gain=gain[inner],
        ends=(first[inner], last[inner]),
        xp=xp,
    )
    return strength


def _root(
    start: Array, evidence: Array, *, gain: Array, ends: tuple[Array, Array], xp: Namespace
) -> Array:
    """Where E_p(lambda)[xi] = G, for rows that have such a place between 0 and 1.

    `ends` are E_p(0)[xi] and E_p(1)[xi]. With r the evidence scaled to [0, 1] and r' = 1 - r, the
    log-odds log E[r] - log E[r'] have the slope span (1 - E[r r'] / (E[r] E[r'])), which is
    nearly constant. A step that crosses the middle of the bracket ends there, so that none goes
    round in circles.
    """
    low, high = min_of(evidence, xp=xp), max_of(evidence, xp=xp)
    span = xp.maximum(high - low, xp.ones_like(low) * EPS)
    over = (evidence - low[:, None]) / span[:, None]
    under = 1.0 - over
    some = xp.ones_like(gain) * EPS

    def log_odds(mean: Array) -> Array:
        above, below = (mean - low) / span, (high - mean) / span
        return xp.log(xp.maximum(above, some)) - xp.log(xp.maximum(below, some))

    target, first, last = log_odds(gain), log_odds(ends[0]), log_odds(ends[1])
    left, right = xp.zeros_like(gain), xp.ones_like(gain)
    strength = (target - first) / xp.maximum(last - first, some)
    strength = xp.minimum(xp.maximum(strength, left), right)
    for _ in range(NUM_STEPS):
        weights = softmax(start + strength[:, None] * evidence, xp=xp)
        weighted = weights * over
        above = xp.maximum(sum_of(weighted, xp=xp), some)
        below = xp.maximum(sum_of(weights * under, xp=xp), some)
        missing = target - (xp.log(above) - xp.log(below))
        left = xp.where(missing > 0, strength, left)
        right = xp.where(missing > 0, right, strength)
        rate = span * (1.0 - sum_of(weighted * under, xp=xp) / (above * below))
        step = missing / xp.maximum(rate, some)
        short = xp.abs(step) <= 0.5 * (right - left)
        moved, strength = strength, xp.where(short, strength + step, 0.5 * (left + right))
        if is_numpy_namespace(xp) and abs(strength - moved).max() < _tolerance(gain):
            break
    return strength


def _root_of_one(
    start: Array, evidence: Array, *, gain: Array, ends: tuple[Array, Array], xp: Namespace
) -> Array:
    """`_root` of one row of NumPy's, with Python's numbers, which take a tenth of the time."""
    path, xi = np.asarray(start)[0], np.asarray(evidence)[0]
    low, high = float(xi.min()), float(xi.max())
    span = high - low
    over = (xi - low) / span
    under = 1.0 - over
    both = over * under

    def log_odds(above: Any, below: Any) -> float:
        return math.log(max(above, EPS)) - math.log(max(below, EPS))

    target, first, last = (
        log_odds((mean - low) / span, (high - mean) / span)
        for mean in (np.asarray(row)[0] for row in (gain, *ends))
    )
    left, right, tolerance = 0.0, 1.0, _tolerance(gain)
    strength = min(max((target - first) / max(last - first, EPS), left), right)
    for _ in range(NUM_STEPS):
        logits = path + strength * xi
        weights = np.exp(logits - logits.max())
        above, below = float(weights @ over), float(weights @ under)
        total = above + below
        above, below = max(above / total, EPS), max(below / total, EPS)
        missing = target - (math.log(above) - math.log(below))
        left, right = (strength, right) if missing > 0 else (left, strength)
        rate = span * (1.0 - float(weights @ both) / (total * above * below))
        step = missing / max(rate, EPS)
        short = abs(step) <= 0.5 * (right - left)
        moved, strength = strength, strength + step if short else 0.5 * (left + right)
        if abs(strength - moved) < tolerance:
            break
    return xp.full_like(gain, strength)


def _tolerance(like: Any) -> float:
    """A step after which NumPy stops."""
    return TOLERANCE * math.sqrt(np.finfo(like.dtype).eps)
