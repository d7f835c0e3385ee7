"""One step of a method as ONNX nodes: its own `predict`, `collect` and `update`, traced.

Nothing here knows a method: its state and its evidence are records of arrays, and become tensors
field by field. A state of zeros is the state before the first frame.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from gain_core import Method, Prediction, make_method
from gain_core.records import arrays_of
from gain_export.adaptive.recorder import Recorder
from gain_export.adaptive.traced import Array, as_tensor, choose, namespace, variable
from gain_runtime.files.adaptive import PENDING, StateSpec, state_layout

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
class Step:
    """One step of a method, with what is baked in beside it."""

    method: Method[Any]  # on NumPy; its config and what was measured become constants
    update_every: int  # frames between two updates
    warmup_frames: int  # frames that the first one waits for

    @property
    def layout(self) -> tuple[StateSpec, ...]:
        """Every state tensor, in the order of the graph's inputs."""
        return state_layout(
            self.method, update_every=self.update_every, warmup_frames=self.warmup_frames
        )

    @property
    def _capacity(self) -> int:
        """The most frames that ever wait."""
        return max(self.update_every, self.warmup_frames) - 1

    def graph(
        self,
        *,
        features: str | None,
        logits: str,
        batch: int | str,
        head: StoredHead | None,
        opset: int,
    ) -> onnx.GraphProto:
        """The step behind a graph's features and logits, ready to be put behind a network.

        Its inputs are `update` and every `state.*`, its outputs the prediction and every
        `next_state.*`. Features and head are needed where the method reads features: prototypes are
        nodes on the head's weight, which runtimes fold.
        """
        recorder = Recorder(opset=opset, prefix=_PREFIX)
        layout = self.layout
        fed = [variable(recorder, UPDATE, np.bool_, ())]
        fed += [variable(recorder, item.name, item.dtype, item.shape) for item in layout]
        held = {item.field: array for item, array in zip(layout, fed[1:], strict=True)}
        traced = _traced(self.method, recorder, head)
        rows = None
        if self.method.feature_dim is not None:
            assert features is not None
            shape = (batch, self.method.feature_dim)
            rows = variable(recorder, features, np.float32, shape)
        scores = variable(recorder, logits, np.float32, (batch, self.method.num_classes))
        answer, after = self._write(traced, rows, scores, update=fed[0], held=held)
        values = {name: answer[name] for name in PREDICTION_NAMES}
        values |= {item.next_name: after[item.field] for item in layout}
        outputs = {name: as_tensor(array, recorder) for name, array in values.items()}
        return recorder.graph([as_tensor(array, recorder) for array in fed], outputs)

    def _write(
        self, traced: Method[Any], features: Any, logits: Any, *, update: Array, held: Values
    ) -> tuple[Values, Values]:
        """The answer to a batch by output, and the state after it by field."""
        fresh = self.method.init_state()
        before = type(fresh)(**{field: held[field] for field in arrays_of(fresh)})
        prediction = traced.predict(features, logits, before)
        accepted = update & prediction.finite
        # Of others nothing is kept, so that nobody need look at every row.
        certain = replace(prediction, finite=xp.asarray(True))
        pending = None
        if self._capacity:
            empty = self.method.no_evidence(self._capacity)
            pending = type(empty)(**{field: held[PENDING + field] for field in arrays_of(empty)})
        evidence = traced.collect(features, certain, before, pending)
        count: Any = traced.count(evidence)
        first, later = (
            xp.asarray(frames, dtype=xp.float32)
            for frames in (self._capacity + 1, self.update_every)
        )
        enough = count >= xp.where(held["frames"] > 0, later, first)

        def learn() -> Values:
            # What is computed here stands inside the conditional.
            new: dict[str, Any] = {**arrays_of(traced.update(evidence, before))}
            new["frames"] = held["frames"] + xp.astype(count, xp.int64)
            if self._capacity:
                none: Any = arrays_of(traced.no_evidence(self._capacity))
                new |= {PENDING + field: array for field, array in none.items()}
            return new

        def keep() -> Values:
            if not self._capacity:
                return held
            waiting = arrays_of(traced.hold(evidence, self._capacity))
            return held | {
                PENDING + field: xp.where(accepted, array, held[PENDING + field])
                for field, array in waiting.items()
            }

        after = choose(accepted & enough, learn, keep)
        return _outputs(prediction), after


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
