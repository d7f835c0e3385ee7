"""The target statistics of Algorithm 1: sums over the stream, about a fixed origin.

Two states that saw different frames merge by addition. Sums of squares are taken about an origin
near the features (the mean of the first frames), because float32 loses E[z^2] - E[z]^2 when the
mean is large.
"""

from __future__ import annotations

from dataclasses import dataclass

from array_api_compat import array_namespace

from gain_core._checks import scalar
from gain_core._typing import Array
from gain_core.records import arrays_of

__all__ = ["Rows", "Statistics", "add_rows", "combine", "concatenate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The evidence of frames: one row for each, from which the sums are made.

    All arrays have the dtype of the state.

    Attributes
    ----------
    features : array, (B, D)
        Of unit length if the config normalises.
    probs : array, (B, K)
        p*.
    reliability : array, (B,)
        zeta, the source's probability of the adapted class.
    accepted : array, (B,)
        1, or 0 for an empty or rejected row, whose other values are all zero.
    """

    features: Array
    probs: Array
    reliability: Array
    accepted: Array


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Sums over frames; the moments are those of z - origin.

    All arrays have the dtype of the state.

    Attributes
    ----------
    support : array, (K,)
        n = sum of omega, omega = zeta p*.
    predicted_mass : array, (K,)
        n_hat = sum of p*.
    squared_support : array, (K,)
        Q = sum of omega^2.
    first_moment : array, (K, D)
        U = sum of omega (z - origin).
    second_moment : array, (D,)
        Sum over classes of V_k, which collapses to sum of zeta (z - origin)^2.
    sample_count : array, ()
        Number of frames.
    feature_sum : array, (D,)
        Sum of z - origin.
    origin : array, (D,)
        Zero before the first frame.
    """

    support: Array
    predicted_mass: Array
    squared_support: Array
    first_moment: Array
    second_moment: Array
    sample_count: Array
    feature_sum: Array
    origin: Array


def concatenate(first: Rows, second: Rows, /) -> Rows:
    """The rows of both, `first` before `second`.

    Parameters
    ----------
    first, second : Rows

    Returns
    -------
    Rows
    """
    xp = array_namespace(first.features)
    return Rows(
        **{
            name: xp.concat([rows, getattr(second, name)], axis=0)
            for name, rows in arrays_of(first).items()
        }
    )


def add_rows(rows: Rows, sums: Statistics, /) -> Statistics:
    """Add frames to the sums (app:continual_statistics).

    Parameters
    ----------
    rows : Rows
    sums : Statistics

    Returns
    -------
    Statistics
        If `sums` is empty, the mean of `rows` becomes the origin.
    """
    xp = array_namespace(rows.features)
    added = xp.sum(rows.accepted)
    mean = xp.sum(rows.features, axis=0) / xp.maximum(added, scalar(1.0, like=added, xp=xp))
    origin = xp.where(sums.sample_count > 0, sums.origin, mean)
    centered = (rows.features - origin) * rows.accepted[:, None]
    omega = rows.reliability[:, None] * rows.probs
    return Statistics(
        support=sums.support + xp.sum(omega, axis=0),
        predicted_mass=sums.predicted_mass + xp.sum(rows.probs, axis=0),
        squared_support=sums.squared_support + xp.sum(omega * omega, axis=0),
        first_moment=sums.first_moment + _responsible_sum(omega, centered),
        second_moment=sums.second_moment
        + xp.sum(rows.reliability[:, None] * (centered * centered), axis=0),
        sample_count=sums.sample_count + added,
        feature_sum=sums.feature_sum + xp.sum(centered, axis=0),
        origin=origin,
    )


def _responsible_sum(responsibilities: Array, rows: Array) -> Array:
    """Sum over the batch of omega z, (K, D)."""
    transposed = array_namespace(rows).matrix_transpose(responsibilities)
    # One row is a broadcast product; BLAS pays for packing what it then uses once.
    return transposed * rows if rows.shape[0] == 1 else transposed @ rows


def combine(first: Statistics, second: Statistics, /) -> Statistics:
    """Add the sums of two streams.

    Parameters
    ----------
    first, second : Statistics

    Returns
    -------
    Statistics
        About the origin of `first`, or of `second` if `first` is empty.
    """
    xp = array_namespace(first.support)
    origin = xp.where(first.sample_count > 0, first.origin, second.origin)
    left, right = _about(first, origin), _about(second, origin)
    total = {
        name: getattr(left, name) + getattr(right, name)
        for name in Statistics.__dataclass_fields__
        if name != "origin"
    }
    return Statistics(**total, origin=origin)


def _about(sums: Statistics, origin: Array) -> Statistics:
    """The same sums about another origin."""
    xp = array_namespace(sums.support)
    shift = sums.origin - origin
    weighted = xp.sum(sums.first_moment, axis=0)
    return Statistics(
        support=sums.support,
        predicted_mass=sums.predicted_mass,
        squared_support=sums.squared_support,
        first_moment=sums.first_moment + sums.support[:, None] * shift[None, :],
        second_moment=sums.second_moment
        + 2.0 * shift * weighted
        + xp.sum(sums.support) * shift * shift,
        sample_count=sums.sample_count,
        feature_sum=sums.feature_sum + sums.sample_count * shift,
        origin=origin,
    )
