"""Constants of a graph, their copies in lower precision, and the precision a file is in."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

from gain_runtime.files.engine import PRECISIONS
from gain_runtime.files.manifest import PREFIX

__all__ = [
    "fits_low",
    "hoist_constants",
    "low_tensor",
    "precision_of",
]

# A weight below the smallest normal number becomes less exact, never wrong; one above the largest
# becomes infinite.
_LARGEST = {TensorProto.FLOAT16: 65504.0, TensorProto.BFLOAT16: 3.3895e38}


def fits_low(tensor: onnx.TensorProto, low_type: int, /) -> bool:
    """Whether every value of a float32 tensor is finite in `low_type`."""
    array = numpy_helper.to_array(tensor)
    return bool(array.size == 0 or np.abs(array).max() <= _LARGEST[low_type])


def low_tensor(tensor: onnx.TensorProto, low_type: int, /) -> onnx.TensorProto:
    """A float32 tensor rounded to the nearest value of `low_type`, under the same name."""
    array = np.asarray(numpy_helper.to_array(tensor), dtype=np.float32)
    if low_type == TensorProto.FLOAT16:
        return numpy_helper.from_array(array.astype(np.float16), tensor.name)
    low = TensorProto(name=tensor.name, data_type=low_type, dims=array.shape)
    low.raw_data = _bfloat16_bits(array).astype("<u2").tobytes()
    return low


def _bfloat16_bits(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The upper halves of float32 numbers, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    odd = (bits >> 16) & 1
    rounded: npt.NDArray[np.uint16] = ((bits + 0x7FFF + odd) >> 16).astype(np.uint16)
    return rounded


def hoist_constants(model: onnx.ModelProto, /) -> None:
    """Make initializers of the float32 Constant nodes, in place: one kind of constant is left."""
    graph = model.graph
    for position in reversed(range(len(graph.node))):
        node = graph.node[position]
        if node.op_type != "Constant" or node.domain or node.attribute[0].name != "value":
            continue
        tensor = node.attribute[0].t
        if tensor.data_type == TensorProto.FLOAT:
            graph.initializer.add().CopyFrom(tensor)
            graph.initializer[-1].name = node.output[0]
            del graph.node[position]


_LOW_TYPES = {
    value
    for name, value in TensorProto.DataType.items()
    if name.startswith(("FLOAT16", "BFLOAT16", "FLOAT8", "FLOAT4"))
}


def precision_of(model: onnx.ModelProto, /) -> str | None:
    """What the lower-precision pass recorded, or fp32 where it did nothing and all is float32.

    Parameters
    ----------
    model : onnx.ModelProto

    Returns
    -------
    str or None
        One of `PRECISIONS`; None for a file that is no artifact, and for an artifact whose own
        source was in lower precision.
    """
    metadata = {item.key: item.value for item in model.metadata_props}
    if PREFIX + "schema" not in metadata:
        return None
    try:
        recorded = json.loads(metadata.get(PREFIX + "verification", "{}"))
    except ValueError:
        return None
    if isinstance(recorded, dict) and recorded.get("precision") in PRECISIONS:
        return str(recorded["precision"])
    low = any(tensor.data_type in _LOW_TYPES for tensor in model.graph.initializer)
    quantised = any(node.op_type == "QuantizeLinear" for node in model.graph.node)
    return None if low or quantised else "fp32"
