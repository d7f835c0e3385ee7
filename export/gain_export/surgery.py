"""Rewriting an ONNX graph into an artifact's form: `pixel_values` to `features` and `logits`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from gain_export.graph import free_name, prune, release_name, rename_value
from gain_export.head import Head, Part
from gain_export.input_form import BATCH
from gain_runtime.manifest import HeadLocation

__all__ = ["FEATURES", "LOGITS", "attach_head", "attach_logits"]

FEATURES, LOGITS = "features", "logits"
_WEIGHT, _BIAS = "gain.head.weight", "gain.head.bias"
# Probabilities of zero have no logarithm; this is the smallest normal float32.
_TINY = np.float32(np.finfo(np.float32).tiny)


def attach_head(model: onnx.ModelProto, head: Head, /) -> HeadLocation:
    """End a graph in `logits = features @ weight.T + bias` and drop everything else it computed.

    One form for every head, whatever the exporter made of it: the runtime reads it, and what it
    reads is what the graph computes.

    Parameters
    ----------
    model : onnx.ModelProto
        Changed in place; its outputs become `features` and `logits`.
    head : Head

    Returns
    -------
    HeadLocation
    """
    writer = _Writer(model)
    flat = [_vector(writer, part) for part in head.parts]
    features = flat[0] if len(flat) == 1 else writer.add("Concat", *flat, axis=1)
    features = writer.add("Identity", features) if features in _inputs(model) else features
    rename_value(model, features, FEATURES)
    arrays = (
        {_WEIGHT: head.weight} if head.bias is None else {_WEIGHT: head.weight, _BIAS: head.bias}
    )
    for name, array in arrays.items():
        release_name(model, name)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    logits = writer.add("Gemm", FEATURES, *arrays, name="head", transB=1)
    _finish(model, {FEATURES: head.weight.shape[1], logits: head.weight.shape[0]}, logits)
    return HeadLocation(weight=_WEIGHT, layout="KD", bias=None if head.bias is None else _BIAS)


def attach_logits(
    model: onnx.ModelProto, value: str, /, *, num_classes: int, logarithm: bool = False
) -> None:
    """End a graph in a value as it computes it, as `logits` (B, K) float32, without features.

    Parameters
    ----------
    model : onnx.ModelProto
        Changed in place; its only output becomes `logits`.
    value : str
        With one row per image and K numbers in it, of any floating-point type.
    num_classes : int
    logarithm : bool, optional
        Whether the value holds probabilities, whose logarithm are the logits.
    """
    writer = _Writer(model)
    logits = writer.add("Cast", value, to=TensorProto.FLOAT)
    logits = writer.add("Flatten", logits, axis=1)
    if logarithm:
        logits = writer.add("Log", writer.add("Max", logits, writer.constant(_TINY)))
    _finish(model, {logits: num_classes}, logits)


class _Writer:
    """Appends nodes to a graph under names of their own."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model

    def add(self, kind: str, *inputs: str, name: str = "", **attributes: object) -> str:
        """Append a node; the name of its result."""
        output = free_name(self._model, f"gain.{kind.lower()}")
        node = helper.make_node(kind, list(inputs), [output], name=name, **attributes)
        self._model.graph.node.append(node)
        return output

    def constant(self, array: npt.ArrayLike) -> str:
        """Append an initializer; its name."""
        name = free_name(self._model, "gain.constant")
        self._model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        return name


def _vector(writer: _Writer, part: Part) -> str:
    """A part of the features as (B, width) float32."""
    value = part.value
    if part.cast:
        value = writer.add("Cast", value, to=TensorProto.FLOAT)
    if part.mean_axes:
        axes = list(part.mean_axes)
        # As an attribute up to opset 17, as an input from 18 on: a sum takes it so in both.
        value = writer.add("ReduceSum", value, writer.constant(np.asarray(axes)), keepdims=1)
        value = writer.add("Mul", value, writer.constant(np.float32(1.0 / part.places)))
    if part.flatten:
        value = writer.add("Flatten", value, axis=1)
    return value


def _inputs(model: onnx.ModelProto) -> Sequence[str]:
    return [value.name for value in model.graph.input]


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
