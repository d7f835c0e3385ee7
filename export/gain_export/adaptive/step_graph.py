"""One step of GAIN as ONNX nodes: predict, then learn where the caller and the guard allow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from gain_core import GainConfig
from gain_export.adaptive.expressions import Value, body, cast, squeeze, total, where
from gain_export.adaptive.head_graph import Head, unit_rows
from gain_export.adaptive.learn_graph import learn
from gain_export.adaptive.pending_graph import PENDING, Waiting, nothing_waits, wait
from gain_export.adaptive.predict_graph import PredictionValues, predict
from gain_export.adaptive.shift_graph import added_sums, learn_shift
from gain_export.adaptive.state_layout import StateTensor, state_layout

__all__ = ["UPDATE", "StepGraph", "write_step"]

UPDATE = "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGraph:
    """What the step adds to a graph, ready to be put behind a network.

    Attributes
    ----------
    nodes : sequence of onnx.NodeProto
    initializers : sequence of onnx.TensorProto
    inputs : sequence of onnx.ValueInfoProto
        `update` and every `state.*`.
    outputs : sequence of onnx.ValueInfoProto
        The prediction, then every `next_state.*`.
    layout : tuple of StateTensor
    """

    nodes: Sequence[onnx.NodeProto]
    initializers: Sequence[onnx.TensorProto]
    inputs: Sequence[onnx.ValueInfoProto]
    outputs: Sequence[onnx.ValueInfoProto]
    layout: tuple[StateTensor, ...]


def write_step(
    features: Value,
    logits: Value,
    /,
    *,
    head: Head,
    config: GainConfig,
    update_every: int,
    batch: str | int = "B",
) -> StepGraph:
    """Write the step behind two values of a graph.

    Parameters
    ----------
    features : Value, (B, D) float32
    logits : Value, (B, K) float32
    head : Head
        Written on the same tape.
    config : GainConfig
        Baked in, the number of halvings included.
    update_every : int
        Frames between two updates, baked in.
    batch : str or int
        How the network's batch axis is declared.

    Returns
    -------
    StepGraph
        With everything on the tape, the head's nodes included.
    """
    tape = features.tape
    layout = state_layout(
        num_classes=head.num_classes,
        feature_dim=head.feature_dim,
        config=config,
        update_every=update_every,
    )
    state = {item.field: tape.value(item.input_name) for item in layout}
    rows = unit_rows(features) if config.normalise else features
    prediction = predict(rows, logits, state, head=head, config=config)
    accepted = tape.value(UPDATE) & prediction.finite
    names = [item.output_name for item in layout]
    if config.proposal == "shift":
        choice = _ShiftChoice(prediction, state, accepted, layout, head, config)
        choice.write(update_every, names=names)
    else:
        waiting = wait(rows, prediction, state, accepted=accepted, update_every=update_every)
        tape.choose(
            accepted & waiting.full,
            then_branch=_learning(waiting, state, layout=layout, head=head, config=config),
            else_branch=_keeping(waiting, state, layout=layout),
            names=names,
        )
    declared = [helper.make_value_info(item.output_name, item.type_proto) for item in layout]
    return StepGraph(
        nodes=tape.nodes,
        initializers=list(tape.initializers.values()),
        inputs=[
            helper.make_tensor_value_info(UPDATE, TensorProto.BOOL, []),
            *(helper.make_value_info(item.input_name, item.type_proto) for item in layout),
        ],
        outputs=[*_declared(prediction, (batch, head.num_classes)), *declared],
        layout=layout,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _ShiftChoice:
    """The conditional of a file with a tracked shift."""

    prediction: PredictionValues
    state: Mapping[str, Value]
    accepted: Value
    layout: tuple[StateTensor, ...]
    head: Head
    config: GainConfig

    def write(self, update_every: int, *, names: Sequence[str]) -> None:
        """Learn at once, or from what waits once that is enough; what waits are sums."""
        tape = self.accepted.tape
        if update_every == 1:
            with tape.branch() as nodes:
                values = self._learned(self._added())
                learn = _body("learn", nodes, values, self.layout)
            with tape.branch() as nodes:
                keep = _body("keep", nodes, self.state, self.layout)
            size = tape.apply("Shape", self.prediction.probs, start=0, end=1)
            some = tape.apply("Squeeze", size) > tape.constant(0, dtype=np.int64)
            tape.choose(self.accepted & some, then_branch=learn, else_branch=keep, names=names)
            return
        added = self._added()
        waiting = {
            field: self.state[PENDING + field] + where(self.accepted, value, 0.0)
            for field, value in added.items()
        }
        full = squeeze(waiting["window_count"]) >= float(update_every)
        with tape.branch() as nodes:
            values = self._learned(waiting) | nothing_waits(tape, self.layout)
            learn = _body("learn", nodes, values, self.layout)
        with tape.branch() as nodes:
            pending = {PENDING + field: value for field, value in waiting.items()}
            keep = _body("keep", nodes, {**self.state, **pending}, self.layout)
        tape.choose(self.accepted & full, then_branch=learn, else_branch=keep, names=names)

    def _added(self) -> dict[str, Value]:
        """What this batch adds."""
        return added_sums(self.prediction, self.state, head=self.head, config=self.config)

    def _learned(self, added: Mapping[str, Value]) -> dict[str, Value]:
        """The new state."""
        learned = learn_shift(added, self.state, head=self.head, config=self.config)
        count = cast(squeeze(added["window_count"]), TensorProto.INT64)
        return learned | {"frames": self.state["frames"] + count}


def _learning(
    waiting: Waiting,
    state: Mapping[str, Value],
    *,
    layout: tuple[StateTensor, ...],
    head: Head,
    config: GainConfig,
) -> onnx.GraphProto:
    """The branch that learns from everything that waits."""
    tape = head.centered.tape
    with tape.branch() as nodes:
        learned = learn(waiting.evidence, state, head=head, config=config)
        added = cast(total(waiting.evidence.accepted), TensorProto.INT64)
        learned["frames"] = state["frames"] + added
        learned |= nothing_waits(tape, layout)
        return _body("learn", nodes, learned, layout)


def _keeping(
    waiting: Waiting, state: Mapping[str, Value], *, layout: tuple[StateTensor, ...]
) -> onnx.GraphProto:
    """The branch that leaves the state as it is, but for rows that wait."""
    with waiting.full.tape.branch() as nodes:
        return _body("keep", nodes, {**state, **waiting.appended}, layout)


def _body(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, Value],
    layout: tuple[StateTensor, ...],
) -> onnx.GraphProto:
    """A branch whose outputs are its own: those from outside pass through a node."""
    inside = {output for node in nodes for output in node.output}
    outputs = {}
    for item in layout:
        value = values[item.field]
        if value.name not in inside:
            value = value.tape.apply("Identity", value)
        outputs[value] = item.type_proto
    return body(name, nodes, outputs)


def _declared(
    prediction: PredictionValues, shape: tuple[str | int, int]
) -> list[onnx.ValueInfoProto]:
    """The prediction's outputs with their types; `shape` is (B, K)."""
    kinds: list[tuple[Value, int, tuple[str | int, ...]]] = [
        (prediction.probs, TensorProto.FLOAT, shape),
        (prediction.log_probs, TensorProto.FLOAT, shape),
        (prediction.label, TensorProto.INT64, shape[:1]),
        (prediction.strength, TensorProto.FLOAT, shape[:1]),
        (prediction.gain, TensorProto.FLOAT, shape[:1]),
        (prediction.source_probs, TensorProto.FLOAT, shape),
        (prediction.source_log_probs, TensorProto.FLOAT, shape),
        (prediction.finite, TensorProto.BOOL, ()),
    ]
    return [helper.make_tensor_value_info(value.name, kind, shape) for value, kind, shape in kinds]
