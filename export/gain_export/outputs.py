"""What the original model gives: its outputs, which of them is the classifier, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from gain_core.errors import ArtifactError, ConfigError, EngineError, one_line
from gain_export.graph import Graph, attribute, open_native
from gain_runtime.sessions.onnx import NATIVE_ERRORS

Floats = npt.NDArray[np.float32]
Values = dict[str, npt.NDArray[np.generic]]
Feed = Callable[[Floats], npt.NDArray[np.generic]]

_CHUNK = 8


class Original:
    """The unchanged file on ONNX Runtime's CPU provider.

    `feed` makes what the network takes of `pixel_values` (B, 3, H, W) float32. `fixed_batch` is the
    only batch size it takes, as the graph states or as found by trying, or None. Raises EngineError
    if ONNX Runtime cannot load it.
    """

    def __init__(self, path: Path, feed: Feed, /, *, batch: int | None) -> None:
        self._path = path
        self._feed = feed
        self.fixed_batch = batch
        try:
            self._session = open_native(str(path))
        except NATIVE_ERRORS as err:
            raise self._failed("load", err) from err
        self._input = self._session.get_inputs()[0].name
        # Lists of dicts, as scikit-learn's converters have them, are no arrays.
        self._outputs = [
            value.name for value in self._session.get_outputs() if value.type.startswith("tensor(")
        ]

    def run(self, pixel_values: Floats, /) -> Values:
        """Its own outputs for (N, 3, H, W) float32 images, in the graph's order.

        Those without a row per image are left out. Raises EngineError if it cannot be run.
        """
        if self.fixed_batch is None and not self._takes_several(pixel_values):
            self.fixed_batch = 1
        size = self.fixed_batch or _CHUNK
        parts: list[list[npt.NDArray[np.generic]]] = []
        for start in range(0, len(pixel_values), size):
            batch = pixel_values[start : start + size]
            rows = len(batch)
            if self.fixed_batch is not None and rows < size:
                batch = np.concatenate([batch, np.repeat(batch[:1], size - rows, axis=0)])
            try:
                values = self._call(batch)
            except NATIVE_ERRORS as err:
                raise self._failed("run", err) from err
            parts.append([v[:rows] if v.shape[:1] == (len(batch),) else v[:0] for v in values])
        joined = {
            name: np.concatenate(found)
            for name, *found in zip(self._outputs, *parts, strict=True)
            if all(found[0].shape[1:] == other.shape[1:] for other in found)
        }
        return {name: v for name, v in joined.items() if len(v) == len(pixel_values)}

    def _takes_several(self, pixel_values: Floats) -> bool:
        """Whether a graph that leaves its batch axis open works with two images."""
        two = np.concatenate([pixel_values[:1], pixel_values[:1]])
        try:
            return any(value.shape[:1] == (2,) for value in self._call(two))
        except NATIVE_ERRORS:
            return False

    def _call(self, pixel_values: Floats) -> list[npt.NDArray[np.generic]]:
        found = self._session.run(self._outputs, {self._input: self._feed(pixel_values)})
        return [np.asarray(value) for value in found]

    def _failed(self, verb: str, err: Exception) -> EngineError:
        return EngineError(
            f"{self._path}: ONNX Runtime {onnxruntime.__version__} cannot {verb} it as it is "
            f"({' '.join(str(err).split())}); check the file and --img-size"
        )


def run_values(
    model: onnx.ModelProto, names: Sequence[str], pixel_values: npt.NDArray[np.generic], /
) -> Values:
    """Run a copy of a model on its only input and read values inside it, by name.

    One that ONNX Runtime cannot hand out (bfloat16) is left out. Raises EngineError if ONNX Runtime
    cannot load or run it.
    """
    if not names:
        return {}
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    declared = {value.name for value in exposed.graph.output}
    for name in names:
        if name not in declared:
            exposed.graph.output.append(onnx.ValueInfoProto(name=name))
    try:
        session = open_native(exposed.SerializeToString())
        wanted = [
            value.name
            for value in session.get_outputs()
            if value.name in set(names) and "bfloat16" not in value.type
        ]
        found = session.run(wanted, {session.get_inputs()[0].name: pixel_values})
    except NATIVE_ERRORS as err:
        reason = one_line(err)
        raise EngineError(f"ONNX Runtime cannot run the prepared graph ({reason[:300]})") from err
    return {name: np.asarray(value) for name, value in zip(wanted, found, strict=True)}


# `probabilities` is no operator: the output is one already, however it was made, and its logarithm
# are the logits. `class_number` keeps nothing but the class.
Activation = Literal["none", "softmax", "log_softmax", "sigmoid", "probabilities", "class_number"]


# These change neither the classes nor their order.
_PASSED = frozenset({"Cast", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_ACTIVATIONS: dict[str, Activation] = {
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Sigmoid": "sigmoid",
    "ArgMax": "class_number",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The way from the logits, or the output itself, to an output."""

    logits: str
    activation: Activation
    axis: int | None  # that the activation runs along, as the node states it
    node: str  # the activation's operator; empty without one
    passed: tuple[str, ...]  # every value from the output to `logits`


def read_ending(graph: Graph, output: str, /) -> Ending:
    """Walk up from an output over what only passes scores on, to its activation if it has one."""
    value, passed = output, [output]
    while True:
        node = graph.producer(value)
        if node is None or node.domain:
            break
        if node.op_type in _ACTIVATIONS:
            activation = _ACTIVATIONS[node.op_type]
            inner = node.input[0]
            axis = attribute(node, "axis", 0 if activation == "class_number" else -1)
            assert isinstance(axis, int)
            if activation == "class_number":
                # The class of probabilities is that of their logits.
                before = read_ending(graph, inner)
                inner = before.logits if before.activation != "none" else inner
            return Ending(
                logits=inner,
                activation=activation,
                axis=None if activation == "sigmoid" else axis,
                node=str(node.op_type),
                passed=(*passed, inner),
            )
        if node.op_type not in _PASSED:
            break
        value = node.input[0]
        passed.append(value)
    return Ending(logits=output, activation="none", axis=None, node="", passed=tuple(passed))


def runs_over_classes(ending: Ending, shape: tuple[int, ...], /) -> bool:
    """Whether the activation's axis is the one of the classes in a value of that shape."""
    if ending.axis is None:
        return True
    axis = ending.axis % len(shape)
    return axis > 0 and int(np.prod(shape[1:])) == shape[axis]


def activate(logits: Floats, activation: Activation, /) -> Floats:
    """What the original makes of logits (B, K)."""
    if activation in ("none", "class_number"):
        return logits
    exact = logits.astype(np.float64)
    if activation == "sigmoid":
        chosen = 1.0 / (1.0 + np.exp(-exact))
    else:
        exact -= exact.max(axis=1, keepdims=True)
        exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
        chosen = exact if activation == "log_softmax" else np.exp(exact)
    output: Floats = chosen.astype(np.float32)
    return output


# Sums of float16 probabilities are this far from one.
_SUM_ATOL = 2e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """An output that has one score per class, or the number of the class."""

    name: str
    num_classes: int  # 0 where only the number of the class comes out
    shape: tuple[int, ...]  # per image
    ending: Ending
    scores: npt.NDArray[np.generic]  # (N, K), or (N,) numbers of classes, of the images tried

    def __str__(self) -> str:
        size = " x ".join(map(str, self.shape)) or "1"
        return f"'{self.name}' ({size}{', ' + self.evidence if self.evidence else ''})"

    @property
    def evidence(self) -> str:
        """What speaks for it, in words."""
        if self.ending.node:
            return f"ends in {self.ending.node}"
        return "rows sum to one" if self.sums_to_one else "no activation"

    @property
    def sums_to_one(self) -> bool:
        """Whether every row is a distribution."""
        scores = self.scores.astype(np.float64)
        sums = scores.sum(axis=1) if scores.ndim == 2 else np.zeros(1)
        return bool((scores >= 0.0).all() and (np.abs(sums - 1.0) < _SUM_ATOL).all())


def find_candidates(graph: Graph, outputs: Values, /) -> list[Candidate]:
    """The outputs, one row per image each, that could be a classifier's, in the graph's order.

    Several outputs of one head (logits and probabilities) are one, the logits.
    """
    found: dict[str, Candidate] = {}
    for name, values in outputs.items():
        ending = read_ending(graph, name)
        shape = values.shape[1:]
        width = int(np.prod(shape))
        if values.dtype.kind == "f":
            # (B, K), with axes of length one at most behind it.
            if width < 2 or max(shape) != width:
                continue
            scores: npt.NDArray[np.generic] = values.reshape(len(values), width)
            classes = width
        elif ending.activation == "class_number" and width == 1:
            scores, classes = values.reshape(len(values)), 0
        else:
            continue
        candidate = Candidate(
            name=name, num_classes=classes, shape=shape, ending=ending, scores=scores
        )
        # Outputs of one head share the value that its logits pass through.
        key = read_ending(graph, ending.logits).passed[-1] if ending.node else ending.passed[-1]
        kept = found.get(key)
        if kept is None or _rank(candidate) < _rank(kept):
            found[key] = candidate
    return list(found.values())


def choose_output(
    candidates: Sequence[Candidate],
    outputs: Values,
    /,
    *,
    name: str | None,
    all_names: Sequence[str],
    path: str,
) -> Candidate:
    """The one output to adapt: the candidate called `name`, or the only one there is.

    Raises ArtifactError if no output has scores of two classes or more, and ConfigError if there
    are several and none was named, or the one named is none.
    """
    if name is not None:
        for candidate in candidates:
            if name == candidate.name or name in candidate.ending.passed:
                return candidate
        listed = ", ".join(map(str, candidates)) or "none"
        what = "has no scores of classes" if name in all_names else "is no output"
        raise ConfigError(f"--output-name {name}: {what}; those that have: {listed}")
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise ConfigError(
            f"{path}: expected one classifier, got {len(candidates)} outputs that may be one: "
            f"{', '.join(map(str, candidates))}; choose with --output-name NAME"
        )
    raise ArtifactError(
        f"{path}: no output holds scores of classes: {_why_none(outputs, all_names)}"
    )


def _why_none(outputs: Values, all_names: Sequence[str]) -> str:
    """Every output and what it is instead."""
    said = []
    for name in all_names:
        if name not in outputs:
            said.append(f"'{name}' is no array with a row per image")
            continue
        shape = outputs[name].shape[1:]
        size = " x ".join(map(str, shape)) or "1"
        if outputs[name].dtype.kind == "f" and int(np.prod(shape)) == 1:
            said.append(
                f"'{name}' is one number per image, and two classes need two: give the negative "
                "class the score 0, in torch torch.cat([torch.zeros_like(x), x], dim=1) on the "
                "value before the sigmoid, and export that"
            )
        elif outputs[name].dtype.kind == "f":
            said.append(f"'{name}' is a map or a sequence ({size} per image)")
        else:
            said.append(f"'{name}' holds {outputs[name].dtype} numbers ({size} per image)")
    return "; ".join(said)


def _rank(candidate: Candidate) -> int:
    """Logits before probabilities before class numbers."""
    return ("none", "log_softmax", "softmax", "sigmoid", "class_number").index(
        candidate.ending.activation
    )
