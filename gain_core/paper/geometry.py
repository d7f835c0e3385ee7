"""Centres, covariance and prior derived from the sums, and the two posteriors they give."""

from __future__ import annotations

from dataclasses import dataclass

from array_api_compat import array_namespace

from gain_core._checks import scalar
from gain_core._rows import log_softmax, logsumexp
from gain_core._typing import Array
from gain_core.paper.config import PaperConfig
from gain_core.paper.statistics import Statistics

__all__ = ["Geometry", "derive_geometry", "log_posteriors"]

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
