"""The two target posteriors: the posterior-mean proposal and the posterior-predictive evaluator."""

from __future__ import annotations

from array_api_compat import array_namespace

from gain_core._checks import scalar
from gain_core._logspace import log_softmax
from gain_core._typing import Array
from gain_core.geometry import Geometry

__all__ = ["log_posteriors", "squared_distances"]


def squared_distances(features: Array, geometry: Geometry, /) -> Array:
    """Mahalanobis distances d of every sample to every centre, eq:target_score.

    Parameters
    ----------
    features : array, (B, D)
        In the geometry's dtype and on its device, normalised if the config says so.
    geometry : Geometry

    Returns
    -------
    array, (B, K)
        Non-negative. One matrix product, about the features' mean so that float32 holds.
    """
    xp = array_namespace(features)
    centered = features - geometry.offset
    scaled = centered / geometry.variance
    norms = xp.sum(centered * scaled, axis=1, keepdims=True)
    cross = scaled @ xp.matrix_transpose(geometry.centers)
    distances = norms + geometry.center_norms - 2.0 * cross
    return xp.maximum(distances, scalar(0.0, like=distances, xp=xp))


def log_posteriors(features: Array, geometry: Geometry, /) -> tuple[Array, Array]:
    """log q_hat and log q_bar, eq:target_posterior and eq:posterior_predictive_target.

    Parameters
    ----------
    features : array, (B, D)
        As for `squared_distances`.
    geometry : Geometry

    Returns
    -------
    log_proposal, log_evaluator : array, (B, K)
        Normalised. Both Gaussian log-likelihoods, the evaluator's volume term included, are
        multiplied by `geometry.temper`, which is 1 in the paper's form.
    """
    xp = array_namespace(features)
    distances = squared_distances(features, geometry)
    half_temper = 0.5 * geometry.temper
    spread = 1.0 + 1.0 / geometry.precision
    volume = features.shape[1] * xp.log(spread)
    log_proposal = log_softmax(geometry.log_prior - half_temper * distances, xp=xp)
    log_evaluator = log_softmax(
        geometry.log_prior - half_temper * (volume + distances / spread), xp=xp
    )
    return log_proposal, log_evaluator
