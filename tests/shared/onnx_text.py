"""Nodes of a graph in ONNX's own text."""

from __future__ import annotations

import onnx
import onnx.parser


def nodes(text: str) -> list[onnx.NodeProto]:
    """`s = Gemm<transB=1>(x, w); out = Relu(s)`, parsed one by one."""
    return [onnx.parser.parse_node(node) for node in text.split(";")]
