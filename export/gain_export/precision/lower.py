"""The mixed-precision pass: matrix products in fp16 or bf16, everything delicate in float32."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from gain_core.errors import ArtifactError
from gain_export.graph import consumed_values, free_name
from gain_runtime.files.engine import PRECISIONS
from gain_runtime.files.manifest import PREFIX

# A weight below the smallest normal number becomes less exact, never wrong; one above the largest
# becomes infinite.
LARGEST = {TensorProto.FLOAT16: 65504.0, TensorProto.BFLOAT16: 3.3895e38}


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
    """One of `PRECISIONS`: what the pass recorded, or fp32 where it did nothing and all is float32.

    None for a file that is no artifact, or whose own source was in lower precision.
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


def emulated(model: onnx.ModelProto, low_type: int, /) -> onnx.ModelProto:
    """A copy whose nodes compute in float32, with every value of `low_type` rounded to it.

    Of a model as `lower` leaves it; inputs, outputs, constants and metadata are the same.
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


_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv"})
# Operators that move values or cut them off: exact in any precision, so a cast passes through.
_MOVES = frozenset(
    {
        *("Clip", "Expand", "Flatten", "Gather", "Identity", "Relu", "Reshape", "Slice", "Split"),
        *("Squeeze", "Transpose", "Unsqueeze"),
    }
)
# With one constant operand these are the bias and the scale of a product; with two computed ones
# they are a residual sum or a gate, which stays in float32.
_AFFINE = frozenset({"Add", "Mul"})
# Conv takes bfloat16 from opset 22 only, which is newer than what devices read.
_NOT_IN_BFLOAT16 = frozenset({"Conv"})


def lower(model: onnx.ModelProto, low_type: int, /) -> int:
    """Move a float32 graph's MatMul, Gemm and Conv into FLOAT16 or BFLOAT16, in place.

    LayerNormalization and its decomposed form, Softmax, reductions, residual sums, inputs and
    outputs stay float32, and so does Conv in bfloat16, which has no such form at the opsets devices
    read. A value is cast at most once in either direction, and no cast follows another. A constant
    that is used in low precision only is stored in it, under its own name. Opset, format version
    and metadata stay. Returns how many products are in low precision now; raises ArtifactError if
    there is none.
    """
    hoist_constants(model)
    chosen = _choose(model, low_type)
    products = sum(model.graph.node[position].op_type in _PRODUCTS for position in chosen)
    if not products:
        raise ArtifactError(
            "precision: expected MatMul, Gemm or Conv of float32 arrays, found none that can be "
            "lowered; keep the float32 artifact"
        )
    _Rewriter(model, chosen, low_type).run()
    del model.graph.value_info[:]  # states types that have changed
    return products


def lowered_values(model: onnx.ModelProto, low_type: int, /) -> list[str]:
    """Sorted names of the computed values that `lower` would hold low, inputs of products too.

    The float32 Constant nodes of the model become initializers, in place.
    """
    hoist_constants(model)
    computed = _values_of_type(model, TensorProto.FLOAT) - {
        tensor.name for tensor in model.graph.initializer
    }
    found: set[str] = set()
    for position in _choose(model, low_type):
        node = model.graph.node[position]
        found |= {*node.input, *node.output} & computed
    return sorted(found)


def _choose(model: onnx.ModelProto, low_type: int) -> set[int]:
    """Positions of the nodes that go into low precision."""
    floats = _values_of_type(model, TensorProto.FLOAT)
    # Whether every value of a constant is finite in the low type.
    fits = {
        tensor.name: bool(
            np.abs(numpy_helper.to_array(tensor)).max(initial=0.0) <= LARGEST[low_type]
        )
        for tensor in model.graph.initializer
        if tensor.data_type == TensorProto.FLOAT
    }
    low_values: set[str] = set()
    chosen: set[int] = set()
    for position, node in enumerate(model.graph.node):
        if node.domain not in ("", "ai.onnx") or not all(name in floats for name in node.output):
            continue
        if low_type == TensorProto.BFLOAT16 and node.op_type in _NOT_IN_BFLOAT16:
            continue
        if _goes_low(node, floats, fits=fits, low_values=low_values):
            chosen.add(position)
            low_values.update(node.output)
    return chosen


def _goes_low(
    node: onnx.NodeProto, floats: set[str], *, fits: dict[str, bool], low_values: set[str]
) -> bool:
    """Whether a node with float32 results belongs in low precision."""
    inputs = [name for name in node.input if name]
    if not all(fits.get(name, True) for name in inputs):
        return False
    if node.op_type in _PRODUCTS:
        return all(name in floats for name in inputs)
    if node.op_type in _MOVES:
        return inputs[0] in low_values
    if node.op_type in _AFFINE:
        return any(name in low_values for name in inputs) and any(name in fits for name in inputs)
    return False


class _Rewriter:
    """Writes the graph anew; a value keeps its name in float32 and gets a second one in low."""

    def __init__(self, model: onnx.ModelProto, chosen: set[int], low_type: int) -> None:
        self._model = model
        self._chosen = chosen
        self._type = low_type
        self._suffix = "fp16" if low_type == TensorProto.FLOAT16 else "bf16"
        self._constants = {
            tensor.name: position for position, tensor in enumerate(model.graph.initializer)
        }
        self._floats = _values_of_type(model, TensorProto.FLOAT)
        # Values that a float32 node or the caller reads.
        self._full_uses = {value.name for value in model.graph.output}
        for position, node in enumerate(model.graph.node):
            if position not in chosen:
                self._full_uses.update(consumed_values(node))
        self._low_names: dict[str, str] = {}
        self._only_low: set[str] = set()
        self._nodes: list[onnx.NodeProto] = []

    def run(self) -> None:
        """Rewrite nodes and constants in place."""
        graph = self._model.graph
        originals = [(position in self._chosen, node) for position, node in enumerate(graph.node)]
        for is_low, node in originals:
            if is_low:
                self._write_low(node)
            else:
                for name in consumed_values(node):
                    self._in_full(name)
                self._nodes.append(node)
        for value in graph.output:
            self._in_full(value.name)
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in self._nodes]
        del graph.node[:]
        graph.node.extend(nodes)

    def _write_low(self, node: onnx.NodeProto) -> None:
        """One node with its floating-point values in low precision."""
        low = onnx.NodeProto()
        low.CopyFrom(node)
        for position, name in enumerate(node.input):
            if name in self._floats:
                low.input[position] = self._in_low(name)
        for position, name in enumerate(node.output):
            low.output[position] = self._low_names[name] = self._name(name)
            self._only_low.add(name)
        self._nodes.append(low)

    def _in_low(self, name: str) -> str:
        """The low-precision form of a value, made where there is none yet."""
        if name in self._low_names:
            return self._low_names[name]
        if name in self._constants and name not in self._full_uses:
            tensor = self._model.graph.initializer[self._constants[name]]
            tensor.CopyFrom(low_tensor(tensor, self._type))
            self._low_names[name] = name
            return name
        self._low_names[name] = self._name(name)
        self._nodes.append(_cast(name, self._low_names[name], self._type))
        return self._low_names[name]

    def _in_full(self, name: str) -> None:
        """See that a value exists in float32, under its own name."""
        if name in self._only_low:
            self._only_low.remove(name)
            self._nodes.append(_cast(self._low_names[name], name, TensorProto.FLOAT))

    def _name(self, name: str) -> str:
        return free_name(self._model, f"{name}.{self._suffix}")
