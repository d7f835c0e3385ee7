"""Whether a mixture has given way to one class, as graph: `gain_core.departure`."""

from __future__ import annotations

from collections.abc import Mapping

from gain_core.departure import (
    BESIDE_DIMS,
    BESIDE_RAMP,
    HOLD,
    LEAST_SCATTER,
    MOST_POWER,
    MOVE_RAMP,
    TINY,
)

from gain_core.shift import FEW_SHARE, MOVED_FROM_WINDOW, NEWEST_WINDOW
from gain_export.adaptive.expressions import (
    Value,
    along,
    expand,
    maximum,
    minimum,
    squeeze,
    taken,
    total,
    where,
)
from gain_export.adaptive.head_graph import Head

__all__ = ["beside_sums", "departure"]


def beside_sums(rows: Value, /, *, head: Head) -> dict[str, Value]:
    """What the features (B, D) add beside the head's rows; zeros where there is no room.

    `gain_core.shift.accumulate_shift` has the sums, of `_beside`.
    """
    if head.beside is None:
        nothing = rows.tape.constant(0.0)
        return {
            "window_beside": expand(nothing, (1, BESIDE_DIMS)),
            "window_beside_power": expand(nothing, (1,)),
        }
    beside = rows @ head.beside
    # A NaN, which an overflow may leave, is below nothing.
    beside = where(rows.tape.constant(MOST_POWER) > beside * beside, beside, 0.0)
    power = total(beside * beside, axis=1, keep=False)
    return {
        "window_beside": total(beside, axis=0),
        "window_beside_power": total(power, axis=0),
    }


def departure(sums: Mapping[str, Value], /, *, counted: Value, release: Value, head: Head) -> Value:
    """`gain_core.shift._departure`, (), with `departure` as it was before.

    Parameters
    ----------
    sums : mapping of str to Value
        The new sums by field of the state.
    counted : Value, ()
        How far a mixture is known that could give way.
    release : Value, ()
        What the memory of the newest labels keeps of itself.
    head : Head
    """
    count = maximum(squeeze(taken(sums["window_count"], [NEWEST_WINDOW])), TINY)
    few = _few_classes(sums["newest_source"] / count, count, num_classes=head.num_classes)
    kept = sums["departure"] * maximum(few, release)
    if head.beside is None:
        # Nothing is known beside the head's rows, so no classes are seen to change.
        return kept
    changed = _changed(sums, count)
    return maximum(changed * few * counted, kept * (1.0 - changed * (1.0 - few)))


def _few_classes(labels: Value, count: Value, *, num_classes: int) -> Value:
    """How surely the source's newest labels (K,) are of few classes, ()."""
    concentration = total(labels * labels) - 1.0 / num_classes
    mixed = 1.0 / count + FEW_SHARE / num_classes
    return minimum(maximum(HOLD * concentration / mixed - 1.0, 0.0), 1.0)


def _changed(sums: Mapping[str, Value], count: Value) -> Value:
    """How surely the classes have changed and not the domain, ()."""
    powers = total(sums["window_powers"], axis=1, keep=False)
    move, _, _ = _move(sums, sums["window_logits"], powers, count)
    beside, scatter, length = _move(sums, sums["window_beside"], sums["window_beside_power"], count)
    ratio = move / maximum(beside, TINY)
    changed = along(move, MOVE_RAMP) * along(ratio, BESIDE_RAMP)
    return where(scatter > LEAST_SCATTER * length, changed, 0.0)


def _move(
    sums: Mapping[str, Value], summed: Value, power: Value, count: Value
) -> tuple[Value, Value, Value]:
    """`squared_move` of the newest mean of what was summed (J, N); scatter and squared length."""
    reference = maximum(squeeze(taken(sums["window_count"], [MOVED_FROM_WINDOW])), TINY)
    mean = taken(summed, [MOVED_FROM_WINDOW]) / reference
    length = total(mean * mean)
    scatter = squeeze(taken(power, [MOVED_FROM_WINDOW])) / reference - length
    step = taken(summed, [NEWEST_WINDOW]) / count - mean
    # A floor above zero is one for scatters that rounding leaves below zero as well.
    moved = total(step * step) / maximum(scatter, TINY) - 1.0 / count
    return moved, scatter, length
