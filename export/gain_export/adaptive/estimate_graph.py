"""What the sums of a tracked shift say, as graph: `gain_core.shift.estimate_shift`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gain_core import GainConfig
from gain_core.shift import (
    LEAST_POWER,
    LEAST_SPREAD,
    LEAST_VARIANCE,
    NUM_SCALE_WINDOWS,
    NUM_WINDOWS,
    SCALE_NOISE,
    SCALE_RAMP,
    SHIFT_RAMP,
    TINY,
)
from gain_export.adaptive.expressions import (
    Value,
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

__all__ = ["estimate"]


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


def estimate(sums: Mapping[str, Value], /, *, head: Head, config: GainConfig) -> dict[str, Value]:
    """The shift, its variance and the matched deviations.

    Parameters
    ----------
    sums : mapping of str to Value
        The new sums by field of the state; over no frame there is no shift.
    head : Head
    config : GainConfig

    Returns
    -------
    dict of str to Value
        By field of the state.
    """
    moments = _moments(sums, num_classes=head.num_classes)
    inverse_draws, certain = _inverse_draws(moments, sums, head=head)
    moved = _moved(moments, sums, head=head, config=config)
    vector, variance = _shrunken(moved, moments, inverse_draws, head=head, config=config)
    if config.match_scale:
        stretch = _stretch(moments, certain, head=head, config=config)
    else:
        stretch = expand(vector.tape.constant(1.0), (1, head.num_classes))
    return {
        "shift": squeeze(vector),
        "shift_stretch": squeeze(stretch),
        "shift_variance": squeeze(where(_row(moments.seen, 0), variance, 0.0)),
    }


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


def _inverse_draws(
    moments: _Moments, sums: Mapping[str, Value], *, head: Head
) -> tuple[Value, Value]:
    """1/n_eff (J,) of the means, and of the deviations: one where a memory looks like one class."""
    if head.asymmetry is None:
        return moments.diversity, moments.diversity
    quotient = sums["window_lean"] / maximum(sums["window_range"], TINY)
    for reach in (1, 2, 4):
        # The least of each memory and the longer ones: of twice as many every time.
        longer = [min(window + reach, NUM_WINDOWS - 1) for window in range(NUM_WINDOWS)]
        quotient = minimum(quotient, taken(quotient, longer))
    single, gap = head.asymmetry
    inverse_draws = [moments.diversity]
    for begins, ends in (SHIFT_RAMP, SCALE_RAMP):
        way = (quotient - (single + begins * gap)) / ((ends - begins) * gap)
        # Draws are above zero, so beyond the way's end they stay what they are.
        inverse_draws.append(maximum(inverse_draws[-1], minimum(1.0 - way, 1.0)))
    return inverse_draws[1], inverse_draws[2]


def _moved(
    moments: _Moments, sums: Mapping[str, Value], *, head: Head, config: GainConfig
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
    moved: Value, moments: _Moments, inverse_draws: Value, *, head: Head, config: GainConfig
) -> tuple[Value, Value]:
    """The shift (1, K) and its variance (1,), from the longest memory to the shortest."""
    spread = maximum(moments.varied, 0.0)
    vector: Value = _row(moved, 0) * 0.0
    variance: Value | None = None
    for window in range(NUM_WINDOWS - 1, -1, -1):
        step = _row(moved, window) - vector
        power = total(step * step, axis=1, keep=False)
        varied = _row(spread, window)
        alike = 1.0 - varied / maximum(LEAST_SPREAD * power, TINY)
        noise = (varied + power) * maximum(_row(inverse_draws, window), alike)
        kept = maximum(1.0 - config.shrinkage * noise / maximum(power, TINY), 0.0)
        kept = where(_row(moments.seen, window), kept, 0.0)
        own = noise / float(head.num_classes)
        variance = own if variance is None else variance + kept * (own - variance)
        vector = vector + kept * step
    assert variance is not None
    return vector, variance


def _stretch(moments: _Moments, certain: Value, *, head: Head, config: GainConfig) -> Value:
    """Factors (1, K) that match the logits' deviations, from the longest memories."""
    num_classes = float(head.num_classes)
    windows = range(NUM_WINDOWS - NUM_SCALE_WINDOWS, NUM_WINDOWS)
    alike = LEAST_SPREAD * moments.length / maximum(moments.varied, TINY)
    views = maximum(highest(row(alike)), 1.0)
    certain = maximum(certain * views, views - 1.0)
    noise = SCALE_NOISE * num_classes * where(moments.seen, certain, 1.0)
    least = maximum(LEAST_VARIANCE / num_classes * taken(moments.varied, windows), TINY)
    powers = maximum(taken(moments.powers, windows), column(least))
    logs = 0.5 * log(powers)
    logs = logs - total(logs, axis=1) / num_classes
    logs = _beyond(logs, head.log_lengths)
    found: Value = _row(logs, 0) * 0.0
    for window in reversed(windows):
        step = _row(logs, window - windows.start) - found
        power = maximum(total(step * step, axis=1, keep=False), TINY)
        ratio = 1.0 - config.shrinkage * _row(noise, window) / power
        found = found + maximum(ratio, 0.0) * step
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
