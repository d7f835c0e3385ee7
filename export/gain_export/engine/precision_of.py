"""The precision of an ONNX file, as its engine's header states it."""

from __future__ import annotations

import json

import onnx
from onnx import TensorProto

from gain_runtime.engine_header import PRECISIONS
from gain_runtime.manifest import PREFIX

__all__ = ["precision_of"]

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
