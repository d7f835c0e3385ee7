"""One step of GAIN as ONNX nodes: predict, then learn where the caller and the guard allow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from gain_core import GainConfig
from gain_core.shift import may_be_independent
from gain_export.adaptive.estimate_graph import INDEPENDENCE
from gain_export.adaptive.expressions import PREFIX, Value, body, cast, squeeze, total, where
from gain_export.adaptive.head_graph import Head, unit_rows
from gain_export.adaptive.learn_graph import learn
from gain_export.adaptive.pending_graph import PENDING, Awaited, Waiting, nothing_waits, wait
from gain_export.adaptive.predict_graph import PredictionValues, predict, prediction_types
from gain_export.adaptive.revise_graph import write_revision
from gain_export.adaptive.shift_graph import LAST_FRAME, added_sums, learn_shift
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
    warmup_frames: int = 1,
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
    warmup_frames : int, optional
        Frames the first update waits for, baked in.
    batch : str or int
        How the network's batch axis is declared.

    Returns
    -------
    StepGraph
        With everything on the tape, the head's nodes included.
    """
    tape = features.tape
    awaited = Awaited(update_every=update_every, warmup_frames=warmup_frames)
    layout = state_layout(
        num_classes=head.num_classes,
        feature_dim=head.feature_dim,
        config=config,
        most_awaited=awaited.most,
    )
    state = {item.field: tape.value(item.input_name) for item in layout}
    rows = unit_rows(features) if config.normalise else features
    shifts, shape = config.proposal == "shift", (batch, head.num_classes)
    revised = shifts and may_be_independent(config, num_classes=head.num_classes)
    prediction = predict(rows, logits, state, head=head, config=config, revised=revised)
    accepted = tape.value(UPDATE) & prediction.finite
    if shifts:
        choice = _ShiftChoice(rows, prediction, state, accepted, layout, head, config)
        after = choice.write(awaited, revised=revised)
        if revised:
            iota = after[INDEPENDENCE]
            write_revision(prediction, state, after, independence=iota, config=config, shape=shape)
    else:
        waiting = wait(rows, prediction, state, accepted=accepted, awaited=awaited)
        tape.choose(
            accepted & waiting.full,
            then_branch=_learning(waiting, state, layout=layout, head=head, config=config),
            else_branch=_keeping(waiting, state, layout=layout),
            names=[item.output_name for item in layout],
        )
    outputs = prediction_types(shape) | {item.output_name: item.type_proto for item in layout}
    return StepGraph(
        nodes=tape.nodes,
        initializers=list(tape.initializers.values()),
        inputs=[
            helper.make_tensor_value_info(UPDATE, TensorProto.BOOL, []),
            *(helper.make_value_info(item.input_name, item.type_proto) for item in layout),
        ],
        outputs=[helper.make_value_info(name, kind) for name, kind in outputs.items()],
        layout=layout,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _ShiftChoice:
    """The conditional of a file with a tracked shift."""

    rows: Value
    prediction: PredictionValues
    state: Mapping[str, Value]
    accepted: Value
    layout: tuple[StateTensor, ...]
    head: Head
    config: GainConfig

    def write(self, awaited: Awaited, *, revised: bool) -> dict[str, Value]:
        """Learn at once, or from what waits once that is enough; what waits are sums.

        Returns the state that this call leaves, by field, and iota where it is wanted.
        """
        tape = self.accepted.tape
        types, names = _types(self.layout), {item.field: item.output_name for item in self.layout}
        kept = dict(self.state)
        if revised:
            types[INDEPENDENCE] = helper.make_tensor_type_proto(TensorProto.FLOAT, ())
            names[INDEPENDENCE] = PREFIX + INDEPENDENCE
            kept[INDEPENDENCE] = tape.constant(0.0)
        if awaited.most == 1:
            size = tape.apply("Shape", self.prediction.source_log_probs, start=0, end=1)
            full = tape.apply("Squeeze", size) > tape.constant(0, dtype=np.int64)
            waiting = None
        else:
            waiting = self._waiting()
            full = squeeze(waiting["window_count"]) >= awaited.least(
                self.state["frames"], kind=np.float32
            )
            kept |= {PENDING + field: value for field, value in waiting.items()}
        with tape.branch() as nodes:
            values = self._learned(self._added(self.state) if waiting is None else waiting)
            values |= nothing_waits(tape, self.layout)
            learn = body("learn", nodes, values, types)
        with tape.branch() as nodes:
            keep = body("keep", nodes, kept, types)
        tape.choose(
            self.accepted & full, then_branch=learn, else_branch=keep, names=list(names.values())
        )
        return {field: tape.value(name) for field, name in names.items()}

    def _waiting(self) -> dict[str, Value]:
        """What waits with this batch on top, where that may be learned from."""
        held = {
            field.removeprefix(PENDING): value
            for field, value in self.state.items()
            if field.startswith(PENDING)
        }
        some = squeeze(held["window_count"]) > 0.0
        last = {field: where(some, held[field], self.state[field]) for field in LAST_FRAME}
        waiting = {}
        for field, value in self._added(last).items():
            if field in LAST_FRAME:
                waiting[field] = where(self.accepted, value, held[field])
            else:
                waiting[field] = held[field] + where(self.accepted, value, 0.0)
        return waiting

    def _added(self, last: Mapping[str, Value]) -> dict[str, Value]:
        """What this batch adds, `last` being the frame before it."""
        return added_sums(
            self.rows, self.prediction, self.state, last, head=self.head, config=self.config
        )

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
        return body("learn", nodes, learned, _types(layout))


def _keeping(
    waiting: Waiting, state: Mapping[str, Value], *, layout: tuple[StateTensor, ...]
) -> onnx.GraphProto:
    """The branch that leaves the state as it is, but for rows that wait."""
    with waiting.full.tape.branch() as nodes:
        return body("keep", nodes, {**state, **waiting.appended}, _types(layout))


def _types(layout: tuple[StateTensor, ...]) -> dict[str, onnx.TypeProto]:
    """ONNX's types of the state, by field."""
    return {item.field: item.type_proto for item in layout}
