"""An array library whose operations are written down as ONNX nodes.

Code for the array API is traced by calling it with `Array`s: `array_api_compat` finds `namespace`.
The graph stays small because what is known is computed here with NumPy, and because an array may
be wider than what it holds, so that `zeros_like` and the like cost no node at all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper

from gain_export.adaptive.recorder import Constant, Recorder, Shape, Symbol, Tensor

_INT64 = np.dtype(np.int64)
# Nodes that work element by element, and what NumPy has for them.
_EACH: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Max": np.maximum,
    "Min": np.minimum,
    "Clip": np.clip,
    "Where": np.where,
    "Abs": np.abs,
    "Neg": np.negative,
    "Exp": np.exp,
    "Log": np.log,
    "Sqrt": np.sqrt,
    "IsInf": np.isinf,
    "IsNaN": np.isnan,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Equal": np.equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Not": np.logical_not,
}
# What leaves the other operand as it is, and where it may stand.
_NEUTRAL = {"Add": (0, (0, 1)), "Sub": (0, (1,)), "Mul": (1, (0, 1)), "Div": (1, (1,))}


def _operator(node: str) -> Callable[..., Array]:
    return lambda *operands: _each(node, *operands)


def _reflected(node: str) -> Callable[..., Array]:
    return lambda right, left: _each(node, left, right)


class Array:
    """A value of the graph, or a constant; broadcast to `shape` where what is held is narrower."""

    __slots__ = ("held", "shape")
    __array_ufunc__ = None  # NumPy's numbers leave their operators to this class.
    __hash__ = None  # type: ignore[assignment]
    device = "graph"

    def __init__(self, held: Tensor | Constant, shape: Shape | None = None) -> None:
        self.held = held
        self.shape: Shape = held.shape if shape is None else shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.held.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __array_namespace__(self, api_version: str | None = None) -> ModuleType:
        return namespace

    def __bool__(self) -> bool:
        raise TypeError("the value of a traced array is not known; use xp.where")

    def __getitem__(self, key: Any) -> Array:
        keys = key if isinstance(key, tuple) else (key,)
        rest = (slice(None),) * (self.ndim - sum(item not in (None, ...) for item in keys))
        at = keys.index(...) if ... in keys else len(keys)
        keys = keys[:at] + rest + keys[at + 1 :]
        values = _values(self)
        if values is not None:
            return Array(np.asarray(values[keys]))
        if self.held.shape == () and all(item in (None, slice(None)) for item in keys):
            sizes = iter(self.shape)
            return Array(self.held, tuple(1 if item is None else next(sizes) for item in keys))
        held, axis = _tensor(self), 0
        for item in keys:
            held = _indexed(held, item, axis)
            axis += not isinstance(item, int)
        return Array(held)

    def __matmul__(self, other: Array) -> Array:
        shape = self.shape[:-1] + other.shape[1:]
        if _is_zero(self.held) or _is_zero(other.held):
            return Array(np.zeros((), self.dtype), shape)
        if other.ndim == 1:  # ONNX Runtime takes ten times as long for a vector as for a column.
            return (self @ other[:, None])[..., 0]
        left, right = _tensor(self), _tensor(other)
        pair = [item.sources[0] if item.node == "Transpose" else item for item in (left, right)]
        if pair == [left, right]:
            return Array(_write("MatMul", left, right, dtype=self.dtype, shape=shape))
        # A matrix that is transposed to be multiplied is read as it lies.
        turned: dict[str, Any] = {"transA": int(pair[0] is not left)}
        turned["transB"] = int(pair[1] is not right)
        return Array(_write("Gemm", *pair, dtype=self.dtype, shape=shape, **turned))

    def __pow__(self, exponent: float) -> Array:
        return self * self if exponent == 2 else _each("Pow", self, exponent)

    def __ne__(self, other: object) -> Array:  # type: ignore[override]
        return ~_each("Equal", self, other)

    __add__, __radd__ = _operator("Add"), _reflected("Add")
    __sub__, __rsub__ = _operator("Sub"), _reflected("Sub")
    __mul__, __rmul__ = _operator("Mul"), _reflected("Mul")
    __truediv__, __rtruediv__ = _operator("Div"), _reflected("Div")
    __gt__, __ge__ = _operator("Greater"), _operator("GreaterOrEqual")
    __lt__, __le__ = _operator("Less"), _operator("LessOrEqual")
    __eq__ = _operator("Equal")  # type: ignore[assignment]
    __and__, __or__ = _operator("And"), _operator("Or")
    __neg__, __invert__ = _operator("Neg"), _operator("Not")


def variable(
    recorder: Recorder, name: str, dtype: npt.DTypeLike, shape: Sequence[int | str], /
) -> Array:
    """An input of the graph; sizes that a call decides are given by their name."""
    return Array(recorder.input(name, dtype, shape))


def choose(
    condition: Array,
    then: Callable[[], Mapping[str, Array]],
    other: Callable[[], Mapping[str, Array]],
    /,
) -> dict[str, Array]:
    """A conditional; what a branch computes stands in it. None is written where nobody decides."""
    if isinstance(condition.held, np.ndarray):
        return dict(then() if condition.held else other())
    recorder = condition.held.recorder

    def tensors(branch: Callable[[], Mapping[str, Array]]) -> Callable[[], dict[str, Tensor]]:
        return lambda: {field: as_tensor(item, recorder) for field, item in branch().items()}

    found = recorder.choose(condition.held, tensors(then), tensors(other))
    return {field: Array(item) for field, item in found.items()}


def as_tensor(array: Array, recorder: Recorder, /) -> Tensor:
    """The value as wide as its shape says."""
    held = array.held
    if isinstance(held, np.ndarray):
        held = recorder.constant(held)
    if held.shape == array.shape:
        return held
    sizes = [size.tensor if isinstance(size, Symbol) else _ints(size) for size in array.shape]
    width: Tensor | Constant
    known = [size for size in sizes if isinstance(size, np.ndarray)]
    if len(known) == len(sizes):
        width = np.concatenate(known)
    else:
        width = recorder.write("Concat", *sizes, axis=0, dtype=_INT64, shape=(array.ndim,))
    return recorder.write("Expand", held, width, dtype=array.dtype, shape=array.shape)


# Nodes.


def _tensor(array: Array) -> Tensor:
    assert isinstance(array.held, Tensor)
    return as_tensor(array, array.held.recorder)


def _write(
    node: str, /, *operands: Tensor | Constant, dtype: Any, shape: Shape, **attributes: Any
) -> Tensor:
    """A node in the graph of its operands."""
    recorder = next(item.recorder for item in operands if isinstance(item, Tensor))
    return recorder.write(node, *operands, dtype=dtype, shape=shape, **attributes)


def _values(array: Array) -> Constant | None:
    """What NumPy can compute with; None where that is not known."""
    sizes = [size for size in array.shape if isinstance(size, int)]
    if isinstance(array.held, Tensor) or len(sizes) < array.ndim:
        return None
    return np.broadcast_to(array.held, sizes)


def _ints(*values: Any) -> Constant:
    return np.asarray(values, dtype=_INT64)


def _indexed(held: Tensor, item: Any, axis: int) -> Tensor:
    """One axis of an index."""
    shape, dtype = held.shape, held.dtype
    before, after = shape[:axis], shape[axis + 1 :]
    if isinstance(item, int):
        position = np.asarray(item, dtype=_INT64)
        return _write("Gather", held, position, axis=axis, dtype=dtype, shape=before + after)
    if item is None:
        wider = (*before, 1, *shape[axis:])
        return _write("Unsqueeze", held, _ints(axis), dtype=dtype, shape=wider)
    if item == slice(None):
        return held
    size = shape[axis]
    left = len(range(size)[item]) if isinstance(size, int) else None
    end = sys.maxsize if item.stop is None else item.stop
    ends = _ints(item.start or 0), _ints(end), _ints(axis)
    return _write("Slice", held, *ends, dtype=dtype, shape=(*before, left, *after))


def _as_array(value: Any, dtype: npt.DTypeLike) -> Array:
    return value if isinstance(value, Array) else Array(np.asarray(value, dtype=dtype))


def _each(node: str, *operands: Any) -> Array:
    """Element by element; a number becomes one of the last array's type."""
    dtype = next(item.dtype for item in reversed(operands) if isinstance(item, Array))
    arrays = [_as_array(item, dtype) for item in operands]
    shape = _broadcast([item.shape for item in arrays])
    held = [item.held for item in arrays]
    constants = [item for item in held if isinstance(item, np.ndarray)]
    if len(constants) == len(held):
        with np.errstate(all="ignore"):
            return Array(np.asarray(_EACH[node](*constants)), shape)
    known = _simpler(node, held)
    if known is not None:
        return Array(known, shape)
    there = _broadcast([item.shape for item in held])
    result = _EACH[node](*(np.ones((), item.dtype) for item in arrays)).dtype
    return Array(_write(node, *held, dtype=result, shape=there), shape)


def _simpler(node: str, held: list[Tensor | Constant]) -> Tensor | Constant | None:
    """What a node gives without being written."""
    first, *others = held
    if node == "Not" and isinstance(first, Tensor) and first.node == "Not":
        return first.sources[0]
    if node in ("And", "Or"):
        # The neutral element leaves the other; its opposite is the result.
        for item, other in zip(held, reversed(held), strict=True):
            if isinstance(item, np.ndarray) and item.ndim == 0:
                return other if bool(item) == (node == "And") else item
    if node == "Add":
        # A sum on top of a product is one pass over the result.
        for item, other in zip(held, reversed(held), strict=True):
            if not (isinstance(item, Tensor) and isinstance(other, Tensor)):
                break
            bare = item.node == "Gemm" and len(item.sources) == 2
            if bare and item.shape == other.shape:
                kind: dict[str, Any] = {"dtype": item.dtype, "shape": item.shape}
                return _write("Gemm", *item.sources, other, **kind, **item.attributes)
    if node == "Where" and isinstance(first, np.ndarray) and first.ndim == 0:
        return others[0] if first else others[1]
    if node == "Mul" and any(map(_is_zero, held)):
        return np.zeros((), first.dtype)
    neutral, places = _NEUTRAL.get(node, (None, ()))
    for at in places:
        item = held[at]
        if isinstance(item, np.ndarray) and np.all(item == neutral):
            return held[1 - at]
    return None


def _is_zero(held: Tensor | Constant) -> bool:
    """Whether it is known to be zero. So are products with it, as if nothing were ever infinite."""
    return isinstance(held, np.ndarray) and held.dtype != np.bool_ and not held.any()


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """Of sizes that must agree, the one that says most: a number, a symbol, nothing."""
    rank = max(map(len, shapes))
    columns = zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
    order = (int, Symbol, type(None))
    longer = ([size for size in column if size != 1] for column in columns)
    return tuple(min(found, key=lambda n: order.index(type(n)), default=1) for found in longer)


# The namespace: as much of the standard as is called.


def _where(condition: Array, x: Any, y: Any) -> Array:
    """ONNX Runtime chooses no truth values."""
    if all(isinstance(item, Array) and item.dtype == np.bool_ for item in (x, y)):
        chosen: Array = (condition & x) | (~condition & y)
        return chosen
    return _each("Where", condition, x, y)


def _reduction(node: str, host: Callable[..., Any]) -> Callable[..., Array]:
    def reduced(x: Array, *, axis: int | None = None, keepdims: bool = False) -> Array:
        values = _values(x)
        if values is not None:
            return Array(np.asarray(host(values, axis=axis, keepdims=keepdims)))
        gone = tuple(range(x.ndim)) if axis is None else (axis % x.ndim,)
        sizes = [1 if at in gone else size for at, size in enumerate(x.shape)]
        kept = sizes if keepdims else [n for at, n in enumerate(sizes) if at not in gone]
        shape = tuple(kept)
        if not gone:
            return x
        if x.held.shape == ():
            one = Array(x.held)
            return Array((one * _count(x, gone) if node == "ReduceSum" else one).held, shape)
        tensor = _tensor(x)
        return Array(
            tensor.recorder.reduce(node, tensor, axes=gone, keepdims=keepdims, shape=shape)
        )

    return reduced


def _count(x: Array, axes: Iterable[int]) -> Array:
    """How many elements there are along some axes, () of the array's own type."""
    count = Array(np.asarray(1, dtype=x.dtype))
    for size in (x.shape[axis] for axis in axes):
        assert size is not None
        # The graph has sizes as vectors of one element.
        if isinstance(size, Symbol):
            count = count * _astype(Array(size.tensor)[0], x.dtype)
        else:
            count = count * float(size)
    return count


_sum = _reduction("ReduceSum", np.sum)


def _any(x: Array) -> Array:
    return x if x.ndim == 0 else _each("Greater", _sum(_astype(x, np.float32)), 0.0)


def _clip(x: Array, low: float, high: float) -> Array:
    if isinstance(low, Array) or isinstance(high, Array):
        return _each("Min", _each("Max", x, low), high)
    return _each("Clip", x, low, high)


def _astype(x: Array, dtype: npt.DTypeLike) -> Array:
    wanted = np.dtype(dtype)
    if x.dtype == wanted:
        return x
    if isinstance(x.held, np.ndarray):
        return Array(x.held.astype(wanted), x.shape)
    to = helper.np_dtype_to_tensor_dtype(wanted)
    return Array(_write("Cast", x.held, to=to, dtype=wanted, shape=x.held.shape), x.shape)


def _arg_max(x: Array, *, axis: int) -> Array:
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    return Array(_write("ArgMax", _tensor(x), axis=axis, keepdims=0, dtype=_INT64, shape=shape))


def _concat(arrays: Sequence[Array], *, axis: int = 0) -> Array:
    recorder = next(item.held.recorder for item in arrays if isinstance(item.held, Tensor))
    sizes = [item.shape[axis] for item in arrays]
    whole = [size for size in sizes if isinstance(size, int)]
    length = sum(whole) if len(whole) == len(sizes) else None
    first = arrays[0]
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    tensors = [as_tensor(item, recorder) for item in arrays]
    return Array(recorder.write("Concat", *tensors, axis=axis, dtype=first.dtype, shape=shape))


def _reshape(x: Array, shape: tuple[int, ...]) -> Array:
    return Array(_write("Reshape", _tensor(x), _ints(*shape), dtype=x.dtype, shape=shape))


def _transpose(x: Array) -> Array:
    return Array(_write("Transpose", _tensor(x), perm=(1, 0), dtype=x.dtype, shape=x.shape[::-1]))


def _take_along_axis(x: Array, places: Array, *, axis: int) -> Array:
    operands = _tensor(x), _tensor(places)
    return Array(_write("GatherElements", *operands, axis=axis, dtype=x.dtype, shape=places.shape))


def _last_axis(node: str) -> Callable[[Array], Array]:
    return lambda x: Array(_write(node, _tensor(x), axis=-1, dtype=x.dtype, shape=x.shape))


def _filled(value: float) -> Callable[..., Array]:
    def filled(
        shape: int | tuple[int, ...], *, dtype: npt.DTypeLike, device: str | None = None
    ) -> Array:
        return Array(np.asarray(value, dtype), shape if isinstance(shape, tuple) else (shape,))

    return filled


def _filled_like(value: float) -> Callable[[Array], Array]:
    return lambda x: Array(np.asarray(value, x.dtype), x.shape)


namespace = ModuleType("traced")
vars(namespace).update(
    {item.name: item for item in map(np.dtype, ("float32", "float64", "int64", "bool"))},
    **{name.lower(): _operator(name) for name in ("Abs", "Exp", "Log", "Sqrt")},
    where=_where,
    maximum=_operator("Max"),
    minimum=_operator("Min"),
    isfinite=lambda x: ~(_each("IsNaN", x) | _each("IsInf", x)),
    clip=_clip,
    sum=_sum,
    mean=_reduction("ReduceMean", np.mean),
    max=_reduction("ReduceMax", np.max),
    min=_reduction("ReduceMin", np.min),
    any=_any,
    all=lambda x: ~_any(~x),
    argmax=_arg_max,
    concat=_concat,
    stack=lambda arrays: _concat([item[None] for item in arrays]),
    reshape=_reshape,
    matrix_transpose=_transpose,
    take_along_axis=_take_along_axis,
    asarray=lambda value, *, dtype=None, device=None, copy=None: _as_array(value, dtype),
    astype=_astype,
    isdtype=lambda dtype, kind: {"real floating": "f", "bool": "b"}[kind] == dtype.kind,
    zeros=_filled(0),
    ones=_filled(1),
    zeros_like=_filled_like(0),
    ones_like=_filled_like(1),
    # More than the standard: what ONNX has as one operation.
    fused_log_softmax=_last_axis("LogSoftmax"),
    fused_softmax=_last_axis("Softmax"),
)
