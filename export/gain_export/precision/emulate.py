"""A network in lower precision, computed in float32 on values rounded as it rounds them.

ONNX Runtime's CPU provider converts from and to bfloat16 and multiplies no such matrices. What a
device does is to multiply the rounded values exactly, to sum in float32 and to round the result;
that can be computed anywhere.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from gain_export.graph import free_name

__all__ = ["emulated"]


def emulated(model: onnx.ModelProto, low_type: int, /) -> onnx.ModelProto:
    """A copy whose nodes compute in float32, with every value of `low_type` rounded to it.

    Parameters
    ----------
    model : onnx.ModelProto
        As `lower` leaves it; not changed.
    low_type : int
        `TensorProto.BFLOAT16` or `TensorProto.FLOAT16`.

    Returns
    -------
    onnx.ModelProto
        With the same inputs, outputs, constants and metadata.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    low = _values_of_type(copy, low_type)
    wide: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type == "Cast":
            nodes.append(node)
            continue
        full = onnx.NodeProto()
        full.CopyFrom(node)
        for position, name in enumerate(node.input):
            if name in low:
                if name not in wide:
                    wide[name] = free_name(copy, f"{name}.wide")
                    nodes.append(_cast(name, wide[name], TensorProto.FLOAT))
                full.input[position] = wide[name]
        nodes.append(full)
        for position, name in enumerate(node.output):
            if name in low:
                full.output[position] = free_name(copy, f"{name}.exact")
                nodes.append(_cast(full.output[position], name, low_type))
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    del copy.graph.value_info[:]
    return copy


def _values_of_type(model: onnx.ModelProto, data_type: int) -> set[str]:
    """Names of the values of one element type."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = (*graph.input, *graph.output, *graph.value_info)
    names = {item.name for item in values if item.type.tensor_type.elem_type == data_type}
    return names | {item.name for item in graph.initializer if item.data_type == data_type}


def _cast(source: str, target: str, data_type: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"{target}.cast", to=data_type)
