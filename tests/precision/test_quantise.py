"""The int8 pass and its calibration on a small convolutional network."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_text import network

from gain_core.errors import ArtifactError, ConfigError
from gain_export.graph import open_native
from gain_export.precision.quantise import find_layers, measure_ranges, quantise
from gain_runtime.sessions.onnx import CPU_PROVIDER, create_native


@pytest.fixture
def pixel_values() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(6, 3, 16, 16)).astype(np.float32)


def test_head_and_products_of_computed_values_are_left_out(roadsigns):
    model = onnx.load(roadsigns)
    layers = find_layers(model, head_weight="gain.head.weight")
    found = Counter(model.graph.node[layer.position].op_type for layer in layers)
    assert found == {"MatMul": 16, "Conv": 4}


@pytest.mark.parametrize("method", ["minmax", "percentile"])
def test_ranges_are_those_of_the_values(plain_conv, pixel_values, tmp_path, method):
    ranges = measure_ranges(
        plain_conv, ["pixel_values", "r1"], pixel_values, method=method, folder=tmp_path
    )
    copy = onnx.ModelProto.FromString(plain_conv.SerializeToString())
    copy.graph.output.append(onnx.ValueInfoProto(name="r1"))
    *_, values = ReferenceEvaluator(copy).run(None, {"pixel_values": pixel_values})
    for name, array in (("r1", values), ("pixel_values", pixel_values)):
        exact = float(np.abs(array).max())
        if method == "minmax":
            assert ranges[name] == pytest.approx(exact, rel=1e-5)
        else:
            wanted = np.percentile(np.abs(array), 99.99, method="inverted_cdf")
            assert ranges[name] == pytest.approx(wanted, abs=exact / 2048)


def test_one_outlier_moves_minmax_and_not_percentile(plain_conv, tmp_path):
    pixel_values = np.full((40, 3, 16, 16), 0.5, np.float32)
    pixel_values[7, 1, 3, 3] = 50.0
    for method, wanted in (("minmax", 50.0), ("percentile", pytest.approx(0.5, abs=50.0 / 2048))):
        settings = {"method": method, "folder": tmp_path}
        ranges = measure_ranges(plain_conv, ["pixel_values"], pixel_values, **settings)
        assert ranges == {"pixel_values": wanted}


def test_an_unknown_method_is_refused(plain_conv, pixel_values, tmp_path):
    with pytest.raises(ConfigError, match="minmax"):
        measure_ranges(plain_conv, ["r1"], pixel_values, method="entropy", folder=tmp_path)


def test_weights_are_int8_per_channel_and_biases_and_head_float32(plain_conv):
    before = {item.name: numpy_helper.to_array(item) for item in plain_conv.graph.initializer}
    layers = find_layers(plain_conv, head_weight="head.weight")
    assert [layer.value for layer in layers] == ["pixel_values", "r1"]
    quantise(plain_conv, layers, {"pixel_values": 3.0, "r1": 6.35})
    onnx.checker.check_model(plain_conv, full_check=True)
    after = {item.name: numpy_helper.to_array(item) for item in plain_conv.graph.initializer}
    assert "second" not in after
    assert after["second.int8"].dtype == np.int8
    restored = after["second.int8"] * after["second.scales"][:, None, None, None]
    step = np.abs(before["second"]).max(axis=(1, 2, 3), keepdims=True) / 127
    assert np.all(np.abs(restored - before["second"]) <= 0.501 * step)
    assert after["r1.zero"] == 0
    assert after["r1.zero"].dtype == np.int8
    assert after["r1.scale"] == pytest.approx(0.05)
    for name in ("head.weight", "head.bias", "first.bias"):
        assert np.array_equal(after[name], before[name])


def test_large_sums_do_not_overflow_on_any_processor(tmp_path):
    """Without VNNI, ONNX Runtime adds pairs of products in 16 bits unless it is told otherwise."""
    weight = np.full((64, 4), 0.5, np.float32)
    ends = {"inputs": {"x": ["N", 64]}, "outputs": {"y": ["N", 4]}}
    model = network("y = MatMul(x, w)", {"w": weight}, **ends, ir_version=9)
    quantise(model, find_layers(model, head_weight=None), {"x": 2.0})
    values, path = np.full((3, 64), 2.0, np.float32), tmp_path / "net.onnx"
    onnx.save(model, path)
    for session in (create_native(path, CPU_PROVIDER, None), open_native(str(path))):
        np.testing.assert_allclose(session.run(None, {"x": values})[0], values @ weight, rtol=1e-5)


def test_layers_that_read_one_value_share_its_rounding(plain_conv):
    third = helper.make_node("Conv", ["r1", "second"], ["c3"], pads=[1] * 4)
    plain_conv.graph.node.insert(3, third)
    plain_conv.graph.node[4].input[1] = "c3"
    layers = find_layers(plain_conv, head_weight="head.weight")
    quantise(plain_conv, layers, {"pixel_values": 3.0, "r1": 6.0})
    onnx.checker.check_model(plain_conv, full_check=True)
    kinds = Counter(node.op_type for node in plain_conv.graph.node)
    assert (kinds["QuantizeLinear"], kinds["DequantizeLinear"]) == (2, 4)


def test_a_graph_of_a_head_alone_is_refused(plain_conv):
    del plain_conv.graph.node[:-1]
    with pytest.raises(ArtifactError, match="before the head"):
        find_layers(plain_conv, head_weight="head.weight")
