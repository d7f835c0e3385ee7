"""The target statistics: sums over the stream, about a fixed origin.

Everything GAIN learns is a sum over frames, so forgetting is one factor, and two states that saw
different frames merge by addition. Sums of squares are taken about an origin near the features
(the mean of the first frames), because float32 loses E[z^2] - E[z]^2 when the mean is large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from array_api_compat import array_namespace, device

from gain_core._checks import scalar
from gain_core._typing import Array, Namespace
from gain_core.matrix_passes import decayed_responsible_sum, decayed_sum, responsible_sum

__all__ = [
    "Evidence",
    "Statistics",
    "about",
    "absorb",
    "accumulate",
    "combine",
    "concatenate",
    "decay_factor",
    "empty_statistics",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a batch says about the target: the rows from which its sums are made.

    Attributes
    ----------
    features : array, (B, D)
        In the state's dtype, normalised if the config says so.
    responsibilities : array, (B, K)
        omega = zeta p*.
    probs : array, (B, K)
        p*; q_0 where the shift has a prior on the classes, its proposal without that.
    source_log_probs : array, (B, K)
        log s; read by the shift and its guard only.
    reliability : array, (B,)
        zeta, the source's probability of the adapted class.
    answered : array, (B,) integer
        The class of the largest p*; read by the guard only.
    accepted : array, (B,)
        1, or 0 for the rows of a batch that held a value that is not finite; all else in such
        rows is zero.
    """

    features: Array
    responsibilities: Array
    probs: Array
    source_log_probs: Array
    reliability: Array
    answered: Array
    accepted: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Sums over frames, each frame's weight halved every `half_life` frames.

    Moments are taken of z - origin.

    Attributes
    ----------
    support : array, (K,)
        n = sum of omega.
    predicted_mass : array, (K,)
        n_hat = sum of p*.
    squared_support : array, (K,)
        Q = sum of omega^2.
    first_moment : array, (K, D)
        U = sum of omega (z - origin).
    second_moment : array, (D,)
        Sum over classes of V_k, which collapses to sum of zeta (z - origin)^2.
    sample_count : array, ()
        Sum of 1.
    feature_sum, feature_square_sum : array, (D,)
        Sums of z - origin and of its square, every frame alike.
    origin : array, (D,)
        Zero until the first frames are in.
    """

    support: Array
    predicted_mass: Array
    squared_support: Array
    first_moment: Array
    second_moment: Array
    sample_count: Array
    feature_sum: Array
    feature_square_sum: Array
    origin: Array


# The sums that are no (K, D) array.
_VECTORS = (
    "support",
    "predicted_mass",
    "squared_support",
    "second_moment",
    "sample_count",
    "feature_sum",
    "feature_square_sum",
)


def empty_statistics(num_classes: int, feature_dim: int, *, like: Array) -> Statistics:
    """Sums over no frame, in the dtype and on the device of `like`."""
    xp = array_namespace(like)

    def zeros(*shape: int) -> Array:
        return xp.zeros(shape, dtype=like.dtype, device=device(like))

    return Statistics(
        support=zeros(num_classes),
        predicted_mass=zeros(num_classes),
        squared_support=zeros(num_classes),
        first_moment=zeros(num_classes, feature_dim),
        second_moment=zeros(feature_dim),
        sample_count=zeros(),
        feature_sum=zeros(feature_dim),
        feature_square_sum=zeros(feature_dim),
        origin=zeros(feature_dim),
    )


def accumulate(evidence: Evidence, /, *before: Statistics) -> Statistics:
    """Sums over one batch (app:continual_statistics), about the origin in use.

    Parameters
    ----------
    evidence : Evidence
        Rows of the batch.
    *before : Statistics
        Sums the result will be added to; the first that holds a frame gives the origin. Where
        none does, the batch's own mean becomes the origin.

    Returns
    -------
    Statistics
    """
    origin, centered = _centered_rows(evidence, before)
    first_moment = responsible_sum(evidence.responsibilities, centered)
    return Statistics(**_vector_sums(evidence, centered), first_moment=first_moment, origin=origin)


def absorb(
    old: Statistics, evidence: Evidence, /, *, half_life: float, donate: bool = False
) -> Statistics:
    """``combine(old, accumulate(evidence, old))``, without the batch's own (K, D) sum.

    Parameters
    ----------
    old : Statistics
        Read only unless donated.
    evidence : Evidence
        Rows of the batch.
    half_life : float
        In frames.
    donate : bool
        The result may reuse the memory of ``old.first_moment``.

    Returns
    -------
    Statistics
    """
    xp = array_namespace(evidence.features)
    origin, centered = _centered_rows(evidence, (old,))
    added = _vector_sums(evidence, centered)
    decay = decay_factor(added["sample_count"], half_life, xp=xp)
    first_moment = decayed_responsible_sum(
        old.first_moment, evidence.responsibilities, centered, decay=decay, donate=donate
    )
    return Statistics(
        **{name: getattr(old, name) * decay + value for name, value in added.items()},
        first_moment=first_moment,
        origin=origin,
    )


def concatenate(batches: Sequence[Evidence], /) -> Evidence:
    """The rows of several batches as those of one."""
    if len(batches) == 1:
        return batches[0]
    xp = array_namespace(batches[0].features)
    return Evidence(
        features=xp.concat([batch.features for batch in batches], axis=0),
        responsibilities=xp.concat([batch.responsibilities for batch in batches], axis=0),
        probs=xp.concat([batch.probs for batch in batches], axis=0),
        source_log_probs=xp.concat([batch.source_log_probs for batch in batches], axis=0),
        reliability=xp.concat([batch.reliability for batch in batches], axis=0),
        answered=xp.concat([batch.answered for batch in batches], axis=0),
        accepted=xp.concat([batch.accepted for batch in batches], axis=0),
    )


def combine(
    old: Statistics, new: Statistics, *, half_life: float, donate: bool = False
) -> Statistics:
    """Forget a little of `old`, by the frames in `new`, and add `new`.

    The origins agree, or `old` is empty and its sums are zero about any origin. `donate` allows
    the result to reuse the memory of ``old.first_moment``.
    """
    xp = array_namespace(old.support)
    decay = decay_factor(new.sample_count, half_life, xp=xp)
    return Statistics(
        **{name: getattr(old, name) * decay + getattr(new, name) for name in _VECTORS},
        first_moment=decayed_sum(old.first_moment, new.first_moment, decay=decay, donate=donate),
        origin=new.origin,
    )


def about(statistics: Statistics, origin: Array, /) -> Statistics:
    """The same sums about another origin."""
    shift = statistics.origin - origin
    support = statistics.support
    first, total = statistics.first_moment, statistics.support
    xp = array_namespace(support)
    weighted = xp.sum(first, axis=0)
    return Statistics(
        support=support,
        predicted_mass=statistics.predicted_mass,
        squared_support=statistics.squared_support,
        first_moment=first + support[:, None] * shift[None, :],
        second_moment=statistics.second_moment
        + 2.0 * shift * weighted
        + xp.sum(total) * shift * shift,
        sample_count=statistics.sample_count,
        feature_sum=statistics.feature_sum + statistics.sample_count * shift,
        feature_square_sum=statistics.feature_square_sum
        + 2.0 * shift * statistics.feature_sum
        + statistics.sample_count * shift * shift,
        origin=origin,
    )


def _centered_rows(evidence: Evidence, before: Sequence[Statistics]) -> tuple[Array, Array]:
    """The origin, and z - origin with the rows of rejected batches zero."""
    xp = array_namespace(evidence.features)
    origin = origin_for(evidence, before, xp=xp)
    return origin, (evidence.features - origin) * evidence.accepted[:, None]


def _vector_sums(evidence: Evidence, centered: Array) -> dict[str, Array]:
    """The sums named in `_VECTORS` over one batch."""
    xp = array_namespace(centered)
    squares = centered * centered
    omega = evidence.responsibilities
    return {
        "support": xp.sum(omega, axis=0),
        "predicted_mass": xp.sum(evidence.probs, axis=0),
        "squared_support": xp.sum(omega * omega, axis=0),
        "second_moment": evidence.reliability @ squares,
        "sample_count": xp.sum(evidence.accepted),
        "feature_sum": xp.sum(centered, axis=0),
        "feature_square_sum": xp.sum(squares, axis=0),
    }


def origin_for(evidence: Evidence, before: Sequence[Statistics], *, xp: Namespace) -> Array:
    """The origin in use, or the batch's mean where nothing has been summed yet."""
    one = scalar(1.0, like=evidence.features, xp=xp)
    count = xp.maximum(xp.sum(evidence.accepted), one)
    origin = xp.sum(evidence.features, axis=0) / count
    for statistics in reversed(before):
        origin = xp.where(statistics.sample_count > 0, statistics.origin, origin)
    return origin


def decay_factor(count: Array, half_life: float, *, xp: Namespace) -> Array:
    """2^(-count / half_life), exactly one where nothing is forgotten."""
    return xp.exp(count * (-math.log(2.0) / half_life))
