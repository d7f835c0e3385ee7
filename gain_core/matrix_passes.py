"""The only arithmetic that touches whole (K, D) arrays, gathered so that it can be made cheap.

Everything else in a step is of size (B, K), (K,) or (D,). NumPy has versions in `_numpy_passes`
that work block by block in the cache and may reuse the arrays they are given; all other
libraries run the array-API code here.
"""

from __future__ import annotations

from dataclasses import dataclass

from array_api_compat import array_namespace, is_numpy_namespace

from gain_core import _numpy_passes
from gain_core._typing import Array
from gain_core.prototypes import Prototypes

__all__ = [
    "Regression",
    "class_centers",
    "decayed_responsible_sum",
    "decayed_sum",
    "regress_means",
    "responsible_sum",
    "squares_over_support",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """Weighted moments of class means against prototypes.

    Attributes
    ----------
    mean, prototype : array, (D,)
        Weighted means of the class means and of the centred prototypes.
    covariance, power : array, ()
        Weighted sums of (mean_k - mean).(c_k - prototype) and of |c_k - prototype|^2.
    """

    mean: Array
    prototype: Array
    covariance: Array
    power: Array


def decayed_sum(old: Array, new: Array, *, decay: Array, donate: bool) -> Array:
    """old * decay + new, in `old`'s memory where it is donated and the library allows it."""
    if donate and is_numpy_namespace(array_namespace(old)):
        return _numpy_passes.decayed_sum(old, new, decay=decay)
    return old * decay + new


def decayed_responsible_sum(
    old: Array, responsibilities: Array, rows: Array, /, *, decay: Array, donate: bool
) -> Array:
    """old * decay + `responsible_sum`, in `old`'s memory where it is donated."""
    if donate and is_numpy_namespace(array_namespace(old)):
        return _numpy_passes.decayed_responsible_sum(old, responsibilities, rows, decay=decay)
    return old * decay + responsible_sum(responsibilities, rows)


def responsible_sum(responsibilities: Array, rows: Array, /) -> Array:
    """Sum over the batch of omega z, (K, D)."""
    transposed = array_namespace(rows).matrix_transpose(responsibilities)
    # One row is a broadcast product; BLAS pays for packing what it then uses once.
    return transposed * rows if rows.shape[0] == 1 else transposed @ rows


def regress_means(
    first_moment: Array, prototypes: Prototypes, /, *, votes: Array, inverse_support: Array
) -> Regression:
    """Moments of the class means U_k / n_k against the prototypes, weighted by `votes`.

    Parameters
    ----------
    first_moment : array, (K, D)
        U.
    prototypes : Prototypes
    votes : array, (K,)
        Non-negative weights; where all are zero, every result is zero.
    inverse_support : array, (K,)
        1 / n, bounded.

    Returns
    -------
    Regression
        Differences are formed before products: with nearly all votes on one class, expanding
        them would leave nothing but rounding.
    """
    xp = array_namespace(first_moment)
    total = xp.sum(votes)
    shares = votes / xp.where(total > 0, total, xp.ones_like(total))
    mean = (shares * inverse_support) @ first_moment
    prototype = shares @ prototypes.centered
    if is_numpy_namespace(xp):
        covariances, powers = _numpy_passes.spreads(
            first_moment,
            prototypes.centered,
            inverse_support=inverse_support,
            mean=mean,
            prototype=prototype,
        )
    else:
        spread = prototypes.centered - prototype
        deviation = first_moment * inverse_support[:, None] - mean
        covariances = xp.sum(deviation * spread, axis=1)
        powers = xp.sum(spread * spread, axis=1)
    return Regression(
        mean=mean,
        prototype=prototype,
        covariance=xp.sum(votes * covariances),
        power=xp.sum(votes * powers),
    )


def squares_over_support(first_moment: Array, inverse_support: Array, /) -> Array:
    """Sum over classes of U_k^2 / n_k, (D,)."""
    if is_numpy_namespace(array_namespace(first_moment)):
        return _numpy_passes.squares_over_support(first_moment, inverse_support)
    return inverse_support @ (first_moment * first_moment)


def class_centers(
    first_moment: Array,
    prototypes: Prototypes,
    /,
    *,
    base: Array,
    scale: Array,
    mean: Array,
    precision: Array,
    prior_strength: float,
    inverse_variance: Array,
    out: Array | None,
) -> tuple[Array, Array]:
    """m_k - mean with m_k = (kappa_0 (base + a c_k) + U_k) / kappa_k, eq:center_posterior.

    Parameters
    ----------
    first_moment : array, (K, D)
        U, about the origin.
    prototypes : Prototypes
    base : array, (D,)
        Where a class with a zero centred prototype is anchored, about the origin.
    scale : array, ()
        a.
    mean : array, (D,)
        Feature mean about the origin; becomes the centres' offset.
    precision : array, (K,)
        kappa.
    prior_strength : float
        kappa_0.
    inverse_variance : array, (D,)
        1 / v.
    out : array, (K, D), or None
        Memory to reuse for the centres.

    Returns
    -------
    centers : array, (K, D)
    norms : array, (K,)
        Sum over dimensions of centers^2 / v.
    """
    xp = array_namespace(first_moment)
    row = prior_strength * base
    if is_numpy_namespace(xp):
        return _numpy_passes.class_centers(
            first_moment,
            prototypes.centered,
            factor=scale * prior_strength,
            row=row,
            mean=mean,
            inverse_precision=1.0 / precision,
            inverse_variance=inverse_variance,
            out=out,
        )
    anchored = prototypes.centered * (scale * prior_strength) + first_moment + row
    centers = anchored / precision[:, None] - mean
    return centers, (centers * centers) @ inverse_variance
