"""One step of a method as ONNX nodes: its own `predict`, `collect` and `update`, traced.

Nothing here knows a method: its state and its evidence are records of arrays, and become tensors
field by field. A state of zeros is the state before the first frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from gain_core import Method, Prediction, make_method
from gain_core.records import arrays_of
from gain_export.adaptive.recorder import Recorder
from gain_export.adaptive.traced import Array, as_tensor, choose, namespace, variable
from gain_runtime.files.adaptive import PENDING, StateSpec, state_layout

__all__ = ["PREDICTION_NAMES", "UPDATE", "Inputs", "StepGraph", "StoredHead", "write_step"]

UPDATE = "update"
# Outputs of a prediction, in their order.
PREDICTION_NAMES = (
    *("probs", "log_probs", "label", "strength", "gain"),
    *("source_probs", "source_log_probs", "finite"),
)
# Begins the names of the nodes, which stand beside a network's.
_PREFIX = "gain/"

Values = dict[str, Array]
xp: Any = namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHead:
    """The head's weight as it is stored, of any float type: (K, D), or (D, K) if `transposed`.

    Further axes of length one are dropped.
    """

    tensor: onnx.TensorProto
    transposed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the step reads of a graph, by name, and how its batch axis is declared."""

    features: str | None
    logits: str
    batch: int | str


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
    layout : tuple of StateSpec
    """

    nodes: Sequence[onnx.NodeProto]
    initializers: Sequence[onnx.TensorProto]
    inputs: Sequence[onnx.ValueInfoProto]
    outputs: Sequence[onnx.ValueInfoProto]
    layout: tuple[StateSpec, ...]


def write_step(
    method: Method[Any],
    inputs: Inputs,
    /,
    *,
    head: StoredHead | None,
    opset: int,
    update_every: int,
    warmup_frames: int,
) -> StepGraph:
    """Write the step behind a graph's features and logits.

    Parameters
    ----------
    method : Method
        On NumPy; its config and what was measured become constants.
    inputs : Inputs
        Features are named where the method reads them.
    head : StoredHead, optional
        Where the method reads features: prototypes are nodes on it, which runtimes fold.
    opset : int
    update_every, warmup_frames : int
        Frames between two updates, and frames the first one waits for; baked in.

    Returns
    -------
    StepGraph
    """
    recorder = Recorder(opset=opset, prefix=_PREFIX)
    layout = state_layout(method, update_every=update_every, warmup_frames=warmup_frames)
    fed = [variable(recorder, UPDATE, np.bool_, ())]
    fed += [variable(recorder, item.name, item.dtype, item.shape) for item in layout]
    held = {item.field: array for item, array in zip(layout, fed[1:], strict=True)}
    step = _Step(
        method=method,
        traced=_traced(method, recorder, head),
        update_every=update_every,
        capacity=max(update_every, warmup_frames) - 1,
    )
    batch = _batch(method, recorder, inputs)
    answer, after = step.write(*batch, update=fed[0], held=held)
    values = {name: answer[name] for name in PREDICTION_NAMES}
    values |= {item.next_name: after[item.field] for item in layout}
    outputs = {name: as_tensor(array, recorder) for name, array in values.items()}
    graph = recorder.graph([as_tensor(array, recorder) for array in fed], outputs)
    return StepGraph(
        nodes=graph.node,
        initializers=graph.initializer,
        inputs=graph.input,
        outputs=graph.output,
        layout=layout,
    )


def _batch(method: Method[Any], recorder: Recorder, inputs: Inputs) -> tuple[Array | None, Array]:
    """Features, where the method reads them, and logits."""
    features = None
    if method.feature_dim is not None:
        assert inputs.features is not None
        shape = (inputs.batch, method.feature_dim)
        features = variable(recorder, inputs.features, np.float32, shape)
    shape = (inputs.batch, method.num_classes)
    return features, variable(recorder, inputs.logits, np.float32, shape)


def _traced(method: Method[Any], recorder: Recorder, head: StoredHead | None) -> Method[Any]:
    """The same method on traced arrays; its constants are the graph's."""
    if method.feature_dim is None:
        source: Any = method.num_classes
    else:
        assert head is not None
        dtype = onnx.helper.tensor_dtype_to_np_dtype(head.tensor.data_type)
        weight = variable(recorder, head.tensor.name, dtype, tuple(head.tensor.dims))
        shape = (method.num_classes, method.feature_dim)
        shape = shape[::-1] if head.transposed else shape
        rows = xp.astype(weight, xp.float32)
        rows = rows if rows.shape == shape else xp.reshape(rows, shape)
        source = xp.matrix_transpose(rows) if head.transposed else rows
    like: Any = xp.zeros((), dtype=xp.float32)
    return make_method(source, method.config, like=like, **method.measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A method with what is baked in beside it.

    Attributes
    ----------
    method, traced : Method
        On NumPy, which has the records' shapes, and on traced arrays.
    update_every : int
    capacity : int
        The most frames that ever wait.
    """

    method: Method[Any]
    traced: Method[Any]
    update_every: int
    capacity: int

    def write(
        self, features: Any, logits: Any, *, update: Array, held: Values
    ) -> tuple[Values, Values]:
        """The answer to a batch by output, and the state after it by field."""
        before = self._state(held)
        prediction = self.traced.predict(features, logits, before)
        accepted = update & prediction.finite
        # Of others nothing is kept, so that nobody need look at every row.
        certain = replace(prediction, finite=xp.asarray(True))
        evidence = self.traced.collect(features, certain, before, self._pending(held))
        count: Any = self.traced.count(evidence)
        enough = count >= self._awaited(held["frames"])

        def learn() -> Values:
            # What is computed here stands inside the conditional.
            new = arrays_of(self.traced.update(evidence, before))
            return {**new, "frames": held["frames"] + xp.astype(count, xp.int64), **self._none()}

        def keep() -> Values:
            return held | self._kept(evidence, held, accepted)

        learns = accepted & enough
        after = choose(learns, learn, keep)
        return _outputs(prediction), after

    def _state(self, values: Mapping[str, Array]) -> Any:
        """The state's record."""
        fresh = self.method.init_state()
        return type(fresh)(**{field: values[field] for field in arrays_of(fresh)})

    def _pending(self, held: Values) -> Any | None:
        """The record of what waits, if anything ever does."""
        if not self.capacity:
            return None
        empty = self.method.no_evidence(self.capacity)
        return type(empty)(**{field: held[PENDING + field] for field in arrays_of(empty)})

    def _none(self) -> Values:
        """Nothing waits."""
        if not self.capacity:
            return {}
        empty: Any = arrays_of(self.traced.no_evidence(self.capacity))
        return {PENDING + field: array for field, array in empty.items()}

    def _kept(self, evidence: Any, held: Values, accepted: Array) -> Values:
        """What waits with this batch on top, where that may be learned from."""
        if not self.capacity:
            return {}
        waiting = arrays_of(self.traced.hold(evidence, self.capacity))
        return {
            PENDING + field: xp.where(accepted, array, held[PENDING + field])
            for field, array in waiting.items()
        }

    def _awaited(self, frames: Any) -> Array:
        """Frames that the next update waits for."""
        first, later = (
            xp.asarray(count, dtype=xp.float32) for count in (self.capacity + 1, self.update_every)
        )
        return xp.where(frames > 0, later, first)  # type: ignore[no-any-return]


def _outputs(prediction: Prediction) -> Values:
    """A prediction by the names of the file's outputs."""
    values: dict[str, Any] = {
        "probs": prediction.probs,
        "log_probs": prediction.log_probs,
        "label": xp.argmax(prediction.probs, axis=1),
        "strength": prediction.strength,
        "gain": prediction.gain,
        "source_probs": xp.exp(prediction.source_log_probs),
        "source_log_probs": prediction.source_log_probs,
        "finite": prediction.finite,
    }
    return values
