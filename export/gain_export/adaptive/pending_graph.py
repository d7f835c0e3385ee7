"""What waits to be learned from, as graph: the frames of an update are learned in one go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from onnx import TensorProto

from gain_export.adaptive.expressions import Tape, Value, cast, exp, total, where
from gain_export.adaptive.learn_graph import EvidenceValues
from gain_export.adaptive.predict_graph import PredictionValues
from gain_export.adaptive.state_layout import StateTensor

__all__ = ["PENDING", "Awaited", "Waiting", "nothing_waits", "wait"]

PENDING = "pending_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """Frames that an update waits for: `update_every` and `warmup_frames` of `gain_core.Gain`.

    Attributes
    ----------
    update_every : int
        Once anything was learned.
    warmup_frames : int
        At least so many before that.
    """

    update_every: int
    warmup_frames: int

    @property
    def most(self) -> int:
        """Before anything was learned."""
        return max(self.update_every, self.warmup_frames)

    def least(self, frames: Value, /, *, kind: Any) -> Value:
        """How many, as () of NumPy's type `kind`, by the `frames` () learned from."""
        tape = frames.tape
        later = tape.constant(self.update_every, dtype=kind)
        if self.most == self.update_every:
            return later
        learned = frames > tape.constant(0, dtype=np.int64)
        return where(learned, later, tape.constant(self.most, dtype=kind))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waiting:
    """The rows that wait, this batch's included.

    Attributes
    ----------
    evidence : EvidenceValues
        All of them, ready to be learned from.
    appended : dict of str to Value
        The pending rows of the state with the batch added where it is accepted, by field; right
        while not `full`, and empty where nothing ever waits.
    full : Value, () bool
        Whether enough wait for an update.
    """

    evidence: EvidenceValues
    appended: dict[str, Value]
    full: Value


def wait(
    rows: Value,
    prediction: PredictionValues,
    state: Mapping[str, Value],
    /,
    *,
    accepted: Value,
    awaited: Awaited,
) -> Waiting:
    """Put a predicted batch behind the rows that wait already.

    Parameters
    ----------
    rows : Value, (B, D)
    prediction : PredictionValues
    state : mapping of str to Value
        By field, see `state_layout`.
    accepted : Value, () bool
        Whether the batch may be learned from at all.
    awaited : Awaited

    Returns
    -------
    Waiting
    """
    tape = rows.tape
    size = tape.apply("Shape", rows, start=0, end=1)
    batch = _batch_rows(rows, prediction, size=size)
    if awaited.most == 1:
        full = tape.apply("Squeeze", size) > tape.constant(0, dtype=np.int64)
        return Waiting(evidence=batch, appended={}, full=full)
    count = cast(total(state[PENDING + "accepted"]), TensorProto.INT64)
    everything = {
        PENDING + item.name: tape.apply(
            "Concat", state[PENDING + item.name], getattr(batch, item.name), axis=0
        )
        for item in fields(EvidenceValues)
    }
    # Slot i takes row i - count of the batch if there is one, and else keeps what it holds.
    slots = tape.constant(np.arange(awaited.most - 1), dtype=np.int64)
    offsets = slots - count
    taken = (offsets >= tape.constant(0, dtype=np.int64)) & ~(offsets >= size) & accepted
    source = where(taken, offsets + tape.constant(awaited.most - 1, dtype=np.int64), slots)
    return Waiting(
        evidence=EvidenceValues(
            **{field.removeprefix(PENDING): value for field, value in everything.items()}
        ),
        appended={
            field: tape.apply("Gather", value, source, axis=0)
            for field, value in everything.items()
        },
        full=tape.apply("Squeeze", size) + count >= awaited.least(state["frames"], kind=np.int64),
    )


def nothing_waits(tape: Tape, layout: tuple[StateTensor, ...], /) -> dict[str, Value]:
    """Zeros for every pending tensor of the state, by field."""
    return {
        item.field: tape.apply(
            "ConstantOfShape", tape.constant(np.array(item.shape), dtype=np.int64)
        )
        for item in layout
        if item.field.startswith(PENDING)
    }


def _batch_rows(rows: Value, prediction: PredictionValues, *, size: Value) -> EvidenceValues:
    """What this batch would teach (see `gain_core.collect`)."""
    tape = rows.tape
    one_wide = tape.apply("Concat", size, tape.constant(np.array([1]), dtype=np.int64), axis=0)
    chosen = tape.apply(
        "GatherElements", prediction.source_log_probs, prediction.label_column, axis=1
    )
    return EvidenceValues(
        features=rows,
        probs=prediction.answer["probs"],
        reliability=exp(chosen),
        accepted=tape.apply("Expand", tape.constant(1.0), one_wide),
    )
