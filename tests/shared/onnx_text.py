"""Graphs in ONNX's own text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

Shapes = Mapping[str, Sequence[int | str]]
# The parser takes no dots in names.
DOT = "_dot_"


def nodes(text: str) -> list[onnx.NodeProto]:
    """`s = Gemm<transB=1>(x, head.weight); out = Relu(s)`, parsed one by one."""
    found = []
    for part in text.split(";"):
        node = onnx.parser.parse_node(re.sub(r"(?<=[a-zA-Z_])\.(?=[a-zA-Z_])", DOT, part))
        for names in (node.input, node.output):
            names[:] = [name.replace(DOT, ".") for name in names]
        node.domain, _, node.op_type = node.op_type.replace(DOT, ".").rpartition(".")
        found.append(node)
    return found


def network(
    text: str,
    arrays: Mapping[str, np.ndarray | TensorProto],
    *,
    inputs: Shapes,
    outputs: Shapes,
    opset: int = 17,
    ir_version: int = 8,
) -> onnx.ModelProto:
    """A model with float32 inputs and outputs; float64 arrays become float32."""

    def values(shapes: Shapes) -> list[onnx.ValueInfoProto]:
        kind = TensorProto.FLOAT
        return [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()]

    def tensor(name: str, array: np.ndarray | TensorProto) -> TensorProto:
        if isinstance(array, TensorProto):
            return array
        array = np.asarray(array)
        return numpy_helper.from_array(
            array.astype(np.float32) if array.dtype == np.float64 else array, name
        )

    tensors = [tensor(*item) for item in arrays.items()]
    graph = helper.make_graph(nodes(text), "net", values(inputs), values(outputs), tensors)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
