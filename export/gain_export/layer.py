"""A layer inside a model that the user names as the head, judged by the model's own output."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import onnx

from gain_core.errors import ArtifactError, ConfigError
from gain_export.ending import Activation, activate, read_ending
from gain_export.graph import Graph, describe
from gain_export.outputs import Candidate
from gain_export.verify import ATOL, HALF_RTOL, RTOL

__all__ = ["Run", "choose_layer"]

# The value of that name for every image that the model is tried on.
Run = Callable[[str], npt.NDArray[np.generic]]

_LINEAR = {"Gemm": 1, "MatMul": 1, "Conv": 1}
_MAX_LISTED = 5
_POSSIBLE: tuple[Activation, ...] = ("none", "softmax", "log_softmax", "sigmoid")


def choose_layer(
    graph: Graph,
    name: str,
    candidates: Sequence[Candidate],
    run: Run,
    /,
    *,
    output_name: str | None,
    half: bool,
    path: str,
) -> tuple[str, Activation, Candidate | None]:
    """Find the layer, and the output of the model whose scores are the layer's.

    Parameters
    ----------
    graph : Graph
    name : str
        Of a node, or of a value it computes. The bias that is added to it belongs to it.
    candidates : sequence of Candidate
        The model's outputs with scores of classes.
    run : callable
    output_name : str or None
        The one to compare with.
    half : bool
        Whether the model computes in half precision.
    path : str
        For messages.

    Returns
    -------
    str
        The value that holds the logits.
    str
        What the model makes of them.
    Candidate or None
        The output that was found to agree; None where no output has as many columns.

    Raises
    ------
    ArtifactError
        If the layer does not give one score per class.
    ConfigError
        If there is no such layer, or several, or the model's own output is another.
    """
    value = _find(graph, name, candidates)
    scores = run(value)
    if scores.dtype.kind != "f" or scores.size == 0 or scores[0].size < 2:
        raise ArtifactError(
            f"--head {name}: expected scores of at least two classes, got {scores.dtype} numbers "
            f"of shape {scores.shape[1:]} per image; {_offer(graph, candidates)}"
        )
    if max(scores.shape[1:]) != scores[0].size:
        raise ArtifactError(
            f"--head {name}: acts on a map or sequence ({scores.shape[1:]} per image), not on one "
            f"vector; {_offer(graph, candidates)}"
        )
    flat = scores.reshape(len(scores), -1).astype(np.float32)
    compared = [
        candidate
        for candidate in candidates
        if candidate.num_classes in (0, flat.shape[1])
        and output_name in (None, candidate.name, candidate.ending.passed[0])
    ]
    if output_name is not None and not compared:
        listed = ", ".join(map(str, candidates)) or "none"
        raise ConfigError(
            f"--output-name {output_name}: expected an output with the {flat.shape[1]} columns of "
            f"{name}, got none; the model's: {listed}"
        )
    said = []
    for candidate in compared:
        activation = _activation_between(graph, value, flat, candidate, half=half)
        if activation is not None:
            return value, activation, candidate
        said.append(f"'{candidate.name}' has the same class on {_agreement(flat, candidate):.0%}")
    if said:
        raise ConfigError(
            f"--head {name}: {path} makes something else of it than its own output: "
            f"{'; '.join(said)} of the images; leave --head out, what follows the layer is folded "
            "in or kept as it is"
        )
    return value, "none", None


def _find(graph: Graph, name: str, candidates: Sequence[Candidate]) -> str:
    """The value that a name stands for."""
    named = [node for node in graph.nodes if name == node.name]
    named = named or [node for node in graph.nodes if name in node.output]
    if not named:
        raise ConfigError(f"--head {name}: no layer of that name; {_offer(graph, candidates)}")
    if len(named) > 1:
        listed = ", ".join(f"{describe(node)} -> '{node.output[0]}'" for node in named)
        raise ConfigError(f"--head {name}: fits several layers: {listed}; name a value")
    (node,) = named
    value = name if name in node.output else str(node.output[0])
    readers = graph.consumers(value)
    if node.op_type in _LINEAR and len(readers) == 1 and readers[0].op_type == "Add":
        added = [other for other in readers[0].input if other != value]
        if added and not graph.is_computed(added[0]):
            return str(readers[0].output[0])
    return value


def _offer(graph: Graph, candidates: Sequence[Candidate]) -> str:
    """The layers that have as many classes as one of the outputs, as a hint."""
    wanted = {candidate.num_classes for candidate in candidates}
    found = []
    for node in graph.nodes:
        if node.op_type not in _LINEAR or node.domain:
            continue
        weight = graph.constant(node.input[1])
        if weight is None or weight.ndim < 2:
            continue
        rows = _classes_of(node, weight.shape)
        if rows in wanted or (rows > 1 and wanted <= {0}):
            found.append(f"{describe(node)} ({rows} classes)")
    return f"those that fit: {', '.join(found[-_MAX_LISTED:]) or 'none'}"


def _classes_of(node: onnx.NodeProto, shape: tuple[int, ...]) -> int:
    transposed = any(item.name == "transB" and item.i for item in node.attribute)
    return shape[0] if node.op_type == "Conv" or transposed else shape[-1]


def _activation_between(
    graph: Graph,
    value: str,
    scores: npt.NDArray[np.float32],
    candidate: Candidate,
    *,
    half: bool,
) -> Activation | None:
    """What makes the output of the layer's scores; None where nothing known does."""
    want = candidate.scores
    if candidate.num_classes == 0:
        return "class_number" if _agreement(scores, candidate) == 1.0 else None
    ends = read_ending(graph, candidate.ending.logits).passed
    order = [candidate.ending.activation] if value in ends else list(_POSSIBLE)
    rtol = HALF_RTOL if half else RTOL
    allowed = ATOL + rtol * float(np.abs(want.astype(np.float64)).max())
    for activation in order:
        got = activate(scores, activation)
        if float(np.abs(got - want.astype(np.float32)).max()) <= allowed:
            return activation
    return None


def _agreement(scores: npt.NDArray[np.float32], candidate: Candidate) -> float:
    """Share of images on which layer and output name the same class."""
    classes = candidate.scores if candidate.num_classes == 0 else candidate.scores.argmax(axis=1)
    return float(np.mean(scores.argmax(axis=1) == classes))
