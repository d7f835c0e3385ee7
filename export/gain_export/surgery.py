"""Rewriting an ONNX graph into an artifact's form: `pixel_values` to `features` and `logits`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from gain_core.errors import ArtifactError
from gain_export.graph import free_name, prune, release_name, rename_value
from gain_export.onnx_file import MIN_OPSET, opset_of
from gain_export.opset import raise_opset
from gain_runtime.manifest import HeadLocation

__all__ = [
    "FEATURES",
    "LOGITS",
    "PIXEL_VALUES",
    "attach_head",
    "declare_input",
    "free_batch",
    "settle_versions",
]

PIXEL_VALUES, FEATURES, LOGITS = "pixel_values", "features", "logits"
_WEIGHT, _BIAS = "gain.head.weight", "gain.head.bias"
_BATCH = "batch"

# The newest file format that the runtimes of JetPack 6 read, and the oldest worth writing.
_MAX_IR, _MIN_IR = 10, 8


def attach_head(
    model: onnx.ModelProto,
    features: str,
    /,
    *,
    weight: npt.NDArray[np.float32],
    bias: npt.NDArray[np.float32] | None,
    flatten: bool = False,
) -> HeadLocation:
    """End a graph in `logits = features @ weight.T + bias` and drop everything else it computed.

    One form for every head, whatever the exporter made of it: the runtime reads it, and what it
    reads is what the graph computes.

    Parameters
    ----------
    model : onnx.ModelProto
        Changed in place; its outputs become `features` and `logits`.
    features : str
        The value the head reads.
    weight : array, (K, D) float32
    bias : array, (K,) float32, or None
    flatten : bool, optional
        Whether that value has axes of length one to drop.

    Returns
    -------
    HeadLocation
    """
    graph = model.graph
    if flatten:
        flat = free_name(model, FEATURES)
        graph.node.append(helper.make_node("Flatten", [features], [flat], axis=1))
        features = flat
    rename_value(model, features, FEATURES)
    logits = free_name(model, LOGITS)
    arrays = {_WEIGHT: weight} if bias is None else {_WEIGHT: weight, _BIAS: bias}
    for name in arrays:
        release_name(model, name)
    graph.node.append(
        helper.make_node("Gemm", [FEATURES, *arrays], [logits], name="head", transB=1)
    )
    graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in arrays.items())
    prune(
        model,
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [_BATCH, width])
            for name, width in ((FEATURES, weight.shape[1]), (logits, weight.shape[0]))
        ],
    )
    # Only now: the old head's value of that name, where there was one, is gone.
    rename_value(model, logits, LOGITS)
    return HeadLocation(weight=_WEIGHT, layout="KD", bias=None if bias is None else _BIAS)


def declare_input(model: onnx.ModelProto, /, *, height_px: int, width_px: int) -> None:
    """Name the input `pixel_values` and state its shape, its batch axis symbolic."""
    rename_value(model, model.graph.input[0].name, PIXEL_VALUES)
    shape = [_BATCH, 3, height_px, width_px]
    value = helper.make_tensor_value_info(PIXEL_VALUES, TensorProto.FLOAT, shape)
    model.graph.input[0].CopyFrom(value)
    # What is noted about values inside may state another batch or image size.
    del model.graph.value_info[:]


def free_batch(model: onnx.ModelProto, batch_size: int, /) -> None:
    """Let reshapes that spell out the traced batch size take any; the caller checks the result.

    Exporters that trace without a symbolic batch axis write `Reshape(x, [batch, D])` for a plain
    flatten. Anything deeper that depends on the batch size stays as it is and fails when run.
    """
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    for node in graph.node:
        if node.op_type != "Reshape" or node.input[1] not in constants:
            continue
        target = numpy_helper.to_array(constants[node.input[1]]).copy()
        if target.size > 1 and target[0] == batch_size and -1 not in target:
            target[0] = -1
            # The old constant may serve other nodes.
            name = free_name(model, f"{node.input[1]}_any_batch")
            graph.initializer.append(numpy_helper.from_array(target, name))
            node.input[1] = name


def settle_versions(model: onnx.ModelProto, /, *, path: str) -> onnx.ModelProto:
    """Bring operator set and file format into the range that devices read.

    Parameters
    ----------
    model : onnx.ModelProto
        At most opset 20.
    path : str
        For messages.

    Returns
    -------
    onnx.ModelProto
        Opset 17 to 20, or 13 to 16 where the conversion failed, which is logged as a warning;
        format version 8 to 10.

    Raises
    ------
    ArtifactError
        If the opset is below 13 and cannot be raised.
    """
    if opset_of(model) < MIN_OPSET:
        model = raise_opset(model, path=path)
    model.ir_version = min(max(model.ir_version, _MIN_IR), _MAX_IR)
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as err:
        raise ArtifactError(
            f"{path}: its graph breaks the ONNX rules ({' '.join(str(err).split())}); "
            "export the model again"
        ) from err
    return model
