"""The mixed-precision pass on graphs, and its emulation in float32 against NumPy."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_text import network

from gain_core.errors import ArtifactError
from gain_export.graph import open_native
from gain_export.precision.lower import emulated, low_tensor, lower

FP16, BF16 = TensorProto.FLOAT16, TensorProto.BFLOAT16
DELICATE = {"LayerNormalization", "Softmax", "ReduceMean", "Sqrt", "Sub", "Div", "Erf"}


def types_of(model: onnx.ModelProto) -> dict[str, int]:
    """Element types by value name, after ONNX's own strict inference."""
    onnx.checker.check_model(model, full_check=True)
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    values = (*graph.input, *graph.output, *graph.value_info)
    found = {item.name: item.type.tensor_type.elem_type for item in values}
    return found | {item.name: item.data_type for item in graph.initializer}


def assert_no_cast_pairs(model: onnx.ModelProto) -> None:
    casts = [node for node in model.graph.node if node.op_type == "Cast"]
    made = {node.output[0] for node in casts}
    assert not [node.name for node in casts if node.input[0] in made]
    again = Counter((node.input[0], node.attribute[0].i) for node in casts)
    assert max(again.values()) == 1


@pytest.mark.parametrize("low_type", [pytest.param(FP16, id="fp16"), pytest.param(BF16, id="bf16")])
def test_products_are_low_and_delicate_operators_float32(roadsigns, low_type):
    model = onnx.load(roadsigns)
    opset, metadata = model.opset_import[0].version, list(model.metadata_props)
    assert lower(model, low_type) == (29 if low_type == FP16 else 25)
    types = types_of(model)
    for node in model.graph.node:
        kinds = {types[name] for name in (*node.input, *node.output)} - {TensorProto.INT64}
        if node.op_type in ("MatMul", "Gemm"):
            assert kinds == {low_type}, node.name
        if node.op_type == "Conv":
            assert kinds == {FP16 if low_type == FP16 else TensorProto.FLOAT}, node.name
        if node.op_type in DELICATE:
            assert kinds == {TensorProto.FLOAT}, node.name
    for value in (*model.graph.input, *model.graph.output):
        assert value.type.tensor_type.elem_type == TensorProto.FLOAT
    assert (model.opset_import[0].version, model.ir_version) == (opset, 9)
    assert list(model.metadata_props) == metadata
    assert_no_cast_pairs(model)


def test_decomposed_layer_norm_and_the_residual_sum_stay_float32(plain_conv):
    assert lower(plain_conv, FP16) == 3
    types = types_of(plain_conv)
    for node in plain_conv.graph.node:
        if node.op_type in DELICATE | {"Add", "Mul", "GlobalAveragePool"}:
            assert {types[name] for name in (*node.input, *node.output)} == {TensorProto.FLOAT}
    (relu,) = [node for node in plain_conv.graph.node if node.op_type == "Relu"]
    assert types[relu.output[0]] == FP16
    assert_no_cast_pairs(plain_conv)


def test_a_constant_is_stored_once_and_low_where_only_products_read_it(plain_conv):
    plain_conv.graph.node[3].input[1] = "shared"  # the residual sum, in float32
    shared = np.ones((1, 12, 1, 1), np.float32)
    plain_conv.graph.initializer.append(numpy_helper.from_array(shared, "shared"))
    plain_conv.graph.node.insert(
        3, helper.make_node("Conv", ["r1", "shared"], ["grouped"], group=12)
    )
    plain_conv.graph.initializer[-1].dims[:] = [12, 1, 1, 1]
    plain_conv.graph.node[4].input[0] = "grouped"
    plain_conv.graph.node[4].input[1] = "picked"
    plain_conv.graph.node.insert(
        4, helper.make_node("Transpose", ["shared"], ["picked"], perm=[1, 0, 2, 3])
    )
    lower(plain_conv, FP16)
    stored = Counter(item.name for item in plain_conv.graph.initializer)
    assert max(stored.values()) == 1
    types = types_of(plain_conv)
    assert types["first"] == types["head.weight"] == types["head.bias"] == FP16
    assert types["shared"] == types["gamma"] == TensorProto.FLOAT


def test_a_weight_that_would_overflow_keeps_its_layer_in_float32(plain_conv):
    tensor = next(item for item in plain_conv.graph.initializer if item.name == "second")
    array = numpy_helper.to_array(tensor).copy()
    array[0, 0, 0, 0] = 7e4
    tensor.CopyFrom(numpy_helper.from_array(array, "second"))
    assert lower(plain_conv, FP16) == 2
    types = types_of(plain_conv)
    assert (types["second"], types["c2"]) == (TensorProto.FLOAT, TensorProto.FLOAT)


def test_a_graph_without_products_is_refused():
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", *zip(values))
    with pytest.raises(ArtifactError, match="MatMul, Gemm or Conv"):
        lower(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), FP16)


def test_bfloat16_rounds_to_nearest_ties_to_even():
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xC0000000], np.uint32)
    tensor = numpy_helper.from_array(bits.view(np.float32), "x")
    low = np.frombuffer(low_tensor(tensor, BF16).raw_data, "<u2")
    assert low.tolist() == [0x3F80, 0x3F82, 0x3F81, 0xC000]


def rounded(values: np.ndarray) -> np.ndarray:
    """float32 numbers to the nearest of 8 bits of mantissa, ties to even."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    return np.ldexp(np.rint(mantissa * 256.0) / 256.0, exponent).astype(np.float32)


def test_every_product_reads_and_writes_rounded_values():
    rng = np.random.default_rng(2)
    values, *weights = (rng.normal(size=(rows, 16)).astype(np.float32) for rows in (4, 16, 16))
    model = network(
        "a = MatMul(x, first); y = MatMul(a, second)",
        dict(zip(("first", "second"), weights, strict=True)),
        inputs={"x": [4, 16]},
        outputs={"y": [4, 16]},
        opset=18,
        ir_version=9,
    )
    lower(model, BF16)
    before = model.SerializeToString()
    copy = emulated(model, BF16)
    assert model.SerializeToString() == before
    onnx.checker.check_model(copy, full_check=True)
    assert list(copy.graph.input) == list(model.graph.input)
    assert list(copy.graph.output) == list(model.graph.output)
    (got,) = open_native(copy.SerializeToString()).run(None, {"x": values})
    inner = rounded(rounded(values) @ rounded(weights[0]))
    wanted = rounded(inner @ rounded(weights[1]))
    # The order of a sum can decide to which side its last bit is rounded.
    assert np.mean(got == wanted) > 0.9
    np.testing.assert_allclose(got, wanted, rtol=2**-7)
    exact = values @ weights[0] @ weights[1]
    assert np.abs(got - exact).max() > 10 * np.abs(got - wanted).max()
