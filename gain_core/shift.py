"""The tracked shift: how far the target's mean logits have moved, and how far that can be trusted.

The correction lives in the K logits alone. A domain shift moves the mean of the source's logits;
so does a run of one class. What the classes seen explain is taken out, and what is left is
shrunk towards no shift at all by how many independent draws of a class stand behind it. Means
over five memories, each half as long as the next, are combined from the longest to the shortest:
a shorter memory moves the estimate only as far as its difference exceeds its own noise, so the
estimate is steady in calm and fast after a jump. `docs/method.md` has the derivation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from array_api_compat import array_namespace, device

from gain_core._checks import scalar
from gain_core._logspace import log_softmax
from gain_core._typing import Array, Namespace
from gain_core.config import GainConfig
from gain_core.prototypes import Prototypes
from gain_core.statistics import Evidence

__all__ = [
    "NUM_WINDOWS",
    "Shift",
    "ShiftSums",
    "accumulate_shift",
    "centered",
    "combine_sums",
    "empty_sums",
    "estimate_shift",
    "forget_and_add",
    "no_shift",
    "shift_posteriors",
]

NUM_WINDOWS = 5
# Divisor floor for sums over no frame, where the numerator is zero as well.
TINY = 1e-9
# Frames whose logits vary by less than this share of the step's square are views of one thing,
# and count as one draw the more the less they vary: a camera that looks at a wall learns nothing.
# Streams of different images vary more than that, under the heaviest corruption too.
LEAST_SPREAD = 0.25
# Labels explain a mean only as far as its square exceeds this share of the frames' scatter about
# it: a run of one class has moved the mean by more than its frames differ, while a domain that
# makes one class win too often leaves the others in the scatter.
LEAST_POWER = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftSums:
    """Sums over frames; row j of J forgets with half-life ``half_life / 2^(J - 1 - j)``.

    What one batch adds is the same for every memory and has J = 1.

    Attributes
    ----------
    window_count : array, (J,)
        Sum of 1.
    window_logits : array, (J, K)
        Sum of x, the source's log-probabilities less their mean over classes, and less the mean
        logits on the source's own domain where those were measured.
    window_squares : array, (J,)
        Sum of |x|^2.
    window_mass : array, (J, K)
        Sum of p*.
    scale_numerator, scale_denominator : array, ()
        Regression of a frame's logit of its own class, which gives the scale a; see `scale_of`.
    """

    window_count: Array
    window_logits: Array
    window_squares: Array
    window_mass: Array
    scale_numerator: Array
    scale_denominator: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """What the sums say; predictions read this only.

    Attributes
    ----------
    vector : array, (K,)
        beta, the shift of the mean logits, to be subtracted from the source's.
    variance : array, ()
        Posterior variance of one entry of it.
    trust : array, ()
        How much of the observed shift survived the shrinkage, in [0, 1].
    """

    vector: Array
    variance: Array
    trust: Array


def empty_sums(num_classes: int, *, like: Array) -> ShiftSums:
    """Sums over no frame, in the dtype and on the device of `like`."""
    xp = array_namespace(like)

    def zeros(*shape: int) -> Array:
        return xp.zeros(shape, dtype=like.dtype, device=device(like))

    return ShiftSums(
        window_count=zeros(NUM_WINDOWS),
        window_logits=zeros(NUM_WINDOWS, num_classes),
        window_squares=zeros(NUM_WINDOWS),
        window_mass=zeros(NUM_WINDOWS, num_classes),
        scale_numerator=zeros(),
        scale_denominator=zeros(),
    )


def no_shift(num_classes: int, *, like: Array) -> Shift:
    """The shift before the first frame."""
    xp = array_namespace(like)
    zero = scalar(0.0, like=like, xp=xp)
    vector = xp.zeros((num_classes,), dtype=like.dtype, device=device(like))
    return Shift(vector=vector, variance=zero, trust=zero)


def shift_posteriors(source_log_probs: Array, shift: Shift, /) -> tuple[Array, Array]:
    """log q_hat and log q_bar of the shifted source.

    Parameters
    ----------
    source_log_probs : array, (B, K)
        log s.
    shift : Shift

    Returns
    -------
    log_proposal, log_evaluator : array, (B, K)
        Normalised. The proposal is the source with the shift taken out of its logits. The
        evaluator is the posterior predictive: the same averaged over a shift whose entries have
        the variance v, so that a difference of two logits has 2 v, by the probit approximation
        1 / sqrt(1 + pi 2 v / 8) of a softmax under Gaussian logits.
    """
    xp = array_namespace(source_log_probs)
    log_proposal = log_softmax(source_log_probs - shift.vector, xp=xp)
    spread = xp.sqrt(1.0 + (math.pi / 4.0) * shift.variance)
    return log_proposal, log_softmax(log_proposal / spread, xp=xp)


def accumulate_shift(evidence: Evidence, shift: Shift, /, *, prototypes: Prototypes) -> ShiftSums:
    """What a batch adds.

    Parameters
    ----------
    evidence : Evidence
    shift : Shift
        The one the batch was predicted with.
    prototypes : Prototypes

    Returns
    -------
    ShiftSums
        With J = 1.
    """
    xp = array_namespace(evidence.probs)
    logits = centered(evidence.source_log_probs, xp=xp) - prototypes.mean_logits
    logits = logits * evidence.accepted[:, None]
    chosen = xp.argmax(evidence.probs, axis=1)
    own = xp.take_along_axis(logits - shift.vector, chosen[:, None], axis=1)[:, 0]
    power = xp.take(prototypes.row_squares, chosen, axis=0)
    weighted = evidence.reliability * power
    return ShiftSums(
        window_count=xp.sum(evidence.accepted, keepdims=True),
        window_logits=xp.sum(logits, axis=0, keepdims=True),
        window_squares=xp.reshape(xp.sum(logits * logits), (1,)),
        window_mass=xp.sum(evidence.probs, axis=0, keepdims=True),
        scale_numerator=xp.sum(weighted * own),
        scale_denominator=xp.sum(weighted * power),
    )


def combine_sums(first: ShiftSums, second: ShiftSums, /) -> ShiftSums:
    """Sums over the frames of both."""
    sums = {
        item.name: getattr(first, item.name) + getattr(second, item.name)
        for item in fields(ShiftSums)
    }
    return ShiftSums(**sums)


def forget_and_add(old: ShiftSums, added: ShiftSums, /, *, config: GainConfig) -> ShiftSums:
    """Decay every memory by the number of new frames, then add them.

    Parameters
    ----------
    old : ShiftSums
    added : ShiftSums
        With J = 1.
    config : GainConfig

    Returns
    -------
    ShiftSums
    """
    xp = array_namespace(old.window_count)
    count = xp.sum(added.window_count)
    rates = [-math.log(2.0) * 2.0**back / config.half_life for back in _reversed_windows()]
    like = old.window_count
    rate = xp.asarray(rates, dtype=like.dtype, device=device(like))
    decay = xp.exp(rate * count)
    scale_decay = xp.exp(count * (-math.log(2.0) / config.scale_half_life))
    return ShiftSums(
        window_count=old.window_count * decay + added.window_count,
        window_logits=old.window_logits * decay[:, None] + added.window_logits,
        window_squares=old.window_squares * decay + added.window_squares,
        window_mass=old.window_mass * decay[:, None] + added.window_mass,
        scale_numerator=old.scale_numerator * scale_decay + added.scale_numerator,
        scale_denominator=old.scale_denominator * scale_decay + added.scale_denominator,
    )


def estimate_shift(sums: ShiftSums, /, *, prototypes: Prototypes, config: GainConfig) -> Shift:
    """The shrunken shift of the mean logits.

    Parameters
    ----------
    sums : ShiftSums
        Over any number of frames; over none, there is no shift.
    prototypes : Prototypes
    config : GainConfig

    Returns
    -------
    Shift
    """
    xp = array_namespace(sums.window_count)
    num_classes = prototypes.shape[0]
    tiny = scalar(TINY, like=sums.window_count, xp=xp)
    zero, one = xp.zeros_like(tiny), xp.ones_like(tiny)
    count = xp.maximum(sums.window_count, tiny)
    mean = sums.window_logits / count[:, None]
    share = sums.window_mass / count[:, None]
    # 1/n_eff: the label noise of a mean in units of one draw's. Draws from all K classes alike
    # leave 1/count; a memory that holds one class leaves 1, however long it is.
    inverse_draws = xp.maximum(xp.sum(share * share, axis=1) - 1.0 / num_classes, 1.0 / count)
    length = xp.sum(mean * mean, axis=1)
    spread = xp.maximum(sums.window_squares / count - length, zero)
    weight = xp.minimum(config.label_draws * inverse_draws, one)
    held = xp.maximum(LEAST_POWER * spread, tiny)
    weight = weight * xp.minimum(length / held, one)
    explained = _explained(share - 1.0 / num_classes, prototypes) * scale_of(sums)
    moved = mean - weight[:, None] * explained
    moved = moved - _within_thresholds(moved, prototypes)
    seen = sums.window_count > 0
    vector, trust = xp.zeros_like(mean[0, :]), zero
    variance = None
    for window in _reversed_windows():
        step = moved[window, :] - vector
        power = xp.sum(step * step)
        alike = 1.0 - spread[window] / xp.maximum(LEAST_SPREAD * power, tiny)
        noise = (spread[window] + power) * xp.maximum(inverse_draws[window], alike)
        ratio = 1.0 - config.shrinkage * noise / xp.maximum(power, tiny)
        share_kept = xp.where(seen[window], xp.maximum(ratio, zero), zero)
        own = noise / num_classes
        variance = own if variance is None else variance + share_kept * (own - variance)
        vector = vector + share_kept * step
        trust = trust + share_kept * (one - trust)
    assert variance is not None
    return Shift(vector=vector, variance=xp.where(seen[0], variance, zero), trust=trust)


def scale_of(sums: ShiftSums, /) -> Array:
    """a, (): a frame of class k has the logit a |c_k|^2 of its own, beyond mean and shift."""
    xp = array_namespace(sums.scale_numerator)
    tiny = scalar(TINY, like=sums.scale_numerator, xp=xp)
    ratio = sums.scale_numerator / xp.maximum(sums.scale_denominator, tiny)
    return xp.maximum(ratio, xp.zeros_like(ratio))


def centered(log_probs: Array, *, xp: Namespace) -> Array:
    """Less the mean over classes, which no softmax sees."""
    return log_probs - xp.mean(log_probs, axis=1, keepdims=True)


def _within_thresholds(moved: Array, prototypes: Prototypes) -> Array:
    """As much of the head's own thresholds as the mean logits (J, K) contain, none to all."""
    xp = array_namespace(moved)
    thresholds = prototypes.thresholds
    tiny = scalar(TINY, like=thresholds, xp=xp)
    along = (moved @ thresholds) / xp.maximum(xp.sum(thresholds * thresholds), tiny)
    along = xp.minimum(xp.maximum(along, xp.zeros_like(along)), xp.ones_like(along))
    return along[:, None] * thresholds


def _explained(share: Array, prototypes: Prototypes) -> Array:
    """Mean logits (J, K) that the classes seen would give at a = 1: C C^T (q - 1/K)."""
    xp = array_namespace(share)
    return (share @ prototypes.centered) @ xp.matrix_transpose(prototypes.centered)


def _reversed_windows() -> range:
    """J - 1, ..., 0: the windows from the longest, and how often each halves the half-life."""
    return range(NUM_WINDOWS - 1, -1, -1)
