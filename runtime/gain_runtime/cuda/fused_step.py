"""Prediction and the sums over a batch, each by one or two kernels beside cuBLAS' products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from gain_core import GainConfig, GainState, Prediction, ShiftState, predict
from gain_core._checks import matrix_like
from gain_core._typing import Array
from gain_core.guard import GuardSums, no_guard_sums
from gain_core.matrix_passes import responsible_sum
from gain_core.prototypes import Prototypes
from gain_core.shift import ShiftSums
from gain_core.state import GaussianState, array_like
from gain_core.statistics import Statistics
from gain_core.step import ShiftAdded, checked_rows, may_adapt
from gain_runtime.cuda.kernels import MAX_THREADS, Kernels, row_threads

__all__ = ["fused_predict", "gaussian_added", "shift_added"]

# Rows of `row_sums` and entries of `totals` in the shift's kernels.
_ROW_SUMS, _TOTALS = 7, 6


def fused_predict(
    features: Array, logits: Array, state: GainState, /, *, config: GainConfig, kernels: Kernels
) -> Prediction:
    """`gain_core.predict` by one kernel, a block per sample.

    Parameters
    ----------
    features : array, (B, D) floating
        On the device of `state`.
    logits : array, (B, K) floating
    state : GainState
        Read only.
    config : GainConfig
    kernels : Kernels

    Returns
    -------
    Prediction
        Equal to `gain_core.predict`'s but for rounding. Nothing is read on the host.

    Raises
    ------
    ArrayError
        If a shape, dtype, device or namespace does not fit the state.
    """
    rows = _contiguous(checked_rows(features, state, config=config))
    batch_size = rows.shape[0]
    if batch_size == 0:
        # A grid of no blocks cannot be launched.
        return predict(features, logits, state, config=config)
    like = array_like(state)
    xp = array_namespace(like)
    num_classes = like.shape[0]
    logits = _matrix("logits", logits, batch_size, num_classes, like)
    matrices = [_empty((batch_size, num_classes), like=like) for _ in range(3)]
    strength, gain = (_empty((batch_size,), like=like) for _ in range(2))
    finite = xp.empty((batch_size,), dtype=xp.bool, device=device(like))
    name, scores = _scores(rows, logits, state)
    number = like.dtype.type
    log_floor = math.log(config.prob_floor) if config.prob_floor > 0.0 else np.finfo(number).min
    sizes = (np.int32(config.num_iters), np.int32(num_classes), np.int32(rows.shape[1]))
    kernels.launch(
        name,
        (*scores, number(log_floor), *sizes, *matrices, strength, gain, finite),
        blocks=batch_size,
        threads=row_threads(num_classes),
        dtype=like.dtype,
    )
    probs, log_probs, source = matrices
    return Prediction(
        probs=probs,
        log_probs=log_probs,
        strength=strength,
        gain=gain,
        source_log_probs=source,
        finite=xp.all(finite),
    )


def gaussian_added(
    features: Array,
    prediction: Prediction,
    state: GaussianState,
    /,
    *,
    config: GainConfig,
    kernels: Kernels,
    before: Statistics | None = None,
) -> Statistics:
    """What a predicted batch adds to the statistics: ``accumulate(collect(...), ...)``.

    Parameters
    ----------
    features : array, (B, D) floating
        The features `prediction` was made from, B >= 1.
    prediction : Prediction
        One that is not finite adds nothing.
    state : GaussianState
        Read only.
    config : GainConfig
    kernels : Kernels
    before : Statistics, optional
        Sums since the last update, which give the origin where the state has none.

    Returns
    -------
    Statistics

    Raises
    ------
    ArrayError
        If the shapes do not fit each other or the state.
    """
    rows = _contiguous(checked_rows(features, state, config=config))
    like = array_like(state)
    batch_size, (num_classes, feature_dim) = rows.shape[0], like.shape
    probs, source, finite = _predicted(prediction, batch_size, like)
    responsibilities = _empty((batch_size, num_classes), like=like)
    reliability = _empty((batch_size,), like=like)
    kernels.launch(
        "gaussian_rows",
        (probs, source, finite, np.int32(num_classes), responsibilities, reliability),
        blocks=batch_size,
        threads=row_threads(num_classes),
        dtype=like.dtype,
    )
    sums = _empty_sums(like=like)
    centered = _empty((batch_size, feature_dim), like=like)
    inputs = (rows, probs, responsibilities, reliability, finite, *_origin(state, before))
    sizes = (np.int32(batch_size), np.int32(num_classes), np.int32(feature_dim))
    outputs = (*sums.values(), centered)
    columns = num_classes + feature_dim
    _launch_columns(kernels, "gaussian_sums", (*inputs, *sizes, *outputs), columns=columns)
    return Statistics(**sums, first_moment=responsible_sum(responsibilities, centered))


def shift_added(
    prediction: Prediction,
    state: ShiftState,
    /,
    *,
    prototypes: Prototypes,
    config: GainConfig,
    kernels: Kernels,
) -> ShiftAdded:
    """What a predicted batch adds to the shift's sums and the guard's: ``add_up(collect(...))``.

    Parameters
    ----------
    prediction : Prediction
        Of B >= 1 rows; one that is not finite adds nothing.
    state : ShiftState
        The one it was predicted with; read only.
    prototypes : Prototypes
    config : GainConfig
    kernels : Kernels

    Returns
    -------
    ShiftAdded

    Raises
    ------
    ArrayError
        If the shapes do not fit each other or the state.
    """
    like = state.shift.vector
    xp = array_namespace(like)
    num_classes, batch_size = like.shape[0], prediction.probs.shape[0]
    probs, source, finite = _predicted(prediction, batch_size, like)
    mean_logits = _contiguous(prototypes.mean_logits)
    row_sums = _empty((_ROW_SUMS, batch_size), like=like)
    head = (_contiguous(like), mean_logits, _contiguous(prototypes.row_squares))
    kernels.launch(
        "shift_rows",
        (probs, source, finite, *head, np.int32(num_classes), row_sums),
        blocks=batch_size,
        threads=row_threads(num_classes),
        dtype=like.dtype,
    )
    logits, mass = (_empty((num_classes,), like=like) for _ in range(2))
    totals = _empty((_TOTALS,), like=like)
    sizes = (np.int32(batch_size), np.int32(num_classes))
    inputs = (probs, source, finite, mean_logits, row_sums)
    outputs = (logits, mass, totals)
    columns = num_classes + _TOTALS
    _launch_columns(kernels, "shift_sums", (*inputs, *sizes, *outputs), columns=columns)
    count = totals[3]
    sums = ShiftSums(
        window_count=xp.reshape(count, (1,)),
        window_logits=logits[None, :],
        window_squares=totals[:1],
        window_mass=mass[None, :],
        scale_numerator=totals[1],
        scale_denominator=totals[2],
    )
    if not config.guard:
        return ShiftAdded(sums=sums, guard=no_guard_sums(like=like))
    return ShiftAdded(
        sums=sums, guard=GuardSums(count=count, agreement=totals[4], confidence=totals[5])
    )


def _scores(rows: Array, logits: Array, state: GainState) -> tuple[str, tuple[Any, ...]]:
    """The predicting kernel's name and what it reads; the matrix product is made here."""
    xp = array_namespace(rows)
    adapt = xp.asarray(may_adapt(state))
    if isinstance(state, ShiftState):
        shift = state.shift
        read = (rows, logits, shift.vector, xp.asarray(shift.variance))
        return "predict_shift", (*(_contiguous(array) for array in read), adapt)
    geometry = state.geometry
    centered = rows - geometry.offset
    scaled = centered / geometry.variance
    norms = xp.sum(centered * scaled, axis=1)
    cross = scaled @ xp.matrix_transpose(geometry.centers)
    classes = (geometry.center_norms, geometry.precision, geometry.log_prior)
    inputs = (rows, logits, cross, norms, *classes, xp.asarray(geometry.temper))
    return "predict_gaussian", (*(_contiguous(array) for array in inputs), adapt)


def _empty_sums(*, like: Array) -> dict[str, Array]:
    """Memory for the sums that are no (K, D) array, in the kernel's order."""
    num_classes, feature_dim = like.shape
    shapes: dict[str, tuple[int, ...]] = {
        "support": (num_classes,),
        "predicted_mass": (num_classes,),
        "squared_support": (num_classes,),
        "second_moment": (feature_dim,),
        "sample_count": (),
        "feature_sum": (feature_dim,),
        "feature_square_sum": (feature_dim,),
        "origin": (feature_dim,),
    }
    return {name: _empty(shape, like=like) for name, shape in shapes.items()}


def _origin(state: GaussianState, before: Statistics | None) -> tuple[Array, Array]:
    """The origin in use, (D,), and whether there is one yet, () bool."""
    old = state.statistics
    xp = array_namespace(old.origin)
    known, origin = old.sample_count > 0, old.origin
    if before is not None:
        origin = xp.where(known, origin, before.origin)
        known = known | (before.sample_count > 0)
    return origin, xp.asarray(known)


def _launch_columns(
    kernels: Kernels, name: str, arguments: tuple[Any, ...], *, columns: int
) -> None:
    """Launch one thread per column; the first argument has the dtype."""
    threads = MAX_THREADS // 2
    blocks = -(-columns // threads)
    kernels.launch(name, arguments, blocks=blocks, threads=threads, dtype=arguments[0].dtype)


def _predicted(prediction: Prediction, num_rows: int, like: Array) -> tuple[Array, Array, Array]:
    """p*, log s and the flag of a prediction, checked."""
    num_classes = like.shape[0]
    probs = _matrix("prediction.probs", prediction.probs, num_rows, num_classes, like)
    source = _matrix(
        "prediction.source_log_probs", prediction.source_log_probs, num_rows, num_classes, like
    )
    return probs, source, array_namespace(like).asarray(prediction.finite)


def _matrix(name: str, array: Array, num_rows: int, num_columns: int, like: Array) -> Array:
    """A checked, contiguous matrix in the state's dtype."""
    checked = matrix_like(name, array, num_rows=num_rows, num_columns=num_columns, like=like)
    return _contiguous(checked)


def _contiguous(array: Array) -> Array:
    """The array with its rows one after another, as kernels read them."""
    xp = array_namespace(array)
    contiguous: Array = xp.asarray(array, order="C") if array.ndim else array
    return contiguous


def _empty(shape: tuple[int, ...], *, like: Array) -> Array:
    """Memory that a kernel fills."""
    xp = array_namespace(like)
    filled: Array = xp.empty(shape, dtype=like.dtype, device=device(like))
    return filled
