"""Finding the classifier's last layer in a graph: composed from the output back, or named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from gain_core.errors import ArtifactError, ConfigError
from gain_export.affine import AFFINE, Rules, StopError, Values
from gain_export.graph import Doubles, Graph, Term, attribute, describe, merged
from gain_export.outputs import Activation, Candidate, activate, read_ending
from gain_export.verify import ATOL, HALF_RTOL, RTOL

# How far the walk goes on where several vectors may turn out to be one.
_MAX_STEPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A value of the graph that holds features."""

    value: str
    # Axes that are averaged first: the head treats all places along them alike.
    mean_axes: tuple[int, ...]
    places: int  # the number of entries along those
    cast: bool  # it is of another type than float32
    flatten: bool  # it is of another shape than (B, width)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """One linear layer that gives the logits: `features @ weight.T + bias`.

    The features are the parts, flattened and put one after the other. Weight (K, D) and bias (K,)
    are float32; `nodes` names the nodes it stands for, from the first to the last.
    """

    parts: tuple[Part, ...]
    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32] | None
    nodes: tuple[str, ...]


class NotLinearError(Exception):
    """Why the logits are no linear layer on vectors, as a clause."""


def compose_head(graph: Graph, logits: str, /, *, values: Values) -> Head:
    """Find the vectors in which the logits are linear, and the weight and bias with which.

    `logits` names a value with one row per image and one column per class; axes of length one may
    follow. `values` are those of `affine_values`, as one run gave them. Raises NotLinearError if
    there are none; the node that stands in the way is named.
    """
    classes = int(values[logits].shape[1])
    rules = Rules(graph, values, num_classes=classes)
    terms = [Term(logits, 0, scale=np.ones(classes), columns=np.arange(classes), class_axis=1)]
    best: tuple[int, list[Term], Doubles, list[onnx.NodeProto]] | None = None
    passed: list[onnx.NodeProto] = []
    stuck: dict[str, str] = {}
    for _ in range(_MAX_STEPS):
        size = _cut_size(terms, values)
        if size is not None and (best is None or size < best[0]):
            best = (size, list(terms), rules.bias, list(passed))
        # What is computed last first: all that reads it has been seen.
        open_terms = [term for term in terms if term.value not in stuck]
        if (size is not None and len(terms) == 1) or not open_terms:
            break
        term = max(open_terms, key=lambda item: graph.position(item.value))
        node = graph.producer(term.value)
        if node is None:
            stuck[term.value] = "is not computed by any node"
            continue
        try:
            made = rules.before(node, term)
        except StopError as err:
            stuck[term.value] = str(err)
            continue
        terms = merged([other for other in terms if other is not term] + made)
        if node not in passed:
            passed.append(node)
    if best is None:
        reason = "; ".join(f"'{name}' {why}" for name, why in list(stuck.items())[:2])
        raise NotLinearError(reason or "too many nodes lie between them")
    _, terms, bias, passed = best
    return _finished(graph, values, terms, bias, passed)


def affine_values(graph: Graph, logits: str, /) -> list[str]:
    """The computed values that `compose_head` may ask for, nearest to the logits first."""
    found = [logits]
    for name in found:
        node = graph.producer(name)
        if node is None or node.domain or node.op_type not in AFFINE or len(found) > _MAX_STEPS:
            continue
        # Every output: a Split counts the parts before the one that is wanted.
        for other in (*node.output, *node.input):
            if other and other not in found and graph.producer(other) and graph.is_computed(other):
                found.append(other)
    return found


def _cut_size(terms: Sequence[Term], values: Values) -> int | None:
    """D if the features may end here; None where a term is no vector yet."""
    size = 0
    for term in terms:
        if term.weight is None or term.value not in values:
            return None
        wide = [length for length in term.weight.shape[1:] if length > 1]
        if len(wide) > 1:
            return None
        size += wide[0] if wide else 1
    return size if terms else None


def _finished(
    graph: Graph,
    values: Values,
    terms: list[Term],
    bias: Doubles,
    passed: list[onnx.NodeProto],
) -> Head:
    """The head of the terms of one cut."""
    terms = sorted(terms, key=lambda term: graph.position(term.value))
    parts, weights = [], []
    for term in terms:
        assert term.weight is not None
        shape, axes = values[term.value].shape, []
        count = 1
        for axis, length in enumerate(term.weight.shape[1:]):
            if axis != term.batch_axis and length == 1 and shape[axis] > 1:
                axes.append(axis)
                count *= shape[axis]
        weights.append(term.weight.reshape(len(bias), -1) * count)
        if term.batch_axis != 0:
            raise NotLinearError(f"'{term.value}' does not have its images in the first axis")
        parts.append(
            Part(
                value=term.value,
                mean_axes=tuple(axes),
                places=count,
                cast=values[term.value].dtype != np.float32,
                flatten=len(shape) != 2,
            )
        )
    weight = np.concatenate(weights, axis=1).astype(np.float32)
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise NotLinearError("its composed weight is not finite")
    return Head(
        parts=tuple(parts),
        weight=np.ascontiguousarray(weight),
        bias=bias.astype(np.float32) if bias.any() else None,
        nodes=tuple(
            describe(node) for node in sorted(passed, key=lambda n: graph.position(n.output[0]))
        ),
    )


# The value of that name for every image that the model is tried on.
Run = Callable[[str], npt.NDArray[np.generic]]

_LINEAR = ("Gemm", "MatMul", "Conv")
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

    `name` is of a node, or of a value it computes; the bias that is added to it belongs to it.
    Returns the value that holds the logits, what the model makes of them, and the candidate that
    was found to agree, None where no output has as many columns. Raises ArtifactError if the layer
    does not give one score per class, and ConfigError if there is no such layer, or several, or the
    model's own output, or the one of `output_name`, is another.
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
        other = "other scores, and " if candidate.num_classes else ""
        same = f"the same class on {_agreement(flat, candidate):.0%}"
        said.append(f"'{candidate.name}' has {other}{same}")
    if said:
        raise ConfigError(
            f"--head {name}: expected scores that agree with the output of {path}: "
            f"{'; '.join(said)} of the images; leave --head out, and what follows the layer is "
            "folded into the head or kept in the graph"
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
        by_rows = node.op_type == "Conv" or attribute(node, "transB", 0)
        if weight is None or weight.ndim < 2:
            continue
        rows = weight.shape[0 if by_rows else -1]
        if rows in wanted or (rows > 1 and wanted <= {0}):
            found.append(f"{describe(node)} ({rows} classes)")
    return f"those that fit: {', '.join(found[-_MAX_LISTED:]) or 'none'}"


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
