"""The tracked shift and its guard as graph, after `gain_core.shift` and `gain_core.guard`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from gain_core import GainConfig
from gain_core.guard import (
    FIRST_HOLD_FRAMES,
    HALF_LIFE_FRAMES,
    LEAST_RATIO,
    MIN_FRAMES,
    MOST_DOUBLINGS,
)
from gain_core.shift import LEAST_POWER, LEAST_SPREAD, NUM_WINDOWS, TINY
from gain_export.adaptive.expressions import (
    Value,
    cast,
    column,
    exp,
    log_softmax,
    maximum,
    row,
    softmax,
    sqrt,
    squeeze,
    total,
    where,
)
from gain_export.adaptive.head_graph import Head

__all__ = ["GUARD_SUMS", "SHIFT_SUMS", "added_sums", "learn_shift", "shift_posteriors"]

# Fields of the state that are sums over frames, with the shape a batch adds; K classes.
SHIFT_SUMS = (
    "window_count",
    "window_logits",
    "window_squares",
    "window_mass",
    "scale_numerator",
    "scale_denominator",
)
GUARD_SUMS = ("guard_count", "guard_agreement", "guard_confidence")


def shift_posteriors(source: Value, state: Mapping[str, Value], /) -> tuple[Value, Value, Value]:
    """log q_hat (B, K), q_bar (B, K), and whether a correction is proposed at all, () bool."""
    log_proposal = log_softmax(source - state["shift"])
    spread = sqrt(1.0 + (math.pi / 4.0) * state["shift_variance"])
    moved = total(state["shift"].tape.apply("Abs", state["shift"])) > 0.0
    allowed = moved & ~(state["guard_hold"] > 0.0)
    return log_proposal, softmax(log_proposal / spread), allowed


def added_sums(
    probs: Value,
    source: Value,
    label: Value,
    state: Mapping[str, Value],
    /,
    *,
    head: Head,
    config: GainConfig,
) -> dict[str, Value]:
    """What a batch adds, by field of the state.

    Parameters
    ----------
    probs, source : Value, (B, K)
        p* and log s.
    label : Value, (B, 1) int64
        Position of the largest p*.
    state : mapping of str to Value
    head : Head
    config : GainConfig

    Returns
    -------
    dict of str to Value
    """
    tape = probs.tape
    size = tape.apply("Shape", probs, start=0, end=1)
    count = cast(size, TensorProto.FLOAT)
    logits = source - total(source, axis=1) / float(head.num_classes)
    if head.mean_logits is not None:
        logits = logits - head.mean_logits
    own = tape.apply("GatherElements", logits - state["shift"], label, axis=1)
    # (K,) gathered by (B, 1) has the shape (B, 1).
    power = tape.apply("Gather", squeeze(head.row_squares, axis=1), label, axis=0)
    weighted = exp(tape.apply("GatherElements", source, label, axis=1)) * power
    sums = {
        "window_count": count,
        "window_logits": total(logits, axis=0),
        "window_squares": total(total(logits * logits, axis=1, keep=False), axis=0),
        "window_mass": total(probs, axis=0),
        "scale_numerator": total(weighted * own),
        "scale_denominator": total(weighted * power),
    }
    if config.guard:
        winner = tape.apply("ArgMax", source, axis=1, keepdims=1)
        same = cast(tape.apply("Equal", winner, label), TensorProto.FLOAT)
        certain = tape.apply("GatherElements", source, winner, axis=1)
        seen = (squeeze(count), total(same), total(exp(certain)))
    else:
        zero = tape.apply("Identity", tape.constant(0.0))
        seen = (zero, zero, zero)
    return sums | dict(zip(GUARD_SUMS, seen, strict=True))


def learn_shift(
    added: Mapping[str, Value],
    state: Mapping[str, Value],
    /,
    *,
    head: Head,
    config: GainConfig,
) -> dict[str, Value]:
    """The new sums, guard and shift, after at least one frame.

    Parameters
    ----------
    added : mapping of str to Value
        Result of `added_sums`, over everything that waits.
    state : mapping of str to Value
    head : Head
    config : GainConfig

    Returns
    -------
    dict of str to Value
        By field; all but the frame count and what waits.
    """
    guard, tripped = _watch(added, state)
    kept = where(tripped, 0.0, 1.0)
    sums = {
        field: value * kept for field, value in _forget_and_add(added, state, config=config).items()
    }
    shift = _estimate(sums, head=head, config=config)
    return {
        **sums,
        **guard,
        "shift": squeeze(shift.vector),
        "shift_variance": squeeze(shift.variance, axis=0),
    }


def _watch(
    added: Mapping[str, Value], state: Mapping[str, Value]
) -> tuple[dict[str, Value], Value]:
    """`gain_core.guard.watch`."""
    tape = state["guard_count"].tape
    decay = exp(added["guard_count"] * (-math.log(2.0) / HALF_LIFE_FRAMES))
    count, agreement, confidence = (state[name] * decay + added[name] for name in GUARD_SUMS)
    watching = ~(state["guard_hold"] > 0.0)
    tripped = watching & (count >= MIN_FRAMES) & ~(agreement >= LEAST_RATIO * confidence)
    doublings = tape.apply("Min", state["guard_trips"], MOST_DOUBLINGS)
    longest = FIRST_HOLD_FRAMES * tape.apply("Pow", 2.0, doublings)
    left = maximum(state["guard_hold"] - added["guard_count"], 0.0)
    kept = where(watching & ~tripped, 1.0, 0.0)
    return {
        "guard_count": count * kept,
        "guard_agreement": agreement * kept,
        "guard_confidence": confidence * kept,
        "guard_hold": where(tripped, longest, left),
        "guard_trips": state["guard_trips"] + where(tripped, 1.0, 0.0),
    }, tripped


def _forget_and_add(
    added: Mapping[str, Value], state: Mapping[str, Value], *, config: GainConfig
) -> dict[str, Value]:
    """Decay every memory by the number of new frames, then add them."""
    tape = state["window_count"].tape
    rates = [
        -math.log(2.0) * 2.0 ** (NUM_WINDOWS - 1 - window) / config.half_life
        for window in range(NUM_WINDOWS)
    ]
    count = added["window_count"]
    decay = exp(tape.constant(np.array(rates)) * count)
    scale_decay = exp(squeeze(count) * (-math.log(2.0) / config.scale_half_life))
    factors = {
        "window_count": decay,
        "window_logits": column(decay),
        "window_squares": decay,
        "window_mass": column(decay),
        "scale_numerator": scale_decay,
        "scale_denominator": scale_decay,
    }
    return {field: state[field] * factors[field] + added[field] for field in SHIFT_SUMS}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shift:
    """`gain_core.shift.Shift`: (1, K) and (1,)."""

    vector: Value
    variance: Value


def _estimate(sums: Mapping[str, Value], *, head: Head, config: GainConfig) -> _Shift:
    """`gain_core.shift.estimate_shift`, step by step in its order."""
    tape = sums["window_count"].tape
    even = 1.0 / head.num_classes
    count = maximum(sums["window_count"], TINY)
    mean = sums["window_logits"] / column(count)
    share = sums["window_mass"] / column(count)
    concentration = total(share * share, axis=1, keep=False) - even
    inverse_draws = maximum(concentration, 1.0 / count)
    length = total(mean * mean, axis=1, keep=False)
    spread = maximum(sums["window_squares"] / count - length, 0.0)
    weight = tape.apply("Min", config.label_draws * inverse_draws, 1.0)
    held = maximum(LEAST_POWER * spread, TINY)
    weight = weight * tape.apply("Min", length / held, 1.0)
    explained = ((share - even) @ head.centered) @ tape.apply(
        "Transpose", head.centered, perm=[1, 0]
    )
    ratio = sums["scale_numerator"] / maximum(sums["scale_denominator"], TINY)
    moved = mean - column(weight) * (explained * maximum(ratio, 0.0))
    if head.thresholds is not None:
        power = maximum(total(head.thresholds * head.thresholds), TINY)
        along = (moved @ column(head.thresholds)) / power
        moved = moved - tape.apply("Min", maximum(along, 0.0), 1.0) * row(head.thresholds)
    vector: Value = _row(moved, 0) * 0.0
    variance: Value | None = None
    for window in range(NUM_WINDOWS - 1, -1, -1):
        step = _row(moved, window) - vector
        power = total(step * step, axis=1, keep=False)
        varied = _row(spread, window)
        alike = 1.0 - varied / maximum(LEAST_SPREAD * power, TINY)
        noise = (varied + power) * maximum(_row(inverse_draws, window), alike)
        kept = maximum(1.0 - config.shrinkage * noise / maximum(power, TINY), 0.0)
        kept = where(_row(sums["window_count"], window) > 0.0, kept, 0.0)
        own = noise / float(head.num_classes)
        variance = own if variance is None else variance + kept * (own - variance)
        vector = vector + kept * step
    assert variance is not None
    seen = _row(sums["window_count"], 0) > 0.0
    return _Shift(vector=vector, variance=where(seen, variance, 0.0))


def _row(values: Value, index: int) -> Value:
    """Entry `index` of the first axis, which stays with length one."""
    position = values.tape.constant(np.array([index]), dtype=np.int64)
    return values.tape.apply("Gather", values, position, axis=0)
