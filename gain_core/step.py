"""One step of GAIN (Algorithm 1) as pure functions: predict, update and merge."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
from array_api_compat import array_namespace, is_numpy_namespace

from gain_core._checks import detached, matrix_like, scalar
from gain_core._logspace import floored, log_softmax
from gain_core._typing import Array
from gain_core.config import GainConfig
from gain_core.errors import ArrayError
from gain_core.geometry import ScaleMemory, derive
from gain_core.guard import (
    Guard,
    GuardSums,
    combine_guard_sums,
    no_guard_sums,
    observe,
    watch,
)
from gain_core.intervention import evidence_path, expected_gain, solve_strength
from gain_core.posterior import log_posteriors
from gain_core.prototypes import Prototypes, prepare_prototypes, unit_rows
from gain_core.shift import (
    LastFrame,
    Shift,
    ShiftSums,
    accumulate_shift,
    between,
    combine_sums,
    estimate_shift,
    expects_classes,
    forget_and_add,
    may_be_independent,
    no_frame,
    shift_posteriors,
    unprejudiced,
)
from gain_core.state import (
    GainState,
    GaussianState,
    ShiftState,
    array_like,
    init_state,
    settled,
)
from gain_core.statistics import Evidence, Statistics, about, accumulate, combine

__all__ = [
    "Prediction",
    "ShiftAdded",
    "add_up",
    "advance",
    "advance_shift",
    "checked_rows",
    "collect",
    "commit",
    "may_adapt",
    "merge_states",
    "on_top",
    "posteriors",
    "predict",
    "revise",
    "update",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The adapted prediction of a batch, on the device of the input.

    Attributes
    ----------
    probs, log_probs : array, (B, K)
        p* and log p*, eq:risk_calibrated_intervention.
    strength : array, (B,)
        lambda* in [0, 1].
    gain : array, (B,)
        G in nats, the expected gain of the full correction.
    source_log_probs : array, (B, K)
        log s.
    finite : array, () bool
        False where an input or the result holds NaN or infinity: reject the batch. `update`
        ignores such a prediction by itself.
    """

    probs: Array
    log_probs: Array
    strength: Array
    gain: Array
    source_log_probs: Array
    finite: Array


# An overflow or NaN is reported by `finite`; NumPy's warnings would say it twice, or raise instead.
_quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")


@_quiet
def predict(
    features: Array, logits: Array, state: GainState, /, *, config: GainConfig
) -> Prediction:
    """Predict a batch against a frozen state; rows do not see each other.

    Parameters
    ----------
    features : array, (B, D) floating
        Pre-logits features, in the namespace and on the device of `state`. Any floating dtype;
        the arithmetic is the state's.
    logits : array, (B, K) floating
        The source's logits.
    state : GainState
        Read only.
    config : GainConfig
        The config the state was made with.

    Returns
    -------
    Prediction
        Without history p* = s, with strength and gain 0.

    Raises
    ------
    ArrayError
        If a shape, dtype, device or namespace does not fit the state.
    """
    like = array_like(state)
    xp = array_namespace(like)
    rows = checked_rows(features, state, config=config)
    logits = matrix_like(
        "logits", logits, num_rows=rows.shape[0], num_columns=like.shape[0], like=like
    )
    source = log_softmax(detached(logits, xp=xp), xp=xp)
    finite = _all_finite(rows, logits)
    return _answered(source, _posteriors(rows, source, state), state, config=config, finite=finite)


def _answered(
    source: Array,
    posterior: tuple[Array, Array],
    state: GainState,
    /,
    *,
    config: GainConfig,
    finite: Array,
) -> Prediction:
    """As much of log q_hat as log q_bar expects to help, on the way from log s, all (B, K)."""
    xp = array_namespace(source)
    log_proposal, log_evaluator = posterior
    start = source
    if config.prob_floor > 0.0:
        floor = scalar(math.log(config.prob_floor), like=source, xp=xp)
        start = floored(source, floor=floor, xp=xp)
        log_proposal = floored(log_proposal, floor=floor, xp=xp)
    evidence = xp.where(may_adapt(state), log_proposal - start, xp.zeros_like(start))
    gain = expected_gain(log_evaluator, evidence)
    strength = solve_strength(start, evidence, gain=gain, num_iters=config.num_iters)
    adapted = evidence_path(start, evidence, strength)
    log_probs = xp.where(strength[:, None] > 0, adapted, source)
    return Prediction(
        probs=xp.exp(log_probs),
        log_probs=log_probs,
        strength=strength,
        gain=gain,
        source_log_probs=source,
        finite=finite & _all_finite(log_probs, gain),
    )


def posteriors(
    features: Array, logits: Array, state: GainState, /, *, config: GainConfig
) -> tuple[Array, Array]:
    """The proposal and the evaluator of a batch, for diagnosis and ablation.

    Parameters
    ----------
    features, logits : array, (B, D) and (B, K) floating
        As for `predict`.
    state : GainState
    config : GainConfig

    Returns
    -------
    log_proposal, log_evaluator : array, (B, K)
        log q_hat and log q_bar, normalised; meaningless without history.

    Raises
    ------
    ArrayError
        As `predict`.
    """
    like = array_like(state)
    xp = array_namespace(like)
    rows = checked_rows(features, state, config=config)
    logits = matrix_like(
        "logits", logits, num_rows=rows.shape[0], num_columns=like.shape[0], like=like
    )
    return _posteriors(rows, log_softmax(detached(logits, xp=xp), xp=xp), state)


@_quiet
def collect(
    features: Array, prediction: Prediction, state: GainState, /, *, config: GainConfig
) -> Evidence:
    """Turn a prediction into the rows that the statistics are made of.

    Parameters
    ----------
    features : array, (B, D) floating
        The features `prediction` was made from.
    prediction : Prediction
        Result of `predict` on them.
    state : GainState
        Read for shapes, dtype and device only.
    config : GainConfig

    Returns
    -------
    Evidence
        omega = zeta p*, zeta being s at the adapted class. Zero rows where the prediction is not
        finite.

    Raises
    ------
    ArrayError
        If the shapes do not fit each other or the state.
    """
    rows = checked_rows(features, state, config=config)
    like = array_like(state)
    xp = array_namespace(like)
    probs = matrix_like(
        "prediction.probs",
        prediction.probs,
        num_rows=rows.shape[0],
        num_columns=like.shape[0],
        like=like,
    )
    source_log_probs = matrix_like(
        "prediction.source_log_probs",
        prediction.source_log_probs,
        num_rows=rows.shape[0],
        num_columns=like.shape[0],
        like=like,
    )
    answered = chosen = xp.argmax(probs, axis=1)
    if isinstance(state, ShiftState) and expects_classes(config, num_classes=like.shape[0]):
        probs = unprejudiced(source_log_probs, state.shift, adapts=may_adapt(state))
        chosen = xp.argmax(probs, axis=1)
    source = xp.take_along_axis(source_log_probs, chosen[:, None], axis=1)
    reliability = xp.exp(source[:, 0])
    keep = prediction.finite
    rows = xp.where(keep, rows, xp.zeros_like(rows))
    probs = xp.where(keep, probs, xp.zeros_like(probs))
    reliability = xp.where(keep, reliability, xp.zeros_like(reliability))
    return Evidence(
        features=rows,
        responsibilities=reliability[:, None] * probs,
        probs=probs,
        source_log_probs=xp.where(keep, source_log_probs, xp.zeros_like(source_log_probs)),
        reliability=reliability,
        answered=answered,
        accepted=xp.where(keep, xp.ones_like(reliability), xp.zeros_like(reliability)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftAdded:
    """What a batch adds to a `ShiftState`, and its last frame."""

    sums: ShiftSums
    last: LastFrame
    guard: GuardSums


def add_up(
    evidence: Evidence,
    state: ShiftState,
    /,
    *,
    prototypes: Array | Prototypes,
    config: GainConfig,
    before: ShiftAdded | None = None,
) -> ShiftAdded:
    """Sums over a batch, on top of what waits already.

    Parameters
    ----------
    evidence : Evidence
        Rows of the batch.
    state : ShiftState
        The one it was predicted with; read only.
    prototypes : array, (K, D) floating
        The head's weight, or its `Prototypes` record.
    config : GainConfig
    before : ShiftAdded, optional
        Of earlier batches since the last update.

    Returns
    -------
    ShiftAdded
    """
    prepared = prepare_prototypes(prototypes, config)
    sums, last = accumulate_shift(
        evidence,
        state.sums,
        state.shift,
        last=state.last if before is None else before.last,
        prototypes=prepared,
        config=config,
    )
    seen = observe(evidence) if config.guard else no_guard_sums(like=state.shift.vector)
    return on_top(ShiftAdded(sums=sums, last=last, guard=seen), before)


def on_top(added: ShiftAdded, before: ShiftAdded | None, /) -> ShiftAdded:
    """What waits already, where anything does, with one more batch in it."""
    if before is None:
        return added
    return ShiftAdded(
        sums=combine_sums(before.sums, added.sums),
        last=added.last,
        guard=combine_guard_sums(before.guard, added.guard),
    )


def advance_shift(
    state: ShiftState,
    added: ShiftAdded,
    /,
    *,
    prototypes: Array | Prototypes,
    config: GainConfig,
) -> ShiftState:
    """Learn from a batch's sums, unless the guard trips: then everything learned is dropped.

    Parameters
    ----------
    state : ShiftState
        Read only.
    added : ShiftAdded
    prototypes : array, (K, D) floating
        The head's weight, or its `Prototypes` record.
    config : GainConfig

    Returns
    -------
    ShiftState
    """
    xp = array_namespace(state.shift.vector)
    prepared = prepare_prototypes(prototypes, config)
    guard, tripped = watch(state.guard, added.guard, num_classes=prepared.shape[0])
    kept = xp.where(tripped, xp.zeros_like(guard.count), xp.ones_like(guard.count))
    sums = forget_and_add(state.sums, added.sums, config=config)
    sums = ShiftSums(**{item.name: getattr(sums, item.name) * kept for item in fields(ShiftSums)})
    shift = estimate_shift(sums, prototypes=prepared, config=config)
    return ShiftState(sums=sums, last=added.last, shift=shift, guard=guard)


@_quiet
def revise(
    prediction: Prediction,
    /,
    *,
    before: ShiftState,
    after: ShiftState,
    config: GainConfig,
) -> Prediction:
    """The prediction of a batch that has been learned from, as far as frames are independent.

    What a frame's neighbours taught serves it only where they say nothing of its class: the shift
    that predicts is moved from the old one towards the new one by the new one's `independence`.

    Parameters
    ----------
    prediction : Prediction
        Result of `predict` on the batch, against `before`.
    before, after : ShiftState
        Without and with the batch.
    config : GainConfig

    Returns
    -------
    Prediction
        Where a guard has tripped, the source's.
    """
    xp = array_namespace(after.shift.vector)
    if not may_be_independent(config, num_classes=after.shift.vector.shape[0]):
        return prediction
    # A guard that has tripped, or let go, answers otherwise, independent frames or not. On a device
    # all of this would have to be waited for.
    if (
        is_numpy_namespace(xp)
        and not after.shift.independence > 0
        and before.guard.holds == after.guard.holds
    ):
        return prediction
    moved = ShiftState(
        sums=after.sums,
        last=after.last,
        shift=between(before.shift, after.shift),
        guard=after.guard,
    )
    source = prediction.source_log_probs
    posterior = shift_posteriors(source, moved.shift)
    return _answered(source, posterior, moved, config=config, finite=prediction.finite)


def commit(
    state: GaussianState,
    added: Statistics,
    /,
    *,
    prototypes: Array | Prototypes,
    config: GainConfig,
) -> GaussianState:
    """Add a batch's sums to the state, after forgetting, and derive the new geometry.

    Parameters
    ----------
    state : GaussianState
        Read only.
    added : Statistics
        Result of `accumulate` about this state's origin.
    prototypes : array, (K, D) floating
        The head's weight, or its `Prototypes` record, which saves its preparation.
    config : GainConfig

    Returns
    -------
    GaussianState
        Unchanged in value where `added` holds no frame.
    """
    statistics = combine(state.statistics, added, half_life=config.half_life)
    return advance(
        state, statistics, added=added.sample_count, prototypes=prototypes, config=config
    )


def advance(
    state: GaussianState,
    statistics: Statistics,
    /,
    *,
    added: Array,
    prototypes: Array | Prototypes,
    config: GainConfig,
    donate: bool = False,
) -> GaussianState:
    """Derive the geometry of new sums.

    Parameters
    ----------
    state : GaussianState
        The state before; read only unless donated.
    statistics : Statistics
        Its sums after forgetting, with the new frames added.
    added : array, ()
        Number of new frames.
    prototypes : array, (K, D) floating
        The head's weight, or its `Prototypes` record.
    config : GainConfig
    donate : bool
        The caller gives `state` up: the result may reuse the memory of its centres.

    Returns
    -------
    GaussianState
        Unchanged in value where no frame was added.
    """
    if is_numpy_namespace(array_namespace(added)) and not added > 0:
        return state
    geometry, memory = derive(
        statistics,
        state.memory,
        prototypes=prepare_prototypes(prototypes, config),
        added=added,
        config=config,
        out=state.geometry.centers if donate else None,
    )
    geometry = settled(geometry, statistics, fallback=state.geometry)
    return GaussianState(statistics=statistics, memory=memory, geometry=geometry)


def update(
    features: Array,
    prediction: Prediction,
    state: GainState,
    /,
    *,
    prototypes: Array | Prototypes,
    config: GainConfig,
) -> GainState:
    """Learn from a predicted batch (app:continual_statistics); the input state is not touched.

    Parameters
    ----------
    features : array, (B, D) floating
        The features `prediction` was made from.
    prediction : Prediction
        Result of `predict`; one that is not finite leaves the state as it is.
    state : GainState
        Read only.
    prototypes : array, (K, D) floating
        The head's weight, or its `Prototypes` record, which saves its preparation.
    config : GainConfig

    Returns
    -------
    GainState

    Raises
    ------
    ArrayError
        If the shapes do not fit each other or the state.
    """
    evidence = collect(features, prediction, state, config=config)
    if isinstance(state, ShiftState):
        seen = add_up(evidence, state, prototypes=prototypes, config=config)
        return advance_shift(state, seen, prototypes=prototypes, config=config)
    added = accumulate(evidence, state.statistics)
    return commit(state, added, prototypes=prototypes, config=config)


def merge_states(
    first: GainState, second: GainState, /, *, prototypes: Array | Prototypes, config: GainConfig
) -> GainState:
    """Unite what two devices with the same head learned from different frames.

    Parameters
    ----------
    first, second : GainState
        Read only; of the same head and config.
    prototypes : array, (K, D) floating
        The head's weight, or its `Prototypes` record.
    config : GainConfig

    Returns
    -------
    GainState
        The sums add up, nothing is forgotten in between; the result is about `first`'s origin
        (or `second`'s where `first` has seen nothing).

    Raises
    ------
    ArrayError
        If the states are of different heads.
    """
    fresh = init_state(prototypes, config)
    for name, state in (("first", first), ("second", second)):
        expected, got = array_like(fresh).shape[0], array_like(state).shape[0]
        if got != expected or type(state) is not type(fresh):
            raise ArrayError(
                f"{name} state: expected {type(fresh).__name__} of {expected} classes, as "
                f"the head and config say, got {type(state).__name__} of {got}; "
                "merge states of one head and config only"
            )
    if isinstance(first, ShiftState):
        assert isinstance(second, ShiftState)
        return _merged_shifts(first, second, prototypes=prototypes, config=config)
    assert isinstance(second, GaussianState)
    return _merged_gaussians(first, second, prototypes=prototypes, config=config)


def _merged_shifts(
    first: ShiftState,
    second: ShiftState,
    *,
    prototypes: Array | Prototypes,
    config: GainConfig,
) -> ShiftState:
    """Sums add up; of what is no sum the larger stays; no frame follows another."""
    xp = array_namespace(first.shift.vector)
    sums = combine_sums(first.sums, second.sums)
    larger = {
        name: xp.maximum(getattr(first.sums, name), getattr(second.sums, name))
        for name in ("departure", "mixed_asymmetry")
    }
    sums = replace(sums, **larger)
    joined = {
        item.name: getattr(first.guard, item.name) + getattr(second.guard, item.name)
        for item in fields(Guard)
    }
    joined["hold"] = xp.maximum(first.guard.hold, second.guard.hold)
    prepared = prepare_prototypes(prototypes, config)
    shift: Shift = estimate_shift(sums, prototypes=prepared, config=config)
    last = no_frame(prepared.shape[0], like=shift.vector)
    return ShiftState(sums=sums, last=last, shift=shift, guard=Guard(**joined))


def _merged_gaussians(
    first: GaussianState,
    second: GaussianState,
    *,
    prototypes: Array | Prototypes,
    config: GainConfig,
) -> GaussianState:
    """Sums add up about one origin."""
    left, right = first.statistics, second.statistics
    if left.first_moment.shape != right.first_moment.shape:
        raise ArrayError(
            f"second state: expected (K, D) = {tuple(left.first_moment.shape)} as in the first, "
            f"got {tuple(right.first_moment.shape)}; merge states of one head only"
        )
    xp = array_namespace(left.support)
    origin = xp.where(left.sample_count > 0, left.origin, right.origin)
    left, right = about(left, origin), about(right, origin)
    sums = {
        item.name: getattr(left, item.name) + getattr(right, item.name)
        for item in fields(Statistics)
        if item.name != "origin"
    }
    statistics = Statistics(**sums, origin=origin)
    memory = ScaleMemory(
        numerator=first.memory.numerator + second.memory.numerator,
        denominator=first.memory.denominator + second.memory.denominator,
    )
    prepared = prepare_prototypes(prototypes, config)
    nothing = xp.zeros_like(statistics.sample_count)
    geometry, memory = derive(statistics, memory, prototypes=prepared, added=nothing, config=config)
    geometry = settled(geometry, statistics, fallback=first.geometry)
    return GaussianState(statistics=statistics, memory=memory, geometry=geometry)


def _posteriors(rows: Array, source_log_probs: Array, state: GainState) -> tuple[Array, Array]:
    """log q_hat and log q_bar."""
    if isinstance(state, ShiftState):
        return shift_posteriors(source_log_probs, state.shift)
    return log_posteriors(rows, state.geometry)


def may_adapt(state: GainState, /) -> Array:
    """Whether a correction is proposed at all, () bool: there is one, and no guard holds it."""
    if isinstance(state, ShiftState):
        xp = array_namespace(state.shift.vector)
        shift = state.shift
        moved = xp.any(xp.abs(shift.vector) > 0) | xp.any(xp.abs(shift.stretch - 1.0) > 0)
        moved = moved | xp.any(xp.abs(shift.log_prior) > 0)
        return ~state.guard.holds & moved
    return state.geometry.has_history


def checked_rows(features: Array, state: GainState, /, *, config: GainConfig) -> Array:
    """Features checked, cast to the state's dtype and normalised if the config says so."""
    like = array_like(state)
    xp = array_namespace(like)
    if isinstance(state, GaussianState):
        rows = matrix_like("features", features, num_columns=like.shape[1], like=like)
    else:
        # Features of any number will do for a shift, which reads them only beside the head's rows.
        columns = features.shape[-1] if getattr(features, "ndim", 0) == 2 else 0
        rows = matrix_like("features", features, num_columns=columns, like=like)
    rows = detached(rows, xp=xp)
    return unit_rows(rows, xp=xp) if config.normalise else rows


def _all_finite(*arrays: Array) -> Array:
    """One flag, on the device, for all of them."""
    xp = array_namespace(*arrays)
    flag = xp.all(xp.isfinite(arrays[0]))
    for array in arrays[1:]:
        flag = flag & xp.all(xp.isfinite(array))
    return flag
