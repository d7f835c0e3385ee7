"""Writing ONNX nodes as arithmetic, so that the step's graph reads like `gain_core`.

A `Tape` records nodes in the order in which they are written; a `Value` names one result and has
Python's operators. Operators mean the same from opset 17 to 20, or are written as the tape's opset
has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = [
    "Operand",
    "Tape",
    "Value",
    "along",
    "arg_max",
    "beside",
    "body",
    "cast",
    "column",
    "exp",
    "expand",
    "highest",
    "log",
    "log_softmax",
    "lowest",
    "maximum",
    "minimum",
    "not_finite",
    "row",
    "softmax",
    "sqrt",
    "squeeze",
    "taken",
    "total",
    "where",
]

PREFIX = "gain/"
# From this opset on the largest and the least of an axis take the axis as an input.
_AXES_AS_INPUT = 18


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One tensor of the graph that is being written."""

    tape: Tape
    name: str

    def __add__(self, other: Operand) -> Value:
        return self.tape.apply("Add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self.tape.apply("Add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return self.tape.apply("Sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self.tape.apply("Sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return self.tape.apply("Mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self.tape.apply("Mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self.tape.apply("Div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self.tape.apply("Div", other, self)

    def __matmul__(self, other: Value) -> Value:
        return self.tape.apply("MatMul", self, other)

    def __gt__(self, other: Operand) -> Value:
        return self.tape.apply("Greater", self, other)

    def __ge__(self, other: Operand) -> Value:
        return self.tape.apply("GreaterOrEqual", self, other)

    def __and__(self, other: Value) -> Value:
        return self.tape.apply("And", self, other)

    def __or__(self, other: Value) -> Value:
        return self.tape.apply("Or", self, other)

    def __invert__(self) -> Value:
        return self.tape.apply("Not", self)


# A number becomes a float32 constant.
Operand: TypeAlias = "Value | float"


@dataclass(slots=True, eq=False)
class Tape:
    """The nodes written so far and the constants they use.

    Attributes
    ----------
    nodes : list of onnx.NodeProto
        Of the graph, or of the branch that is being written.
    initializers : dict of str to onnx.TensorProto
        Constants of the whole model; branches see them too.
    opset : int
        Of the model that the nodes are for.
    """

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    opset: int = 17
    _count: int = 0

    def value(self, name: str) -> Value:
        """A tensor that comes from elsewhere: an input or an initializer."""
        return Value(self, name)

    def constant(self, array: float | npt.NDArray[Any], *, dtype: Any = np.float32) -> Value:
        """A constant; equal ones are stored once."""
        values = np.asarray(array, dtype=dtype)
        key = f"{PREFIX}constant/{values.dtype}{list(values.shape)}/{values.tobytes().hex()}"
        if values.size > 1 or len(key) > 80:
            key = f"{PREFIX}constant/{len(self.initializers)}"
        self.initializers.setdefault(key, numpy_helper.from_array(values, key))
        return Value(self, key)

    def named_constant(self, name: str, array: npt.NDArray[Any]) -> Value:
        """A float32 constant that readers of the file look for by its name."""
        values = np.asarray(array, dtype=np.float32)
        self.initializers[name] = numpy_helper.from_array(values, name)
        return Value(self, name)

    def apply(
        self, operator: str, /, *inputs: Operand, name: str | None = None, **attributes: Any
    ) -> Value:
        """Write one node with one output, whose name is free unless it is given."""
        if name is None:
            self._count += 1
            name = f"{PREFIX}{operator}_{self._count}"
        operands = [item if isinstance(item, Value) else self.constant(item) for item in inputs]
        node = helper.make_node(
            operator, [item.name for item in operands], [name], name=name, **attributes
        )
        self.nodes.append(node)
        return Value(self, name)

    @contextmanager
    def branch(self) -> Iterator[list[onnx.NodeProto]]:
        """Write into a list of its own, for the body of a conditional, until the block ends."""
        outside, self.nodes = self.nodes, []
        try:
            yield self.nodes
        finally:
            self.nodes = outside

    def choose(
        self,
        condition: Value,
        /,
        *,
        then_branch: onnx.GraphProto,
        else_branch: onnx.GraphProto,
        names: Sequence[str],
    ) -> None:
        """Write a conditional with the outputs `names`."""
        node = helper.make_node(
            "If",
            [condition.name],
            list(names),
            name=f"{PREFIX}If_{names[0]}",
            then_branch=then_branch,
            else_branch=else_branch,
        )
        self.nodes.append(node)


def body(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, Value],
    types: Mapping[str, onnx.TypeProto],
) -> onnx.GraphProto:
    """A branch of a conditional; it reads the surrounding graph's values by name.

    Its outputs are those of `types`, in that order. To be called before the branch ends: one that
    comes from outside passes through a node.
    """
    inside = {output for node in nodes for output in node.output}
    declared = []
    for key, kind in types.items():
        value = values[key]
        if value.name not in inside:
            value = value.tape.apply("Identity", value)
        declared.append(helper.make_value_info(value.name, kind))
    return helper.make_graph(list(nodes), name, [], declared)


def exp(values: Value) -> Value:
    return values.tape.apply("Exp", values)


def log(values: Value) -> Value:
    return values.tape.apply("Log", values)


def sqrt(values: Value) -> Value:
    return values.tape.apply("Sqrt", values)


def maximum(left: Value, right: Operand) -> Value:
    return left.tape.apply("Max", left, right)


def minimum(left: Value, right: Operand) -> Value:
    return left.tape.apply("Min", left, right)


def along(values: Value, ramp: tuple[float, float]) -> Value:
    """0 up to where the ramp begins, 1 from its end."""
    begins, ends = ramp
    return minimum(maximum((values - begins) / (ends - begins), 0.0), 1.0)


def where(condition: Value, chosen: Operand, other: Operand) -> Value:
    return condition.tape.apply("Where", condition, chosen, other)


def log_softmax(values: Value) -> Value:
    """Along the last axis."""
    return values.tape.apply("LogSoftmax", values, axis=-1)


def softmax(values: Value) -> Value:
    """Along the last axis."""
    return values.tape.apply("Softmax", values, axis=-1)


def total(values: Value, *, axis: int | None = None, keep: bool = True) -> Value:
    """Sum along one axis, or over everything where it is None."""
    if axis is None:
        return values.tape.apply("ReduceSum", values, keepdims=0)
    axes = values.tape.constant(np.array([axis]), dtype=np.int64)
    return values.tape.apply("ReduceSum", values, axes, keepdims=int(keep))


def highest(values: Value) -> Value:
    """The largest of each row, (B, K) as (B,)."""
    return _extreme("ReduceMax", values)


def lowest(values: Value) -> Value:
    """The least of each row, (B, K) as (B,)."""
    return _extreme("ReduceMin", values)


def _extreme(operator: str, values: Value) -> Value:
    """Several times as fast as the position and what stands there."""
    tape = values.tape
    if tape.opset < _AXES_AS_INPUT:
        return tape.apply(operator, values, axes=[1], keepdims=0)
    axes = tape.constant(np.array([1]), dtype=np.int64)
    return tape.apply(operator, values, axes, keepdims=0)


def arg_max(values: Value, *, name: str | None = None, keep: bool = True) -> Value:
    """Position of the largest value of each row; of equal ones, the first."""
    return values.tape.apply("ArgMax", values, name=name, axis=1, keepdims=int(keep))


def beside(left: Value, right: Value) -> Value:
    """Two (B, N) and (B, M) as (B, N + M)."""
    return left.tape.apply("Concat", left, right, axis=1)


def taken(values: Value, positions: Sequence[int]) -> Value:
    """These entries of the first axis."""
    indices = values.tape.constant(np.array(positions), dtype=np.int64)
    return values.tape.apply("Gather", values, indices, axis=0)


def row(values: Value) -> Value:
    """(N,) as (1, N)."""
    axes = values.tape.constant(np.array([0]), dtype=np.int64)
    return values.tape.apply("Unsqueeze", values, axes)


def column(values: Value) -> Value:
    """(N,) or (1, N) as (N, 1)."""
    shape = values.tape.constant(np.array([-1, 1]), dtype=np.int64)
    return values.tape.apply("Reshape", values, shape)


def squeeze(values: Value, *, axis: int = 0, name: str | None = None) -> Value:
    """Drop an axis of length one."""
    axes = values.tape.constant(np.array([axis]), dtype=np.int64)
    return values.tape.apply("Squeeze", values, axes, name=name)


def expand(values: Value, shape: Sequence[int]) -> Value:
    """Repeated along its axes of length one."""
    sizes = values.tape.constant(np.array(shape), dtype=np.int64)
    return values.tape.apply("Expand", values, sizes)


def cast(values: Value, kind: int) -> Value:
    """To a type of `onnx.TensorProto`."""
    return values.tape.apply("Cast", values, to=kind)


def not_finite(values: Value) -> Value:
    """Number of NaN and infinite elements, as a float32 scalar.

    Asked of every array by itself: some runtimes' exponentials turn NaN into a number.
    """
    bad = values.tape.apply("IsNaN", values) | values.tape.apply("IsInf", values)
    return total(cast(bad, TensorProto.FLOAT))
