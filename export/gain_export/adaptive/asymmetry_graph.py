"""Frames of one class told from frames of many, as graph: the asymmetry of `gain_core.shift`."""

from __future__ import annotations

from collections.abc import Mapping

from gain_core.shift import (
    GUESS_RAMP,
    LEARNED_RAMP,
    LEAST_SINGLE,
    NEWEST_WINDOW,
    NUM_WINDOWS,
    REFERENCE_WINDOW,
    SINGLE_SHARE,
    SPREAD_RAMP,
    SURE_FRAMES,
    TINY,
)
from gain_export.adaptive.expressions import (
    Value,
    along,
    maximum,
    minimum,
    squeeze,
    taken,
    total,
    where,
)
from gain_export.adaptive.head_graph import Head

__all__ = ["asymmetry_of", "known_asymmetry", "mixed_asymmetry", "single_class"]


def asymmetry_of(sums: Mapping[str, Value]) -> Value:
    """Asymmetry (J,): the least of each memory and longer ones."""
    quotient = sums["window_lean"] / maximum(sums["window_range"], TINY)
    for reach in (1, 2, 4):
        # The least of each memory and the longer ones: of twice as many every time.
        longer = [min(window + reach, NUM_WINDOWS - 1) for window in range(NUM_WINDOWS)]
        quotient = minimum(quotient, taken(quotient, longer))
    return quotient


def mixed_asymmetry(sums: Mapping[str, Value], /, *, num_classes: int) -> Value:
    """`gain_core.shift._mixed_asymmetry`, (), with `mixed_asymmetry` as it was before.

    Parameters
    ----------
    sums : mapping of str to Value
        The new sums by field of the state.
    num_classes : int
    """
    count = squeeze(taken(sums["window_count"], [REFERENCE_WINDOW]))
    share = taken(sums["window_mass"], [REFERENCE_WINDOW]) / maximum(count, TINY)
    few = _concentration(share, num_classes=num_classes)
    many = (1.0 - along(few, SPREAD_RAMP)) * minimum(count / SURE_FRAMES, 1.0)
    found = many * squeeze(taken(asymmetry_of(sums), [REFERENCE_WINDOW]))
    # Of what is no number, nothing is learned.
    return where(found > sums["mixed_asymmetry"], found, sums["mixed_asymmetry"])


def known_asymmetry(sums: Mapping[str, Value], /, *, head: Head) -> tuple[Value, Value]:
    """That of one class, and the gap to that of all, (1,) each: measured, learned or guessed.

    `gain_core.shift.known_asymmetry` has the pair, of which this is the difference.
    """
    assert head.asymmetry is not None
    single, gap = head.asymmetry
    if head.measured:
        return single, gap
    guessed = _guessed(sums, single, num_classes=head.num_classes)
    learned = sums["mixed_asymmetry"]
    believed = along(learned, LEARNED_RAMP)
    gap = gap + (single - guessed)
    single = guessed + believed * (SINGLE_SHARE * learned - guessed)
    return single, gap + believed * ((1.0 - SINGLE_SHARE) * learned - gap)


def _guessed(sums: Mapping[str, Value], most: Value, *, num_classes: int) -> Value:
    """What single classes are taken to have, (1,), by how few the newest labels are of."""
    count = maximum(taken(sums["window_count"], [NEWEST_WINDOW]), TINY)
    few = _concentration(sums["newest_source"] / count, num_classes=num_classes) - 1.0 / count
    return LEAST_SINGLE + along(few, GUESS_RAMP) * (most - LEAST_SINGLE)


def _concentration(share: Value, *, num_classes: int) -> Value:
    """How few classes shares are of, (): 0 where all are alike, 1 where there is one."""
    # The same as of the squares less 1/K, whose rounding steep ramps would magnify.
    excess = share - 1.0 / num_classes
    return total(excess * excess) / (1.0 - 1.0 / num_classes)


def single_class(asymmetry: Value, ramp: tuple[float, float], pair: tuple[Value, Value]) -> Value:
    """How surely each memory (J,) shows one class; below zero where it surely shows many."""
    (begins, ends), (single, gap) = ramp, pair
    way = (asymmetry - (single + begins * gap)) / ((ends - begins) * gap)
    # Draws are above zero, so beyond the way's end they stay what they are.
    return minimum(1.0 - way, 1.0)
