"""Lowering opset 18 to 17, operator by operator, checked by running both."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from gain_core.errors import ArtifactError
from gain_export import onnx_file
from gain_export.onnx_file import lower_opset, raise_opset

node = helper.make_node
VALUES = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)


def model_of(nodes, arrays, outputs=("y",), *, opset=18):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6, 4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(model):
    # Loading checks every node against its operator set.
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": VALUES})


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        pytest.param([node("ReduceMean", ["x", "axes"], ["y"], keepdims=0)], ("y",), id="mean"),
        pytest.param([node("ReduceMax", ["x"], ["y"])], ("y",), id="max-of-all"),
        pytest.param([node("ReduceSum", ["x", "axes"], ["y"])], ("y",), id="sum"),
        pytest.param([node("ReduceL2", ["x", "axes"], ["y"])], ("y",), id="norm"),
        pytest.param(
            [node("Split", ["x"], ["a", "b", "c"], axis=1, num_outputs=3)],
            ("a", "b", "c"),
            id="split",
        ),
        pytest.param([node("Pad", ["x", "pads"], ["y"])], ("y",), id="pad"),
    ],
)
def test_the_lowered_graph_computes_the_same(nodes, outputs):
    arrays = {"axes": np.array([1]), "pads": np.array([0, 1, 0, 0, 0, 2])}
    model = model_of(nodes, arrays, outputs)
    before = run(model)
    model = lower_opset(model, 17, path="net.onnx")
    assert model.opset_import[0].version == 17
    for old, new in zip(before, run(model), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    "operator",
    [
        pytest.param(node("BitwiseNot", ["x"], ["y"]), id="bitwise"),
        pytest.param(node("Pad", ["x", "pads", "", "axes"], ["y"]), id="pad-with-axes"),
        pytest.param(node("ReduceMean", ["x", "computed"], ["y"]), id="computed-axes"),
    ],
)
def test_what_opset_17_lacks_is_named(operator):
    arrays = {"pads": np.array([1, 1]), "axes": np.array([1])}
    with pytest.raises(ArtifactError, match=f"{operator.op_type}.*--set opset=18"):
        lower_opset(model_of([operator], arrays), 17, path="net.onnx")


def test_an_old_graph_is_raised():
    model = model_of([node("Squeeze", ["x"], ["y"], axes=[1])], {}, opset=11)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    converted = raise_opset(model, path="net.onnx")
    assert converted.opset_import[0].version == 17
    assert len(converted.graph.node[-1].input) == 2


def test_a_graph_too_old_to_convert_is_refused():
    model = model_of(
        [node("Upsample", ["x"], ["y"], height_scale=2.0, width_scale=2.0)], {}, opset=1
    )
    with pytest.raises(ArtifactError, match="cannot be converted"):
        raise_opset(model, path="net.onnx")


def test_a_graph_in_between_that_means_the_same_is_only_renumbered(monkeypatch):
    """The converter fails on what it does not know, but a Relu is the same since opset 14."""

    def failing(*args):
        raise onnx_file.version_converter.ConvertError("no adapter")

    monkeypatch.setattr(onnx_file.version_converter, "convert_version", failing)
    model = model_of([node("Relu", ["x"], ["y"])], {}, opset=14)
    assert raise_opset(model, path="net.onnx").opset_import[0].version == 17
    with pytest.raises(ArtifactError, match="no adapter"):
        raise_opset(model_of([node("Squeeze", ["x"], ["y"])], {}, opset=12), path="net.onnx")


@pytest.mark.parametrize("version", [21, 22, 23])
def test_a_newer_opset_is_written_as_one_that_devices_read(version):
    nodes = [
        node("Reshape", ["x", "flat"], ["r"]),
        node("Transpose", ["r"], ["t"], perm=[1, 0]),
        node("Cast", ["t"], ["y"], to=TensorProto.FLOAT),
    ]
    model = model_of(nodes, {"flat": np.array([2, 24])}, opset=version)
    before = run(model)
    settled, changes = onnx_file.settle_versions(model, path="net.onnx")
    assert settled.opset_import[0].version == 20
    assert changes == (f"opset {version} to 20",)
    for old, new in zip(before, run(settled), strict=True):
        np.testing.assert_array_equal(new, old)


def test_a_new_operator_that_older_ones_define_is_spelt_out():
    model = model_of(
        [node("RMSNormalization", ["x", "scale"], ["y"])],
        {"scale": np.linspace(0.5, 2.0, 4).astype(np.float32)},
        opset=23,
    )
    before = run(model)
    settled = lower_opset(model, 20, path="net.onnx")
    assert settled.opset_import[0].version == 20
    assert "RMSNormalization" not in {item.op_type for item in settled.graph.node}
    np.testing.assert_allclose(run(settled)[0], before[0], rtol=1e-5, atol=1e-6)
