"""The tracked shift on the device: every array of it in place, a step in ten small kernels.

At batch size 1 the work is a few microseconds and launching it from Python a hundred; so what a
step enqueues is recorded once per batch size and replayed as one graph.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from gain_core import GainConfig, GainState, Prediction, ShiftState, predict
from gain_core._typing import Array
from gain_core.departure import BESIDE_DIMS
from gain_core.guard import Guard
from gain_core.prototypes import Prototypes, unit_rows
from gain_core.shift import (
    NUM_SCALE_WINDOWS,
    NUM_WINDOWS,
    REFERENCE_WINDOW,
    LastFrame,
    Shift,
    ShiftSums,
    may_be_independent,
)
from gain_core.state import copy_state
from gain_core.step import may_adapt
from gain_runtime.cuda.device_step import (
    as_contiguous,
    fitting_matrix,
    lowest_log_prob,
    predicted_rows,
)
from gain_runtime.cuda.kernels import (
    Kernels,
    column_blocks,
    row_threads,
)
from gain_runtime.cuda.prediction_block import PredictionBlock, new_block
from gain_runtime.cuda.shift_settings import shift_settings
from gain_runtime.device_buffers import DeviceArray

__all__ = ["ShiftStep"]

# Numbers of the state and of what waits, and rows of `row_sums`, as the kernels' enums have them.
_SCALARS, _FRESH, _TOTALS = 4 * NUM_WINDOWS + 20, 4 * NUM_WINDOWS + 10, 9
_ROW_SUMS = 2 + _TOTALS + BESIDE_DIMS
# Behind the numbers of the state, the first of those that follow from them.
_MOVED = _SCALARS - 5
# Projections of a row's features that a block finds.
_BESIDE_PART = 8
# Parts that the product over the classes is cut into, so that a device's cores all have work.
_CLASSES_PER_CHUNK, _MOST_CHUNKS = 16, 128
_WARP = 32
# Batch sizes whose graphs are kept: a stream has one, and a rest at its end.
_MOST_RECORDED = 8


@dataclass(slots=True)
class _Recorded:
    """A batch size's own memory, and its graph from the second time on."""

    features: DeviceArray
    logits: DeviceArray
    row_sums: DeviceArray
    result: PredictionBlock
    replay: Callable[[], None] | None = None


class ShiftStep:
    """See `DeviceStep`.

    Parameters
    ----------
    prototypes : Prototypes
    config : GainConfig
        With ``proposal == "shift"``.
    kernels : Kernels
    """

    def __init__(self, prototypes: Prototypes, config: GainConfig, kernels: Kernels, /) -> None:
        self._config, self._kernels = config, kernels
        self._like = like = as_contiguous(prototypes.row_squares)
        self._row_squares = like
        self._xp = array_namespace(like)
        self._centered = as_contiguous(prototypes.centered)
        self._thresholds = as_contiguous(prototypes.thresholds)
        self._log_lengths = as_contiguous(prototypes.log_lengths)
        self._asymmetry = as_contiguous(prototypes.asymmetry)
        # A row per projection, so that a block's threads read what lies side by side.
        self._beside = as_contiguous(self._xp.matrix_transpose(prototypes.beside))
        # Many heads leave no room beside their rows: then nothing is to be found there.
        self._has_room = bool(self._xp.any(self._xp.abs(prototypes.beside) > 0))
        self._num_classes, self._feature_dim = prototypes.shape
        self._chunks = min(_MOST_CHUNKS, -(-self._num_classes // _CLASSES_PER_CHUNK))
        self._window_logits, self._window_powers, self._window_mass, self._moved = (
            self._zeros(NUM_WINDOWS, self._num_classes) for _ in range(4)
        )
        self._logs = self._zeros(NUM_SCALE_WINDOWS, self._num_classes)
        # Vector, stretch and the logarithm of the prior; the old ones on their way to the new.
        self._shift, self._revised = (self._zeros(3, self._num_classes) for _ in range(2))
        self._shift[1] = 1
        self._share_mass, self._newest_source = (self._zeros(self._num_classes) for _ in range(2))
        self._window_beside = self._zeros(NUM_WINDOWS, BESIDE_DIMS)
        self._revises = may_be_independent(config, num_classes=self._num_classes)
        self._scalars = self._zeros(_SCALARS)
        # A frame's x, and whether there is one: the state's last, and, where any wait, the newest.
        self._last, self._newest = (self._zeros(self._num_classes + 1) for _ in range(2))
        self._in_place = self._named()
        self._waiting = self._zeros(4, self._num_classes)
        self._waiting_beside = self._zeros(2, BESIDE_DIMS)
        self._totals = self._zeros(_TOTALS)
        self._fresh = self._zeros(_FRESH)
        self._parts = self._zeros(self._chunks, NUM_WINDOWS, self._feature_dim)
        self._projected = self._zeros(NUM_WINDOWS, self._feature_dim)
        settings = shift_settings(
            config, num_classes=self._num_classes, measured=prototypes.measured
        )
        self._settings = self._xp.asarray(settings, dtype=like.dtype, device=device(like))
        self._log_floor = lowest_log_prob(config, like.dtype)
        self._recorded: OrderedDict[tuple[int, int, bool], _Recorded] = OrderedDict()

    def predict(self, features: Array, logits: Array, /) -> Prediction:
        """See `DeviceStep`."""
        features, logits = self._checked(features, logits)
        if features.shape[0] == 0:
            return predict(features, logits, self._in_place, config=self._config)
        result = new_block(features.shape[0], like=self._like)
        self._enqueue_prediction(features, logits, result)
        self._enqueue_trips(result)
        return result.prediction

    def add(self, features: Array, prediction: Prediction, /) -> None:
        """See `DeviceStep`."""
        features = self._normalised(self._fitting_features(features))
        batch_size = features.shape[0]
        rows = predicted_rows(prediction, batch_size, like=self._like)
        self._enqueue_sums(features, *rows, self._empty(_ROW_SUMS, batch_size))

    def step(self, features: Array, logits: Array, /, *, flush: bool) -> Prediction:
        """See `DeviceStep`."""
        features, logits = self._checked(features, logits)
        if features.shape[0] == 0:
            return predict(features, logits, self._in_place, config=self._config)
        batch_size, columns = features.shape
        key = (batch_size, columns, flush)
        recorded = self._recorded.get(key)
        if recorded is None:
            recorded = self._recorded[key] = self._prepare(batch_size, columns)
            if len(self._recorded) > _MOST_RECORDED:
                self._recorded.popitem(last=False)
        self._recorded.move_to_end(key)
        self._kernels.copy(features, recorded.features)
        self._kernels.copy(logits, recorded.logits)
        self._run(recorded, flush=flush)
        result = new_block(batch_size, like=self._like)
        self._kernels.copy(recorded.result.block, result.block)
        return result.prediction

    def flush(self) -> None:
        """See `DeviceStep`."""
        settings, fresh, like = self._settings, self._fresh, self._like
        num_classes, feature_dim = np.int32(self._num_classes), np.int32(self._feature_dim)
        chunks, projected = np.int32(self._chunks), np.int32(NUM_WINDOWS * self._feature_dim)
        state = (self._scalars, self._totals, settings)
        windows = (self._window_logits, self._window_powers, self._window_mass)
        patterns = (self._thresholds, self._log_lengths, self._asymmetry)
        classes = column_blocks(self._num_classes)
        dims = column_blocks(self._feature_dim)
        parts = {"blocks": dims["blocks"] * self._chunks, "threads": dims["threads"]}
        per_block = classes["threads"] // _WARP
        warps = {"blocks": -(-self._num_classes // per_block), "threads": classes["threads"]}
        rows = column_blocks(int(projected))
        one = {"blocks": 1, "threads": row_threads(self._num_classes)}
        moved, head = self._moved, self._centered
        launch = self._kernels.launch
        sums = (*windows, self._share_mass, self._newest_source, self._window_beside)
        waiting = (self._waiting, self._waiting_beside)
        now = (*state, self._asymmetry, num_classes, self._newest)
        forget = (*now, *sums, *waiting, self._last, fresh)
        launch("shift_forget", forget, **classes, dtype=like.dtype)
        sizes = (num_classes, feature_dim, chunks)
        project = (self._window_mass, head, fresh, settings, *sizes, self._parts)
        launch("shift_project", project, **parts, dtype=like.dtype)
        gather = (self._parts, chunks, projected, self._projected)
        launch("shift_gather", gather, **rows, dtype=like.dtype)
        explain = (self._projected, head, num_classes, feature_dim, moved)
        launch("shift_explain", explain, **warps, dtype=like.dtype)
        found = (self._scalars, self._totals, moved, self._logs, self._shift, self._revised)
        estimate = (*sums, *patterns, settings, fresh, num_classes, *found)
        launch("shift_estimate", estimate, **one, dtype=like.dtype)

    def drop_waiting(self) -> None:
        """See `DeviceStep`."""
        for array in (self._waiting, self._waiting_beside, self._totals):
            array[...] = 0
        self._newest[...] = self._last

    def reset(self) -> None:
        """See `DeviceStep`."""
        windows = (self._window_logits, self._window_powers, self._window_mass)
        sums = (*windows, self._share_mass, self._newest_source, self._window_beside)
        for array in (*sums, self._shift, self._scalars, self._last):
            array[...] = 0
        self._shift[1] = 1
        self.drop_waiting()

    def load(self, state: GainState, /) -> None:
        """See `DeviceStep`."""
        assert isinstance(state, ShiftState)
        mine = self._in_place
        for part in fields(mine):
            record, theirs = getattr(mine, part.name), getattr(state, part.name)
            for field in fields(record):
                getattr(record, field.name)[...] = getattr(theirs, field.name)
        # Whether the guard holds is read apart.
        unheld = replace(mine, guard=replace(mine.guard, hold=self._xp.zeros_like(mine.guard.hold)))
        self._scalars[_MOVED] = may_adapt(unheld)
        self._enqueue_labels()
        self.drop_waiting()

    @property
    def state(self) -> ShiftState:
        """See `DeviceStep`."""
        copied = copy_state(self._in_place)
        assert isinstance(copied, ShiftState)
        return copied

    @property
    def guard_trips(self) -> Array:
        """How often the guard has tripped, () on the device."""
        trips: DeviceArray = self._in_place.guard.trips
        copied: Array = trips.copy()
        return copied

    def _named(self) -> ShiftState:
        """The state's arrays by name; they stay where they are, so this is asked for once."""
        numbers, w = self._scalars, NUM_WINDOWS
        places = (numbers[place : place + 1].reshape(()) for place in range(4 * w, _MOVED))
        share_count, step_power, step_count, numerator, denominator, *rest = places
        departure, mixed_asymmetry, variance, trust, independence, *rest = rest
        count, agreement, confidence, hold, trips = rest
        sums = ShiftSums(
            window_count=numbers[:w],
            window_logits=self._window_logits,
            window_powers=self._window_powers,
            window_mass=self._window_mass,
            window_lean=numbers[w : 2 * w],
            window_range=numbers[2 * w : 3 * w],
            share_mass=self._share_mass,
            share_count=share_count,
            window_beside=self._window_beside,
            window_beside_power=numbers[3 * w : 4 * w],
            newest_source=self._newest_source,
            departure=departure,
            mixed_asymmetry=mixed_asymmetry,
            step_power=step_power,
            step_count=step_count,
            scale_numerator=numerator,
            scale_denominator=denominator,
        )
        guard = Guard(
            count=count, agreement=agreement, confidence=confidence, hold=hold, trips=trips
        )
        shift = Shift(
            vector=self._shift[0],
            stretch=self._shift[1],
            log_prior=self._shift[2],
            variance=variance,
            trust=trust,
            independence=independence,
        )
        known = self._last[self._num_classes :].reshape(())
        last = LastFrame(logits=self._last[: self._num_classes], known=known)
        return ShiftState(sums=sums, last=last, shift=shift, guard=guard)

    def _checked(self, features: Array, logits: Array) -> tuple[Array, Array]:
        """Both as the kernels read them."""
        fitting = self._fitting_features(features)
        logits = fitting_matrix(
            "logits",
            logits,
            num_rows=fitting.shape[0],
            num_columns=self._num_classes,
            like=self._like,
        )
        return self._normalised(fitting), logits

    def _fitting_features(self, features: Array) -> Array:
        """Checked, whatever their number; other numbers than the head's have no part beside it."""
        columns = features.shape[-1] if getattr(features, "ndim", 0) == 2 else 0
        return fitting_matrix(
            "features", features, num_rows=None, num_columns=columns, like=self._like
        )

    def _normalised(self, features: Array) -> Array:
        """As the config says."""
        if not self._config.normalise:
            return features
        # Squares that overflow make a row that is not finite.
        return as_contiguous(unit_rows(features, xp=self._xp))

    def _prepare(self, batch_size: int, columns: int) -> _Recorded:
        """Memory of a batch size's own."""
        return _Recorded(
            features=self._empty(batch_size, columns),
            logits=self._empty(batch_size, self._num_classes),
            row_sums=self._empty(_ROW_SUMS, batch_size),
            result=new_block(batch_size, like=self._like),
        )

    def _run(self, recorded: _Recorded, *, flush: bool) -> None:
        """Enqueue a step one by one the first time, which loads the kernels; then as recorded."""

        def enqueue() -> None:
            result = recorded.result
            self._enqueue_prediction(recorded.features, recorded.logits, result)
            made = result.prediction
            rows = (made.probs, made.source_log_probs, made.finite)
            self._enqueue_sums(recorded.features, *rows, recorded.row_sums)
            if flush:
                self.flush()
                self._enqueue_revision(recorded.features, recorded.logits, result)
            self._enqueue_trips(result)

        if recorded.replay is not None:
            recorded.replay()
            return
        enqueue()
        recorded.replay = self._kernels.record(enqueue)

    def _enqueue_prediction(self, features: Array, logits: Array, into: PredictionBlock) -> None:
        """Predict a batch, a block of threads per row."""
        dtype = self._like.dtype
        batch_size, threads = features.shape[0], row_threads(self._num_classes)
        arguments = self._row_arguments(features, logits, self._shift, into=into)
        self._kernels.launch(
            "predict_shift", arguments, blocks=batch_size, threads=threads, dtype=dtype
        )
        flags = (into.row_finite, np.int32(batch_size), into.prediction.finite)
        self._kernels.launch(
            "all_true", flags, blocks=1, threads=min(row_threads(batch_size), threads), dtype=dtype
        )

    def _enqueue_revision(self, features: Array, logits: Array, into: PredictionBlock) -> None:
        """Predict a batch that has been learned from again, see `gain_core.step.revise`."""
        if not self._revises:
            return
        arguments = self._row_arguments(features, logits, self._revised, into=into)
        self._kernels.launch(
            "revise_shift",
            (*arguments, into.prediction.finite),
            blocks=features.shape[0],
            threads=row_threads(self._num_classes),
            dtype=self._like.dtype,
        )

    def _enqueue_labels(self) -> None:
        """Find what a loaded state's newest labels say, as the estimate would have left it."""
        self._kernels.launch(
            "shift_labels",
            (self._newest_source, self._settings, np.int32(self._num_classes), self._scalars),
            blocks=1,
            threads=row_threads(self._num_classes),
            dtype=self._like.dtype,
        )

    def _enqueue_trips(self, into: PredictionBlock) -> None:
        """Put the guard's count beside the prediction, so that one copy takes both."""
        if self._config.guard:
            trips: DeviceArray = self._in_place.guard.trips
            self._kernels.copy(trips, into.trips)

    def _row_arguments(
        self, features: Array, logits: Array, shift: Array, *, into: PredictionBlock
    ) -> tuple[Any, ...]:
        """What a prediction is made from, and into."""
        made, columns = into.prediction, features.shape[1]
        sizes = (np.int32(self._config.num_iters), np.int32(self._num_classes), np.int32(columns))
        inputs = (features, logits, shift, self._scalars, self._log_floor)
        matrices = (made.probs, made.log_probs, made.source_log_probs)
        return (*inputs, *sizes, *matrices, made.strength, made.gain, into.row_finite)

    def _enqueue_sums(
        self, features: Array, probs: Array, source: Array, finite: Array, row_sums: Array
    ) -> None:
        """Add a predicted batch to what waits."""
        dtype = self._like.dtype
        batch_size, columns = features.shape
        beside = BESIDE_DIMS if self._has_room and columns == self._feature_dim else 0
        rows = (probs, source, finite)
        head = (self._shift, self._scalars, self._row_squares)
        sums = self._in_place.sums
        about = (sums.window_logits[REFERENCE_WINDOW], sums.window_count[REFERENCE_WINDOW:])
        before = (*about, self._newest, self._settings)
        shape = (np.int32(batch_size), np.int32(self._num_classes))
        self._kernels.launch(
            "shift_rows",
            (*rows, *head, *before, features, self._beside, *shape, np.int32(columns), row_sums),
            blocks=batch_size * (1 + beside // _BESIDE_PART),
            threads=row_threads(self._num_classes),
            dtype=dtype,
        )
        now = (self._shift, self._scalars, self._settings)
        waiting = (self._waiting, self._waiting_beside, self._totals, self._newest)
        self._kernels.launch(
            "shift_sums",
            (*rows, *now, row_sums, *shape, np.int32(beside), *waiting),
            **column_blocks(self._num_classes + _TOTALS + beside),
            dtype=dtype,
        )

    def _zeros(self, *shape: int) -> DeviceArray:
        like = self._like
        return self._xp.zeros(shape, dtype=like.dtype, device=device(like))

    def _empty(self, *shape: int) -> DeviceArray:
        like = self._like
        return self._xp.empty(shape, dtype=like.dtype, device=device(like))
