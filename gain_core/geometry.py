"""The target geometry: what the sums say about centres, covariance, prior and temper."""

from __future__ import annotations

from dataclasses import dataclass

from array_api_compat import array_namespace, device

from gain_core._checks import scalar
from gain_core._logspace import logsumexp
from gain_core._typing import Array, Namespace
from gain_core.config import GainConfig
from gain_core.matrix_passes import class_centers, regress_means, squares_over_support
from gain_core.prototypes import Prototypes
from gain_core.statistics import Statistics, decay_factor

__all__ = ["Geometry", "ScaleMemory", "derive", "initial_geometry"]

# Below this support a class counts as never seen; its mean U/n would be noise.
MIN_SUPPORT = 1e-12
# Divisor floor for class means of such classes; their weight in every sum is zero.
MIN_DIVISOR = 1e-9
# The anchor's scale stays positive: a = 0 would put every class at the same place.
MIN_SCALE = 1e-2
# Floor of the total variance of a feature that never moves.
MIN_TOTAL_VARIANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleMemory:
    """Remembered numerator and denominator, both (), of the regression for the scale a."""

    numerator: Array
    denominator: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Everything a prediction needs, derived from the sums once per update.

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
    scale, temper : array, ()
        a and tau.
    has_history : array, () bool
        Whether any frame has been summed.
    """

    centers: Array
    offset: Array
    variance: Array
    center_norms: Array
    precision: Array
    log_prior: Array
    scale: Array
    temper: Array
    has_history: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Anchor:
    """Class k without evidence sits at ``base + scale * centered_k`` (about the origin)."""

    base: Array
    scale: Array


def initial_geometry(prototypes: Prototypes, *, config: GainConfig) -> Geometry:
    """Geometry before the first frame: centres at the prototypes, v = 1, uniform prior."""
    xp = array_namespace(prototypes.centered)
    num_classes, feature_dim = prototypes.shape
    like = prototypes.centered
    ones = xp.ones((num_classes,), dtype=like.dtype, device=device(like))
    return Geometry(
        # A copy: an owner of the state may reuse this memory, and the prototypes stay.
        centers=xp.asarray(prototypes.centered, copy=True),
        offset=prototypes.mean,
        variance=xp.ones((feature_dim,), dtype=like.dtype, device=device(like)),
        center_norms=xp.sum(prototypes.centered * prototypes.centered, axis=1),
        precision=ones * config.strength_of_prior(num_classes),
        log_prior=-xp.log(ones * num_classes),
        scale=scalar(1.0, like=like, xp=xp),
        temper=scalar(1.0, like=like, xp=xp),
        has_history=xp.asarray(False, device=device(like)),
    )


def derive(
    statistics: Statistics,
    memory: ScaleMemory,
    /,
    *,
    prototypes: Prototypes,
    added: Array,
    config: GainConfig,
    out: Array | None = None,
) -> tuple[Geometry, ScaleMemory]:
    """Centres, covariance, prior and temper from the sums (app:continual_statistics).

    Parameters
    ----------
    statistics : Statistics
        Sums over at least one frame; over none, the result is finite but meaningless and
        `has_history` is false.
    memory : ScaleMemory
        As it was before these sums.
    prototypes : Prototypes
    added : array, ()
        Frames added since `memory` was made; 0 leaves it as it is.
    config : GainConfig
    out : array, (K, D), or None
        Memory the centres may reuse.

    Returns
    -------
    Geometry, ScaleMemory
    """
    xp = array_namespace(statistics.support)
    prior_strength = config.strength_of_prior(prototypes.shape[0])
    mean = _feature_mean(statistics, xp=xp)
    if config.anchor == "balanced":
        anchor, memory = _balanced_anchor(
            statistics, memory, prototypes=prototypes, added=added, config=config
        )
    else:
        one = scalar(1.0, like=mean, xp=xp)
        anchor = _Anchor(base=prototypes.mean - statistics.origin, scale=one)
    variance = _variance(statistics, prior_strength=prior_strength, config=config)
    precision = prior_strength + statistics.support
    centers, norms = class_centers(
        statistics.first_moment,
        prototypes,
        base=anchor.base,
        scale=anchor.scale,
        mean=mean,
        precision=precision,
        prior_strength=prior_strength,
        inverse_variance=1.0 / variance,
        out=out,
    )
    log_prior = xp.log(precision) - 2.0 * xp.log(prior_strength + statistics.predicted_mass)
    return Geometry(
        centers=centers,
        offset=statistics.origin + mean,
        variance=variance,
        center_norms=norms,
        precision=precision,
        log_prior=log_prior - logsumexp(log_prior, xp=xp),
        scale=anchor.scale,
        temper=_temper(anchor.scale, variance, prototypes=prototypes, config=config),
        has_history=statistics.sample_count > 0,
    ), memory


def _feature_mean(statistics: Statistics, *, xp: Namespace) -> Array:
    """Mean of the target features about the origin; zero before the first frame."""
    tiny = scalar(MIN_DIVISOR, like=statistics.support, xp=xp)
    return statistics.feature_sum / xp.maximum(statistics.sample_count, tiny)


def _balanced_anchor(
    statistics: Statistics,
    memory: ScaleMemory,
    *,
    prototypes: Prototypes,
    added: Array,
    config: GainConfig,
) -> tuple[_Anchor, ScaleMemory]:
    """Regress class means on prototypes, each supported class having one vote.

    The plain feature mean reads a run of one class as a shift of the domain; here a class counts
    n/(n + 1) however often it is seen. Numerator and denominator of the scale are remembered
    over `scale_half_life`, because a few classes determine it badly.
    """
    xp = array_namespace(statistics.support)
    tiny = scalar(MIN_DIVISOR, like=statistics.support, xp=xp)
    votes = statistics.support / (statistics.support + 1.0)
    fit = regress_means(
        statistics.first_moment,
        prototypes,
        votes=votes,
        inverse_support=1.0 / xp.maximum(statistics.support, tiny),
    )
    mean = xp.where(xp.sum(votes) > 0, fit.mean, _feature_mean(statistics, xp=xp))
    updated = ScaleMemory(
        numerator=_remember(memory.numerator, fit.covariance, added=added, config=config),
        denominator=_remember(memory.denominator, fit.power, added=added, config=config),
    )
    ratio = updated.numerator / xp.maximum(updated.denominator, tiny)
    least = scalar(MIN_SCALE, like=ratio, xp=xp)
    known = updated.denominator > tiny
    scale = xp.where(known, xp.maximum(ratio, least), xp.ones_like(ratio))
    return _Anchor(base=mean - scale * fit.prototype, scale=scale), updated


def _remember(old: Array, new: Array, *, added: Array, config: GainConfig) -> Array:
    """Exponentially forgetting sum; unchanged where no frame was added."""
    xp = array_namespace(old)
    decayed = old * decay_factor(added, config.scale_half_life, xp=xp)
    return xp.where(added > 0, decayed + new, old)


def _variance(statistics: Statistics, *, prior_strength: float, config: GainConfig) -> Array:
    """The shared covariance's diagonal: pooled scatter shrunk towards its prior, with floors.

    Under forgetting Q decays like n, not like n^2, so a class not seen for long can count for
    less than nothing in the degrees of freedom; their sum is bounded at zero.
    """
    xp = array_namespace(statistics.support)
    support = statistics.support
    seen = support > MIN_SUPPORT
    nothing = xp.zeros_like(support)
    inverse = xp.where(seen, 1.0 / xp.where(seen, support, xp.ones_like(support)), nothing)
    freedom = xp.sum(xp.where(seen, support, nothing) - statistics.squared_support * inverse)
    zero = scalar(0.0, like=support, xp=xp)
    between = squares_over_support(statistics.first_moment, inverse)
    scatter = xp.maximum(statistics.second_moment - between, zero)
    total = _total_variance(statistics, xp=xp)
    prior = total if config.prior_variance == "total" else xp.ones_like(total)
    pooled = (prior_strength * prior + scatter) / (prior_strength + xp.maximum(freedom, zero))
    least = scalar(config.variance_floor, like=support, xp=xp)
    variance = xp.maximum(pooled, xp.maximum(least, config.variance_floor_ratio * total))
    if config.variance == "isotropic":
        variance = xp.ones_like(variance) * xp.mean(variance)
    return variance


def _total_variance(statistics: Statistics, *, xp: Namespace) -> Array:
    """Variance of the target features per dimension, whatever their class."""
    tiny = scalar(MIN_DIVISOR, like=statistics.support, xp=xp)
    mean = _feature_mean(statistics, xp=xp)
    square = statistics.feature_square_sum / xp.maximum(statistics.sample_count, tiny)
    least = scalar(MIN_TOTAL_VARIANCE, like=mean, xp=xp)
    return xp.maximum(square - mean * mean, least)


def _temper(scale: Array, variance: Array, *, prototypes: Prototypes, config: GainConfig) -> Array:
    """tau: with no class evidence tau a c / v has the size of c, the source's own logit scale."""
    xp = array_namespace(variance)
    if config.temper == "none":
        return xp.ones_like(scale)
    squares = prototypes.column_squares
    tiny = scalar(MIN_DIVISOR, like=scale, xp=xp)
    return xp.sum(squares) / xp.maximum(scale * xp.sum(squares / variance), tiny)
