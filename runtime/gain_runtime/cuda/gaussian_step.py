"""Class-conditional Gaussians on the device: kernels around cuBLAS' products, else gain_core."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from gain_core import GainConfig, GainState, Prediction, init_state, predict
from gain_core._typing import Array
from gain_core.matrix_passes import responsible_sum
from gain_core.prototypes import Prototypes
from gain_core.state import GaussianState, copy_state
from gain_core.statistics import Statistics, combine
from gain_core.step import checked_rows, commit, may_adapt
from gain_runtime.cuda.device_step import (
    as_contiguous,
    fitting_matrix,
    lowest_log_prob,
    predicted_rows,
)
from gain_runtime.cuda.kernels import Kernels, column_blocks, row_threads
from gain_runtime.cuda.prediction_block import new_block

__all__ = ["GaussianStep"]


class GaussianStep:
    """See `DeviceStep`.

    Pending frames wait as sums, not as rows, so that before the first update the origin of the
    sums is the mean of the first batch rather than of all pending frames.

    Parameters
    ----------
    prototypes : Prototypes
    config : GainConfig
        With ``proposal == "gaussian"``.
    kernels : Kernels
    """

    def __init__(self, prototypes: Prototypes, config: GainConfig, kernels: Kernels, /) -> None:
        self._prototypes, self._config, self._kernels = prototypes, config, kernels
        self._waiting: Statistics | None = None
        self._state = self._first_state()

    def predict(self, features: Array, logits: Array, /) -> Prediction:
        """See `DeviceStep`."""
        rows = as_contiguous(checked_rows(features, self._state, config=self._config))
        batch_size, like = rows.shape[0], self._state.geometry.centers
        if batch_size == 0:
            # A grid of no blocks cannot be launched.
            return predict(features, logits, self._state, config=self._config)
        num_classes = like.shape[0]
        logits = fitting_matrix(
            "logits", logits, num_rows=batch_size, num_columns=num_classes, like=like
        )
        result = new_block(batch_size, like=like)
        made, dtype = result.prediction, like.dtype
        sizes = (self._config.num_iters, num_classes, rows.shape[1])
        matrices = (made.probs, made.log_probs, made.source_log_probs)
        self._kernels.launch(
            "predict_gaussian",
            (
                *self._scores(rows, logits),
                lowest_log_prob(self._config, dtype),
                *(np.int32(size) for size in sizes),
                *(*matrices, made.strength, made.gain, result.row_finite),
            ),
            blocks=batch_size,
            threads=row_threads(num_classes),
            dtype=dtype,
        )
        self._kernels.launch(
            "all_true",
            (result.row_finite, np.int32(batch_size), made.finite),
            blocks=1,
            threads=row_threads(batch_size),
            dtype=dtype,
        )
        return made

    def add(self, features: Array, prediction: Prediction, /) -> None:
        """See `DeviceStep`; ``accumulate(collect(...), ...)`` of `gain_core`."""
        rows = as_contiguous(checked_rows(features, self._state, config=self._config))
        like = self._state.geometry.centers
        batch_size, (num_classes, feature_dim) = rows.shape[0], like.shape
        probs, source, finite = predicted_rows(prediction, batch_size, like=like)
        responsibilities = _empty((batch_size, num_classes), like=like)
        reliability = _empty((batch_size,), like=like)
        self._kernels.launch(
            "gaussian_rows",
            (probs, source, finite, np.int32(num_classes), responsibilities, reliability),
            blocks=batch_size,
            threads=row_threads(num_classes),
            dtype=like.dtype,
        )
        sums = _empty_sums(like=like)
        centered = _empty((batch_size, feature_dim), like=like)
        sizes = (np.int32(batch_size), np.int32(num_classes), np.int32(feature_dim))
        inputs = (rows, probs, responsibilities, reliability, finite, *self._origin())
        self._kernels.launch(
            "gaussian_sums",
            (*inputs, *sizes, *sums.values(), centered),
            **column_blocks(num_classes + feature_dim),
            dtype=like.dtype,
        )
        added = Statistics(**sums, first_moment=responsible_sum(responsibilities, centered))
        before = self._waiting
        self._waiting = added if before is None else combine(before, added, half_life=math.inf)

    def step(self, features: Array, logits: Array, /, *, flush: bool) -> Prediction:
        """See `DeviceStep`."""
        prediction = self.predict(features, logits)
        if features.shape[0]:
            self.add(features, prediction)
        if flush:
            self.flush()
        return prediction

    def flush(self) -> None:
        """See `DeviceStep`."""
        if self._waiting is None:
            return
        self._state = commit(
            self._state, self._waiting, prototypes=self._prototypes, config=self._config
        )
        self._waiting = None

    def drop_waiting(self) -> None:
        """See `DeviceStep`."""
        self._waiting = None

    def reset(self) -> None:
        """See `DeviceStep`."""
        self._state, self._waiting = self._first_state(), None

    def load(self, state: GainState, /) -> None:
        """See `DeviceStep`."""
        copied = copy_state(state)
        assert isinstance(copied, GaussianState)
        self._state, self._waiting = copied, None

    @property
    def state(self) -> GaussianState:
        """See `DeviceStep`."""
        copied = copy_state(self._state)
        assert isinstance(copied, GaussianState)
        return copied

    def _first_state(self) -> GaussianState:
        """Nothing learned."""
        state = init_state(self._prototypes, self._config)
        assert isinstance(state, GaussianState)
        return state

    def _scores(self, rows: Array, logits: Array) -> tuple[Any, ...]:
        """What the predicting kernel reads; the matrix product is made here."""
        xp, geometry = array_namespace(rows), self._state.geometry
        centered = rows - geometry.offset
        scaled = centered / geometry.variance
        norms = xp.sum(centered * scaled, axis=1)
        cross = scaled @ xp.matrix_transpose(geometry.centers)
        classes = (geometry.center_norms, geometry.precision, geometry.log_prior)
        numbers = (xp.asarray(geometry.temper), xp.asarray(may_adapt(self._state)))
        inputs = (rows, logits, cross, norms, *classes, *numbers)
        return tuple(as_contiguous(array) for array in inputs)

    def _origin(self) -> tuple[Array, Array]:
        """The origin in use, (D,), and whether there is one yet, () bool."""
        old, before = self._state.statistics, self._waiting
        xp = array_namespace(old.origin)
        known, origin = old.sample_count > 0, old.origin
        if before is not None:
            origin = xp.where(known, origin, before.origin)
            known = known | (before.sample_count > 0)
        return origin, xp.asarray(known)


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


def _empty(shape: tuple[int, ...], *, like: Array) -> Array:
    """Memory that a kernel fills."""
    xp = array_namespace(like)
    filled: Array = xp.empty(shape, dtype=like.dtype, device=device(like))
    return filled
