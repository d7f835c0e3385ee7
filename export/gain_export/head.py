"""Composing everything affine before the logits into one linear layer, from the output backwards.

The walk starts with "class k is column k of the logits" and asks of every node on the way up what
the classes are in terms of its inputs. Where all of them are linear in one vector, or in several,
that vector is the features and what was gathered is the head's weight and bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from gain_export.graph import Graph, attribute, describe

__all__ = ["Head", "NotLinearError", "Part", "affine_values", "compose_head"]

Doubles = npt.NDArray[np.float64]
Values = Mapping[str, npt.NDArray[np.generic]]

_MAX_ENTRIES = 2**27
# How far the walk goes on where several vectors may turn out to be one.
_MAX_STEPS = 200
# What the walk passes, and the method that does.
_AFFINE = {
    "Gemm": "_gemm",
    "MatMul": "_matmul",
    "Einsum": "_einsum",
    "Conv": "_conv",
    "BatchNormalization": "_batch_norm",
    "Add": "_add",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A value of the graph that holds features.

    Attributes
    ----------
    value : str
    width : int
        Numbers per image that it adds to the features.
    mean_axes : tuple of int
        Axes of the value that are averaged first: the head treats all places along them alike.
    places : int
        The number of entries along those.
    cast, flatten : bool
        Whether the value is of another type than float32, and of another shape than (B, width).
    """

    value: str
    width: int
    mean_axes: tuple[int, ...]
    places: int
    cast: bool
    flatten: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """One linear layer that gives the logits: `features @ weight.T + bias`.

    Attributes
    ----------
    parts : tuple of Part
        The features are these values, flattened and put one after the other.
    weight : array, (K, D) float32
    bias : array, (K,) float32, or None
    nodes : tuple of str
        The nodes it stands for, from the first to the last.
    """

    parts: tuple[Part, ...]
    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32] | None
    nodes: tuple[str, ...]


class NotLinearError(Exception):
    """Why the logits are no linear layer on vectors, as a clause."""


@dataclass(frozen=True, slots=True, eq=False)
class _Term:
    """What one value adds to the logits.

    Before the first matrix product class k is `scale[k]` times entry `columns[k]` along
    `class_axis`, summed over all other axes. After it, `weight` has the value's axes behind one of
    classes; an axis of length one stands for equal numbers all along it, as the batch axis always
    does.
    """

    value: str
    batch_axis: int
    scale: Doubles | None = None
    columns: npt.NDArray[np.int64] | None = None
    class_axis: int = -1
    weight: Doubles | None = None


class _StopError(Exception):
    """The walk cannot pass this node; says why."""


def compose_head(graph: Graph, logits: str, /, *, values: Values) -> Head:
    """Find the vectors in which the logits are linear, and the weight and bias with which.

    Parameters
    ----------
    graph : Graph
    logits : str
        A value with one row per image and one column per class; axes of length one may follow.
    values : mapping
        The computed values of `affine_values`, as one run gave them.

    Returns
    -------
    Head

    Raises
    ------
    NotLinearError
        If there are none; the node that stands in the way is named.
    """
    return _Composer(graph, values).run(logits)


def affine_values(graph: Graph, logits: str, /) -> list[str]:
    """The computed values that `compose_head` may ask for, nearest to the logits first."""
    found = [logits]
    for name in found:
        node = graph.producer(name)
        if node is None or node.domain or node.op_type not in _AFFINE or len(found) > _MAX_STEPS:
            continue
        # Every output: a Split counts the parts before the one that is wanted.
        for other in (*node.output, *node.input):
            if other and other not in found and graph.producer(other) and graph.is_computed(other):
                found.append(other)
    return found


class _Composer:
    def __init__(self, graph: Graph, values: Values) -> None:
        self._graph = graph
        self._shapes = {name: array.shape for name, array in values.items()}
        self._values = values
        self._bias: Doubles = np.zeros(0)

    def run(self, logits: str) -> Head:
        classes = self._shapes[logits][1]
        self._bias = np.zeros(classes)
        terms = [_Term(logits, 0, scale=np.ones(classes), columns=np.arange(classes), class_axis=1)]
        best: tuple[int, list[_Term], Doubles, list[onnx.NodeProto]] | None = None
        passed: list[onnx.NodeProto] = []
        stuck: dict[str, str] = {}
        for _ in range(_MAX_STEPS):
            size = self._cut_size(terms)
            if size is not None and (best is None or size < best[0]):
                best = (size, list(terms), self._bias.copy(), list(passed))
            if size is not None and len(terms) == 1:
                break
            term = self._latest(terms, stuck)
            if term is None:
                break
            node = self._graph.producer(term.value)
            try:
                if node is None:
                    raise _StopError("is not computed by any node")
                handler = getattr(self, _AFFINE.get(node.op_type, ""), None)
                if handler is None or node.domain:
                    raise _StopError(f"comes from {describe(node)}, which is not affine")
                bias = self._bias.copy()
                try:
                    made = handler(node, term)
                except _StopError:
                    self._bias = bias
                    raise
            except _StopError as err:
                stuck[term.value] = str(err)
                continue
            terms = _merged([other for other in terms if other is not term] + made)
            if node not in passed:
                passed.append(node)
        if best is None:
            reason = "; ".join(f"'{name}' {why}" for name, why in list(stuck.items())[:2])
            raise NotLinearError(reason or "too many nodes lie between them")
        return self._finished(*best[1:])

    def _latest(self, terms: Sequence[_Term], stuck: Mapping[str, str]) -> _Term | None:
        """The term whose value is computed last: what reads it has all been seen."""
        open_terms = [term for term in terms if term.value not in stuck]
        return max(open_terms, key=lambda t: self._graph.position(t.value), default=None)

    def _cut_size(self, terms: Sequence[_Term]) -> int | None:
        """D if the features may end here; None where a term is no vector yet."""
        size = 0
        for term in terms:
            if term.weight is None:
                return None
            wide = [length for length in term.weight.shape[1:] if length > 1]
            if len(wide) > 1:
                return None
            size += wide[0] if wide else 1
        return size if terms else None

    def _finished(self, terms: list[_Term], bias: Doubles, passed: list[onnx.NodeProto]) -> Head:
        terms = sorted(terms, key=lambda term: self._graph.position(term.value))
        parts, weights = [], []
        for term in terms:
            assert term.weight is not None
            shape, axes = self._shapes[term.value], []
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
                    width=weights[-1].shape[1],
                    mean_axes=tuple(axes),
                    places=count,
                    cast=self._values[term.value].dtype != np.float32,
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
                describe(node)
                for node in sorted(passed, key=lambda n: self._graph.position(n.output[0]))
            ),
        )

    # What every handler needs.

    def _constant(self, name: str) -> Doubles | None:
        array = self._graph.constant(name)
        return None if array is None else np.asarray(array, dtype=np.float64)

    def _needed(self, node: onnx.NodeProto, index: int) -> Doubles:
        """An input that has to be constant."""
        array = self._constant(node.input[index]) if len(node.input) > index else None
        if array is None:
            raise _StopError(f"comes from {describe(node)}, whose operands are all computed")
        return array

    def _ints(self, node: onnx.NodeProto, index: int, name: str) -> list[int] | None:
        """Whole numbers that are an input in newer operator sets and an attribute in older."""
        if len(node.input) > index and node.input[index]:
            array = self._graph.constant(node.input[index])
            if array is None:
                raise _StopError(f"comes from {describe(node)}, whose {name} are computed")
            return [int(value) for value in np.asarray(array).reshape(-1)]
        value = attribute(node, name, None)
        return [int(item) for item in value] if isinstance(value, list) else None

    def _is_float(self, name: str) -> bool:
        return name in self._values and self._values[name].dtype.kind == "f"

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self._shapes:
            raise _StopError(f"reads '{name}', whose shape is not known")
        return self._shapes[name]

    def _aligned(self, node: onnx.NodeProto, array: Doubles, term: _Term, value: str) -> Doubles:
        """A constant operand with the value's number of axes, the same for every image."""
        shape = self._shape(value)
        if shape != self._shape(term.value) or array.ndim > len(shape):
            raise _StopError(f"comes from {describe(node)}, which spreads out a computed value")
        array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
        if array.shape[term.batch_axis] != 1:
            if not (array == array.take([0], axis=term.batch_axis)).all():
                raise _StopError(f"comes from {describe(node)}, which treats images differently")
            array = array.take([0], axis=term.batch_axis)
        return array

    def _add_constant(self, array: Doubles, term: _Term) -> None:
        """What a constant that is added to a value adds to every class."""
        shape = list(self._shape(term.value))
        shape[term.batch_axis] = 1
        full = np.broadcast_to(array, shape)
        if term.weight is None:
            assert term.scale is not None
            assert term.columns is not None
            others = tuple(axis for axis in range(len(shape)) if axis != term.class_axis)
            self._bias = self._bias + term.scale * full.sum(axis=others)[term.columns]
            return
        same = tuple(axis for axis, length in enumerate(term.weight.shape[1:]) if length == 1)
        summed = full.sum(axis=same, keepdims=True)
        self._bias = self._bias + (term.weight * summed).reshape(len(self._bias), -1).sum(axis=1)

    def _scaled(self, node: onnx.NodeProto, factor: Doubles, term: _Term, value: str) -> _Term:
        if term.weight is not None:
            return _dense(value, term.batch_axis, term.weight * factor)
        assert term.scale is not None
        assert term.columns is not None
        along = factor.shape[term.class_axis]
        if factor.size != along:
            raise _StopError(f"comes from {describe(node)}, which weighs the places of a map")
        column = np.broadcast_to(factor.reshape(-1), (self._shape(value)[term.class_axis],))
        return _replaced(term, value, scale=term.scale * column[term.columns])

    # Sums and factors.

    def _add(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        return self._sum(node, term)

    def _sum(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        made = []
        for name in node.input:
            constant = self._constant(name)
            if constant is None:
                if self._shape(name) != self._shape(term.value):
                    raise _StopError(f"comes from {describe(node)}, which spreads out a value")
                made.append(_replaced(term, name))
        for name in node.input:
            constant = self._constant(name)
            if constant is not None and made:
                self._add_constant(self._aligned(node, constant, term, made[0].value), term)
        return made

    def _sub(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        left, right = node.input
        first, second = self._constant(left), self._constant(right)
        if second is not None:
            self._add_constant(-self._aligned(node, second, term, left), term)
            return [_replaced(term, left)]
        if self._shape(right) != self._shape(term.value):
            raise _StopError(f"comes from {describe(node)}, which spreads out a value")
        if first is not None:
            self._add_constant(self._aligned(node, first, term, right), term)
            return [_negated(term, right)]
        if self._shape(left) != self._shape(term.value):
            raise _StopError(f"comes from {describe(node)}, which spreads out a value")
        return [_replaced(term, left), _negated(term, right)]

    def _mean_of_values(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        return self._sum(node, _times(term, 1.0 / len(node.input)))

    def _mul(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        for value, other in (tuple(node.input), tuple(reversed(node.input))):
            factor = self._constant(other)
            if factor is not None:
                factor = self._aligned(node, factor, term, value)
                return [self._scaled(node, factor, term, value)]
        raise _StopError(f"comes from {describe(node)}, which multiplies computed values")

    def _div(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        divisor = self._aligned(node, self._needed(node, 1), term, node.input[0])
        return [self._scaled(node, 1.0 / divisor, term, node.input[0])]

    def _neg(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        return [_negated(term, node.input[0])]

    def _batch_norm(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        if attribute(node, "training_mode", 0):
            raise _StopError(f"comes from {describe(node)}, which depends on the batch")
        scale, shift, mean, variance = (self._needed(node, index) for index in (1, 2, 3, 4))
        epsilon = attribute(node, "epsilon", 1e-5)
        assert isinstance(epsilon, float)
        factor = scale / np.sqrt(variance + epsilon)
        shape = [1] * len(self._shape(term.value))
        shape[1] = -1
        self._add_constant((shift - mean * factor).reshape(shape), term)
        return [self._scaled(node, factor.reshape(shape), term, node.input[0])]

    # Matrix products.

    def _full(self, term: _Term, axis: int) -> Doubles:
        """The weight of a term, every entry along one axis spelt out."""
        assert term.weight is not None
        shape = list(term.weight.shape)
        shape[axis + 1] = self._shape(term.value)[axis]
        return np.broadcast_to(term.weight, shape)

    def _product(
        self, term: _Term, value: str, matrix: Doubles, *, axis: int, node: onnx.NodeProto
    ) -> _Term:
        """Before a product along one axis by `matrix`, (entries after, entries before)."""
        if axis == term.batch_axis:
            raise _StopError(f"comes from {describe(node)}, which mixes images")
        if term.weight is None:
            assert term.scale is not None
            assert term.columns is not None
            if term.class_axis != axis:
                # The classes lie along another axis, where the sum is over all entries of this.
                raise _StopError(f"comes from {describe(node)}, a product along another axis")
            rows = term.scale[:, None] * matrix[term.columns]
            shape = [1] * len(self._shape(value))
            shape[axis] = matrix.shape[1]
            return _dense(value, term.batch_axis, rows.reshape(len(rows), *shape))
        moved = np.moveaxis(self._full(term, axis), axis + 1, -1) @ matrix
        return _dense(value, term.batch_axis, np.moveaxis(moved, -1, axis + 1))

    def _gemm(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        if attribute(node, "transA", 0) or term.batch_axis != 0:
            raise _StopError(f"comes from {describe(node)}, which mixes images")
        matrix = self._needed(node, 1) * _number(node, "alpha")
        if not attribute(node, "transB", 0):
            matrix = matrix.T
        if len(node.input) > 2 and node.input[2]:
            added = self._needed(node, 2) * _number(node, "beta")
            self._add_constant(self._aligned(node, added, term, term.value), term)
        return [self._product(term, node.input[0], matrix, axis=1, node=node)]

    def _matmul(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        left, right = node.input
        rank = len(self._shape(term.value))
        for value, other, axis in ((left, right, rank - 1), (right, left, rank - 2)):
            matrix = self._constant(other)
            if matrix is None:
                continue
            while matrix.ndim > 2 and matrix.shape[0] == 1:
                matrix = matrix[0]
            if matrix.ndim != 2 or len(self._shape(value)) != rank:
                raise _StopError(f"comes from {describe(node)}, a batch of different products")
            matrix = matrix.T if value == left else matrix
            return [self._product(term, value, matrix, axis=axis, node=node)]
        raise _StopError(f"comes from {describe(node)}, whose operands are all computed")

    def _einsum(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        equation = attribute(node, "equation", b"")
        assert isinstance(equation, bytes)
        text = equation.decode().replace(" ", "")
        operands, arrow, result = text.partition("->")
        letters = operands.split(",")
        constants = [self._constant(name) for name in node.input]
        computed = sum(array is None for array in constants)
        if "." in text or not arrow or len(letters) != 2 or computed != 1:
            raise _StopError(f"comes from {describe(node)}, which is not one product by constants")
        index = 0 if constants[0] is None else 1
        ours, theirs, constant = letters[index], letters[1 - index], constants[1 - index]
        assert constant is not None
        image = result[term.batch_axis]
        if image in theirs or image not in ours or any(len(set(x)) < len(x) for x in letters):
            raise _StopError(f"comes from {describe(node)}, which mixes images")
        weight = self._spelt_out(term)
        full = np.broadcast_to(
            weight,
            [weight.shape[0]]
            + [
                self._shape(term.value)[axis] if letter in theirs else weight.shape[axis + 1]
                for axis, letter in enumerate(result)
            ],
        )
        kept = [letter for letter in ours if letter in result or letter in theirs]
        found = np.einsum(f"Z{result},{theirs}->Z{''.join(kept)}", full, constant)
        shape = [len(weight)]
        for letter in ours:
            shape.append(found.shape[1 + kept.index(letter)] if letter in kept else 1)
        return [_dense(node.input[index], ours.index(image), found.reshape(shape))]

    def _spelt_out(self, term: _Term) -> Doubles:
        """The weight of a term, also of one before the first product."""
        if term.weight is not None:
            return term.weight
        assert term.scale is not None
        assert term.columns is not None
        width = self._shape(term.value)[term.class_axis]
        if len(term.scale) * width > _MAX_ENTRIES:
            raise _StopError("has too many classes to be spelt out")
        rows = np.zeros((len(term.scale), width))
        rows[np.arange(len(rows)), term.columns] = term.scale
        shape = [1] * len(self._shape(term.value))
        shape[term.class_axis] = width
        return rows.reshape(len(rows), *shape)

    def _conv(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        kernel = self._needed(node, 1)
        before, after = self._shape(node.input[0])[2:], self._shape(term.value)[2:]
        size = kernel.shape[2:]
        pads, strides = _integers(node, "pads"), _integers(node, "strides")
        plain = attribute(node, "group", 1) == 1 and not any(pads) and term.batch_axis == 0
        pointwise = set(size) <= {1} and before == after and set(strides) <= {1}
        covering = size == before and set(after) <= {1}
        if not (plain and (pointwise or covering)):
            raise _StopError(f"comes from {describe(node)}, a convolution over a map")
        if len(node.input) > 2 and node.input[2]:
            shape = [1, -1, *[1] * len(after)]
            self._add_constant(self._needed(node, 2).reshape(shape), term)
        flat = kernel.reshape(kernel.shape[0], -1)
        if pointwise:
            return [self._product(term, node.input[0], flat, axis=1, node=node)]
        made = self._product(term, node.input[0], flat, axis=1, node=node)
        assert made.weight is not None
        shape = [len(made.weight), 1, *kernel.shape[1:]]
        return [_dense(node.input[0], 0, made.weight.reshape(shape))]

    # What moves values about.

    def _same(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        if node.output[0] != term.value:
            raise _StopError(f"is the mask of {describe(node)}")
        return [_replaced(term, node.input[0])]

    def _cast(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        if attribute(node, "to", 0) not in _FLOATS or not self._is_float(node.input[0]):
            raise _StopError(f"comes from {describe(node)}, which rounds")
        return [_replaced(term, node.input[0])]

    def _reshape(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        value = node.input[0]
        before, after = self._shape(value), self._shape(term.value)
        if before == after:
            return [_replaced(term, value)]
        if term.batch_axis != 0 or before[:1] != after[:1]:
            raise _StopError(f"comes from {describe(node)}, which reshapes the batch axis")
        if term.weight is None:
            width = after[term.class_axis]
            wide = [axis for axis, length in enumerate(before) if axis and length == width]
            if len(wide) != 1 or int(np.prod(before[1:])) != width:
                raise _StopError(f"comes from {describe(node)}, which reshapes the classes")
            return [_replaced(term, value, class_axis=wide[0])]
        if len(term.weight) * int(np.prod(after[1:])) > _MAX_ENTRIES:
            raise _StopError(f"comes from {describe(node)}, which reshapes a large map")
        full = np.broadcast_to(term.weight, (len(term.weight), 1, *after[1:]))
        return [_dense(value, 0, full.reshape(len(full), 1, *before[1:]))]

    def _squeeze(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        value = node.input[0]
        shape = self._shape(value)
        axes = self._ints(node, 1, "axes")
        if axes is None:
            axes = [axis for axis, length in enumerate(shape) if length == 1]
        dropped = {axis % len(shape) for axis in axes}
        return [self._with_axes(term, value, dropped)]

    def _with_axes(self, term: _Term, value: str, new: set[int]) -> _Term:
        """A term on a value that has more axes, of which `new` are not in the present one."""
        old = [axis for axis in range(len(self._shape(value))) if axis not in new]
        batch_axis = old[term.batch_axis]
        if term.weight is None:
            return _replaced(term, value, batch_axis=batch_axis, class_axis=old[term.class_axis])
        weight = np.expand_dims(term.weight, tuple(axis + 1 for axis in sorted(new)))
        return _dense(value, batch_axis, weight)

    def _unsqueeze(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        axes = self._ints(node, 1, "axes")
        rank = len(self._shape(term.value))
        gone = {axis % rank for axis in axes or []}
        return [self._without_axes(node, term, node.input[0], gone)]

    def _without_axes(self, node: onnx.NodeProto, term: _Term, value: str, gone: set[int]) -> _Term:
        """A term on a value that lacks some axes of length one."""
        if term.batch_axis in gone or term.class_axis in gone:
            raise _StopError(f"comes from {describe(node)}, which drops the batch axis")
        kept = [axis for axis in range(len(self._shape(term.value))) if axis not in gone]
        batch_axis = kept.index(term.batch_axis)
        if term.weight is None:
            class_axis = kept.index(term.class_axis)
            return _replaced(term, value, batch_axis=batch_axis, class_axis=class_axis)
        weight = term.weight.reshape(
            len(term.weight), *[term.weight.shape[axis + 1] for axis in kept]
        )
        return _dense(value, batch_axis, weight)

    def _transpose(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        rank = len(self._shape(term.value))
        perm = attribute(node, "perm", list(range(rank))[::-1])
        assert isinstance(perm, list)
        batch_axis = perm[term.batch_axis]
        if term.weight is None:
            return [
                _replaced(
                    term,
                    node.input[0],
                    batch_axis=batch_axis,
                    class_axis=perm[term.class_axis],
                )
            ]
        order = [0, *[perm.index(axis) + 1 for axis in range(rank)]]
        return [_dense(node.input[0], batch_axis, term.weight.transpose(order))]

    def _reduce(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        value = node.input[0]
        shape = self._shape(value)
        axes = self._ints(node, 1, "axes")
        if axes is None:
            raise _StopError(f"comes from {describe(node)}, which mixes images")
        reduced = {axis % len(shape) for axis in axes}
        if not attribute(node, "keepdims", 1):
            term = self._with_axes(term, value, reduced)
        else:
            term = _replaced(term, value)
        if term.batch_axis in reduced or (term.weight is None and term.class_axis in reduced):
            raise _StopError(f"comes from {describe(node)}, which sums over images or classes")
        count = int(np.prod([shape[axis] for axis in reduced]))
        return [_times(term, 1.0 / count if node.op_type == "ReduceMean" else 1.0)]

    def _pool(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        before, after = self._shape(node.input[0])[2:], self._shape(term.value)[2:]
        if node.op_type == "AveragePool":
            whole = tuple(_integers(node, "kernel_shape")) == before
            if not whole or set(after) != {1} or any(_integers(node, "pads")):
                raise _StopError(f"comes from {describe(node)}, which averages parts of a map")
        count = int(np.prod(before))
        return [_times(_replaced(term, node.input[0]), 1.0 / count)]

    def _concat(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        rank = len(self._shape(term.value))
        axis = attribute(node, "axis", 1)
        assert isinstance(axis, int)
        axis %= rank
        if axis == term.batch_axis:
            raise _StopError(f"comes from {describe(node)}, which mixes images")
        # Where the classes lie along another axis, each of the values adds to all of them.
        stacked = term.weight is None and term.class_axis != axis
        weight = None if stacked else self._spelt_out(term)
        made, start = [], 0
        for name in node.input:
            constant = self._constant(name)
            length = self._shape(name)[axis] if constant is None else constant.shape[axis]
            if weight is None:
                part = _replaced(term, name)
            elif weight.shape[axis + 1] == 1:
                part = _dense(name, term.batch_axis, weight)
            else:
                rows = range(start, start + length)
                part = _dense(name, term.batch_axis, weight.take(rows, axis=axis + 1))
            start += length
            if constant is None:
                made.append(part)
            else:
                raise _StopError(f"comes from {describe(node)}, which puts a constant beside it")
        return made

    def _chosen(
        self, node: onnx.NodeProto, term: _Term, axis: int, indices: npt.NDArray[np.int64]
    ) -> list[_Term]:
        """Some of the classes: 1001 with one for the background, of which 1000 are kept."""
        if term.weight is not None or axis != term.class_axis:
            raise _StopError(f"comes from {describe(node)}, which picks a part of a map")
        assert term.columns is not None
        return [_replaced(term, node.input[0], columns=indices[term.columns])]

    def _slice(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        shape = self._shape(node.input[0])
        starts, ends = self._ints(node, 1, "starts"), self._ints(node, 2, "ends")
        axes, steps = self._ints(node, 3, "axes"), self._ints(node, 4, "steps")
        if starts is None or ends is None or len(starts) != 1:
            raise _StopError(f"comes from {describe(node)}, which picks a part of a map")
        axis = (axes or [0])[0] % len(shape)
        step = (steps or [1])[0]
        indices = np.arange(shape[axis])[slice(starts[0], ends[0], step)]
        return self._chosen(node, term, axis, indices)

    def _gather(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
        shape = self._shape(node.input[0])
        axis = attribute(node, "axis", 0)
        indices = self._graph.constant(node.input[1])
        assert isinstance(axis, int)
        if indices is None or indices.ndim != 1:
            raise _StopError(f"comes from {describe(node)}, which picks a part of a map")
        axis %= len(shape)
        return self._chosen(node, term, axis, np.asarray(indices, dtype=np.int64) % shape[axis])

    def _split(self, node: onnx.NodeProto, term: _Term) -> list[_Term]:
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


def _dense(value: str, batch_axis: int, weight: Doubles) -> _Term:
    return _Term(value, batch_axis, weight=weight)


def _replaced(
    term: _Term,
    value: str,
    *,
    scale: Doubles | None = None,
    columns: npt.NDArray[np.int64] | None = None,
    batch_axis: int | None = None,
    class_axis: int | None = None,
) -> _Term:
    """The same on another value."""
    return _Term(
        value,
        term.batch_axis if batch_axis is None else batch_axis,
        scale=term.scale if scale is None else scale,
        columns=term.columns if columns is None else columns,
        class_axis=term.class_axis if class_axis is None else class_axis,
        weight=term.weight,
    )


def _times(term: _Term, factor: float) -> _Term:
    if term.weight is not None:
        return _dense(term.value, term.batch_axis, term.weight * factor)
    assert term.scale is not None
    return _replaced(term, term.value, scale=term.scale * factor)


def _negated(term: _Term, value: str) -> _Term:
    return _times(_replaced(term, value), -1.0)


def _merged(terms: Sequence[_Term]) -> list[_Term]:
    """One term per value: what several roads add to the logits is summed."""
    kept: list[_Term] = []
    for term in terms:
        for position, other in enumerate(kept):
            if other.value != term.value or other.batch_axis != term.batch_axis:
                continue
            if other.weight is not None and term.weight is not None:
                kept[position] = _dense(term.value, term.batch_axis, other.weight + term.weight)
                break
            if other.scale is not None and term.scale is not None and _same_columns(other, term):
                kept[position] = _replaced(term, term.value, scale=other.scale + term.scale)
                break
        else:
            kept.append(term)
    return kept


def _same_columns(left: _Term, right: _Term) -> bool:
    return left.class_axis == right.class_axis and np.array_equal(
        np.asarray(left.columns), np.asarray(right.columns)
    )


def _integers(node: onnx.NodeProto, name: str) -> list[int]:
    """An attribute of whole numbers; none where it is left out."""
    value = attribute(node, name, [])
    return [int(item) for item in value] if isinstance(value, list) else []


def _number(node: onnx.NodeProto, name: str) -> float:
    """A scalar attribute that defaults to one."""
    value = attribute(node, name, 1.0)
    assert isinstance(value, float | int)
    return float(value)
