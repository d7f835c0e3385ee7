"""What a step on the device offers, whatever the state is made of; and its arguments' checks."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace, device

from gain_core import GainConfig, GainState, Prediction
from gain_core._checks import matrix_like
from gain_core._typing import Array
from gain_core.errors import ArrayError

__all__ = [
    "DeviceStep",
    "as_contiguous",
    "fitting_matrix",
    "lowest_log_prob",
    "predicted_rows",
]


class DeviceStep(Protocol):
    """The state of one stream on the device, and the launches over it. Nothing is read back."""

    def predict(self, features: Array, logits: Array, /) -> Prediction: ...

    def add(self, features: Array, prediction: Prediction, /) -> None:
        """Let a predicted batch wait to be learned from, as sums."""
        ...

    def step(self, features: Array, logits: Array, /, *, flush: bool) -> Prediction:
        """`predict`, `add` and, where asked, `flush`, after which a tracked shift revises."""
        ...

    def flush(self) -> None:
        """Learn from what waits."""
        ...

    def drop_waiting(self) -> None: ...

    def reset(self) -> None:
        """Nothing learned, nothing waiting."""
        ...

    def load(self, state: GainState, /) -> None:
        """Take a state's values over; nothing waits then."""
        ...

    @property
    def state(self) -> GainState:
        """A copy."""
        ...


def fitting_matrix(
    name: str, array: Array, /, *, num_rows: int | None, num_columns: int, like: Array
) -> Array:
    """A checked, contiguous matrix in the dtype and on the device of `like`.

    Raises
    ------
    ArrayError
        If a shape, dtype, device or namespace does not fit.
    """
    fits = (
        type(array) is type(like)
        and array.dtype == like.dtype
        and array.ndim == 2
        and array.shape == (array.shape[0] if num_rows is None else num_rows, num_columns)
        and device(array) == device(like)
    )
    # The ordinary case, before the words for the others are made.
    checked = (
        array
        if fits
        else matrix_like(name, array, num_rows=num_rows, num_columns=num_columns, like=like)
    )
    return as_contiguous(checked)


def as_contiguous(array: Array, /) -> Array:
    """The array with its rows one after another, as kernels read them."""
    if array.flags.c_contiguous:  # type: ignore[attr-defined]
        return array
    contiguous: Array = array_namespace(array).asarray(array, order="C", copy=True)
    return contiguous


def lowest_log_prob(config: GainConfig, dtype: Any, /) -> Any:
    """log of the config's least probability, as `real`; without one, what bounds nothing."""
    floor = config.prob_floor
    return dtype.type(math.log(floor) if floor > 0.0 else np.finfo(dtype).min)


def predicted_rows(
    prediction: Prediction, num_rows: int, /, *, like: Array
) -> tuple[Array, Array, Array]:
    """p*, log s and the flag of a prediction, checked.

    Raises
    ------
    ArrayError
        If they do not have the rows of the features, or do not fit the state.
    """
    num_classes = like.shape[0]
    if prediction.probs.shape[0] != num_rows:
        raise ArrayError(
            f"prediction.probs: expected {num_rows} rows, as the features have, got "
            f"{prediction.probs.shape[0]}; give the features it was made from"
        )
    probs, source = (
        fitting_matrix(
            f"prediction.{name}",
            getattr(prediction, name),
            num_rows=num_rows,
            num_columns=num_classes,
            like=like,
        )
        for name in ("probs", "source_log_probs")
    )
    finite = array_namespace(like).asarray(prediction.finite, device=device(like))
    return probs, source, finite
