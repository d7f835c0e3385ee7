"""The tracked shift: how far the target's logits have moved, and how far that can be trusted.

The correction lives in the K logits alone. A domain shift moves the mean of the source's logits;
so does a run of one class. What the classes seen explain is taken out, and what is left is
shrunk towards no shift at all by how many independent draws of a class stand behind it. Frames
of many classes stick out of their mean on one side, each in the logit of its own class, and
frames of one class scatter about it evenly: where they do, the memory is one draw, unless the
newest labels tell a mixture that a corruption hides. Means over five memories, each a third as
long as the next, are combined from the longest to the shortest: a shorter memory moves the estimate
only as far as its difference exceeds its own noise, so the estimate is steady in calm and fast
after a jump. The shortest are asked only where a frame says nothing of the next one. The deviations
of the classes' logits, which a domain changes as well, are brought back to their ratios in the same
way. Where frames say nothing of each other the shares of the classes so far are expected of the
next ones, see `class_prior`.
`docs/method.md` has the derivation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
from array_api_compat import array_namespace, device

from gain_core._checks import scalar
from gain_core._logspace import log_softmax
from gain_core._ramp import along
from gain_core._typing import Array, Namespace
from gain_core.class_prior import log_class_prior
from gain_core.config import GainConfig
from gain_core.departure import BESIDE_DIMS, LEAST_SCATTER, MOST_POWER, departed, squared_move
from gain_core.prototypes import Prototypes
from gain_core.statistics import Evidence

__all__ = [
    "NUM_WINDOWS",
    "WINDOW_RATIO",
    "LastFrame",
    "Shift",
    "ShiftSums",
    "accumulate_shift",
    "between",
    "centered",
    "combine_sums",
    "empty_sums",
    "estimate_shift",
    "expects_classes",
    "forget_and_add",
    "may_be_independent",
    "no_frame",
    "no_shift",
    "shift_posteriors",
    "tests_mixtures",
    "unprejudiced",
]

NUM_WINDOWS = 5
# How many times longer than the one before each memory is.
WINDOW_RATIO = 3.0
# The memory whose mean frames are compared with for their asymmetry.
REFERENCE_WINDOW = 2
# Memories shorter than these move the shift and the ratios of the deviations only as far as frames
# are independent: in a video, the last dozens of frames show what the next one will show.
FIRST_SHIFT_WINDOW, FIRST_SCALE_WINDOW = 2, 3
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
# Between the source's asymmetry on one class and on all classes, the shares of the way where a
# memory begins to count as a mixture and where it is one: for the shift of the means, and for the
# ratios of the deviations, which a mistake does more harm to.
SHIFT_RAMP = (0.12, 0.22)
SCALE_RAMP = (0.25, 0.45)
# Where the asymmetry of mixtures is learned: the labels of memory `REFERENCE_WINDOW` are of many
# classes for sure where |q|^2 - 1/K is this share of what it is of one class at most, and so many
# frames. Of one class a network that is wrong most of the time leaves 0.04 or more.
SPREAD_RAMP = (0.02, 0.03)
SURE_FRAMES = 100.0
# Until then what single classes have is guessed, the less the more classes the source's newest
# labels are of: so much where |q|^2 - 1/K is less than this share of what it is of one class, and
# `DEFAULT_ASYMMETRY` where it is more.
LEAST_SINGLE = 0.02
GUESS_RAMP = (0.05, 0.1)
# The largest asymmetry of such a memory, where it begins to be believed and where it is: mixtures
# that nothing hides have 0.2 to 0.5, single classes 0.16 at most.
LEARNED_RAMP = (0.1, 0.15)
# What single classes have of that: the largest share that was measured of a network.
SINGLE_SHARE = 0.3
# The same for the classes to be counted: it takes a shortest memory that shows many.
SHARE_RAMP = (0.4, 0.6)
# The memory whose labels say whether few classes are seen now. Of N frames of a mixture, 1/n_eff is
# 1/N by chance, and this over K more because a network errs and prefers some classes, also where a
# corruption leaves so little of them that frames scatter like those of one. Twice that is few.
NEWEST_WINDOW = 1
FEW_SHARE = 0.8
# The memory that the newest one's means are compared with, to see whether a mixture has given way
# to one class.
MOVED_FROM_WINDOW = 3
# The classes' shares are remembered so many times longer than the longest of the other memories:
# domains, which have each its own mistakes, come and go faster than what a place shows.
SHARE_MEMORY = 4.0
# Half the squared step from frame to frame, as a share of the longest memory's variance: where
# frames begin to count as independent, and where they are. Domains are in that variance as well.
STEP_RAMP = (0.65, 0.8)
# How much less a shift of independent frames is shrunk: the default is an exact James-Stein then,
# and a quarter above it where a memory's frames may be fewer draws than their classes say.
SLACK = 0.2
# Variance of the logarithm of a deviation, times the number of draws. That of a Gaussian would be
# a half; a class's logit is mostly low and seldom high, which is why it is more.
SCALE_NOISE = 1.5
# The longest memories, which the ratios of the deviations are taken from.
NUM_SCALE_WINDOWS = 3
# A class's variance is at least this share of the classes' mean.
LEAST_VARIANCE = 1e-6
# Of two classes, one logit is the other's negative: no asymmetry can tell one from both.
LEAST_TESTED_CLASSES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftSums:
    """Sums over frames; row j of J forgets with half-life ``half_life / 3^(J - 1 - j)``.

    What one batch adds is the same for every memory and has J = 1.

    Attributes
    ----------
    window_count : array, (J,)
        Sum of 1.
    window_logits : array, (J, K)
        Sum of x, the source's log-probabilities less their mean over classes.
    window_powers : array, (J, K)
        Sum of x^2.
    window_mass : array, (J, K)
        Sum of q_0, the proposal without the prior on the classes, see `unprejudiced`; of p* where
        there never is a prior.
    window_lean, window_range : array, (J,)
        Sums of max y + min y and of max y - min y over classes, y being x less the mean of memory
        `REFERENCE_WINDOW` as it was when the frame came; a first batch has none. Their quotient is
        the asymmetry.
    share_mass : array, (K,)
        Sum of w q_0, with a half-life of `SHARE_MEMORY` times the longest memory's; w is how surely
        the shortest memory showed a mixture before the batch, by `SHARE_RAMP`.
    share_count : array, ()
        Sum of w.
    window_beside : array, (J, M)
        Sum of u = S^T z, the features beside the head's rows, see `beside_head`; zeros where
        there is no room beside them.
    window_beside_power : array, (J,)
        Sum of |u|^2.
    newest_source : array, (K,)
        Sum of s, with the half-life of memory `NEWEST_WINDOW`.
    departure : array, ()
        How surely a mixture has given way to one class, see `departed`. No sum: 0 of a batch.
    mixed_asymmetry : array, ()
        The largest asymmetry that frames of many classes have had, see `known_asymmetry`. No sum
        either.
    step_power, step_count : array, ()
        Sums of |x - x'|^2 / 2 and of 1 over frames that follow one another, x' being the frame
        before; forgotten as the longest memory.
    scale_numerator, scale_denominator : array, ()
        Regression of a frame's logit of its own class, which gives the scale a; see `scale_of`.
    """

    window_count: Array
    window_logits: Array
    window_powers: Array
    window_mass: Array
    window_lean: Array
    window_range: Array
    share_mass: Array
    share_count: Array
    window_beside: Array
    window_beside_power: Array
    newest_source: Array
    departure: Array
    mixed_asymmetry: Array
    step_power: Array
    step_count: Array
    scale_numerator: Array
    scale_denominator: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class LastFrame:
    """The frame that the next one is compared with.

    Attributes
    ----------
    logits : array, (K,)
        Its x, see `ShiftSums`.
    known : array, ()
        1, or 0 where there is none or it was rejected.
    """

    logits: Array
    known: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """What the sums say; predictions read this only.

    Attributes
    ----------
    vector : array, (K,)
        beta, the shift of the mean logits, to be subtracted from the source's.
    stretch : array, (K,)
        What the centred logits are multiplied by after that; ones where nothing is to be matched.
    log_prior : array, (K,)
        Logarithm of the prior on the classes, to be added after that.
    variance : array, ()
        Posterior variance of one entry of the shift.
    trust : array, ()
        How much of the observed shift survived the shrinkage, in [0, 1].
    independence : array, ()
        iota, how far a frame says nothing of the next one, in [0, 1].
    """

    vector: Array
    stretch: Array
    log_prior: Array
    variance: Array
    trust: Array
    independence: Array


def empty_sums(num_classes: int, *, like: Array) -> ShiftSums:
    """Sums over no frame, in the dtype and on the device of `like`."""
    xp = array_namespace(like)

    def zeros(*shape: int) -> Array:
        return xp.zeros(shape, dtype=like.dtype, device=device(like))

    return ShiftSums(
        window_count=zeros(NUM_WINDOWS),
        window_logits=zeros(NUM_WINDOWS, num_classes),
        window_powers=zeros(NUM_WINDOWS, num_classes),
        window_mass=zeros(NUM_WINDOWS, num_classes),
        window_lean=zeros(NUM_WINDOWS),
        window_range=zeros(NUM_WINDOWS),
        share_mass=zeros(num_classes),
        share_count=zeros(),
        window_beside=zeros(NUM_WINDOWS, BESIDE_DIMS),
        window_beside_power=zeros(NUM_WINDOWS),
        newest_source=zeros(num_classes),
        departure=zeros(),
        mixed_asymmetry=zeros(),
        step_power=zeros(),
        step_count=zeros(),
        scale_numerator=zeros(),
        scale_denominator=zeros(),
    )


def no_frame(num_classes: int, *, like: Array) -> LastFrame:
    """What there is before the first frame."""
    xp = array_namespace(like)
    logits = xp.zeros((num_classes,), dtype=like.dtype, device=device(like))
    return LastFrame(logits=logits, known=scalar(0.0, like=like, xp=xp))


def no_shift(num_classes: int, *, like: Array) -> Shift:
    """The shift before the first frame."""
    xp = array_namespace(like)
    zero = scalar(0.0, like=like, xp=xp)
    vector = xp.zeros((num_classes,), dtype=like.dtype, device=device(like))
    return Shift(
        vector=vector,
        stretch=xp.ones_like(vector),
        log_prior=vector,
        variance=zero,
        trust=zero,
        independence=zero,
    )


def between(before: Shift, after: Shift, /) -> Shift:
    """The shift before a batch, moved towards the one after it as far as frames are independent.

    Frames that say nothing of each other's class may be predicted with a shift that knows them.
    """
    share = after.independence
    moved = {
        item.name: getattr(before, item.name)
        + share * (getattr(after, item.name) - getattr(before, item.name))
        for item in fields(Shift)
    }
    return Shift(**moved)


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
        Normalised. The proposal is the source with the shift taken out of its centred logits,
        their deviations matched and the prior put in. The evaluator is the posterior predictive:
        the same averaged over a shift whose entries have the variance v, so that a difference of
        two logits has 2 v, by the probit approximation 1 / sqrt(1 + pi 2 v / 8) of a softmax
        under Gaussian logits. It has the prior a second time: what takes a frame away from the
        classes that come here has to be worth it.
    """
    xp = array_namespace(source_log_probs)
    logits = _unshifted(source_log_probs, shift, xp=xp)
    log_proposal = log_softmax(logits + shift.log_prior, xp=xp)
    spread = xp.sqrt(1.0 + (math.pi / 4.0) * shift.variance)
    return log_proposal, log_softmax(log_proposal / spread + shift.log_prior, xp=xp)


def unprejudiced(source_log_probs: Array, shift: Shift, /, *, adapts: Array) -> Array:
    """q_0 (B, K), the proposal without the prior on the classes, which would confirm itself.

    Parameters
    ----------
    source_log_probs : array, (B, K)
        log s.
    shift : Shift
    adapts : array, () bool
        Whether anything is proposed; else this is s.
    """
    xp = array_namespace(source_log_probs)
    log_probs = log_softmax(_unshifted(source_log_probs, shift, xp=xp), xp=xp)
    return xp.exp(xp.where(adapts, log_probs, source_log_probs))


def accumulate_shift(
    evidence: Evidence,
    sums: ShiftSums,
    shift: Shift,
    /,
    *,
    last: LastFrame,
    prototypes: Prototypes,
    config: GainConfig,
) -> tuple[ShiftSums, LastFrame]:
    """What a batch adds.

    Parameters
    ----------
    evidence : Evidence
    sums : ShiftSums
        As they were when the batch was predicted; read only.
    shift : Shift
        The one it was predicted with.
    last : LastFrame
        Of the batch before, which may still wait to be learned from.
    prototypes : Prototypes
    config : GainConfig

    Returns
    -------
    added : ShiftSums
        With J = 1.
    last : LastFrame
        Of this batch; of an empty one, what was given.
    """
    xp = array_namespace(evidence.probs)
    logits = centered(evidence.source_log_probs, xp=xp) * evidence.accepted[:, None]
    following = xp.concat([last.logits[None, :], logits])
    accepted = xp.concat([xp.reshape(last.known, (1,)), evidence.accepted])
    pairs = accepted[1:] * accepted[:-1]
    steps = following[1:, :] - following[:-1, :]
    chosen = xp.argmax(evidence.probs, axis=1)
    own = xp.take_along_axis(logits - shift.vector, chosen[:, None], axis=1)[:, 0]
    power = xp.take(prototypes.row_squares, chosen, axis=0)
    weighted = evidence.reliability * power
    tiny = scalar(TINY, like=sums.window_count, xp=xp)
    count = sums.window_count[REFERENCE_WINDOW]
    about = logits - sums.window_logits[REFERENCE_WINDOW, :] / xp.maximum(count, tiny)
    known = xp.where(count > 0, evidence.accepted, xp.zeros_like(own))
    highest, lowest = xp.max(about, axis=1), xp.min(about, axis=1)
    num_accepted, mass = xp.sum(evidence.accepted), xp.sum(evidence.probs, axis=0)
    counted = _counted(sums, prototypes=prototypes, config=config)
    beside = _beside(evidence.features, prototypes.beside)
    source = xp.exp(evidence.source_log_probs) * evidence.accepted[:, None]
    added = ShiftSums(
        window_count=xp.reshape(num_accepted, (1,)),
        window_logits=xp.sum(logits, axis=0, keepdims=True),
        window_powers=xp.sum(logits * logits, axis=0, keepdims=True),
        window_mass=mass[None, :],
        window_lean=xp.sum((highest + lowest) * known, keepdims=True),
        window_range=xp.sum((highest - lowest) * known, keepdims=True),
        share_mass=counted * mass,
        share_count=counted * num_accepted,
        window_beside=xp.sum(beside, axis=0, keepdims=True),
        window_beside_power=xp.sum(xp.sum(beside * beside, axis=1), keepdims=True),
        newest_source=xp.sum(source, axis=0),
        departure=xp.zeros_like(num_accepted),
        mixed_asymmetry=xp.zeros_like(num_accepted),
        step_power=0.5 * xp.sum(xp.sum(steps * steps, axis=1) * pairs),
        step_count=xp.sum(pairs),
        scale_numerator=xp.sum(weighted * own),
        scale_denominator=xp.sum(weighted * power),
    )
    return added, LastFrame(logits=following[-1, :], known=accepted[-1])


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
    rates = [-math.log(2.0) * WINDOW_RATIO**back / config.half_life for back in _reversed_windows()]
    like = old.window_count
    rate = xp.asarray(rates, dtype=like.dtype, device=device(like))
    decay = xp.exp(rate * count)
    scale_decay = xp.exp(count * (-math.log(2.0) / config.scale_half_life))
    share_decay = xp.exp(count * (-math.log(2.0) / (SHARE_MEMORY * config.half_life)))
    sums = ShiftSums(
        window_count=old.window_count * decay + added.window_count,
        window_logits=old.window_logits * decay[:, None] + added.window_logits,
        window_powers=old.window_powers * decay[:, None] + added.window_powers,
        window_mass=old.window_mass * decay[:, None] + added.window_mass,
        window_lean=old.window_lean * decay + added.window_lean,
        window_range=old.window_range * decay + added.window_range,
        share_mass=old.share_mass * share_decay + added.share_mass,
        share_count=old.share_count * share_decay + added.share_count,
        window_beside=old.window_beside * decay[:, None] + added.window_beside,
        window_beside_power=old.window_beside_power * decay + added.window_beside_power,
        newest_source=old.newest_source * decay[NEWEST_WINDOW] + added.newest_source,
        departure=old.departure,
        mixed_asymmetry=old.mixed_asymmetry,
        step_power=old.step_power * decay[-1] + added.step_power,
        step_count=old.step_count * decay[-1] + added.step_count,
        scale_numerator=old.scale_numerator * scale_decay + added.scale_numerator,
        scale_denominator=old.scale_denominator * scale_decay + added.scale_denominator,
    )
    num_classes = old.share_mass.shape[0]
    if tests_mixtures(config, num_classes=num_classes):
        sums = replace(sums, mixed_asymmetry=_mixed_asymmetry(sums))
    if not may_be_independent(config, num_classes=num_classes):
        return sums
    counted = _mixture_counted(sums, config=config)
    return replace(sums, departure=_departure(sums, counted=counted, release=decay[NEWEST_WINDOW]))


def estimate_shift(sums: ShiftSums, /, *, prototypes: Prototypes, config: GainConfig) -> Shift:
    """The shrunken shift of the mean logits, the matched deviations and the classes' prior.

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
    count = xp.maximum(sums.window_count, tiny)
    mean = sums.window_logits / count[:, None]
    share = sums.window_mass / count[:, None]
    # 1/n_eff: the label noise of a mean in units of one draw's. Draws from all K classes alike
    # leave 1/count; a memory that holds one class leaves 1, however long it is.
    diversity = xp.maximum(xp.sum(share * share, axis=1) - 1.0 / num_classes, 1.0 / count)
    length = xp.sum(mean * mean, axis=1)
    spread = xp.maximum(xp.sum(sums.window_powers, axis=1) / count - length, xp.zeros_like(count))
    independence = xp.zeros_like(tiny)
    if may_be_independent(config, num_classes=num_classes):
        independence = independence_of(sums, spread[-1])
    weight = xp.minimum(config.label_draws * diversity, xp.ones_like(count))
    held = xp.maximum(LEAST_POWER * spread, tiny)
    weight = weight * xp.minimum(length / held, xp.ones_like(count))
    explained = _explained(share - 1.0 / num_classes, prototypes) * scale_of(sums)
    moved = mean - weight[:, None] * explained
    moved = moved - _within(moved, prototypes.thresholds)
    inverse_draws = certain = diversity
    log_prior = xp.zeros_like(prototypes.thresholds)
    if tests_mixtures(config, num_classes=num_classes):
        single, alone = _single_classes(
            sums, diversity, independence, prototypes=prototypes, config=config
        )
        inverse_draws = xp.maximum(diversity, single)
        if expects_classes(config, num_classes=num_classes):
            expected = log_class_prior(sums.share_mass, sums.share_count)
            log_prior = independence * (1.0 - single[-1]) * expected
        certain = xp.maximum(inverse_draws, alone)
    seen = sums.window_count > 0
    reach = _reach(seen, independence, FIRST_SHIFT_WINDOW)
    margin = config.shrinkage * (1.0 - SLACK * independence)
    vector, variance, trust = _shrunken(moved, spread, inverse_draws, reach=reach, margin=margin)
    stretch = xp.ones_like(vector)
    if config.match_scale:
        # Views of one thing, in any memory: their deviations are rounding's or a sensor's, and
        # beside what came before, a longer memory's are of the step between.
        views = xp.max(LEAST_SPREAD * length / xp.maximum(spread, tiny))
        views = xp.maximum(views, xp.ones_like(views))
        noise = SCALE_NOISE * num_classes * xp.maximum(certain * views, views - 1.0)
        powers = sums.window_powers / count[:, None] - mean * mean
        reach = _reach(seen, independence, FIRST_SCALE_WINDOW)
        stretch = _stretch(powers, noise, reach=reach, prototypes=prototypes, config=config)
    return Shift(
        vector=vector,
        stretch=stretch,
        log_prior=log_prior,
        variance=variance,
        trust=trust,
        independence=independence,
    )


def _counted(sums: ShiftSums, /, *, prototypes: Prototypes, config: GainConfig) -> Array:
    """w, (): how surely what was seen last is a mixture whose labels can be counted."""
    xp = array_namespace(sums.window_count)
    nothing = xp.zeros_like(sums.share_count)
    if not expects_classes(config, num_classes=prototypes.shape[0]):
        return nothing
    pair = known_asymmetry(sums, prototypes=prototypes)
    mixture = 1.0 - _single(asymmetry_of(sums)[0], SHARE_RAMP, pair)
    return xp.where(sums.window_count[0] > 0, mixture, nothing)


def _beside(features: Array, sketch: Array, /) -> Array:
    """u (B, M), the features (B, D) beside the head's rows.

    Zeros of features of another number, and where a square would fill a memory with infinity.
    """
    xp = array_namespace(features)
    if features.shape[1] != sketch.shape[0]:
        shape = (features.shape[0], sketch.shape[1])
        return xp.zeros(shape, dtype=features.dtype, device=device(features))
    with np.errstate(over="ignore", invalid="ignore"):
        beside = features @ sketch
        return xp.where(beside * beside < MOST_POWER, beside, xp.zeros_like(beside))


def _mixed_asymmetry(sums: ShiftSums, /) -> Array:
    """The largest asymmetry of frames of many classes, (), with `mixed_asymmetry` as before."""
    xp = array_namespace(sums.window_count)
    tiny = scalar(TINY, like=sums.window_count, xp=xp)
    count = sums.window_count[REFERENCE_WINDOW]
    few = _concentration(sums.window_mass[REFERENCE_WINDOW, :] / xp.maximum(count, tiny))
    many = (1.0 - along(few, SPREAD_RAMP)) * xp.clip(count / SURE_FRAMES, 0.0, 1.0)
    found = many * asymmetry_of(sums)[REFERENCE_WINDOW]
    # Of what is no number, nothing is learned.
    return xp.where(found > sums.mixed_asymmetry, found, sums.mixed_asymmetry)


def _departure(sums: ShiftSums, /, *, counted: Array, release: Array) -> Array:
    """How surely a mixture has given way to one class, (), with `departure` as it was before."""
    xp = array_namespace(sums.window_count)
    tiny = scalar(TINY, like=sums.window_count, xp=xp)
    zero = xp.zeros_like(tiny)
    counts = xp.maximum(sums.window_count, tiny)
    newest, reference = NEWEST_WINDOW, MOVED_FROM_WINDOW
    count = counts[newest]

    def move(total: Array, power: Array) -> tuple[Array, Array, Array]:
        mean = total / counts[:, None]
        length = xp.sum(mean[reference, :] * mean[reference, :])
        scatter = xp.maximum(power[reference] / counts[reference] - length, zero)
        moved = squared_move(mean[newest, :], mean[reference, :], scatter=scatter, count=count)
        return moved, scatter, length

    logits, _, _ = move(sums.window_logits, xp.sum(sums.window_powers, axis=1))
    beside, scatter, length = move(sums.window_beside, sums.window_beside_power)
    num_classes = sums.share_mass.shape[0]
    labels = sums.newest_source / count
    return departed(
        sums.departure,
        move=logits,
        beside=beside,
        known=scatter > LEAST_SCATTER * length,
        concentration=xp.sum(labels * labels) - 1.0 / num_classes,
        mixed=1.0 / count + FEW_SHARE / num_classes,
        counted=counted,
        release=release,
    )


def _shrunken(
    moved: Array, spread: Array, inverse_draws: Array, /, *, reach: Array, margin: Array
) -> tuple[Array, Array, Array]:
    """The shift (K,), its variance () and trust (), from the memories' means (J, K)."""
    xp = array_namespace(moved)
    tiny = scalar(TINY, like=moved, xp=xp)
    zero, one = xp.zeros_like(tiny), xp.ones_like(tiny)
    vector, variance, trust = xp.zeros_like(moved[0, :]), None, zero
    for window in _reversed_windows():
        step = moved[window, :] - vector
        power = xp.sum(step * step)
        alike = 1.0 - spread[window] / xp.maximum(LEAST_SPREAD * power, tiny)
        noise = (spread[window] + power) * xp.maximum(inverse_draws[window], alike)
        ratio = 1.0 - margin * noise / xp.maximum(power, tiny)
        kept = reach[window] * xp.maximum(ratio, zero)
        own = noise / moved.shape[1]
        variance = own if variance is None else variance + kept * (own - variance)
        vector = vector + kept * step
        trust = trust + kept * (one - trust)
    assert variance is not None
    return vector, xp.where(reach[-1] > 0, variance, zero), trust


def asymmetry_of(sums: ShiftSums, /) -> Array:
    """Asymmetry (J,) of the frames about their mean: the least of each memory and longer ones.

    Frames of many classes stick out in the logit of their class and in no other: max y is further
    from zero than min y. Frames of one class scatter evenly.
    """
    xp = array_namespace(sums.window_lean)
    tiny = scalar(TINY, like=sums.window_lean, xp=xp)
    quotient = sums.window_lean / xp.maximum(sums.window_range, tiny)
    least: list[Array] = []
    for window in _reversed_windows():
        here = quotient[window]
        least.insert(0, here if not least else xp.minimum(here, least[0]))
    return xp.stack(least)


def known_asymmetry(sums: ShiftSums, /, *, prototypes: Prototypes) -> tuple[Array, Array]:
    """Asymmetry of one class and of all classes, () each: measured, learned or guessed.

    What was not measured is learned from frames that are of many classes for sure. Until then, and
    for ever where the stream never shows any, it is guessed, by the source's newest labels.
    """
    xp = array_namespace(sums.window_count)
    single, mixed = prototypes.asymmetry[0], prototypes.asymmetry[1]
    if prototypes.measured:
        return single, mixed
    tiny = scalar(TINY, like=sums.window_count, xp=xp)
    count = xp.maximum(sums.window_count[NEWEST_WINDOW], tiny)
    few = _concentration(sums.newest_source / count) - 1.0 / count
    single = LEAST_SINGLE + along(few, GUESS_RAMP) * (single - LEAST_SINGLE)
    learned = sums.mixed_asymmetry
    believed = along(learned, LEARNED_RAMP)
    single = single + believed * (SINGLE_SHARE * learned - single)
    return single, mixed + believed * (learned - mixed)


def tests_mixtures(config: GainConfig, *, num_classes: int) -> bool:
    """Whether memories of one class are told from memories of many at all."""
    return config.mixture_test and num_classes >= LEAST_TESTED_CLASSES


def may_be_independent(config: GainConfig, *, num_classes: int) -> bool:
    """Whether frames can ever be independent; where they cannot, nothing is revised."""
    return config.independence_test and tests_mixtures(config, num_classes=num_classes)


def expects_classes(config: GainConfig, *, num_classes: int) -> bool:
    """Whether there is ever a prior on the classes; where not, statistics are made of p*."""
    return config.class_prior and may_be_independent(config, num_classes=num_classes)


def independence_of(sums: ShiftSums, spread: Array, /) -> Array:
    """iota, (): how far a frame says nothing of the next one.

    Of independent frames, half the mean squared step from one to the next is their variance, as
    von Neumann's ratio has it. In a video, or in a run of one class, it is less.

    Parameters
    ----------
    sums : ShiftSums
    spread : array, ()
        Variance of the longest memory, summed over classes.
    """
    xp = array_namespace(spread)
    tiny = scalar(TINY, like=spread, xp=xp)
    ratio = sums.step_power / (xp.maximum(sums.step_count, tiny) * xp.maximum(spread, tiny))
    return along(ratio, STEP_RAMP)


def _single(asymmetry: Array, ramp: tuple[float, float], pair: tuple[Array, Array]) -> Array:
    """How surely each memory (J,) shows one class: 1 up to the ramp's beginning, 0 from its end."""
    xp = array_namespace(asymmetry)
    single, gap = pair[0], pair[1] - pair[0]
    begins, ends = ramp
    way = (asymmetry - single - begins * gap) / ((ends - begins) * gap)
    return 1.0 - xp.clip(way, 0.0, 1.0)


def _single_classes(
    sums: ShiftSums,
    diversity: Array,
    independence: Array,
    /,
    *,
    prototypes: Prototypes,
    config: GainConfig,
) -> tuple[Array, Array]:
    """How surely each memory (J,) shows one class, for the means and for the deviations.

    The asymmetry says so, and among independent frames the newest labels have a say, by their
    1/n_eff of `diversity` (J,). If they are of few classes too, all memories are of one: the longer
    ones still show the mixture that came before. So they are once that has given way to one class.
    If they are of many, and many were counted, a corruption hides them.
    """
    xp = array_namespace(diversity)
    asymmetry = asymmetry_of(sums)
    pair = known_asymmetry(sums, prototypes=prototypes)
    means = _single(asymmetry, SHIFT_RAMP, pair)
    deviations = _single(asymmetry, SCALE_RAMP, pair)
    if not may_be_independent(config, num_classes=prototypes.shape[0]):
        return means, deviations
    tiny = scalar(TINY, like=diversity, xp=xp)
    chance = 1.0 / xp.maximum(sums.window_count[NEWEST_WINDOW], tiny)
    mixed = chance + FEW_SHARE / prototypes.shape[0]
    few = xp.clip(diversity[NEWEST_WINDOW] / mixed - 1.0, 0.0, 1.0)
    counted = _mixture_counted(sums, config=config)
    shown = 1.0 - independence * (1.0 - few) * counted
    newest = independence * xp.maximum(few * means[NEWEST_WINDOW], sums.departure)
    return xp.maximum(shown * means, newest), shown * deviations


def _mixture_counted(sums: ShiftSums, /, *, config: GainConfig) -> Array:
    """How far a mixture is known, (): the frames counted over those of the longest memory."""
    xp = array_namespace(sums.share_count)
    return xp.clip(sums.share_count / config.half_life, 0.0, 1.0)


def _reach(seen: Array, independence: Array, first: int) -> Array:
    """How far each memory (J,) may move an estimate: shorter ones than `first` as far as iota."""
    xp = array_namespace(seen)
    zero, one = xp.zeros_like(independence), xp.ones_like(independence)
    shares = [independence if window < first else one for window in range(NUM_WINDOWS)]
    return xp.where(seen, xp.stack(shares), zero)


def _concentration(share: Array) -> Array:
    """How few classes shares (K,) are of, (): 0 where all are alike, 1 where there is one."""
    xp = array_namespace(share)
    equal = 1.0 / share.shape[0]
    # The same as of the squares less 1/K, whose rounding steep ramps would magnify.
    excess = share - equal
    return xp.sum(excess * excess) / (1.0 - equal)


def _stretch(
    powers: Array,
    noise: Array,
    /,
    *,
    reach: Array,
    prototypes: Prototypes,
    config: GainConfig,
) -> Array:
    """Factors (K,) that match the logits' deviations, from variances (J, K) and their noise (J,).

    The same shrinkage as the shift's, of the logarithms, towards deviations in the ratios that the
    source's own have; the logits' mean square over classes stays what it is.
    """
    xp = array_namespace(powers)
    tiny = scalar(TINY, like=powers, xp=xp)
    least = xp.maximum(LEAST_VARIANCE * xp.mean(powers, axis=1, keepdims=True), tiny)
    powers = xp.maximum(powers, least)
    logs = 0.5 * xp.log(powers)
    logs = logs - xp.mean(logs, axis=1, keepdims=True)
    logs = logs - _within(logs, prototypes.log_lengths)
    found = xp.zeros_like(powers[0, :])
    for window in list(_reversed_windows())[:NUM_SCALE_WINDOWS]:
        step = logs[window, :] - found
        power = xp.maximum(xp.sum(step * step), tiny)
        ratio = 1.0 - config.shrinkage * noise[window] / power
        found = found + reach[window] * xp.maximum(ratio, xp.zeros_like(ratio)) * step
    factors = xp.exp(-found)
    longest = powers[-1, :]
    matched = longest * factors * factors
    return factors * xp.sqrt(xp.sum(longest) / xp.sum(matched))


def scale_of(sums: ShiftSums, /) -> Array:
    """a, (): a frame of class k has the logit a |c_k|^2 of its own, beyond mean and shift."""
    xp = array_namespace(sums.scale_numerator)
    tiny = scalar(TINY, like=sums.scale_numerator, xp=xp)
    ratio = sums.scale_numerator / xp.maximum(sums.scale_denominator, tiny)
    return xp.maximum(ratio, xp.zeros_like(ratio))


def centered(log_probs: Array, *, xp: Namespace) -> Array:
    """Less the mean over classes, which no softmax sees."""
    return log_probs - xp.mean(log_probs, axis=1, keepdims=True)


def _unshifted(source_log_probs: Array, shift: Shift, *, xp: Namespace) -> Array:
    """The source's centred logits (B, K) with the shift taken out, their deviations matched."""
    return (centered(source_log_probs, xp=xp) - shift.vector) * shift.stretch


def _within(observed: Array, pattern: Array) -> Array:
    """As much of the head's own pattern (K,) as the rows (J, K) contain, none to all."""
    xp = array_namespace(observed)
    tiny = scalar(TINY, like=pattern, xp=xp)
    along = (observed @ pattern) / xp.maximum(xp.sum(pattern * pattern), tiny)
    return xp.clip(along, 0.0, 1.0)[:, None] * pattern


def _explained(share: Array, prototypes: Prototypes) -> Array:
    """Mean logits (J, K) that the classes seen would give at a = 1: C C^T (q - 1/K)."""
    xp = array_namespace(share)
    return (share @ prototypes.centered) @ xp.matrix_transpose(prototypes.centered)


def _reversed_windows() -> range:
    """J - 1, ..., 0: the windows from the longest, and how often each halves the half-life."""
    return range(NUM_WINDOWS - 1, -1, -1)
