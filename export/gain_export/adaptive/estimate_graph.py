"""What the sums of a tracked shift say, as graph: `gain_core.shift.estimate_shift`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gain_core.class_prior import MOST_SHARE, SHARE_NOISE, SHARE_POWER

from gain_core import GainConfig
from gain_core.shift import (
    FEW_SHARE,
    FIRST_SCALE_WINDOW,
    FIRST_SHIFT_WINDOW,
    LEAST_POWER,
    LEAST_SPREAD,
    LEAST_VARIANCE,
    NEWEST_WINDOW,
    NUM_SCALE_WINDOWS,
    NUM_WINDOWS,
    SCALE_NOISE,
    SCALE_RAMP,
    SHIFT_RAMP,
    SLACK,
    STEP_RAMP,
    TINY,
    expects_classes,
    may_be_independent,
)
from gain_export.adaptive.asymmetry_graph import asymmetry_of, known_asymmetry, single_class
from gain_export.adaptive.expressions import (
    Value,
    along,
    column,
    exp,
    expand,
    highest,
    log,
    maximum,
    minimum,
    row,
    sqrt,
    squeeze,
    taken,
    total,
    where,
)
from gain_export.adaptive.head_graph import Head

__all__ = ["INDEPENDENCE", "estimate", "mixture_counted"]

# What an estimate says beside the state, in files whose frames can be independent.
INDEPENDENCE = "independence"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Moments:
    """Of the frames in every memory.

    Attributes
    ----------
    seen : Value, (J,) bool
        Whether there is any.
    mean, share, powers : Value, (J, K)
        Mean of x, mean of p*, variance of x.
    length, varied : Value, (J,)
        Sums over classes of the mean's squares and of the variances. Rounding may leave a variance
        a little below zero.
    diversity : Value, (J,)
        1/n_eff by the labels.
    """

    seen: Value
    mean: Value
    share: Value
    powers: Value
    length: Value
    varied: Value
    diversity: Value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Draws:
    """What stands behind every memory.

    Attributes
    ----------
    independence : Value or None, (1,)
        iota; None where it is always zero.
    expecting : Value or None, (1,)
        How far the classes' shares are expected of the next frames: iota times how surely the
        longest memory shows many classes; None where they never are.
    inverse, certain : Value, (J,)
        1/n_eff of the means, and of the deviations: one where a memory looks like one class.
    """

    independence: Value | None
    expecting: Value | None
    inverse: Value
    certain: Value


def estimate(sums: Mapping[str, Value], /, *, head: Head, config: GainConfig) -> dict[str, Value]:
    """The shift, its variance, the matched deviations, the prior, and iota as `INDEPENDENCE`.

    Parameters
    ----------
    sums : mapping of str to Value
        The new sums by field of the state; over no frame there is no shift.
    head : Head
    config : GainConfig

    Returns
    -------
    dict of str to Value
        By field of the state; iota only where frames can be independent.
    """
    moments = _moments(sums, num_classes=head.num_classes)
    draws = _draws(moments, sums, head=head, config=config)
    moved = _moved(moments, sums, head=head, config=config)
    vector, variance = _shrunken(moved, moments, draws, head=head, config=config)
    if config.match_scale:
        stretch = _stretch(moments, draws, head=head, config=config)
    else:
        stretch = expand(vector.tape.constant(1.0), (1, head.num_classes))
    if draws.expecting is None:
        log_prior = expand(vector.tape.constant(0.0), (head.num_classes,))
    else:
        log_prior = draws.expecting * _log_class_prior(sums, head.num_classes)
    found = {
        "shift": squeeze(vector),
        "shift_stretch": squeeze(stretch),
        "shift_log_prior": log_prior,
        "shift_variance": squeeze(where(_row(moments.seen, 0), variance, 0.0)),
    }
    if draws.independence is not None:
        found[INDEPENDENCE] = squeeze(draws.independence)
    return found


def _moments(sums: Mapping[str, Value], *, num_classes: int) -> _Moments:
    """Means and variances of what was summed."""
    count = maximum(sums["window_count"], TINY)
    divisor = column(count)
    mean = sums["window_logits"] / divisor
    share = sums["window_mass"] / divisor
    squares = mean * mean
    powers = sums["window_powers"] / divisor - squares
    concentration = total(share * share, axis=1, keep=False) - 1.0 / num_classes
    return _Moments(
        seen=sums["window_count"] > 0.0,
        mean=mean,
        share=share,
        powers=powers,
        length=total(squares, axis=1, keep=False),
        varied=total(powers, axis=1, keep=False),
        diversity=maximum(concentration, 1.0 / count),
    )


def _draws(
    moments: _Moments, sums: Mapping[str, Value], *, head: Head, config: GainConfig
) -> _Draws:
    """How many draws every memory holds: by the labels, the asymmetry and the steps."""
    inverse = moments.diversity
    if head.asymmetry is None:
        return _Draws(independence=None, expecting=None, inverse=inverse, certain=inverse)
    asymmetry, pair = asymmetry_of(sums), known_asymmetry(sums, head=head)
    means = single_class(asymmetry, SHIFT_RAMP, pair)
    deviations = single_class(asymmetry, SCALE_RAMP, pair)
    independence = expecting = None
    if may_be_independent(config, num_classes=head.num_classes):
        independence = _independence(moments, sums)
        few = _few_classes(moments, sums, num_classes=head.num_classes)
        counted = mixture_counted(sums, config=config)
        shown = 1.0 - independence * (1.0 - few) * counted
        newest = independence * maximum(few * _row(means, NEWEST_WINDOW), sums["departure"])
        means, deviations = maximum(shown * means, newest), shown * deviations
        if expects_classes(config, num_classes=head.num_classes):
            many = minimum(1.0 - _row(means, NUM_WINDOWS - 1), 1.0)
            expecting = independence * many
    inverse = maximum(inverse, means)
    certain = maximum(inverse, deviations)
    return _Draws(independence=independence, expecting=expecting, inverse=inverse, certain=certain)


def mixture_counted(sums: Mapping[str, Value], /, *, config: GainConfig) -> Value:
    """How far a mixture is known, (): the frames counted over those of the longest memory."""
    return minimum(sums["share_count"] * (1.0 / config.half_life), 1.0)


def _few_classes(moments: _Moments, sums: Mapping[str, Value], *, num_classes: int) -> Value:
    """How surely the newest labels are of few classes, (1,)."""
    chance = 1.0 / maximum(_row(sums["window_count"], NEWEST_WINDOW), TINY)
    mixed = chance + FEW_SHARE / num_classes
    way = _row(moments.diversity, NEWEST_WINDOW) / mixed - 1.0
    return minimum(maximum(way, 0.0), 1.0)


def _log_class_prior(sums: Mapping[str, Value], num_classes: int) -> Value:
    """`gain_core.class_prior.log_class_prior`, (K,)."""
    count = maximum(sums["share_count"], TINY)
    excess = sums["share_mass"] / count - 1.0 / num_classes
    noise = 1.0 / count + SHARE_NOISE / num_classes
    kept = maximum(1.0 - noise / maximum(total(excess * excess), TINY), 0.0)
    kept = where(sums["share_count"] > 0.0, kept, 0.0)
    shares = 1.0 + float(num_classes) * kept * excess
    return SHARE_POWER * log(minimum(maximum(shares, 1.0 / MOST_SHARE), MOST_SHARE))


def _independence(moments: _Moments, sums: Mapping[str, Value]) -> Value:
    """iota (1,), from the steps between frames and the longest memory's variance."""
    spread = maximum(_row(moments.varied, NUM_WINDOWS - 1), TINY)
    ratio = sums["step_power"] / (maximum(sums["step_count"], TINY) * spread)
    return along(ratio, STEP_RAMP)


def _reach(independence: Value | None, first: int) -> Iterator[tuple[int, Value | None]]:
    """The memories that move an estimate, from the longest; those below `first` as far as iota."""
    for window in reversed(range(NUM_WINDOWS)):
        if window >= first:
            yield window, None
        elif independence is not None:
            yield window, independence


def _moved(
    moments: _Moments, sums: Mapping[str, Value], /, *, head: Head, config: GainConfig
) -> Value:
    """Mean logits (J, K) less what the classes seen and the head's own thresholds explain."""
    held = maximum(LEAST_POWER * maximum(moments.varied, 0.0), TINY)
    weight = minimum(config.label_draws * moments.diversity, 1.0)
    weight = weight * minimum(moments.length / held, 1.0)
    across = head.centered.tape.apply("Transpose", head.centered, perm=[1, 0])
    explained = ((moments.share - 1.0 / head.num_classes) @ head.centered) @ across
    ratio = sums["scale_numerator"] / maximum(sums["scale_denominator"], TINY)
    moved = moments.mean - column(weight) * (explained * maximum(ratio, 0.0))
    return _beyond(moved, head.thresholds)


def _shrunken(
    moved: Value, moments: _Moments, draws: _Draws, /, *, head: Head, config: GainConfig
) -> tuple[Value, Value]:
    """The shift (1, K) and its variance (1,), from the longest memory to the shortest."""
    spread = maximum(moments.varied, 0.0)
    vector: Value = _row(moved, 0) * 0.0
    variance: Value | None = None
    margin: Value | float = config.shrinkage
    if draws.independence is not None:
        margin = config.shrinkage * (1.0 - SLACK * draws.independence)
    for window, share in _reach(draws.independence, FIRST_SHIFT_WINDOW):
        step = _row(moved, window) - vector
        power = total(step * step, axis=1, keep=False)
        varied = _row(spread, window)
        alike = 1.0 - varied / maximum(LEAST_SPREAD * power, TINY)
        noise = (varied + power) * maximum(_row(draws.inverse, window), alike)
        kept = maximum(1.0 - margin * noise / maximum(power, TINY), 0.0)
        kept = where(_row(moments.seen, window), kept, 0.0)
        if share is not None:
            kept = share * kept
        own = noise / float(head.num_classes)
        variance = own if variance is None else variance + kept * (own - variance)
        vector = vector + kept * step
    assert variance is not None
    return vector, variance


def _stretch(moments: _Moments, draws: _Draws, /, *, head: Head, config: GainConfig) -> Value:
    """Factors (1, K) that match the logits' deviations, from the longest memories."""
    num_classes = float(head.num_classes)
    windows = range(NUM_WINDOWS - NUM_SCALE_WINDOWS, NUM_WINDOWS)
    alike = LEAST_SPREAD * moments.length / maximum(moments.varied, TINY)
    views = maximum(highest(row(alike)), 1.0)
    certain = maximum(draws.certain * views, views - 1.0)
    noise = SCALE_NOISE * num_classes * where(moments.seen, certain, 1.0)
    least = maximum(LEAST_VARIANCE / num_classes * taken(moments.varied, windows), TINY)
    powers = maximum(taken(moments.powers, windows), column(least))
    logs = 0.5 * log(powers)
    logs = logs - total(logs, axis=1) / num_classes
    logs = _beyond(logs, head.log_lengths)
    found: Value = _row(logs, 0) * 0.0
    for window, share in _reach(draws.independence, FIRST_SCALE_WINDOW):
        if window < windows.start:
            break
        step = _row(logs, window - windows.start) - found
        power = maximum(total(step * step, axis=1, keep=False), TINY)
        ratio = 1.0 - config.shrinkage * _row(noise, window) / power
        kept = maximum(ratio, 0.0)
        if share is not None:
            kept = share * kept
        found = found + kept * step
    factors = exp(0.0 - found)
    longest = _row(powers, NUM_SCALE_WINDOWS - 1)
    matched = total(longest * (factors * factors), axis=1)
    return factors * sqrt(total(longest, axis=1) / matched)


def _beyond(observed: Value, pattern: Value | None) -> Value:
    """The rows (J, K) without what they have, none to all, of the head's own pattern (K,)."""
    if pattern is None:
        return observed
    power = maximum(total(pattern * pattern), TINY)
    along = minimum(maximum((observed @ column(pattern)) / power, 0.0), 1.0)
    return observed - along * row(pattern)


def _row(values: Value, index: int) -> Value:
    """Entry `index` of the first axis, which stays with length one."""
    return taken(values, [index])
