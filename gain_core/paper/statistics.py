"""The sums of Algorithm 1, and the geometry that is derived from them."""

from __future__ import annotations

from dataclasses import dataclass

from array_api_compat import array_namespace

from gain_core._arrays import Array, log_softmax, logsumexp, scalar
from gain_core.paper.config import PaperConfig
from gain_core.records import arrays_of


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


# Below this support a class counts as never seen; its mean U/n would be noise.
MIN_SUPPORT = 1e-12
# Divisor floor of a mean over no frame, whose numerator is zero as well.
MIN_COUNT = 1e-9


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Everything a prediction needs, derived from the sums once per update.

    All arrays have the dtype of the state.

    Attributes
    ----------
    centers : array, (K, D)
        m_k - offset: the prediction's matrix product cancels less about an offset.
    offset : array, (D,)
        Mean of the target features.
    variance : array, (D,)
        v, the diagonal of Sigma.
    center_norms : array, (K,)
        Sum over dimensions of (m_k - offset)^2 / v.
    precision : array, (K,)
        kappa = kappa_0 + n.
    log_prior : array, (K,)
        log pi, normalised.
    """

    centers: Array
    offset: Array
    variance: Array
    center_norms: Array
    precision: Array
    log_prior: Array


def derive_geometry(
    sums: Statistics, /, *, centered: Array, mean: Array, config: PaperConfig
) -> Geometry:
    """Centres, covariance and prior from the sums (app:continual_statistics).

    Parameters
    ----------
    sums : Statistics
    centered, mean : array, (K, D) and (D,), dtype of the sums
        The prototypes less their mean, and that mean.
    config : PaperConfig

    Returns
    -------
    Geometry
        Without any frame: centres at the prototypes and unit variance.
    """
    xp = array_namespace(sums.support)
    tiny = scalar(MIN_COUNT, like=sums.support, xp=xp)
    feature_mean = sums.feature_sum / xp.maximum(sums.sample_count, tiny)
    variance = _variance(sums, config=config)
    precision = config.prior_strength + sums.support
    row = config.prior_strength * (mean - sums.origin)
    centers = (centered * config.prior_strength + sums.first_moment + row) / precision[:, None]
    centers = centers - feature_mean
    log_prior = xp.log(precision) - 2.0 * xp.log(config.prior_strength + sums.predicted_mass)
    return Geometry(
        centers=centers,
        offset=sums.origin + feature_mean,
        variance=variance,
        center_norms=xp.sum(centers * centers / variance, axis=1),
        precision=precision,
        log_prior=log_prior - logsumexp(log_prior, xp=xp),
    )


def _variance(sums: Statistics, *, config: PaperConfig) -> Array:
    """The shared covariance's diagonal: pooled scatter shrunk towards 1, with a floor."""
    xp = array_namespace(sums.support)
    support = sums.support
    seen = support > MIN_SUPPORT
    nothing = xp.zeros_like(support)
    inverse = xp.where(seen, 1.0 / xp.where(seen, support, xp.ones_like(support)), nothing)
    freedom = xp.sum(xp.where(seen, support, nothing) - sums.squared_support * inverse)
    zero = scalar(0.0, like=support, xp=xp)
    between = xp.sum(inverse[:, None] * (sums.first_moment * sums.first_moment), axis=0)
    scatter = xp.maximum(sums.second_moment - between, zero)
    prior = config.prior_strength
    pooled = (prior + scatter) / (prior + xp.maximum(freedom, zero))
    return xp.maximum(pooled, scalar(config.variance_floor, like=support, xp=xp))


def log_posteriors(features: Array, geometry: Geometry, /) -> tuple[Array, Array]:
    """log q_hat and log q_bar, eq:target_posterior and eq:posterior_predictive_target.

    Parameters
    ----------
    features : array, (B, D), dtype and device of the geometry
        Of unit length if the config normalises.
    geometry : Geometry

    Returns
    -------
    log_proposal, log_evaluator : array, (B, K), dtype of the geometry
        Normalised.
    """
    xp = array_namespace(features)
    distances = _squared_distances(features, geometry)
    spread = 1.0 + 1.0 / geometry.precision
    volume = features.shape[1] * xp.log(spread)
    log_proposal = log_softmax(geometry.log_prior - 0.5 * distances, xp=xp)
    log_evaluator = log_softmax(geometry.log_prior - 0.5 * (volume + distances / spread), xp=xp)
    return log_proposal, log_evaluator


def _squared_distances(features: Array, geometry: Geometry) -> Array:
    """Mahalanobis distances d (B, K) of every sample to every centre, eq:target_score.

    One matrix product, about the features' mean so that float32 holds.
    """
    xp = array_namespace(features)
    centered = features - geometry.offset
    scaled = centered / geometry.variance
    norms = xp.sum(centered * scaled, axis=1, keepdims=True)
    cross = scaled @ xp.matrix_transpose(geometry.centers)
    distances = norms + geometry.center_norms - 2.0 * cross
    return xp.maximum(distances, scalar(0.0, like=distances, xp=xp))
