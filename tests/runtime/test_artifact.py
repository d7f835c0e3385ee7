"""Reading artifacts, and refusing everything that is not one."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.files import paths
from gain_runtime.files.artifact import load_artifact, write_metadata
from gain_runtime.files.manifest import HeadLocation


def refusal(path) -> str:
    """The message with which a file is refused: one line that names the file."""
    with pytest.raises(ArtifactError) as caught:
        load_artifact(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_artifact_carries_hash_manifest_and_head(tiny_model, tiny_artifact):
    artifact = load_artifact(str(tiny_artifact))
    assert artifact.path == tiny_artifact
    assert artifact.sha256 == hashlib.sha256(tiny_artifact.read_bytes()).hexdigest()
    assert artifact.manifest == tiny_model.manifest
    np.testing.assert_array_equal(artifact.head_weight, tiny_model.weight)
    np.testing.assert_array_equal(artifact.head_bias, tiny_model.bias)


@pytest.mark.parametrize("layout", ["KD", "DK"])
@pytest.mark.parametrize("trailing", [pytest.param(0, id="matrix"), pytest.param(2, id="1x1 conv")])
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(TensorProto.FLOAT, id="float32"),
        pytest.param(TensorProto.FLOAT16, id="float16"),
        pytest.param(TensorProto.BFLOAT16, id="bfloat16"),
        pytest.param(TensorProto.DOUBLE, id="float64"),
    ],
)
def test_head_is_float32_kd_however_it_is_stored(make_model, tmp_path, layout, trailing, dtype):
    tiny = make_model(layout=layout, trailing=trailing, dtype=dtype)
    artifact = load_artifact(tiny.write(tmp_path / "a.onnx"))
    for array, expected in ((artifact.head_weight, tiny.weight), (artifact.head_bias, tiny.bias)):
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, expected)


def test_head_without_bias_has_zeros(make_model, tmp_path):
    artifact = load_artifact(make_model(bias=False).write(tmp_path / "a.onnx"))
    np.testing.assert_array_equal(artifact.head_bias, np.zeros(5, dtype=np.float32))


@pytest.mark.parametrize("shape", [(1, 5), (5, 1, 1), (1, 5, 1)])
def test_bias_axes_of_length_one_are_dropped(tiny_model, tmp_path, shape):
    set_initializer(tiny_model.model, "head.bias", tiny_model.bias.reshape(shape))
    artifact = load_artifact(tiny_model.write(tmp_path / "a.onnx"))
    np.testing.assert_array_equal(artifact.head_bias, tiny_model.bias)


def test_missing_file_and_folder_are_refused(tmp_path):
    assert "no such file" in refusal(tmp_path / "absent.onnx")
    assert "folder" in refusal(tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"this is a text file and no model\n" * 9, id="text"),
        pytest.param(b"\x89PNG\r\n\x1a\n" + bytes(64), id="png"),
        pytest.param(bytes(4096), id="zeros"),
    ],
)
def test_other_files_are_refused(tmp_path, data):
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    assert "expected an ONNX model" in refusal(path)


def test_plain_onnx_is_sent_to_the_export(tiny_model, tmp_path):
    del tiny_model.model.metadata_props[:]
    message = refusal(tiny_model.write(tmp_path / "plain.onnx"))
    assert "gain-export" in message
    assert "gain.* metadata" in message


def test_a_file_of_the_schema_before_is_read(tiny_model, tmp_path):
    set_metadata(tiny_model.model, "gain.schema", "1")
    for key in ("activation", "labels_source", "notes"):
        entries = tiny_model.model.metadata_props
        position = next(i for i, entry in enumerate(entries) if entry.key == f"gain.{key}")
        del entries[position]
    artifact = load_artifact(tiny_model.write(tmp_path / "a.onnx"))
    manifest = artifact.manifest
    assert (manifest.activation, manifest.labels_source, manifest.notes) == ("none", "", ())
    np.testing.assert_array_equal(artifact.head_weight, tiny_model.weight)


def test_a_head_without_features_is_no_manifest(tiny_model):
    with pytest.raises(ConfigError, match="all of them, or none"):
        replace(tiny_model.manifest, features_name=None)


def test_other_schema_is_refused(tiny_model, tmp_path):
    set_metadata(tiny_model.model, "gain.schema", "99")
    message = refusal(tiny_model.write(tmp_path / "a.onnx"))
    assert "schema 1 or 2" in message
    assert "99" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("gain.labels", '["one"]', id="too few labels"),
        pytest.param("gain.num_classes", "many", id="not json"),
        pytest.param("gain.preprocess", '{"height_px": 16}', id="missing fields"),
        pytest.param("gain.head", '{"weigth": "w"}', id="unknown field"),
    ],
)
def test_malformed_metadata_is_refused(tiny_model, tmp_path, key, value):
    set_metadata(tiny_model.model, key, value)
    assert "malformed gain.* metadata" in refusal(tiny_model.write(tmp_path / "a.onnx"))


def head(**changes) -> dict:
    """The manifest's head, elsewhere."""
    known = {"weight": "head.weight", "layout": "KD", "bias": None}
    return {"head": HeadLocation(**(known | changes))}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        pytest.param({"input_name": "images"}, "input named images", id="input"),
        pytest.param({"features_name": "pre"}, "output named pre", id="features"),
        pytest.param({"logits_name": "scores"}, "output named scores", id="logits"),
        pytest.param({"feature_dim": 8}, "output features", id="feature_dim"),
        pytest.param({"num_classes": 2, "labels": ("a", "b")}, "output logits", id="num_classes"),
        pytest.param(head(weight="fc.w"), "initializer named fc.w", id="weight"),
        pytest.param(head(bias="fc.b"), "initializer named fc.b", id="bias"),
        pytest.param(head(layout="DK"), "head weight head.weight", id="layout"),
        pytest.param(head(bias="head.weight"), "head bias head.weight", id="bias shape"),
        pytest.param(head(weight="matrix"), "head array matrix", id="integers"),
    ],
)
def test_manifest_that_does_not_fit_the_graph_is_refused(tiny_model, tmp_path, changes, named):
    assert named in refusal(tiny_model.relabel(**changes).write(tmp_path / "a.onnx"))


def test_input_size_of_another_model_is_refused(tiny_model, tmp_path):
    preprocess = replace(tiny_model.manifest.preprocess, height_px=32)
    message = refusal(tiny_model.relabel(preprocess=preprocess).write(tmp_path / "a.onnx"))
    assert "(B, 3, 32, 16)" in message
    assert "(B, 3, 16, 16)" in message


def test_second_input_is_refused(tiny_model, tmp_path):
    extra = helper.make_tensor_value_info("scale", TensorProto.FLOAT, [1])
    tiny_model.model.graph.input.append(extra)
    assert "only input" in refusal(tiny_model.write(tmp_path / "a.onnx"))


def test_half_precision_input_is_refused(tiny_model, tmp_path):
    value = tiny_model.model.graph.input[0]
    value.type.tensor_type.elem_type = TensorProto.FLOAT16
    assert "expected float32, got FLOAT16" in refusal(tiny_model.write(tmp_path / "a.onnx"))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_head_with_non_finite_values_is_refused(tiny_model, tmp_path, value):
    weight = tiny_model.weight.copy()
    weight[2, 3] = value
    set_initializer(tiny_model.model, "head.weight", weight)
    assert "finite" in refusal(tiny_model.write(tmp_path / "a.onnx"))


def test_head_beyond_float32_is_refused(make_model, tmp_path):
    tiny = make_model(dtype=TensorProto.DOUBLE)
    set_initializer(tiny.model, "head.weight", tiny.weight.astype(np.float64) * 1e300)
    assert "finite" in refusal(tiny.write(tmp_path / "a.onnx"))


def test_head_whose_data_do_not_fill_its_shape_is_refused(tiny_model, tmp_path):
    tensor = initializer(tiny_model.model, "head.weight")
    tensor.CopyFrom(numpy_helper.from_array(tiny_model.weight, "head.weight"))
    tensor.raw_data = tensor.raw_data[:-4]
    assert "head.weight" in refusal(tiny_model.write(tmp_path / "a.onnx"))


@pytest.mark.parametrize("place", ["initializer", "constant", "subgraph"])
def test_external_data_are_refused_wherever_they_hide(tiny_model, tmp_path, place):
    tensor = numpy_helper.from_array(np.ones(3, dtype=np.float32), "beside")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")
    graph = tiny_model.model.graph
    if place == "initializer":
        graph.initializer.append(tensor)
    else:
        constant = helper.make_node("Constant", [], ["c"])
        constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, t=tensor)
        branch = helper.make_graph([constant], "branch", [], [])
        nodes = {
            "constant": constant,
            "subgraph": helper.make_node(
                "If", ["condition"], ["d"], then_branch=branch, else_branch=branch
            ),
        }
        graph.node.append(nodes[place])
    message = refusal(tiny_model.write(tmp_path / "a.onnx"))
    assert "external data for beside" in message


def test_write_metadata_replaces_own_keys_only(tiny_model):
    model, manifest = tiny_model.model, tiny_model.manifest
    model.metadata_props.add(key="author", value="somebody")
    model.metadata_props.add(key="gain.obsolete", value="1")
    write_metadata(model, replace(manifest, source="renamed"))
    entries = {item.key: item.value for item in model.metadata_props}
    assert len(entries) == len(model.metadata_props)
    assert entries == {"author": "somebody", **replace(manifest, source="renamed").to_metadata()}


def test_models_dir_is_that_of_the_checkout_or_of_the_installed_package(monkeypatch, tmp_path):
    assert paths.find_models_dir().is_dir()
    (tmp_path / "models").mkdir()
    module = tmp_path / "runtime" / "gain_runtime" / "files" / "paths.py"
    monkeypatch.setattr(paths, "__file__", str(module))
    # A stranger's: no pyproject.toml beside it.
    with pytest.raises(ArtifactError, match="_models"):
        paths.find_models_dir()
    (tmp_path / "pyproject.toml").touch()
    assert paths.find_models_dir() == tmp_path / "models"
    packaged = module.parents[1] / "_models"
    packaged.mkdir(parents=True)
    assert paths.find_models_dir() == packaged


def initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def set_initializer(model: onnx.ModelProto, name: str, array: np.ndarray) -> None:
    initializer(model, name).CopyFrom(numpy_helper.from_array(array, name))


def set_metadata(model: onnx.ModelProto, key: str, value: str) -> None:
    next(item for item in model.metadata_props if item.key == key).value = value
