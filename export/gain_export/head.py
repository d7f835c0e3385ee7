"""Finding the classifier head of an ONNX graph: the last linear layer before the output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx

from gain_core.errors import ArtifactError, ConfigError
from gain_export.graph import Graph, attribute, describe

__all__ = ["Activation", "Head", "find_head"]

Activation = Literal["none", "softmax", "log_softmax"]

# Between head and output these change neither the classes nor their order.
_PASSED = frozenset({"Cast", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze"})
_ACTIVATIONS: dict[str, Activation] = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}
_LINEAR = frozenset({"Gemm", "MatMul", "Conv"})
_MAX_LISTED = 5

_WHY_NOT = {
    "ArgMax": "it outputs class numbers, and adaptation needs the scores",
    "TopK": "it outputs a ranking, and adaptation needs the scores of all classes",
    "Sigmoid": "that is a multi-label model, whose scores do not compete",
    "GlobalAveragePool": "its head is a map of scores that is averaged after the last layer",
    "ReduceMean": "its scores are averaged after the last layer",
    "AveragePool": "its scores are averaged after the last layer",
    "Add": "it adds two computed values (several heads averaged?), not one layer and its bias",
    "Div": "its scores are scaled after the last layer",
    "Mul": "its scores are scaled after the last layer",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """A linear layer that feeds the output.

    Attributes
    ----------
    node : str
        The layer as messages name it.
    names : frozenset of str
        What `--head` may call it: names of its nodes, values and output.
    features, logits : str
        Value it reads and value it computes, bias included.
    weight : array, (K, D) float32
    bias : array, (K,) float32, or None
    output : str or None
        The graph output it feeds; None where other operators lie between.
    activation : str
        What the graph applies between `logits` and that output.
    """

    node: str
    names: frozenset[str]
    features: str
    logits: str
    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32] | None
    output: str | None = None
    activation: Activation = "none"

    def __str__(self) -> str:
        classes, width = self.weight.shape
        ending = f" -> output '{self.output}'" if self.output is not None else ""
        return f"{self.node} ({classes} classes x {width} features){ending}"


class _NoHeadError(Exception):
    """Why a value is not the result of a linear layer, as the end of a sentence."""


def find_head(model: onnx.ModelProto, /, *, name: str | None = None) -> Head:
    """Find the linear layer that feeds the model's output.

    Parameters
    ----------
    model : onnx.ModelProto
        Read only.
    name : str, optional
        The layer to take: the name of its node, of a value it reads or computes, or of the graph
        output it feeds. Without it there must be exactly one.

    Returns
    -------
    Head

    Raises
    ------
    ArtifactError
        If the output does not come from a linear layer, or from one that cannot be used
        (quantised, half precision, inside an averaged map); the reason is named.
    ConfigError
        If several layers qualify, or none is called `name`; the candidates are listed.
    """
    graph = Graph(model)
    found: dict[str, Head] = {}
    reasons = []
    for output in model.graph.output:
        try:
            head = _walk(graph, output.name)
        except _NoHeadError as err:
            reasons.append(f"output '{output.name}' {err}")
        else:
            kept = found.get(head.logits)
            if kept is None or (kept.activation != "none" and head.activation == "none"):
                found[head.logits] = head
    if name is not None:
        return _pick(graph, list(found.values()), name)
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise ConfigError(
            f"head: expected one linear layer that feeds the output, got {len(found)}: "
            f"{_listed(found.values())}; choose one with --head NODE"
        )
    inner = list(_all_linear(graph))[-_MAX_LISTED:]
    remedy = f"; linear layers inside, for --head NODE: {_listed(inner)}" if inner else ""
    raise ArtifactError(f"head: no linear layer feeds the output: {'; '.join(reasons)}{remedy}")


def _pick(graph: Graph, found: list[Head], name: str) -> Head:
    """The layer called `name`, preferably one that feeds an output directly."""
    others = [head for head in _all_linear(graph) if head.logits not in {h.logits for h in found}]
    for heads in (found, others):
        named = [head for head in heads if name in head.names]
        # A value may be read by one layer and computed by another; node and output names are not.
        exact = [head for head in named if name != head.features] or named
        if len(exact) == 1:
            return exact[0]
        if exact:
            raise ConfigError(f"--head {name}: fits several layers: {_listed(exact)}")
    candidates = _listed(found + others[-_MAX_LISTED:]) or "the graph has none"
    raise ConfigError(f"--head {name}: no linear layer of that name; candidates: {candidates}")


def _listed(heads: Iterable[Head]) -> str:
    return ", ".join(str(head) for head in heads)


def _all_linear(graph: Graph) -> Iterator[Head]:
    """Every usable linear layer of the graph, in graph order, each with its bias."""
    heads: dict[str, Head] = {}
    for node in graph.nodes:
        if node.op_type in _LINEAR or node.op_type == "Add":
            try:
                head = _linear(graph, node.output[0])
            except _NoHeadError:
                continue
            # A layer and the bias added to it are one layer: the longer one replaces the shorter.
            for inner in [key for key in heads if key in head.names and key != head.features]:
                del heads[inner]
            heads[head.logits] = head
    yield from heads.values()


def _walk(graph: Graph, output: str) -> Head:
    """The linear layer above a graph output, through everything that keeps the classes apart."""
    value = output
    activation: Activation = "none"
    while True:
        node = graph.producer(value)
        if node is None:
            raise _NoHeadError("is not computed by any node")
        if _is_quantised(node):
            raise _NoHeadError(f"comes from {_quantised(node)}")
        if node.op_type in _ACTIVATIONS and activation == "none" and not node.domain:
            activation = _ACTIVATIONS[node.op_type]
        elif node.op_type not in _PASSED or node.domain:
            head = _linear(graph, value)
            return replace(
                head,
                output=output,
                activation=activation,
                names=head.names | {output},
            )
        value = node.input[0]


def _linear(graph: Graph, value: str) -> Head:
    """The linear layer whose result `value` is."""
    node = graph.producer(value)
    if node is None:
        raise _NoHeadError("is not computed by any node")
    if _is_quantised(node):
        raise _NoHeadError(f"comes from {_quantised(node)}")
    if not node.domain:
        if node.op_type == "Gemm":
            return _from_gemm(graph, node)
        if node.op_type == "MatMul":
            weight = _weight(graph, node, node.input[1])
            return _head(node, weight.T, None)
        if node.op_type == "Conv":
            return _from_conv(graph, node)
        if node.op_type == "Add":
            return _with_bias(graph, node)
    reason = _WHY_NOT.get(node.op_type, "that is no linear layer with fixed weights")
    if node.domain:
        reason = "an operator outside the ONNX standard; export the model without optimising it"
    raise _NoHeadError(f"comes from {describe(node)}: {reason}")


def _head(
    node: onnx.NodeProto, weight: npt.NDArray[np.float32], bias: npt.NDArray[np.float32] | None
) -> Head:
    return Head(
        node=describe(node),
        names=frozenset({node.name, node.input[0], node.output[0]}) - {""},
        features=node.input[0],
        logits=node.output[0],
        weight=np.ascontiguousarray(weight),
        bias=bias,
    )


def _from_gemm(graph: Graph, node: onnx.NodeProto) -> Head:
    """Gemm with its transposition and factors folded into the arrays."""
    if attribute(node, "transA", 0):
        raise _NoHeadError(f"comes from {describe(node)}, which transposes its features")
    weight = _weight(graph, node, node.input[1])
    if not attribute(node, "transB", 0):
        weight = weight.T
    weight = weight * _factor(node, "alpha")
    bias = None
    if len(node.input) > 2 and node.input[2]:
        bias = _bias(graph, node, node.input[2], num_classes=weight.shape[0])
        bias = bias * _factor(node, "beta")
    return _head(node, weight, bias)


def _from_conv(graph: Graph, node: onnx.NodeProto) -> Head:
    """A 1x1 convolution; that its input is one pixel wide is checked where shapes are known."""
    weight = _constant(graph, node, node.input[1])
    if weight.ndim != 4 or weight.shape[2:] != (1, 1):
        kernel = " x ".join(str(size) for size in weight.shape[2:])
        raise _NoHeadError(f"comes from {describe(node)} with a {kernel} kernel, not 1 x 1")
    if attribute(node, "group", 1) != 1 or any(_as_ints(attribute(node, "pads", []))):
        raise _NoHeadError(f"comes from {describe(node)}, a grouped or padded convolution")
    bias = None
    if len(node.input) > 2 and node.input[2]:
        bias = _bias(graph, node, node.input[2], num_classes=weight.shape[0])
    return _head(node, weight[:, :, 0, 0], bias)


def _with_bias(graph: Graph, node: onnx.NodeProto) -> Head:
    """A linear layer plus a constant, in either order."""
    for computed, added in (tuple(node.input), tuple(reversed(node.input))):
        if graph.constant(added) is None:
            continue
        head = _linear(graph, computed)
        bias = _bias(graph, node, added, num_classes=head.weight.shape[0])
        return replace(
            head,
            names=head.names | ({node.name, node.output[0]} - {""}),
            logits=node.output[0],
            bias=bias if head.bias is None else head.bias + bias,
        )
    raise _NoHeadError(f"comes from {describe(node)}: {_WHY_NOT['Add']}")


def _weight(graph: Graph, node: onnx.NodeProto, name: str) -> npt.NDArray[np.float32]:
    """A matrix that is constant."""
    weight = _constant(graph, node, name)
    if weight.ndim != 2:
        raise _NoHeadError(f"comes from {describe(node)}, whose weight has shape {weight.shape}")
    return weight


def _bias(
    graph: Graph, node: onnx.NodeProto, name: str, *, num_classes: int
) -> npt.NDArray[np.float32]:
    """A constant that gives every class one number."""
    bias = _constant(graph, node, name)
    if bias.size not in (1, num_classes) or max(bias.shape, default=1) != bias.size:
        raise _NoHeadError(
            f"comes from {describe(node)}, whose bias has shape {bias.shape} for "
            f"{num_classes} classes"
        )
    return np.ascontiguousarray(np.broadcast_to(bias.reshape(-1), (num_classes,)))


def _constant(graph: Graph, node: onnx.NodeProto, name: str) -> npt.NDArray[np.float32]:
    """A constant float32 array, with the reason where it is none."""
    for ancestor in graph.ancestors(name) or []:
        if _is_quantised(ancestor):
            raise _NoHeadError(
                f"comes from {describe(node)}, whose weight is {_quantised(ancestor)}"
            )
    array = graph.constant(name)
    if array is None:
        raise _NoHeadError(f"comes from {describe(node)}, which multiplies or adds computed values")
    if array.dtype != np.float32:
        raise _NoHeadError(
            f"comes from {describe(node)}, whose arrays are {array.dtype}; export the model in "
            "float32, its precision is chosen later"
        )
    return array.astype(np.float32, copy=False)


def _factor(node: onnx.NodeProto, name: str) -> np.float32:
    """A scalar attribute that defaults to one."""
    value = attribute(node, name, 1.0)
    assert isinstance(value, float | int)
    factor: np.float32 = np.float32(value)
    return factor


def _is_quantised(node: onnx.NodeProto) -> bool:
    name = str(node.op_type)
    integer = name.startswith(("QLinear", "QGemm")) or name.endswith("Integer")
    return integer or "quantize" in name.lower()


def _quantised(node: onnx.NodeProto) -> str:
    return (
        f"{describe(node)}: the head is quantised, and adaptation needs its exact weights; export "
        "the float32 model, or leave the last layer out of the quantisation"
    )


def _as_ints(value: object) -> list[int]:
    return [int(item) for item in value] if isinstance(value, list) else []
