"""What every affine operator makes of the logits on their way up a graph: one rule for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx

from gain_export.graph import Doubles, Graph, Term, attribute, describe, times

Values = Mapping[str, npt.NDArray[np.generic]]

_MAX_ENTRIES = 2**27
# What the walk passes, and the method that does.
AFFINE = {
    "Gemm": "_gemm",
    "MatMul": "_matmul",
    "Einsum": "_einsum",
    "Conv": "_conv",
    "BatchNormalization": "_batch_norm",
    "Add": "_sum",
    "Sub": "_sub",
    "Sum": "_sum",
    "Mean": "_mean_of_values",
    "Mul": "_mul",
    "Div": "_div",
    "Neg": "_neg",
    "Identity": "_same",
    "Dropout": "_same",
    "Cast": "_cast",
    "Reshape": "_reshape",
    "Flatten": "_reshape",
    "Squeeze": "_squeeze",
    "Unsqueeze": "_unsqueeze",
    "Transpose": "_transpose",
    "ReduceMean": "_reduce",
    "ReduceSum": "_reduce",
    "GlobalAveragePool": "_pool",
    "AveragePool": "_pool",
    "Concat": "_concat",
    "Slice": "_slice",
    "Gather": "_gather",
    "Split": "_split",
}
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)


class StopError(Exception):
    """The walk cannot pass this node; says why."""


def _stop(node: onnx.NodeProto, why: str) -> StopError:
    return StopError(f"comes from {describe(node)}, {why}")


class Rules:
    """The rules, and the bias, (K,) float64, that they gather on the way.

    `values` are the computed values of one run, for their shapes and types.
    """

    def __init__(self, graph: Graph, values: Values, /, *, num_classes: int) -> None:
        self._graph = graph
        self._values = values
        self._shapes = {name: array.shape for name, array in values.items()}
        self.bias: Doubles = np.zeros(num_classes)

    def before(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        """What the inputs of a node add to the logits, where its output adds `term`.

        Raises StopError if the node is not affine in them; the bias is as it was.
        """
        rule = getattr(self, AFFINE.get(node.op_type, ""), None)
        if rule is None or node.domain:
            raise _stop(node, "which is not affine")
        bias = self.bias
        try:
            made: list[Term] = rule(node, term)
        except StopError:
            self.bias = bias
            raise
        return made

    # What every handler needs.

    def _constant(self, name: str) -> Doubles | None:
        array = self._graph.constant(name)
        return None if array is None else np.asarray(array, dtype=np.float64)

    def _needed(self, node: onnx.NodeProto, index: int) -> Doubles:
        """An input that has to be constant."""
        array = self._constant(node.input[index]) if len(node.input) > index else None
        if array is None:
            raise _stop(node, "whose operands are all computed")
        return array

    def _ints(self, node: onnx.NodeProto, index: int, name: str) -> list[int] | None:
        """Whole numbers that are an input in newer operator sets and an attribute in older."""
        if len(node.input) > index and node.input[index]:
            array = self._graph.constant(node.input[index])
            if array is None:
                raise _stop(node, f"whose {name} are computed")
            return [int(value) for value in np.asarray(array).reshape(-1)]
        value = attribute(node, name, None)
        return [int(item) for item in value] if isinstance(value, list) else None

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self._shapes:
            raise StopError(f"reads '{name}', whose shape is not known")
        return self._shapes[name]

    def _aligned(self, node: onnx.NodeProto, array: Doubles, term: Term, value: str) -> Doubles:
        """A constant operand with the value's number of axes, the same for every image."""
        shape = self._shape(value)
        if shape != self._shape(term.value) or array.ndim > len(shape):
            raise _stop(node, "which expands a computed value")
        array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
        if array.shape[term.batch_axis] != 1:
            if not (array == array.take([0], axis=term.batch_axis)).all():
                raise _stop(node, "which treats images differently")
            array = array.take([0], axis=term.batch_axis)
        return array

    def _add_constant(self, array: Doubles, term: Term) -> None:
        """What a constant that is added to a value adds to every class."""
        shape = list(self._shape(term.value))
        shape[term.batch_axis] = 1
        full = np.broadcast_to(array, shape)
        if term.weight is None:
            others = tuple(axis for axis in range(len(shape)) if axis != term.class_axis)
            self.bias = self.bias + term.scale * full.sum(axis=others)[term.columns]
            return
        same = tuple(axis for axis, length in enumerate(term.weight.shape[1:]) if length == 1)
        summed = full.sum(axis=same, keepdims=True)
        self.bias = self.bias + (term.weight * summed).reshape(len(self.bias), -1).sum(axis=1)

    def _scaled(self, node: onnx.NodeProto, factor: Doubles, term: Term, value: str) -> Term:
        if term.weight is not None:
            return Term(value, term.batch_axis, weight=term.weight * factor)
        along = factor.shape[term.class_axis]
        if factor.size != along:
            raise _stop(node, "which weights the positions of a feature map")
        column = np.broadcast_to(factor.reshape(-1), (self._shape(value)[term.class_axis],))
        return replace(term, value=value, scale=term.scale * column[term.columns])

    # Sums and factors.

    def _sum(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        made = []
        for name in node.input:
            constant = self._constant(name)
            if constant is None:
                if self._shape(name) != self._shape(term.value):
                    raise _stop(node, "which expands a value")
                made.append(replace(term, value=name))
        for name in node.input:
            constant = self._constant(name)
            if constant is not None and made:
                self._add_constant(self._aligned(node, constant, term, made[0].value), term)
        return made

    def _sub(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        left, right = node.input
        first, second = self._constant(left), self._constant(right)
        if second is not None:
            self._add_constant(-self._aligned(node, second, term, left), term)
            return [replace(term, value=left)]
        if self._shape(right) != self._shape(term.value):
            raise _stop(node, "which expands a value")
        if first is not None:
            self._add_constant(self._aligned(node, first, term, right), term)
            return [times(term, -1.0, right)]
        if self._shape(left) != self._shape(term.value):
            raise _stop(node, "which expands a value")
        return [replace(term, value=left), times(term, -1.0, right)]

    def _mean_of_values(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        return self._sum(node, times(term, 1.0 / len(node.input), term.value))

    def _mul(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        for value, other in (tuple(node.input), tuple(reversed(node.input))):
            factor = self._constant(other)
            if factor is not None:
                factor = self._aligned(node, factor, term, value)
                return [self._scaled(node, factor, term, value)]
        raise _stop(node, "which multiplies computed values")

    def _div(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        divisor = self._aligned(node, self._needed(node, 1), term, node.input[0])
        return [self._scaled(node, 1.0 / divisor, term, node.input[0])]

    def _neg(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        return [times(term, -1.0, node.input[0])]

    def _batch_norm(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        if attribute(node, "training_mode", 0):
            raise _stop(node, "which depends on the batch")
        scale, shift, mean, variance = (self._needed(node, index) for index in (1, 2, 3, 4))
        epsilon = attribute(node, "epsilon", 1e-5)
        assert isinstance(epsilon, float)
        factor = scale / np.sqrt(variance + epsilon)
        shape = [1] * len(self._shape(term.value))
        shape[1] = -1
        self._add_constant((shift - mean * factor).reshape(shape), term)
        return [self._scaled(node, factor.reshape(shape), term, node.input[0])]

    # Matrix products.

    def _product(
        self, term: Term, value: str, matrix: Doubles, *, axis: int, node: onnx.NodeProto
    ) -> Term:
        """Before a product along one axis by `matrix`, (entries after, entries before)."""
        if axis == term.batch_axis:
            raise _stop(node, "which combines several images")
        if term.weight is None:
            if term.class_axis != axis:
                # The classes lie along another axis, where the sum is over all entries of this.
                raise _stop(node, "a product along another axis")
            rows = term.scale[:, None] * matrix[term.columns]
            shape = [1] * len(self._shape(value))
            shape[axis] = matrix.shape[1]
            return Term(value, term.batch_axis, weight=rows.reshape(len(rows), *shape))
        shape = list(term.weight.shape)
        shape[axis + 1] = self._shape(term.value)[axis]
        moved = np.moveaxis(np.broadcast_to(term.weight, shape), axis + 1, -1) @ matrix
        return Term(value, term.batch_axis, weight=np.moveaxis(moved, -1, axis + 1))

    def _gemm(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        if attribute(node, "transA", 0) or term.batch_axis != 0:
            raise _stop(node, "which combines several images")
        matrix = self._needed(node, 1) * _number(node, "alpha")
        if not attribute(node, "transB", 0):
            matrix = matrix.T
        if len(node.input) > 2 and node.input[2]:
            added = self._needed(node, 2) * _number(node, "beta")
            self._add_constant(self._aligned(node, added, term, term.value), term)
        return [self._product(term, node.input[0], matrix, axis=1, node=node)]

    def _matmul(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        left, right = node.input
        rank = len(self._shape(term.value))
        for value, other, axis in ((left, right, rank - 1), (right, left, rank - 2)):
            matrix = self._constant(other)
            if matrix is None:
                continue
            while matrix.ndim > 2 and matrix.shape[0] == 1:
                matrix = matrix[0]
            if matrix.ndim != 2 or len(self._shape(value)) != rank:
                raise _stop(node, "a batch of different products")
            matrix = matrix.T if value == left else matrix
            return [self._product(term, value, matrix, axis=axis, node=node)]
        raise _stop(node, "whose operands are all computed")

    def _einsum(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        equation = attribute(node, "equation", b"")
        assert isinstance(equation, bytes)
        text = equation.decode().replace(" ", "")
        operands, arrow, result = text.partition("->")
        letters = operands.split(",")
        constants = [self._constant(name) for name in node.input]
        computed = sum(array is None for array in constants)
        if "." in text or not arrow or len(letters) != 2 or computed != 1:
            raise _stop(node, "which is not one product by constants")
        index = 0 if constants[0] is None else 1
        ours, theirs, constant = letters[index], letters[1 - index], constants[1 - index]
        assert constant is not None
        image = result[term.batch_axis]
        if image in theirs or image not in ours or any(len(set(x)) < len(x) for x in letters):
            raise _stop(node, "which combines several images")
        weight = self._spelt_out(term)
        shape = list(weight.shape)
        for axis, letter in enumerate(result, start=1):
            if letter in theirs:
                shape[axis] = self._shape(term.value)[axis - 1]
        kept = [letter for letter in ours if letter in result or letter in theirs]
        full = np.broadcast_to(weight, shape)
        found = np.einsum(f"Z{result},{theirs}->Z{''.join(kept)}", full, constant)
        shape = [len(weight)]
        for letter in ours:
            shape.append(found.shape[1 + kept.index(letter)] if letter in kept else 1)
        return [Term(node.input[index], ours.index(image), weight=found.reshape(shape))]

    def _spelt_out(self, term: Term) -> Doubles:
        """The weight of a term, also of one before the first product."""
        if term.weight is not None:
            return term.weight
        width = self._shape(term.value)[term.class_axis]
        if len(term.scale) * width > _MAX_ENTRIES:
            raise StopError("has too many classes to be folded")
        rows = np.zeros((len(term.scale), width))
        rows[np.arange(len(rows)), term.columns] = term.scale
        shape = [1] * len(self._shape(term.value))
        shape[term.class_axis] = width
        return rows.reshape(len(rows), *shape)

    def _conv(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        kernel = self._needed(node, 1)
        before, after = self._shape(node.input[0])[2:], self._shape(term.value)[2:]
        size = kernel.shape[2:]
        pads, strides = _integers(node, "pads"), _integers(node, "strides")
        plain = attribute(node, "group", 1) == 1 and not any(pads) and term.batch_axis == 0
        pointwise = set(size) <= {1} and before == after and set(strides) <= {1}
        covering = size == before and set(after) <= {1}
        if not (plain and (pointwise or covering)):
            raise _stop(node, "a convolution over a map")
        if len(node.input) > 2 and node.input[2]:
            shape = [1, -1, *[1] * len(after)]
            self._add_constant(self._needed(node, 2).reshape(shape), term)
        flat = kernel.reshape(kernel.shape[0], -1)
        made = self._product(term, node.input[0], flat, axis=1, node=node)
        if pointwise:
            return [made]
        assert made.weight is not None
        shape = [len(made.weight), 1, *kernel.shape[1:]]
        return [Term(node.input[0], 0, weight=made.weight.reshape(shape))]

    # What moves values about.

    def _same(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        if node.output[0] != term.value:
            raise StopError(f"is the mask of {describe(node)}")
        return [replace(term, value=node.input[0])]

    def _cast(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        value = self._values.get(node.input[0])
        if attribute(node, "to", 0) not in _FLOATS or value is None or value.dtype.kind != "f":
            raise _stop(node, "which rounds")
        return [replace(term, value=node.input[0])]

    def _reshape(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        value = node.input[0]
        before, after = self._shape(value), self._shape(term.value)
        if before == after:
            return [replace(term, value=value)]
        if term.batch_axis != 0 or before[:1] != after[:1]:
            raise _stop(node, "which reshapes the batch axis")
        if term.weight is None:
            width = after[term.class_axis]
            wide = [axis for axis, length in enumerate(before) if axis and length == width]
            if len(wide) != 1 or int(np.prod(before[1:])) != width:
                raise _stop(node, "which reshapes the classes")
            return [replace(term, value=value, class_axis=wide[0])]
        if len(term.weight) * int(np.prod(after[1:])) > _MAX_ENTRIES:
            raise _stop(node, "which reshapes a large map")
        full = np.broadcast_to(term.weight, (len(term.weight), 1, *after[1:]))
        return [Term(value, 0, weight=full.reshape(len(full), 1, *before[1:]))]

    def _squeeze(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        value = node.input[0]
        shape = self._shape(value)
        axes = self._ints(node, 1, "axes")
        if axes is None:
            axes = [axis for axis, length in enumerate(shape) if length == 1]
        dropped = {axis % len(shape) for axis in axes}
        return [self._with_axes(term, value, dropped)]

    def _with_axes(self, term: Term, value: str, new: set[int]) -> Term:
        """A term on a value that has more axes, of which `new` are not in the present one."""
        old = [axis for axis in range(len(self._shape(value))) if axis not in new]
        batch_axis = old[term.batch_axis]
        if term.weight is None:
            class_axis = old[term.class_axis]
            return replace(term, value=value, batch_axis=batch_axis, class_axis=class_axis)
        weight = np.expand_dims(term.weight, tuple(axis + 1 for axis in sorted(new)))
        return Term(value, batch_axis, weight=weight)

    def _unsqueeze(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        axes = self._ints(node, 1, "axes")
        rank = len(self._shape(term.value))
        gone = {axis % rank for axis in axes or []}
        if term.batch_axis in gone or term.class_axis in gone:
            raise _stop(node, "which drops the batch axis")
        kept = [axis for axis in range(rank) if axis not in gone]
        value, batch_axis = node.input[0], kept.index(term.batch_axis)
        if term.weight is None:
            class_axis = kept.index(term.class_axis)
            return [replace(term, value=value, batch_axis=batch_axis, class_axis=class_axis)]
        shape = [len(term.weight), *(term.weight.shape[axis + 1] for axis in kept)]
        return [Term(value, batch_axis, weight=term.weight.reshape(shape))]

    def _transpose(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        rank = len(self._shape(term.value))
        perm = attribute(node, "perm", list(range(rank))[::-1])
        assert isinstance(perm, list)
        batch_axis = perm[term.batch_axis]
        if term.weight is None:
            axes = {"batch_axis": batch_axis, "class_axis": perm[term.class_axis]}
            return [replace(term, value=node.input[0], **axes)]
        order = [0, *[perm.index(axis) + 1 for axis in range(rank)]]
        return [Term(node.input[0], batch_axis, weight=term.weight.transpose(order))]

    def _reduce(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        value = node.input[0]
        shape = self._shape(value)
        axes = self._ints(node, 1, "axes")
        if axes is None:
            raise _stop(node, "which combines several images")
        reduced = {axis % len(shape) for axis in axes}
        if not attribute(node, "keepdims", 1):
            term = self._with_axes(term, value, reduced)
        if term.batch_axis in reduced or (term.weight is None and term.class_axis in reduced):
            raise _stop(node, "which sums over images or classes")
        count = int(np.prod([shape[axis] for axis in reduced]))
        return [times(term, 1.0 / count if node.op_type == "ReduceMean" else 1.0, value)]

    def _pool(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        before, after = self._shape(node.input[0])[2:], self._shape(term.value)[2:]
        if node.op_type == "AveragePool":
            whole = tuple(_integers(node, "kernel_shape")) == before
            if not whole or set(after) != {1} or any(_integers(node, "pads")):
                raise _stop(node, "which averages parts of a feature map")
        count = int(np.prod(before))
        return [times(term, 1.0 / count, node.input[0])]

    def _concat(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        rank = len(self._shape(term.value))
        axis = attribute(node, "axis", 1)
        assert isinstance(axis, int)
        axis %= rank
        if axis == term.batch_axis:
            raise _stop(node, "which combines several images")
        # Where the classes lie along another axis, each of the values adds to all of them.
        stacked = term.weight is None and term.class_axis != axis
        weight = None if stacked else self._spelt_out(term)
        made, start = [], 0
        for name in node.input:
            if self._constant(name) is not None:
                raise _stop(node, "which concatenates a constant to it")
            rows = range(start, start + self._shape(name)[axis])
            start += len(rows)
            if weight is None:
                made.append(replace(term, value=name))
            elif weight.shape[axis + 1] == 1:
                made.append(Term(name, term.batch_axis, weight=weight))
            else:
                part = weight.take(rows, axis=axis + 1)
                made.append(Term(name, term.batch_axis, weight=part))
        return made

    def _chosen(
        self, node: onnx.NodeProto, term: Term, axis: int, indices: npt.NDArray[np.int64]
    ) -> list[Term]:
        """Some of the classes: 1001 with one for the background, of which 1000 are kept."""
        if term.weight is not None or axis != term.class_axis:
            raise _stop(node, "which selects a part of a feature map")
        return [replace(term, value=node.input[0], columns=indices[term.columns])]

    def _slice(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        shape = self._shape(node.input[0])
        starts, ends, axes, steps = (
            self._ints(node, index, name)
            for index, name in enumerate(("starts", "ends", "axes", "steps"), start=1)
        )
        if starts is None or ends is None or len(starts) != 1:
            raise _stop(node, "which selects a part of a feature map")
        axis = (axes or [0])[0] % len(shape)
        step = (steps or [1])[0]
        indices = np.arange(shape[axis])[slice(starts[0], ends[0], step)]
        return self._chosen(node, term, axis, indices)

    def _gather(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        shape = self._shape(node.input[0])
        axis = attribute(node, "axis", 0)
        indices = self._graph.constant(node.input[1])
        assert isinstance(axis, int)
        if indices is None or indices.ndim != 1:
            raise _stop(node, "which selects a part of a feature map")
        axis %= len(shape)
        return self._chosen(node, term, axis, np.asarray(indices, dtype=np.int64) % shape[axis])

    def _split(self, node: onnx.NodeProto, term: Term) -> list[Term]:
        shape = self._shape(term.value)
        axis = attribute(node, "axis", 0)
        assert isinstance(axis, int)
        axis %= len(shape)
        start = 0
        for name in node.output:
            if name == term.value:
                break
            start += self._shape(name)[axis]
        return self._chosen(node, term, axis, start + np.arange(shape[axis]))


def _integers(node: onnx.NodeProto, name: str) -> list[int]:
    """An attribute of whole numbers; none where it is left out."""
    value = attribute(node, name, [])
    return [int(item) for item in value] if isinstance(value, list) else []


def _number(node: onnx.NodeProto, name: str) -> float:
    """A scalar attribute that defaults to one."""
    value = attribute(node, name, 1.0)
    assert isinstance(value, float | int)
    return float(value)
