"""One step of GAIN as ONNX nodes: predict, then learn where the caller and the guard allow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from gain_core import GainConfig
from gain_export.adaptive.expressions import Value, body, cast, total
from gain_export.adaptive.head_graph import Head, unit_rows
from gain_export.adaptive.learn_graph import learn
from gain_export.adaptive.pending_graph import Waiting, nothing_waits, wait
from gain_export.adaptive.predict_graph import PredictionValues, predict
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
        num_classes=head.num_classes, feature_dim=head.feature_dim, update_every=update_every
    )
    state = {item.field: tape.value(item.input_name) for item in layout}
    rows = unit_rows(features) if config.normalise else features
    prediction = predict(rows, logits, state, head=head, config=config)
    accepted = tape.value(UPDATE) & prediction.finite
    waiting = wait(rows, prediction, state, accepted=accepted, update_every=update_every)
    tape.choose(
        accepted & waiting.full,
        then_branch=_learning(waiting, state, layout=layout, head=head, config=config),
        else_branch=_keeping(waiting, state, layout=layout),
        names=[item.output_name for item in layout],
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
