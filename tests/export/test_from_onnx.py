"""Surgery on ONNX classifiers, end to end on small graphs: no torch is involved."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from gain_core.errors import ArtifactError, ConfigError, EngineError, ParityError
from gain_export import PreprocessOverrides, export_onnx
from gain_export.verify import BATCH_SIZES
from gain_runtime.artifact import load_artifact
from gain_runtime.onnx_session import OnnxSession

node = helper.make_node
IMAGES = np.random.default_rng(3).normal(size=(7, 3, 8, 8)).astype(np.float32)


def run_plain(path, values):
    """The original's own output."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: values})[0]


def softmax(logits):
    exps = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exps / exps.sum(axis=1, keepdims=True)


def files(folder):
    return sorted(path.name for path in folder.rglob("*"))


def test_a_classifier_becomes_an_artifact_that_gives_its_logits(classifier, saved, spec):
    path = saved(classifier.plain())
    report = export_onnx(path, preprocess=spec)
    assert report.path == path.with_name("net.gain.onnx")
    artifact = load_artifact(report.path)
    np.testing.assert_array_equal(artifact.head_weight, classifier.weight)
    np.testing.assert_array_equal(artifact.head_bias, classifier.bias)
    with OnnxSession(artifact) as session:
        features, logits = session.infer(IMAGES)
    np.testing.assert_allclose(logits, run_plain(path, IMAGES), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        features @ classifier.weight.T + classifier.bias, logits, rtol=1e-5, atol=1e-6
    )


def test_the_report_and_the_manifest_hold_what_was_measured(classifier, saved, spec):
    path = saved(classifier.plain())
    report = export_onnx(path, preprocess=spec)
    data = report.path.read_bytes()
    manifest = load_artifact(report.path).manifest
    assert report.sha256 == hashlib.sha256(data).hexdigest()
    assert report.size_bytes == len(data)
    assert manifest.weights_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert manifest.source == "net.onnx"
    assert manifest.verification == report.verification
    assert manifest.verification["images"] == sum(BATCH_SIZES)
    assert manifest.verification["top1_agreement"] == 1.0
    assert manifest.verification["logits_max_abs_diff"] < 1e-5
    assert (manifest.num_classes, manifest.feature_dim) == (5, 6)
    assert manifest.preprocess.height_px == 8
    assert set(report.seconds) == {"read", "run original", "surgery", "verify", "write"}
    assert json.loads(json.dumps(report.to_dict()))["path"] == str(report.path)


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_a_trailing_softmax_is_dropped(classifier, saved, spec, operator):
    nodes = [
        node("Gemm", ["hidden", "w", "b"], ["logits"], transB=1),
        node(operator, ["logits"], ["features"], axis=-1),
    ]
    arrays = {"w": classifier.weight, "b": classifier.bias}
    path = saved(classifier.model(nodes, arrays, outputs=("features",)))
    report = export_onnx(path, preprocess=spec)
    model = onnx.load(report.path)
    assert operator not in {item.op_type for item in model.graph.node}
    with OnnxSession(report.path) as session:
        logits = session.infer(IMAGES).logits
    probs = softmax(logits)
    expected = run_plain(path, IMAGES)
    np.testing.assert_allclose(
        probs if operator == "Softmax" else np.log(probs), expected, rtol=1e-5, atol=1e-6
    )
    assert "output_max_abs_diff" in report.verification


def test_a_convolution_on_one_pixel_is_a_head(classifier, saved, spec):
    nodes = [
        node("Reshape", ["hidden", "map"], ["pixel"]),
        node("Conv", ["pixel", "w", "b"], ["scores"]),
        node("Squeeze", ["scores", "axes"], ["out"]),
    ]
    arrays = {
        "map": np.array([-1, 6, 1, 1]),
        "w": classifier.weight.reshape(5, 6, 1, 1),
        "b": classifier.bias,
        "axes": np.array([2, 3]),
    }
    path = saved(classifier.model(nodes, arrays))
    report = export_onnx(path, preprocess=spec)
    with OnnxSession(report.path) as session:
        features, logits = session.infer(IMAGES)
    assert features.shape == (7, 6)
    np.testing.assert_allclose(logits, run_plain(path, IMAGES), rtol=1e-5, atol=1e-6)


def test_a_convolution_on_a_map_is_refused(classifier, saved, spec):
    nodes = [
        node("Reshape", ["hidden", "map"], ["pixels"]),
        node("Conv", ["pixels", "w"], ["scores"]),
        node("Flatten", ["scores"], ["out"]),
    ]
    arrays = {"map": np.array([-1, 3, 2, 1]), "w": np.ones((5, 3, 1, 1), np.float32)}
    with pytest.raises(ArtifactError, match="acts on a map or sequence"):
        export_onnx(saved(classifier.model(nodes, arrays)), preprocess=spec)


def test_the_artifact_has_the_names_shapes_and_versions_devices_read(classifier, saved, spec):
    model = classifier.plain()
    model.ir_version = 12
    report = export_onnx(saved(model), preprocess=spec)
    model = onnx.load(report.path)
    assert model.ir_version == 10
    values = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert values == {
        "pixel_values": ["batch", 3, 8, 8],
        "features": ["batch", 6],
        "logits": ["batch", 5],
    }


def test_an_old_opset_is_raised(classifier, saved, spec):
    report = export_onnx(saved(classifier.plain(opset=11)), preprocess=spec)
    assert report.opset == 17


def test_a_new_opset_is_refused_with_the_remedy(classifier, saved, spec):
    with pytest.raises(ArtifactError, match=r"got 21.*opset_version=20"):
        export_onnx(saved(classifier.plain(opset=21)), preprocess=spec)


def test_initializers_listed_as_inputs_are_no_inputs(classifier, saved, spec):
    model = classifier.plain()
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    report = export_onnx(saved(model), preprocess=spec)
    assert report.ir_version == 8
    assert [value.name for value in onnx.load(report.path).graph.input] == ["pixel_values"]


def test_a_batch_axis_that_is_only_declared_fixed_is_freed(classifier, saved, spec):
    nodes = [
        node("Gemm", ["hidden", "w", "b"], ["flat_scores"], transB=1),
        node("Reshape", ["flat_scores", "shape"], ["out"]),
    ]
    arrays = {"w": classifier.weight, "b": classifier.bias, "shape": np.array([4, 5])}
    path = saved(classifier.model(nodes, arrays, batch=4))
    report = export_onnx(path, preprocess=spec)
    with OnnxSession(report.path) as session:
        logits = session.infer(IMAGES).logits
    np.testing.assert_allclose(logits[:4], run_plain(path, IMAGES[:4]), rtol=1e-5, atol=1e-6)


def test_a_flatten_that_spells_out_the_batch_is_freed(classifier, saved, spec):
    nodes = [
        node("Reshape", ["hidden", "shape"], ["again"]),
        node("Gemm", ["again", "w", "b"], ["out"], transB=1),
    ]
    arrays = {"w": classifier.weight, "b": classifier.bias, "shape": np.array([1, 6])}
    report = export_onnx(saved(classifier.model(nodes, arrays, batch=1)), preprocess=spec)
    with OnnxSession(report.path) as session:
        assert session.infer(IMAGES).logits.shape == (7, 5)


def test_a_graph_that_computes_with_its_batch_size_is_refused(classifier, saved, spec, tmp_path):
    nodes = [
        node("Concat", ["hidden", "constant"], ["wide"], axis=1),
        node("Gemm", ["wide", "w", "b"], ["out"], transB=1),
    ]
    arrays = {
        "constant": np.ones((2, 1), np.float32),
        "w": np.ones((5, 7), np.float32),
        "b": classifier.bias,
    }
    path = saved(classifier.model(nodes, arrays, batch=2))
    with pytest.raises(ArtifactError, match=r"fixed to batches of 2.*dynamic batch axis") as caught:
        export_onnx(path, preprocess=spec)
    assert ".gain-export-" not in str(caught.value)
    assert files(tmp_path) == ["net.onnx"]


def test_a_network_that_mixes_images_of_a_batch_fails_verification(
    classifier, saved, spec, tmp_path
):
    nodes = [
        node("ReduceMean", ["hidden", "axes"], ["centre"], keepdims=1),
        node("Sub", ["hidden", "centre"], ["centred"]),
        node("Gemm", ["centred", "w", "b"], ["out"], transB=1),
    ]
    arrays = {"w": classifier.weight, "b": classifier.bias, "axes": np.array([0])}
    path = saved(classifier.model(nodes, arrays))
    with pytest.raises(ParityError, match="features: largest difference"):
        export_onnx(path, preprocess=spec)
    assert files(tmp_path) == ["net.onnx"]


def test_nan_fails_verification(classifier, saved, spec, tmp_path):
    nodes = [
        node("Log", ["hidden"], ["log"]),
        node("Gemm", ["log", "w", "b"], ["out"], transB=1),
    ]
    path = saved(classifier.model(nodes, {"w": classifier.weight, "b": classifier.bias}))
    with pytest.raises(ParityError, match="NaN or infinity in the artifact"):
        export_onnx(path, preprocess=spec)
    assert files(tmp_path) == ["net.onnx"]


def external(model, tmp_path):
    onnx.save_model(
        model,
        tmp_path / "net.onnx",
        save_as_external_data=True,
        location="net.onnx.data",
        size_threshold=0,
    )
    return tmp_path / "net.onnx"


def test_external_weights_are_brought_into_the_file(classifier, spec, tmp_path):
    path = external(classifier.plain(), tmp_path)
    report = export_onnx(path, preprocess=spec)
    both = path.read_bytes() + (tmp_path / "net.onnx.data").read_bytes()
    assert report.weights_sha256 == hashlib.sha256(both).hexdigest()
    (tmp_path / "net.onnx.data").unlink()
    with OnnxSession(report.path) as session:
        assert np.isfinite(session.infer(IMAGES).logits).all()


def test_missing_external_weights_are_named(classifier, spec, tmp_path):
    path = external(classifier.plain(), tmp_path)
    (tmp_path / "net.onnx.data").unlink()
    with pytest.raises(ArtifactError, match=r"weights lie in net\.onnx\.data"):
        export_onnx(path, preprocess=spec)


def channels_last(model):
    dims = model.graph.input[0].type.tensor_type.shape.dim
    for dim, size in zip(dims[1:], (8, 8, 3), strict=True):
        dim.dim_value = size


def one_channel(model):
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1


def bytes_in(model):
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8


def second_input(model):
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, [1]))


def flat_input(model):
    del model.graph.input[0].type.tensor_type.shape.dim[2:]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(channels_last, r"channels last \(N, 8, 8, 3\)", id="channels-last"),
        pytest.param(one_channel, "3 colour channels", id="grey"),
        pytest.param(bytes_in, "got UINT8", id="uint8"),
        pytest.param(second_input, r"one input.*got 2 \(input, mask\)", id="two-inputs"),
        pytest.param(flat_input, r"images \(B, 3, H, W\), got \(N, 3\)", id="no-image"),
    ],
)
def test_other_inputs_are_refused_with_the_reason(classifier, saved, spec, change, reason):
    model = classifier.plain()
    change(model)
    with pytest.raises(ArtifactError, match=reason):
        export_onnx(saved(model), preprocess=spec)


def test_missing_preprocessing_is_asked_for_by_flag(classifier, saved):
    with pytest.raises(ConfigError) as caught:
        export_onnx(saved(classifier.plain()), preprocess=PreprocessOverrides(mean=(0.0,) * 3))
    message = str(caught.value)
    assert all(flag in message for flag in ("--std", "--crop-pct", "--interpolation", "--like"))
    assert "--mean" not in message
    assert "--img-size" not in message


def test_a_symbolic_image_size_is_asked_for_and_baked(classifier, saved, spec):
    model = classifier.plain()
    for dim in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.ClearField("dim_value")
        dim.dim_param = "side"
    path = saved(model)
    with pytest.raises(ConfigError, match="--img-size"):
        export_onnx(path, preprocess=spec)
    export_onnx(path, preprocess=dataclasses.replace(spec, img_size=(8, 8)))
    with pytest.raises(EngineError, match="cannot run it"):
        export_onnx(path, preprocess=dataclasses.replace(spec, img_size=(9, 9)), force=True)


def test_an_image_size_that_contradicts_the_graph_is_refused(classifier, saved, spec):
    with pytest.raises(ConfigError, match=r"expected 8 8 .* got 9 9"):
        export_onnx(
            saved(classifier.plain()), preprocess=dataclasses.replace(spec, img_size=(9, 9))
        )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "without a graph", id="empty"),
        pytest.param(b"\xff\xd8\xff\xe0 a photograph", "none or is truncated", id="other-bytes"),
    ],
)
def test_a_file_that_is_no_model_is_refused(tmp_path, spec, data, reason):
    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=reason):
        export_onnx(path, preprocess=spec)


def test_a_missing_file_is_one_line(tmp_path, spec):
    with pytest.raises(ArtifactError, match="No such file"):
        export_onnx(tmp_path / "net.onnx", preprocess=spec)


def test_an_artifact_is_not_exported_again(classifier, saved, spec):
    report = export_onnx(saved(classifier.plain()), preprocess=spec)
    with pytest.raises(ArtifactError, match="got an artifact"):
        export_onnx(report.path, preprocess=spec)


def test_an_existing_output_needs_force(classifier, saved, spec):
    path = saved(classifier.plain())
    first = export_onnx(path, preprocess=spec)
    before = first.path.read_bytes()
    with pytest.raises(ArtifactError, match="--force"):
        export_onnx(path, preprocess=spec)
    assert first.path.read_bytes() == before
    export_onnx(path, preprocess=dataclasses.replace(spec, channel_order="BGR"), force=True)
    assert load_artifact(first.path).manifest.preprocess.channel_order == "BGR"


def test_the_output_folder_must_exist(classifier, saved, spec, tmp_path):
    with pytest.raises(ArtifactError, match="expected its folder to exist"):
        export_onnx(saved(classifier.plain()), preprocess=spec, output=tmp_path / "no" / "a.onnx")


def test_the_original_is_never_overwritten(classifier, saved, spec):
    path = saved(classifier.plain())
    with pytest.raises(ConfigError, match="is the original itself"):
        export_onnx(path, preprocess=spec, output=path, force=True)


def test_a_chosen_inner_layer_drops_the_rest_with_a_warning(classifier, saved, spec, caplog):
    nodes = [
        node("Gemm", ["hidden", "w", "b"], ["scores"], transB=1, name="head"),
        node("Sigmoid", ["scores"], ["out"]),
    ]
    path = saved(classifier.model(nodes, {"w": classifier.weight, "b": classifier.bias}))
    with caplog.at_level(logging.WARNING):
        report = export_onnx(path, preprocess=spec, head="head")
    assert "everything after Gemm 'head' is dropped" in caplog.text
    with OnnxSession(report.path) as session:
        logits = session.infer(IMAGES).logits
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), run_plain(path, IMAGES), rtol=1e-4)


def test_local_functions_are_inlined(classifier, saved, spec):
    opsets = [helper.make_opsetid("", 18)]
    function = helper.make_function(
        "local",
        "Head",
        ["x", "w", "b"],
        ["y"],
        [node("Gemm", ["x", "w", "b"], ["y"], transB=1)],
        opsets,
    )
    model = classifier.model(
        [node("Head", ["hidden", "w", "b"], ["out"], domain="local")],
        {"w": classifier.weight, "b": classifier.bias},
    )
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    report = export_onnx(saved(model), preprocess=spec)
    np.testing.assert_array_equal(load_artifact(report.path).head_weight, classifier.weight)


def test_a_value_called_logits_elsewhere_does_not_collide(classifier, saved, spec):
    nodes = [
        node("Relu", ["hidden"], ["logits"]),
        node("Neg", ["logits"], ["features"]),
        node("Gemm", ["features", "w", "b"], ["pixel_values"], transB=1),
    ]
    arrays = {"w": classifier.weight, "b": classifier.bias}
    path = saved(classifier.model(nodes, arrays, outputs=("pixel_values",)))
    report = export_onnx(path, preprocess=spec)
    with OnnxSession(report.path) as session:
        logits = session.infer(IMAGES).logits
    np.testing.assert_allclose(logits, run_plain(path, IMAGES), rtol=1e-5, atol=1e-6)


def test_a_head_that_reads_and_holds_reserved_names_does_not_collide(classifier, saved, spec):
    nodes = [
        node("Neg", ["hidden"], ["pixel_values"]),
        node("Gemm", ["pixel_values", "gain.head.bias", "gain.head.weight"], ["out"], transB=1),
    ]
    arrays = {"gain.head.bias": classifier.weight, "gain.head.weight": classifier.bias}
    path = saved(classifier.model(nodes, arrays))
    report = export_onnx(path, preprocess=spec)
    with OnnxSession(report.path) as session:
        logits = session.infer(IMAGES).logits
    np.testing.assert_allclose(logits, run_plain(path, IMAGES), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(load_artifact(report.path).head_weight, classifier.weight)


def test_photographs_can_be_verified_on(classifier, saved, spec, photographs):
    report = export_onnx(saved(classifier.plain()), preprocess=spec, verify_images=photographs)
    assert report.verification["images"] == 64
    assert report.verification["image_source"] == "imagenet_samples"


def test_unused_arrays_are_dropped_and_used_ones_kept(classifier, saved, spec):
    nodes = [
        node("Mul", ["hidden", "half"], ["scaled"]),
        node("Gemm", ["scaled", "w", "b"], ["out"], transB=1),
        node("Identity", ["unused"], ["nowhere"]),
    ]
    arrays = {
        "w": classifier.weight,
        "b": classifier.bias,
        "half": np.float32(0.5),
        "unused": np.ones(3, np.float32),
    }
    report = export_onnx(saved(classifier.model(nodes, arrays)), preprocess=spec)
    tensors = {item.name: item for item in onnx.load(report.path).graph.initializer}
    assert "unused" not in tensors
    assert numpy_helper.to_array(tensors["half"]) == np.float32(0.5)
