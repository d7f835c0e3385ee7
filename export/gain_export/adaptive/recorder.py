"""Recording ONNX nodes: equal ones once, by scope, and only those that something reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Constant: TypeAlias = npt.NDArray[Any]
# The axes of a reduction are an attribute before this opset, and an input from it on.
_AXES_AS_INPUT = 18


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """A size that a call decides: its name in the graph's ends, and itself as (1,) int64."""

    name: str
    tensor: Tensor


# None is a size of which nothing is known.
Shape: TypeAlias = tuple["int | Symbol | None", ...]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A value of the graph, and the operation that computes it of its sources; "" for an input."""

    recorder: Recorder
    name: str
    dtype: np.dtype[Any]
    shape: Shape
    node: str = ""
    sources: tuple[Tensor, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


class Recorder:
    """A graph being written; `prefix` begins the names of all but its inputs and outputs."""

    def __init__(self, *, opset: int, prefix: str) -> None:
        self._opset, self._prefix = opset, prefix
        self._count = 0
        self._symbols: dict[str, Symbol] = {}
        self._constants: dict[Any, tuple[Tensor, Constant]] = {}
        self._scopes: list[tuple[list[onnx.NodeProto], dict[Any, Tensor]]] = [([], {})]

    def input(self, name: str, dtype: npt.DTypeLike, shape: Sequence[int | str], /) -> Tensor:
        """A value that comes from outside; sizes that a call decides are given by their name."""
        bare = Tensor(self, name, np.dtype(dtype), ())
        sizes: list[int | Symbol] = []
        for axis, size in enumerate(shape):
            if isinstance(size, str) and size not in self._symbols:
                tensor = self.write(
                    "Shape", bare, dtype=np.int64, shape=(1,), start=axis, end=axis + 1
                )
                self._symbols[size] = Symbol(size, tensor)
            sizes.append(self._symbols[size] if isinstance(size, str) else size)
        return Tensor(self, name, np.dtype(dtype), tuple(sizes))

    def constant(self, values: Constant, /) -> Tensor:
        """Equal ones have one name."""
        key = values.dtype, values.shape, values.tobytes()
        if key not in self._constants:
            name = f"{self._prefix}constant_{len(self._constants)}"
            tensor = Tensor(self, name, values.dtype, values.shape, "Constant")
            self._constants[key] = tensor, values
        return self._constants[key][0]

    def write(
        self,
        node: str,
        /,
        *operands: Tensor | Constant,
        dtype: npt.DTypeLike,
        shape: Shape,
        **attributes: Any,
    ) -> Tensor:
        """One node of one output, or the one that is there already."""
        sources = tuple(
            self.constant(item) if isinstance(item, np.ndarray) else item for item in operands
        )
        names = [item.name for item in sources]
        key = (node, *names, *sorted(attributes.items()))
        for _, known in self._scopes:
            if key in known:
                return known[key]
        result = self._tensor(node, np.dtype(dtype), shape, sources, attributes)
        nodes, known = self._scopes[-1]
        nodes.append(helper.make_node(node, names, [result.name], name=result.name, **attributes))
        known[key] = result
        return result

    def reduce(
        self, node: str, source: Tensor, /, *, axes: tuple[int, ...], keepdims: bool, shape: Shape
    ) -> Tensor:
        """A reduction, in the form of the opset."""
        kind: dict[str, Any] = {"dtype": source.dtype, "shape": shape, "keepdims": int(keepdims)}
        if node == "ReduceSum" or self._opset >= _AXES_AS_INPUT:
            return self.write(node, source, np.asarray(axes, dtype=np.int64), **kind)
        return self.write(node, source, axes=axes, **kind)

    def choose(
        self,
        condition: Tensor,
        then: Callable[[], Mapping[str, Tensor]],
        other: Callable[[], Mapping[str, Tensor]],
        /,
    ) -> dict[str, Tensor]:
        """A conditional; what a branch computes while it is called stands inside it.

        Both give values of the same names, types and shapes.
        """
        results: dict[str, Tensor] = {}
        graphs = {}
        for branch, compute in (("then_branch", then), ("else_branch", other)):
            with self._scope() as nodes:
                values = compute()
                results = results or {
                    field: self._tensor(f"If_{field}", item.dtype, item.shape)
                    for field, item in values.items()
                }
                named = {
                    self._tensor(branch, item.dtype, item.shape): values[field]
                    for field, item in results.items()
                }
                graphs[branch] = _graph(branch, nodes, named)
        names = [item.name for item in results.values()]
        node = helper.make_node("If", [condition.name], names, name=names[0], **graphs)
        self._scopes[-1][0].append(node)
        return results

    def graph(self, inputs: Iterable[Tensor], outputs: Mapping[str, Tensor], /) -> onnx.GraphProto:
        """Everything, its constants as initializers."""
        named = {Tensor(self, name, item.dtype, item.shape): item for name, item in outputs.items()}
        graph = _graph("step", self._scopes[0][0], named)
        graph.input.extend(_declared(item) for item in inputs)
        read = {name for node in graph.node for name in _reads(node)}
        graph.initializer.extend(
            numpy_helper.from_array(np.asarray(values, order="C"), tensor.name)
            for tensor, values in self._constants.values()
            if tensor.name in read
        )
        return graph

    def _tensor(self, stem: str, dtype: np.dtype[Any], shape: Shape, *origin: Any) -> Tensor:
        """Under a name of its own."""
        self._count += 1
        return Tensor(self, f"{self._prefix}{stem}_{self._count}", dtype, shape, stem, *origin)

    @contextmanager
    def _scope(self) -> Iterator[list[onnx.NodeProto]]:
        self._scopes.append(([], {}))
        try:
            yield self._scopes[-1][0]
        finally:
            self._scopes.pop()


def _declared(tensor: Tensor) -> onnx.ValueInfoProto:
    """Its type and shape, as a graph's inputs and outputs have them."""
    sizes = [size.name if isinstance(size, Symbol) else size for size in tensor.shape]
    kind = helper.np_dtype_to_tensor_dtype(tensor.dtype)
    return helper.make_tensor_value_info(tensor.name, kind, sizes)


def _graph(
    name: str, nodes: Sequence[onnx.NodeProto], outputs: Mapping[Tensor, Tensor]
) -> onnx.GraphProto:
    """What is needed for the outputs; what is computed here is renamed, not copied."""
    needed = {source.name for source in outputs.values()}
    kept = []
    for node in reversed(nodes):
        if needed & set(node.output):
            needed |= _reads(node)
            kept.append(node)
    kept.reverse()
    made = {result for node in kept for result in node.output}
    names: dict[str, str] = {}
    copies = []
    for output, source in outputs.items():
        if source.name in made and source.name not in names:
            names[source.name] = output.name
        else:
            copied = names.get(source.name, source.name)
            copies.append(helper.make_node("Identity", [copied], [output.name], name=output.name))
    for node in kept:
        _rename(node, names)
    return helper.make_graph([*kept, *copies], name, [], [_declared(item) for item in outputs])


def _reads(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, in its branches as well."""
    inner = [part for item in node.attribute for part in item.g.node]
    return {*node.input, *(name for part in inner for name in _reads(part))}


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for item in node.attribute:
        for part in item.g.node:
            _rename(part, names)
