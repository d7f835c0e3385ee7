"""Rewriting a graph into an artifact's form: a free batch axis, `pixel_values` in, `logits` out."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from gain_core.errors import EngineError
from gain_export.graph import Graph, attribute, free_name, prune, release_name, rename_value
from gain_export.head import Head, Part
from gain_export.outputs import Values, run_values
from gain_export.preprocessing import BATCH
from gain_runtime.files.manifest import HeadLocation

logger = logging.getLogger(__name__)

_TRIED = (8, 3)
_RTOL, _ATOL = 1e-3, 1e-4


def freed(
    model: onnx.ModelProto,
    fixed_batch: int | None,
    pixel_values: npt.NDArray[np.float32],
    outputs: Values,
    /,
) -> tuple[onnx.ModelProto, int | None]:
    """The graph for any batch size where one more run proves that it is one, else as it is.

    `fixed_batch` is the size the model, on `pixel_values`, was traced with, None where it takes
    any; `outputs` are what the original gives for these images, (N, 3, H, W) float32, by the name
    of the graph's output. Returns the graph and the only batch size that it takes.
    """
    if fixed_batch is None:
        return model, None
    rows = np.resize(np.arange(len(pixel_values)), fixed_batch)
    candidate = onnx.ModelProto()
    candidate.CopyFrom(model)
    try:
        values = run_values(model, _batch_values(model), pixel_values[rows])
        _free_batch(candidate, fixed_batch, values=values)
        tried = next(size for size in _TRIED if size != fixed_batch)
        rows = np.resize(np.arange(len(pixel_values)), tried)
        found = run_values(candidate, list(outputs), pixel_values[rows])
    except EngineError as err:
        logger.debug("batch of %d: %s", fixed_batch, err)
        return model, fixed_batch
    for name, expected in outputs.items():
        want, got = expected[rows], found[name]
        if want.shape != got.shape:
            return model, fixed_batch
        allowed = _ATOL + _RTOL * float(np.abs(want.astype(np.float64)).max())
        if not np.allclose(want, got, rtol=0.0, atol=allowed, equal_nan=True):
            return model, fixed_batch
    return candidate, None


def _batch_values(model: onnx.ModelProto, /) -> list[str]:
    """The values whose shapes `_free_batch` has to know: what reshapes read and give."""
    graph = Graph(model)
    names: list[str] = []
    for node in graph.nodes:
        if node.op_type in ("Reshape", "Expand") and not node.domain:
            names += [name for name in (node.input[0], node.output[0]) if graph.producer(name)]
    return [name for name in dict.fromkeys(names) if graph.is_computed(name)]


def _free_batch(
    model: onnx.ModelProto, batch_size: int, /, *, values: Mapping[str, npt.NDArray[np.generic]]
) -> None:
    """Take the traced batch size out of reshapes and of constants that are put beside images.

    In place. `values` are those of `_batch_values`, from one run at that size. Only where the first
    axis of a reshape's result grows with the batch and all others stay is the outcome right; the
    caller runs it on other batch sizes and compares.
    """
    graph = Graph(model)
    for node in graph.nodes:
        if node.domain or not graph.is_computed(node.output[0]):
            continue
        if node.op_type == "Reshape" and node.output[0] in values:
            target = graph.constant(node.input[1])
            shape = values[node.output[0]].shape
            if target is not None and shape and shape[0] % batch_size == 0:
                _point(model, node, 1, np.asarray([-1, *shape[1:]], dtype=np.int64))
        elif node.op_type == "Expand" and node.output[0] in values:
            target = graph.constant(node.input[1])
            if target is not None and target.size and int(target[0]) == batch_size:
                free = np.asarray([1, *target[1:]], dtype=np.int64)
                _point(model, node, 1, free)
    _repeat_constants(model, graph, batch_size)


def _point(
    model: onnx.ModelProto, node: onnx.NodeProto, index: int, array: npt.NDArray[np.generic]
) -> None:
    """Give a node a constant of its own: the old one may serve others."""
    name = free_name(model, f"{node.input[index]}_any_batch")
    model.graph.initializer.append(numpy_helper.from_array(array, name))
    node.input[index] = name


def _repeat_constants(model: onnx.ModelProto, graph: Graph, batch_size: int) -> None:
    """Class tokens that were folded into one constant per image are repeated as often as needed."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.nodes:
        computed = [name for name in node.input if graph.is_computed(name)]
        if node.op_type == "Concat" and not node.domain and attribute(node, "axis", 0) and computed:
            for index, name in enumerate(node.input):
                array = graph.constant(name)
                if array is None or array.ndim < 2 or array.shape[0] != batch_size:
                    continue
                if (array == array[:1]).all():
                    _point(model, node, index, np.ascontiguousarray(array[:1]))
                    nodes += _repeated(model, node, index, like=computed[0], rank=array.ndim)
        nodes.append(node)
    if len(nodes) > len(graph.nodes):
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del model.graph.node[:]
        model.graph.node.extend(copies)


def _repeated(
    model: onnx.ModelProto, node: onnx.NodeProto, index: int, *, like: str, rank: int
) -> list[onnx.NodeProto]:
    """Nodes that repeat an input of a node as often as another value has rows."""
    constant = node.input[index]
    names = [free_name(model, f"{constant}_{part}") for part in ("rows", "shape", "repeated")]
    rest = free_name(model, f"{constant}_ones")
    ones = np.ones(rank - 1, dtype=np.int64)
    model.graph.initializer.append(numpy_helper.from_array(ones, rest))
    node.input[index] = names[2]
    return [
        helper.make_node("Shape", [like], [names[0]], start=0, end=1),
        helper.make_node("Concat", [names[0], rest], [names[1]], axis=0),
        helper.make_node("Expand", [constant, names[1]], [names[2]]),
    ]


FEATURES, LOGITS = "features", "logits"
_WEIGHT, _BIAS = "gain.head.weight", "gain.head.bias"
# Probabilities of zero have no logarithm; this is the smallest normal float32.
_TINY = np.float32(np.finfo(np.float32).tiny)


def attach_head(model: onnx.ModelProto, head: Head, /) -> HeadLocation:
    """End a graph in `logits = features @ weight.T + bias` and drop everything else it computed.

    In place. One form for every head, whatever the exporter made of it: the runtime reads it, and
    what it reads is what the graph computes.
    """
    flat = [_vector(model, part) for part in head.parts]
    features = flat[0] if len(flat) == 1 else _add(model, "Concat", *flat, axis=1)
    if any(value.name == features for value in model.graph.input):
        features = _add(model, "Identity", features)
    rename_value(model, features, FEATURES)
    arrays = (
        {_WEIGHT: head.weight} if head.bias is None else {_WEIGHT: head.weight, _BIAS: head.bias}
    )
    for name, array in arrays.items():
        release_name(model, name)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    logits = _add(model, "Gemm", FEATURES, *arrays, name="head", transB=1)
    _finish(model, {FEATURES: head.weight.shape[1], logits: head.weight.shape[0]}, logits)
    return HeadLocation(weight=_WEIGHT, layout="KD", bias=None if head.bias is None else _BIAS)


def attach_logits(
    model: onnx.ModelProto, value: str, /, *, num_classes: int, logarithm: bool = False
) -> None:
    """End a graph in a value as it computes it, as `logits` (B, K) float32, without features.

    In place. The value has K numbers per image, of any floating-point type; with `logarithm` they
    are probabilities, whose logarithm are the logits.
    """
    logits = _add(model, "Cast", value, to=TensorProto.FLOAT)
    logits = _add(model, "Flatten", logits, axis=1)
    if logarithm:
        logits = _add(model, "Log", _add(model, "Max", logits, _constant(model, _TINY)))
    _finish(model, {logits: num_classes}, logits)


def _add(
    model: onnx.ModelProto, kind: str, *inputs: str, name: str = "", **attributes: object
) -> str:
    """Append a node under a name of its own; the name of its result."""
    output = free_name(model, f"gain.{kind.lower()}")
    model.graph.node.append(helper.make_node(kind, list(inputs), [output], name=name, **attributes))
    return output


def _constant(model: onnx.ModelProto, array: npt.ArrayLike) -> str:
    """Append an initializer; its name."""
    name = free_name(model, "gain.constant")
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return name


def _vector(model: onnx.ModelProto, part: Part) -> str:
    """A part of the features as (B, width) float32."""
    value = part.value
    if part.cast:
        value = _add(model, "Cast", value, to=TensorProto.FLOAT)
    if part.mean_axes:
        axes = list(part.mean_axes)
        # As an attribute up to opset 17, as an input from 18 on: a sum takes it so in both.
        value = _add(model, "ReduceSum", value, _constant(model, np.asarray(axes)), keepdims=1)
        value = _add(model, "Mul", value, _constant(model, np.float32(1.0 / part.places)))
    if part.flatten:
        value = _add(model, "Flatten", value, axis=1)
    return value


def _finish(model: onnx.ModelProto, widths: dict[str, int], logits: str) -> None:
    prune(
        model,
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [BATCH, width])
            for name, width in widths.items()
        ],
    )
    # Only now: the old head's value of that name, where there was one, is gone.
    rename_value(model, logits, LOGITS)
