"""The tracked shift and its guard as graph, after `gain_core.shift` and `gain_core.guard`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from gain_core.guard import (
    FIRST_HOLD_FRAMES,
    HALF_LIFE_FRAMES,
    LEAST_RATIO,
    MIN_FRAMES,
    MOST_DOUBLINGS,
    GuardSums,
)
from onnx import TensorProto

from gain_core import GainConfig
from gain_core.shift import (
    NEWEST_WINDOW,
    NUM_WINDOWS,
    REFERENCE_WINDOW,
    SHARE_MEMORY,
    SHARE_RAMP,
    TINY,
    WINDOW_RATIO,
    LastFrame,
    ShiftSums,
    expects_classes,
    may_be_independent,
    tests_mixtures,
)
from gain_export.adaptive.asymmetry_graph import (
    asymmetry_of,
    known_asymmetry,
    mixed_asymmetry,
    single_class,
)
from gain_export.adaptive.departure_graph import beside_sums, departure
from gain_export.adaptive.estimate_graph import estimate, mixture_counted
from gain_export.adaptive.expressions import (
    Value,
    arg_max,
    cast,
    column,
    exp,
    highest,
    log_softmax,
    lowest,
    maximum,
    minimum,
    row,
    softmax,
    sqrt,
    squeeze,
    taken,
    total,
    where,
)
from gain_export.adaptive.head_graph import Head

if TYPE_CHECKING:
    from gain_export.adaptive.predict_graph import PredictionValues

__all__ = [
    "GUARD_SUMS",
    "LAST_FRAME",
    "SHIFT_SUMS",
    "Proposed",
    "added_sums",
    "between",
    "learn_shift",
    "shift_posteriors",
]

# Fields of the state that are sums over frames, and those of the last frame.
SHIFT_SUMS = tuple(item.name for item in fields(ShiftSums))
GUARD_SUMS = tuple(f"guard_{item.name}" for item in fields(GuardSums))
LAST_FRAME = tuple(f"last_{item.name}" for item in fields(LastFrame))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Proposed:
    """What a shift proposes of a batch.

    Attributes
    ----------
    log_proposal : Value, (B, K)
        log q_hat.
    evaluator : Value, (B, K)
        q_bar.
    unprejudiced : Value, (B, K)
        Logits of q_0, the proposal without the prior on the classes.
    adapts : Value, () bool
        Whether a correction is proposed at all.
    """

    log_proposal: Value
    evaluator: Value
    unprejudiced: Value
    adapts: Value


def shift_posteriors(
    centered: Value, state: Mapping[str, Value], /, *, num_classes: int, config: GainConfig
) -> Proposed:
    """`gain_core.shift.shift_posteriors` of log s less its mean over classes, (B, K)."""
    shift = state["shift"]
    logits, moved = centered - shift, shift.tape.apply("Abs", shift)
    if config.match_scale:
        # Zeros are the state before the first frame.
        stretch = where(state["shift_stretch"] > 0.0, state["shift_stretch"], 1.0)
        logits = logits * stretch
        moved = moved + shift.tape.apply("Abs", stretch - 1.0)
    spread = sqrt(1.0 + (math.pi / 4.0) * state["shift_variance"])
    unprejudiced = logits
    if expects_classes(config, num_classes=num_classes):
        log_prior = state["shift_log_prior"]
        moved = moved + shift.tape.apply("Abs", log_prior)
        log_proposal = log_softmax(logits + log_prior)
        evaluator = softmax(log_proposal / spread + log_prior)
    else:
        log_proposal = log_softmax(logits)
        evaluator = softmax(log_proposal / spread)
    allowed = (total(moved) > 0.0) & ~(state["guard_hold"] > 0.0)
    return Proposed(
        log_proposal=log_proposal,
        evaluator=evaluator,
        unprejudiced=unprejudiced,
        adapts=allowed,
    )


def between(
    before: Mapping[str, Value], after: Mapping[str, Value], share: Value, /
) -> dict[str, Value]:
    """The shift before a batch, moved by `share` towards the one after it; the guard after it."""
    # Zeros are the state before the first frame.
    stretch = before["shift_stretch"]
    old = {**before, "shift_stretch": where(stretch > 0.0, stretch, 1.0)}
    moved = {
        field: old[field] + share * (after[field] - old[field])
        for field in ("shift", "shift_stretch", "shift_log_prior", "shift_variance")
    }
    return moved | {"guard_hold": after["guard_hold"]}


def added_sums(
    rows: Value,
    prediction: PredictionValues,
    state: Mapping[str, Value],
    last: Mapping[str, Value],
    /,
    *,
    head: Head,
    config: GainConfig,
) -> dict[str, Value]:
    """What a batch adds, and its last frame, by field of the state.

    Parameters
    ----------
    rows : Value, (B, D)
        Features, normalised if the config says so.
    prediction : PredictionValues
    state : mapping of str to Value
        The one it was predicted with.
    last : mapping of str to Value
        The frame before, by the fields `LAST_FRAME`.
    head : Head
    config : GainConfig

    Returns
    -------
    dict of str to Value
    """
    logits, label = prediction.centered, prediction.label_column
    assert logits is not None
    tape = logits.tape
    probs = prediction.answer["probs"]
    expects = expects_classes(config, num_classes=head.num_classes)
    if expects:
        proposed = prediction.proposed
        assert proposed is not None
        # A softmax of log s is s.
        probs = softmax(where(proposed.adapts, proposed.unprejudiced, prediction.source_log_probs))
        label = arg_max(probs)
    size = tape.apply("Shape", logits, start=0, end=1)
    count = cast(size, TensorProto.FLOAT)
    # (K,) gathered by (B, 1) has the shape (B, 1).
    own = tape.apply("GatherElements", logits, label, axis=1)
    own = own - tape.apply("Gather", state["shift"], label, axis=0)
    power = tape.apply("Gather", squeeze(head.row_squares, axis=1), label, axis=0)
    source = tape.apply("GatherElements", prediction.source_log_probs, label, axis=1)
    weighted = exp(source) * power
    lean, reach = _asymmetry_sums(logits, state)
    mass = total(probs, axis=0)
    counted = _counted(state, head=head) if expects else tape.constant(0.0)
    if config.guard:
        watched = _guard_sums(prediction, count)
    else:
        watched = (tape.apply("Identity", tape.constant(0.0)),) * len(GUARD_SUMS)
    return {
        "window_count": count,
        "window_logits": total(logits, axis=0),
        "window_powers": total(logits * logits, axis=0),
        "window_mass": mass,
        "window_lean": lean,
        "window_range": reach,
        "share_mass": counted * squeeze(mass),
        "share_count": squeeze(counted * count),
        **beside_sums(rows, head=head),
        "newest_source": total(exp(prediction.source_log_probs), axis=0, keep=False),
        "departure": tape.constant(0.0),
        "mixed_asymmetry": tape.constant(0.0),
        **_steps(logits, last, size=size),
        "scale_numerator": total(weighted * own),
        "scale_denominator": total(weighted * power),
        **dict(zip(GUARD_SUMS, watched, strict=True)),
    }


def _counted(state: Mapping[str, Value], *, head: Head) -> Value:
    """w, (1,): how surely what was seen last is a mixture whose labels can be counted."""
    shortest = taken(asymmetry_of(state), [0])
    pair = known_asymmetry(state, head=head)
    mixture = minimum(1.0 - single_class(shortest, SHARE_RAMP, pair), 1.0)
    return where(taken(state["window_count"], [0]) > 0.0, mixture, 0.0)


def _steps(logits: Value, last: Mapping[str, Value], *, size: Value) -> dict[str, Value]:
    """Steps between frames that follow one another, and the frame that the next one follows."""
    tape = logits.tape
    begin, end, axis = (tape.constant(np.array([at]), dtype=np.int64) for at in (0, -1, 0))
    tall = tape.apply("Concat", size, tape.constant(np.array([1]), dtype=np.int64), axis=0)
    ones = tape.apply("Expand", tape.constant(1.0), tall)
    frames = tape.apply("Concat", row(last["last_logits"]), logits, axis=0)
    known = tape.apply("Concat", column(last["last_known"]), ones, axis=0)
    step = logits - tape.apply("Slice", frames, begin, end, axis)
    pairs = tape.apply("Slice", known, begin, end, axis)
    return {
        "step_power": 0.5 * total(total(step * step, axis=1) * pairs),
        "step_count": total(pairs),
        "last_logits": squeeze(taken(frames, [-1])),
        "last_known": total(taken(known, [-1])),
    }


def _guard_sums(prediction: PredictionValues, count: Value) -> tuple[Value, ...]:
    """`gain_core.guard.observe`, over `count` frames (1,)."""
    source = prediction.source_log_probs
    winner = arg_max(source)
    same = cast(source.tape.apply("Equal", winner, prediction.label_column), TensorProto.FLOAT)
    certain = source.tape.apply("GatherElements", source, winner, axis=1)
    return squeeze(count), total(same), total(exp(certain))


def _asymmetry_sums(logits: Value, state: Mapping[str, Value]) -> tuple[Value, Value]:
    """Sums (1,) of max y + min y and of max y - min y; zeros while there is no memory."""
    count = taken(state["window_count"], [REFERENCE_WINDOW])
    about = logits - taken(state["window_logits"], [REFERENCE_WINDOW]) / maximum(count, TINY)
    known = where(count > 0.0, 1.0, 0.0)
    most, least = total(highest(about), axis=0) * known, total(lowest(about), axis=0) * known
    return most + least, most - least


def learn_shift(
    added: Mapping[str, Value],
    state: Mapping[str, Value],
    /,
    *,
    head: Head,
    config: GainConfig,
) -> dict[str, Value]:
    """The new sums, last frame, guard and shift, after at least one frame.

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
        By field; all but the frame count and what waits. What `estimate` says beside the state is
        there as well.
    """
    guard, tripped = _watch(added, state, num_classes=head.num_classes)
    kept = where(tripped, 0.0, 1.0)
    sums = _forget_and_add(added, state, kept=kept, head=head, config=config)
    last = {field: added[field] for field in LAST_FRAME}
    return sums | last | guard | estimate(sums, head=head, config=config)


def _watch(
    added: Mapping[str, Value], state: Mapping[str, Value], *, num_classes: int
) -> tuple[dict[str, Value], Value]:
    """`gain_core.guard.watch`."""
    tape = state["guard_count"].tape
    decay = exp(added["guard_count"] * (-math.log(2.0) / HALF_LIFE_FRAMES))
    count, agreement, confidence = (state[name] * decay + added[name] for name in GUARD_SUMS)
    watching = ~(state["guard_hold"] > 0.0)
    chance = count / float(num_classes)
    useful = agreement - chance >= LEAST_RATIO * (confidence - chance)
    tripped = watching & (count >= MIN_FRAMES) & ~useful
    doublings = minimum(state["guard_trips"], MOST_DOUBLINGS)
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
    added: Mapping[str, Value],
    state: Mapping[str, Value],
    *,
    kept: Value,
    head: Head,
    config: GainConfig,
) -> dict[str, Value]:
    """Decay every memory by the number of new frames, then add them; all times `kept`, 0 or 1."""
    tape = state["window_count"].tape
    rates = [
        -math.log(2.0) * WINDOW_RATIO ** (NUM_WINDOWS - 1 - window) / config.half_life
        for window in range(NUM_WINDOWS)
    ]
    count = added["window_count"]
    decay = exp(tape.constant(np.array(rates)) * count) * kept
    scale_decay = exp(squeeze(count) * (-math.log(2.0) / config.scale_half_life)) * kept
    share_rate = -math.log(2.0) / (SHARE_MEMORY * config.half_life)
    share_decay = exp(squeeze(count) * share_rate) * kept
    wide, longest = column(decay), squeeze(taken(decay, [NUM_WINDOWS - 1]))
    newest = squeeze(taken(decay, [NEWEST_WINDOW]))
    factors = {
        "window_count": decay,
        "window_logits": wide,
        "window_powers": wide,
        "window_mass": wide,
        "window_lean": decay,
        "window_range": decay,
        "share_mass": share_decay,
        "share_count": share_decay,
        "window_beside": wide,
        "window_beside_power": decay,
        "newest_source": newest,
        "departure": kept,
        "mixed_asymmetry": kept,
        "step_power": longest,
        "step_count": longest,
        "scale_numerator": scale_decay,
        "scale_denominator": scale_decay,
    }
    sums = {field: state[field] * factors[field] + added[field] * kept for field in SHIFT_SUMS}
    # Of sums over no frame both are zero, so a guard that trips drops them as well.
    if tests_mixtures(config, num_classes=head.num_classes):
        sums["mixed_asymmetry"] = mixed_asymmetry(sums, num_classes=head.num_classes)
    if may_be_independent(config, num_classes=head.num_classes):
        counted = mixture_counted(sums, config=config)
        sums["departure"] = departure(sums, counted=counted, release=newest, head=head)
    return sums
