"""Lowering opset 18 to 17, operator by operator, checked by running both."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_text import nodes

from gain_core.errors import ArtifactError
from gain_export import onnx_file
from gain_export.graph import open_native
from gain_export.onnx_file import lower_opset, raise_opset

VALUES = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)


def model_of(text, arrays, outputs=("y",), *, opset=18):
    graph = helper.make_graph(
        nodes(text),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6, 4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(model):
    # Loading checks every node against its operator set.
    return open_native(model.SerializeToString()).run(None, {"x": VALUES})


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        pytest.param("y = ReduceMean<keepdims=0>(x, axes)", "y", id="mean"),
        pytest.param("y = ReduceMax(x)", "y", id="max-of-all"),
        pytest.param("y = ReduceSum(x, axes)", "y", id="sum"),
        pytest.param("y = ReduceL2(x, axes)", "y", id="norm"),
        pytest.param("a, b, c = Split<axis=1, num_outputs=3>(x)", "abc", id="split"),
        pytest.param("y = Pad(x, pads)", "y", id="pad"),
    ],
)
def test_the_lowered_graph_computes_the_same(text, outputs):
    arrays = {"axes": np.array([1]), "pads": np.array([0, 1, 0, 0, 0, 2])}
    model = model_of(text, arrays, outputs)
    before = run(model)
    model = lower_opset(model, 17, path="net.onnx")
    assert model.opset_import[0].version == 17
    for old, new in zip(before, run(model), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    "text", ["y = BitwiseNot(x)", "y = Pad(x, pads, , axes)", "y = ReduceMean(x, computed)"]
)
def test_what_opset_17_lacks_is_named(text):
    model = model_of(text, {"pads": np.array([1, 1]), "axes": np.array([1])})
    operator = model.graph.node[0].op_type
    with pytest.raises(ArtifactError, match=f"{operator}.*--set opset=18"):
        lower_opset(model, 17, path="net.onnx")


def test_an_old_graph_is_raised_or_refused():
    model = model_of("y = Squeeze<axes=[1]>(x)", {}, opset=11)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    converted = raise_opset(model, path="net.onnx")
    assert converted.opset_import[0].version == 17
    assert len(converted.graph.node[-1].input) == 2
    model = model_of("y = Upsample<height_scale=2.0, width_scale=2.0>(x)", {}, opset=1)
    with pytest.raises(ArtifactError, match="cannot be converted"):
        raise_opset(model, path="net.onnx")


def test_a_graph_in_between_that_means_the_same_is_only_renumbered(monkeypatch):
    """The converter fails on what it does not know, but a Relu is the same since opset 14."""

    def failing(*args):
        raise onnx_file.version_converter.ConvertError("no adapter")

    monkeypatch.setattr(onnx_file.version_converter, "convert_version", failing)
    model = model_of("y = Relu(x)", {}, opset=14)
    assert raise_opset(model, path="net.onnx").opset_import[0].version == 17
    with pytest.raises(ArtifactError, match="no adapter"):
        raise_opset(model_of("y = Squeeze(x)", {}, opset=12), path="net.onnx")


@pytest.mark.parametrize("version", [21, 22, 23])
def test_a_newer_opset_is_written_as_one_that_devices_read(version):
    text = "r = Reshape(x, flat); t = Transpose<perm=[1, 0]>(r); y = Cast<to=1>(t)"
    model = model_of(text, {"flat": np.array([2, 24])}, opset=version)
    before = run(model)
    settled, changes = onnx_file.settle_versions(model, path="net.onnx")
    assert settled.opset_import[0].version == 20
    assert changes == (f"opset {version} to 20",)
    for old, new in zip(before, run(settled), strict=True):
        np.testing.assert_array_equal(new, old)


def test_a_new_operator_that_older_ones_define_is_spelt_out():
    model = model_of(
        "y = RMSNormalization(x, scale)",
        {"scale": np.linspace(0.5, 2.0, 4).astype(np.float32)},
        opset=23,
    )
    before = run(model)
    settled = lower_opset(model, 20, path="net.onnx")
    assert settled.opset_import[0].version == 20
    assert "RMSNormalization" not in {item.op_type for item in settled.graph.node}
    np.testing.assert_allclose(run(settled)[0], before[0], rtol=1e-5, atol=1e-6)
