"""The int8 pass: ranges of inner values on images, then QuantizeLinear, DequantizeLinear."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from gain_core.errors import ArtifactError, ConfigError, EngineError, one_line
from gain_export.graph import attribute, free_name, prune
from gain_export.precision.lower import hoist_constants
from gain_runtime.sessions.onnx import CPU_PROVIDER, NATIVE_ERRORS, create_native

CalibrationMethod = Literal["percentile", "minmax"]
METHODS: tuple[CalibrationMethod, ...] = get_args(CalibrationMethod)

PERCENTILE = 99.99
# Bins of |x| between zero and its largest value: a sixteenth of an int8 step each.
_NUM_BINS = 2048

Floats = npt.NDArray[np.float32]


def measure_ranges(
    model: onnx.ModelProto,
    names: Sequence[str],
    pixel_values: Floats,
    /,
    *,
    method: CalibrationMethod,
    folder: Path,
) -> dict[str, float]:
    """The magnitude, at least zero, that 127 is to stand for, for each named value of the network.

    The names are of float32 values of the graph, its input included; the images (N, 3, H, W)
    float32 are run one by one, twice for `percentile`, and `folder` holds the instrumented network
    meanwhile. `minmax` is the largest |x| seen; `percentile` the |x| that 99.99 % of the values
    stay below, so that a single outlier does not take the resolution from all others. Raises
    ConfigError if the method is unknown, and EngineError if ONNX Runtime fails or a value is NaN or
    infinite.
    """
    if method not in METHODS:
        raise ConfigError(f"calibration: expected one of {', '.join(METHODS)}, got {method}")
    session = _instrumented(model, names, folder)
    largest = dict.fromkeys(names, 0.0)
    for name, values in _observed(session, names, pixel_values):
        peak = float(np.abs(values).max(initial=0.0))
        if not np.isfinite(peak):
            raise EngineError(
                f"{name}: expected finite values to calibrate on, got NaN or infinity"
            )
        largest[name] = max(largest[name], peak)
    if method == "minmax":
        return largest
    counts = {name: np.zeros(_NUM_BINS, dtype=np.int64) for name in names}
    for name, values in _observed(session, names, pixel_values):
        if largest[name] > 0.0:
            limits = (0.0, largest[name])
            counts[name] += np.histogram(np.abs(values), bins=_NUM_BINS, range=limits)[0]
    return {name: _percentile(counts[name], largest[name]) for name in names}


def _percentile(counts: npt.NDArray[np.int64], largest: float) -> float:
    """Upper edge of the bin up to which `PERCENTILE` of the values lie."""
    wanted = np.ceil(PERCENTILE / 100.0 * counts.sum())
    position = int(np.searchsorted(np.cumsum(counts), wanted))
    return largest * (position + 1) / _NUM_BINS if largest > 0.0 else 0.0


def _instrumented(
    model: onnx.ModelProto, names: Sequence[str], folder: Path
) -> onnxruntime.InferenceSession:
    """The network with the named values among its outputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    inputs = {value.name for value in copy.graph.input}
    known = {value.name for value in copy.graph.output} | inputs
    # ONNX Runtime infers the types of outputs that are declared without one.
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    path = folder / "calibration.onnx"
    path.write_bytes(copy.SerializeToString())
    return create_native(path, CPU_PROVIDER, None)


def _observed(
    session: onnxruntime.InferenceSession, names: Sequence[str], pixel_values: Floats
) -> Iterator[tuple[str, Floats]]:
    """Every named value on every image."""
    feed = session.get_inputs()[0].name
    wanted = [name for name in names if name != feed]
    for position in range(len(pixel_values)):
        batch = pixel_values[position : position + 1]
        try:
            outputs = session.run(wanted, {feed: batch}) if wanted else []
        except NATIVE_ERRORS as err:
            raise EngineError(f"calibration: the network cannot be run: {one_line(err)}") from err
        yield from zip(wanted, outputs, strict=True)
        if feed in names:
            yield feed, batch


_LARGEST_INT8 = 127
# The output channel of a weight, by operator: Gemm's depends on transB.
_CHANNEL_AXES = {"MatMul": -1, "Conv": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A MatMul, Gemm or Conv of a computed float32 value and an initializer, its weight."""

    position: int  # of its node in the graph
    value: str
    weight: str
    axis: int  # the weight's, of output channels


def find_layers(model: onnx.ModelProto, /, *, head_weight: str | None) -> list[Layer]:
    """The layers that int8 is worth its error for, in graph order, all but the head.

    Products of two computed values (attention) stay float32, and so does the head: adaptation
    starts from its exact rows. `head_weight` is None where the artifact has logits only. The
    model's float32 Constant nodes become initializers, in place. Raises ArtifactError if there is
    none.
    """
    hoist_constants(model)
    weights = {
        tensor.name: len(tensor.dims)
        for tensor in model.graph.initializer
        if tensor.data_type == TensorProto.FLOAT
    }
    layers = []
    for position, node in enumerate(model.graph.node):
        if node.domain not in ("", "ai.onnx") or node.op_type not in (*_CHANNEL_AXES, "Gemm"):
            continue
        value, weight = node.input[0], node.input[1]
        if weight == head_weight or weight not in weights or value in weights:
            continue
        if weights[weight] < 2:
            continue
        axis = _CHANNEL_AXES.get(node.op_type, 0 if attribute(node, "transB", 0) else 1)
        layer = Layer(position=position, value=value, weight=weight, axis=axis % weights[weight])
        layers.append(layer)
    if not layers:
        raise ArtifactError(
            "precision int8: expected MatMul, Gemm or Conv with constant float32 weights before "
            "the head, found none; keep the float32 artifact"
        )
    return layers


def quantise(model: onnx.ModelProto, layers: list[Layer], ranges: Mapping[str, float], /) -> None:
    """Store the layers' weights as int8 and round what they read to int8, in place.

    Weights are symmetric with one scale a channel, what the layers read is symmetric int8 with one
    scale: TensorRT takes no zero point other than zero. Biases stay float32. A value whose
    magnitude in `ranges` is zero is left alone.
    """
    graph = model.graph
    before: dict[int, list[onnx.NodeProto]] = {}
    rounded: dict[str, str] = {}
    stored: dict[tuple[str, int], str] = {}
    for layer in layers:
        if ranges[layer.value] <= 0.0:
            continue
        made = before.setdefault(layer.position, [])
        if layer.value not in rounded:
            rounded[layer.value] = _round_value(model, layer.value, ranges[layer.value], made)
        key = (layer.weight, layer.axis)
        if key not in stored:
            stored[key] = _store_weight(model, layer, made)
        graph.node[layer.position].input[0] = rounded[layer.value]
        graph.node[layer.position].input[1] = stored[key]
    nodes = []
    for position, node in enumerate(graph.node):
        nodes += before.get(position, [])
        nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del graph.node[:]
    graph.node.extend(nodes)
    prune(model, list(graph.output))


def _round_value(
    model: onnx.ModelProto, value: str, magnitude: float, made: list[onnx.NodeProto]
) -> str:
    """Nodes that round a value to int8 and back; returns the rounded value's name."""
    scale = np.array(magnitude / _LARGEST_INT8, dtype=np.float32)
    names = [free_name(model, f"{value}.{end}") for end in ("scale", "zero", "int8", "rounded")]
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(scale, names[0]),
            numpy_helper.from_array(np.array(0, dtype=np.int8), names[1]),
        ]
    )
    made.append(helper.make_node("QuantizeLinear", [value, *names[:2]], [names[2]], name=names[2]))
    made.append(
        helper.make_node("DequantizeLinear", [names[2], *names[:2]], [names[3]], name=names[3])
    )
    return names[3]


def _store_weight(model: onnx.ModelProto, layer: Layer, made: list[onnx.NodeProto]) -> str:
    """An int8 copy of a weight and the node that restores it; returns that value's name."""
    tensor = next(item for item in model.graph.initializer if item.name == layer.weight)
    integers, scales = _to_int8(numpy_helper.to_array(tensor), layer.axis)
    names = [
        free_name(model, f"{layer.weight}.{end}") for end in ("int8", "scales", "zeros", "restored")
    ]
    zeros = np.zeros(scales.shape, dtype=np.int8)
    for name, array in zip(names, (integers, scales, zeros), strict=False):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    made.append(
        helper.make_node("DequantizeLinear", names[:3], [names[3]], name=names[3], axis=layer.axis)
    )
    return names[3]


def _to_int8(
    weight: npt.NDArray[np.generic], axis: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Symmetric int8 with one scale a channel; an all-zero channel has scale one."""
    array = np.asarray(weight, dtype=np.float32)
    others = tuple(position for position in range(array.ndim) if position != axis)
    largest = np.abs(array).max(axis=others, keepdims=True)
    scales = np.where(largest > 0.0, largest / _LARGEST_INT8, 1.0).astype(np.float32)
    integers = np.clip(np.rint(array / scales), -_LARGEST_INT8, _LARGEST_INT8).astype(np.int8)
    return integers, scales.reshape(-1)
