"""An ONNX graph to read in: values, their shapes and makers, and what one adds to the logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import numpy_helper

from gain_runtime.sessions.onnx import EXACT_INT8, NATIVE_ERRORS

_LOG_FATAL_ONLY = 4


def open_native(model: str | bytes, /) -> onnxruntime.InferenceSession:
    """A session on a file, or on a model's bytes, that logs nothing."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_FATAL_ONLY
    options.add_session_config_entry(*EXACT_INT8)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def evaluate(model: onnx.ModelProto, /) -> npt.NDArray[np.generic] | None:
    """The output of a model without inputs; None where ONNX Runtime cannot give it."""
    try:
        (value,) = open_native(model.SerializeToString()).run(None, {})
    except NATIVE_ERRORS:
        return None
    array: npt.NDArray[np.generic] = np.asarray(value)
    return array


class Graph:
    """An index over a graph's nodes and constants; the graph must not change meanwhile."""

    def __init__(self, model: onnx.ModelProto, /) -> None:
        self.model = model
        self.nodes: list[onnx.NodeProto] = list(model.graph.node)
        self._producers = {
            name: position
            for position, node in enumerate(self.nodes)
            for name in node.output
            if name
        }
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        # Nodes stand in the order of their computation.
        self._computed = {value.name for value in model.graph.input} - set(self._initializers)
        for node in self.nodes:
            inner = next(subgraphs(node), None) is not None
            drawn = node.op_type.startswith("Random")
            if inner or drawn or not self._computed.isdisjoint(node.input):
                self._computed.update(node.output)
        self._constants: dict[str, npt.NDArray[np.generic] | None] = {}

    def producer(self, name: str) -> onnx.NodeProto | None:
        """The node that computes a value; None for inputs and initializers."""
        position = self._producers.get(name)
        return None if position is None else self.nodes[position]

    def position(self, name: str) -> int:
        """Where the node that computes a value stands; -1 for inputs and initializers."""
        return self._producers.get(name, -1)

    def consumers(self, name: str) -> list[onnx.NodeProto]:
        """The nodes that read a value, in graph order."""
        return [node for node in self.nodes if name in consumed_values(node)]

    def is_computed(self, name: str) -> bool:
        """Whether a value depends on the input."""
        return name in self._computed

    def constant(self, name: str) -> npt.NDArray[np.generic] | None:
        """A value that does not depend on the input; None if it does, or cannot be computed."""
        if name not in self._constants:
            self._constants[name] = self._evaluated(name)
        return self._constants[name]

    def _evaluated(self, name: str) -> npt.NDArray[np.generic] | None:
        if name in self._initializers:
            stored: npt.NDArray[np.generic] = numpy_helper.to_array(self._initializers[name])
            return stored
        ancestors = None if name in self._computed else self.ancestors(name)
        if not ancestors:
            return None
        used = {value for node in ancestors for value in node.input}
        graph = onnx.helper.make_graph(
            ancestors,
            "constant",
            [],
            [onnx.helper.make_value_info(name, onnx.TypeProto())],
            [tensor for tensor in self.model.graph.initializer if tensor.name in used],
        )
        model = onnx.helper.make_model(
            graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version
        )
        return evaluate(model)

    def ancestors(self, name: str) -> list[onnx.NodeProto] | None:
        """Nodes a constant is computed by, in graph order; None if an input is among its sources.

        A node with a subgraph counts as depending on the input.
        """
        wanted: set[int] = set()
        stack = [name]
        while stack:
            value = stack.pop()
            position = self._producers.get(value)
            if position is None:
                if value and value not in self._initializers:
                    return None
                continue
            node = self.nodes[position]
            if next(subgraphs(node), None) is not None:
                return None
            if position not in wanted:
                wanted.add(position)
                stack.extend(node.input)
        return [self.nodes[position] for position in sorted(wanted)]


def attribute(node: onnx.NodeProto, name: str, default: object) -> object:
    """An attribute's value, or the operator's default."""
    for item in node.attribute:
        if item.name == name:
            value: object = onnx.helper.get_attribute_value(item)
            return value
    return default


def describe(node: onnx.NodeProto) -> str:
    """A node as messages name it: operator and node name, or its output where it has no name."""
    operator = f"{node.domain}:{node.op_type}" if node.domain else str(node.op_type)
    return f"{operator} '{node.name or node.output[0]}'"


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs inside a control-flow node."""
    for item in node.attribute:
        if item.HasField("g"):
            yield item.g
        yield from item.graphs


def free_name(model: onnx.ModelProto, wanted: str) -> str:
    """A value name no one uses yet: the wanted one, or that with a number."""
    taken = {name for node in all_nodes(model.graph) for name in (*node.input, *node.output)}
    taken |= {tensor.name for tensor in model.graph.initializer}
    taken |= {value.name for value in model.graph.input}
    name, number = wanted, 0
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    return name


def rename_value(model: onnx.ModelProto, old: str, new: str) -> None:
    """Rename a value wherever it is produced, consumed or declared; `new` is made free first."""
    if old != new:
        release_name(model, new)
        _rename(model, old, new)


def release_name(model: onnx.ModelProto, name: str) -> None:
    """Give whatever value bears a name another one."""
    displaced = free_name(model, name)
    if displaced != name:
        _rename(model, name, displaced)


def prune(model: onnx.ModelProto, outputs: list[onnx.ValueInfoProto]) -> None:
    """Make `outputs` the graph's outputs and drop every node and initializer they do not need."""
    graph = model.graph
    producers = {
        name: position for position, node in enumerate(graph.node) for name in node.output if name
    }
    kept: set[int] = set()
    needed: set[str] = set()
    stack = [value.name for value in outputs]
    while stack:
        name = stack.pop()
        needed.add(name)
        position = producers.get(name)
        if position is not None and position not in kept:
            kept.add(position)
            stack.extend(consumed_values(graph.node[position]))
    # From the end, in place: large initializers are not copied.
    for position in reversed(range(len(graph.node))):
        if position not in kept:
            del graph.node[position]
    for position in reversed(range(len(graph.initializer))):
        if graph.initializer[position].name not in needed:
            del graph.initializer[position]
    declared = list(outputs)
    del graph.output[:]
    graph.output.extend(declared)


def consumed_values(node: onnx.NodeProto) -> Iterator[str]:
    """Every value a node reads, those its subgraphs capture included."""
    yield from (name for name in node.input if name)
    for graph in subgraphs(node):
        yield from (value.name for value in graph.output)
        for inner in graph.node:
            yield from consumed_values(inner)


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of every graph inside it."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner)


def _rename(model: onnx.ModelProto, old: str, new: str) -> None:
    for node in all_nodes(model.graph):
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                if name == old:
                    names[position] = new
    graphs = [model.graph]
    for node in all_nodes(model.graph):
        graphs.extend(subgraphs(node))
    for graph in graphs:
        for items in (graph.input, graph.output, graph.value_info, graph.initializer):
            for item in items:
                if item.name == old:
                    item.name = new


Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """What one value adds to the logits.

    Before the first matrix product class k is `scale[k]` times entry `columns[k]` along
    `class_axis`, summed over all other axes. After it, `weight` has the value's axes behind one of
    classes; an axis of length one stands for equal numbers all along it, as the batch axis always
    does.
    """

    value: str
    batch_axis: int
    weight: Doubles | None = None
    scale: Doubles = field(default_factory=lambda: np.zeros(0))
    columns: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    class_axis: int = -1


def times(term: Term, factor: float, value: str) -> Term:
    """A multiple of it on a value."""
    if term.weight is not None:
        return replace(term, value=value, weight=term.weight * factor)
    return replace(term, value=value, scale=term.scale * factor)


def merged(terms: Sequence[Term]) -> list[Term]:
    """One term per value: what several roads add to the logits is summed."""
    kept: list[Term] = []
    for term in terms:
        for position, other in enumerate(kept):
            if other.value != term.value or other.batch_axis != term.batch_axis:
                continue
            if other.weight is not None and term.weight is not None:
                kept[position] = replace(term, weight=other.weight + term.weight)
                break
            both_select = other.weight is None and term.weight is None
            same_axis = other.class_axis == term.class_axis
            if both_select and same_axis and np.array_equal(other.columns, term.columns):
                kept[position] = replace(term, scale=other.scale + term.scale)
                break
        else:
            kept.append(term)
    return kept
