"""The learning half of a step as graph: sums and geometry, as `gain_core.commit` has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gain_core.geometry import MIN_DIVISOR, MIN_SUPPORT, MIN_TOTAL_VARIANCE

from gain_core import GainConfig
from gain_export.adaptive.expressions import (
    Value,
    column,
    exp,
    expand,
    maximum,
    row,
    squeeze,
    total,
    where,
)
from gain_export.adaptive.head_graph import Head
from gain_export.adaptive.predict_graph import scale_of

__all__ = ["EvidenceValues", "learn"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvidenceValues:
    """Rows to learn from: `gain_core.statistics.Evidence` as values of the graph.

    `features` (M, D), `probs` (M, K), `reliability` and `accepted` (M, 1); rows whose `accepted`
    is 0 are zero.
    """

    features: Value
    probs: Value
    reliability: Value
    accepted: Value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sums:
    """`gain_core.statistics.Statistics`; vectors are rows (1, N)."""

    support: Value
    predicted_mass: Value
    squared_support: Value
    first_moment: Value
    second_moment: Value
    sample_count: Value
    feature_sum: Value
    feature_square_sum: Value
    origin: Value


def learn(
    evidence: EvidenceValues, state: Mapping[str, Value], /, *, head: Head, config: GainConfig
) -> dict[str, Value]:
    """The new sums, regression memory and geometry, after at least one accepted row.

    Parameters
    ----------
    evidence : EvidenceValues
    state : mapping of str to Value
        By field, see `state_layout`.
    head : Head
    config : GainConfig

    Returns
    -------
    dict of str to Value
        By field, in the shapes of the layout; all but the frame count and the pending rows.
    """
    added = total(evidence.accepted)
    sums = _add(evidence, state, added=added, config=config)
    mean = sums.feature_sum / sums.sample_count
    numerator, denominator = state["scale_numerator"], state["scale_denominator"]
    if config.anchor == "balanced":
        fit = _regress(sums, head=head)
        decay = _decay(added, config.scale_half_life)
        numerator = numerator * decay + fit.covariance
        denominator = denominator * decay + fit.power
        scale = scale_of(numerator, denominator, config=config)
        base = where(total(sums.support) > 0.0, fit.mean, mean) - scale * fit.prototype
    else:
        scale = scale_of(numerator, denominator, config=config)
        base = head.mean - sums.origin
    prior_strength = config.strength_of_prior(head.num_classes)
    variance = _variance(sums, mean=mean, prior_strength=prior_strength, head=head, config=config)
    # m_k - mean with m_k = (kappa_0 (base + a c_k) + U_k) / kappa_k, eq:center_posterior.
    anchored = head.centered * (scale * prior_strength) + sums.first_moment + base * prior_strength
    centers = anchored / column(sums.support + prior_strength) - mean
    norms = (centers * centers) @ column(1.0 / variance)
    vectors = {
        "support": sums.support,
        "predicted_mass": sums.predicted_mass,
        "squared_support": sums.squared_support,
        "second_moment": sums.second_moment,
        "feature_sum": sums.feature_sum,
        "feature_square_sum": sums.feature_square_sum,
        "origin": sums.origin,
        "variance": variance,
    }
    return {name: squeeze(vector) for name, vector in vectors.items()} | {
        "center_norms": squeeze(norms, axis=1),
        "first_moment": sums.first_moment,
        "centers": centers,
        "sample_count": sums.sample_count,
        "scale_numerator": numerator,
        "scale_denominator": denominator,
    }


def _decay(added: Value, half_life: float) -> Value | float:
    """2^(-added / half_life), exactly one where nothing is forgotten."""
    if math.isinf(half_life):
        return 1.0
    return exp(added * (-math.log(2.0) / half_life))


def _add(
    evidence: EvidenceValues, state: Mapping[str, Value], *, added: Value, config: GainConfig
) -> _Sums:
    """Forget a little, by the rows added, and add them (app:continual_statistics)."""
    decay = _decay(added, config.half_life)

    def kept(field: str) -> Value:
        return state[field] if isinstance(decay, float) else state[field] * decay

    batch_mean = total(evidence.features, axis=0) / added
    origin = where(state["sample_count"] > 0.0, row(state["origin"]), batch_mean)
    centered = (evidence.features - origin) * evidence.accepted
    squares = centered * centered
    omega = evidence.reliability * evidence.probs
    # Decayed old sums enter as the product's third operand: no (K, D) temporary for the new ones.
    first_moment = omega.tape.apply("Gemm", omega, centered, kept("first_moment"), transA=1)
    return _Sums(
        support=total(omega, axis=0) + kept("support"),
        predicted_mass=total(evidence.probs, axis=0) + kept("predicted_mass"),
        squared_support=total(omega * omega, axis=0) + kept("squared_support"),
        first_moment=first_moment,
        second_moment=total(evidence.reliability * squares, axis=0) + kept("second_moment"),
        sample_count=kept("sample_count") + added,
        feature_sum=total(centered, axis=0) + kept("feature_sum"),
        feature_square_sum=total(squares, axis=0) + kept("feature_square_sum"),
        origin=origin,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Regression:
    """`gain_core.matrix_passes.Regression`; `mean` and `prototype` are rows (1, D)."""

    mean: Value
    prototype: Value
    covariance: Value
    power: Value


def _regress(sums: _Sums, *, head: Head) -> _Regression:
    """Moments of the class means against the prototypes, one vote per supported class.

    Differences are formed before products, as in `gain_core`: with nearly all votes on one class,
    expanding them would leave nothing but rounding.
    """
    votes = sums.support / (sums.support + 1.0)
    all_votes = total(votes)
    shares = votes / where(all_votes > 0.0, all_votes, 1.0)
    inverse = 1.0 / maximum(sums.support, MIN_DIVISOR)
    mean = (shares * inverse) @ sums.first_moment
    prototype = shares @ head.centered
    spread = head.centered - prototype
    deviation = sums.first_moment * column(inverse) - mean
    return _Regression(
        mean=mean,
        prototype=prototype,
        covariance=total(votes @ (deviation * spread)),
        power=total(votes @ (spread * spread)),
    )


def _variance(
    sums: _Sums, *, mean: Value, prior_strength: float, head: Head, config: GainConfig
) -> Value:
    """The shared covariance's diagonal (1, D): pooled scatter shrunk to its prior, floored."""
    seen = sums.support > MIN_SUPPORT
    inverse = where(seen, 1.0 / where(seen, sums.support, 1.0), 0.0)
    freedom = total(where(seen, sums.support, 0.0) - sums.squared_support * inverse)
    between = inverse @ (sums.first_moment * sums.first_moment)
    scatter = maximum(sums.second_moment - between, 0.0)
    spread = sums.feature_square_sum / sums.sample_count - mean * mean
    all_variance = maximum(spread, MIN_TOTAL_VARIANCE)
    prior: Value | float = 1.0 if config.prior_variance == "unit" else all_variance
    pooled = (scatter + prior_strength * prior) / (prior_strength + maximum(freedom, 0.0))
    least = maximum(config.variance_floor_ratio * all_variance, config.variance_floor)
    variance = maximum(pooled, least)
    if config.variance == "isotropic":
        average = total(variance, axis=1) / float(head.feature_dim)
        variance = expand(average, (1, head.feature_dim))
    return variance
