"""Writing adaptive files: what is in them, and what is refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto, numpy_helper

from gain_core import PRESETS, Gain, GainConfig, prepare_prototypes
from gain_core.errors import ArtifactError, ConfigError
from gain_export.adaptive import adaptive_path, add_adaptation
from gain_runtime.adaptive_artifact import ASYMMETRY, LOG_LENGTHS, load_adaptive
from gain_runtime.artifact import load_artifact

RNG = np.random.default_rng(0)
# Multiples of 1/8 survive float16 unchanged.
WEIGHT = (RNG.integers(-16, 17, size=(6, 10)) / 8).astype(np.float32)
PIXELS_RNG = np.random.default_rng(1)
# Brighter than noise about zero, which moves all logits.
PIXELS = [
    PIXELS_RNG.normal(size=(size, 3, 8, 8)).astype(np.float32) + np.float32(0.5)
    for size in (3, 1, 4) * 8
]
# Noise has no asymmetry; with this pair that is what a mixture of classes looks like.
PAIR = (-0.5, 0.0)


@pytest.mark.parametrize("features_only", [False, True])
@pytest.mark.parametrize("update_every", [1, 4])
@pytest.mark.parametrize("preset", PRESETS)
def test_file_is_clean_old_enough_and_described(
    make_artifact, tmp_path, checked, preset, update_every, features_only
):
    path = tmp_path / "tiny.adaptive.onnx"
    report = add_adaptation(
        make_artifact(WEIGHT),
        path,
        config=PRESETS[preset],
        update_every=update_every,
        features_only=features_only,
    )
    model = checked(path)
    assert model.ir_version <= 10
    assert [(item.domain, item.version) for item in model.opset_import] == [("", 17)]
    assert report.size_bytes == path.stat().st_size
    outputs = {value.name: value.type.tensor_type for value in model.graph.output}
    assert outputs["probs"].shape.dim[0].dim_param == "B"
    assert outputs["probs"].shape.dim[1].dim_value == 6
    metadata = {item.key: item.value for item in model.metadata_props}
    described = json.loads(metadata["gain.adaptive.state"])
    inputs = {value.name: value.type.tensor_type for value in model.graph.input}
    first = {"features", "logits"} if features_only else {"pixel_values"}
    assert set(inputs) == first | {"update"} | {item["name"] for item in described}
    kinds = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
    for item in described:
        for tensor in (inputs[item["name"]], outputs[item["next"]]):
            assert [dim.dim_value for dim in tensor.shape.dim] == item["shape"]
            assert tensor.elem_type == kinds[item["dtype"]]
    assert report.state_bytes == sum(
        np.prod(item["shape"], dtype=int) * np.dtype(item["dtype"]).itemsize for item in described
    )
    assert GainConfig.from_dict(json.loads(metadata["gain.adaptive.config"])) == PRESETS[preset]
    assert metadata["gain.labels"] == json.dumps([f"class {k}" for k in range(6)])


@pytest.mark.parametrize("preset", PRESETS)
def test_weights_are_in_the_file_once(make_artifact, tmp_path, preset):
    artifact, path = make_artifact(WEIGHT), tmp_path / "tiny.adaptive.onnx"
    add_adaptation(artifact, path, config=PRESETS[preset])
    before = {tensor.name: tensor for tensor in onnx.load(artifact).graph.initializer}
    after = {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}
    assert all(after[name] == tensor for name, tensor in before.items())
    added = {name: numpy_helper.to_array(after[name]) for name in after.keys() - before.keys()}
    # A shift's constants: the lengths of the head's rows, and the rates of its five memories.
    sizes = [array.size for name, array in added.items() if name != LOG_LENGTHS]
    assert max(sizes) <= 5
    assert (LOG_LENGTHS in added) == (preset == "tracked")


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="float32"),
        pytest.param({"layout": "DK"}, id="transposed"),
        pytest.param({"data_type": TensorProto.FLOAT16}, id="float16-head"),
        pytest.param({"layout": "DK", "data_type": TensorProto.FLOAT16}, id="float16-transposed"),
        pytest.param({"hidden": "probs"}, id="network-value-named-as-an-output"),
        pytest.param({"hidden": "state.support"}, id="network-value-named-as-a-state"),
        pytest.param({"opset": 20}, id="opset-20"),
    ],
)
@pytest.mark.parametrize("preset", PRESETS)
def test_pixels_to_predictions_is_session_and_gain(
    make_artifact, make_fitness, tmp_path, open_file, preset, settings
):
    fitness = make_fitness(6, PAIR)
    artifact = load_artifact(make_artifact(WEIGHT, fitness=fitness, **settings))
    path = tmp_path / "tiny.adaptive.onnx"
    add_adaptation(artifact.path, path, config=PRESETS[preset])
    plain = open_file(artifact.path).session
    graph, strengths = open_file(path), []
    gain = Gain(artifact.head_weight, PRESETS[preset], asymmetry=PAIR)
    for pixel_values in PIXELS:
        features, logits = plain.run(["features", "logits"], {"pixel_values": pixel_values})
        expected = gain.step(features, logits)
        result = graph.step(pixel_values=pixel_values)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=2e-5)
        assert_array_equal(result["label"], np.argmax(expected.probs, axis=1))
        strengths.append(expected.strength)
    assert np.mean(np.concatenate(strengths) > 0.0) > 0.2
    assert np.max(np.concatenate(strengths)) > 0.5


def test_fixed_batch_size_is_kept(make_artifact, tmp_path, checked):
    path = tmp_path / "tiny.adaptive.onnx"
    add_adaptation(make_artifact(WEIGHT, batch=2), path, config=GainConfig(), update_every=3)
    outputs = {value.name: value.type.tensor_type for value in checked(path).graph.output}
    assert outputs["label"].shape.dim[0].dim_value == 2


def test_a_clash_with_the_artifacts_own_names_is_refused(make_artifact, tmp_path):
    artifact = make_artifact(WEIGHT)
    model = onnx.load(artifact)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["probs" if name == "logits" else name for name in names]
    model.graph.output[1].name = "probs"
    next(item for item in model.metadata_props if item.key == "gain.logits_name").value = "probs"
    artifact.write_bytes(model.SerializeToString())
    with pytest.raises(ArtifactError, match=r"probs.*rename"):
        add_adaptation(artifact, tmp_path / "out.onnx", config=GainConfig())
    assert not (tmp_path / "out.onnx").exists()


def test_an_adaptive_file_is_not_made_adaptive_again(make_artifact, tmp_path):
    path = tmp_path / "tiny.adaptive.onnx"
    add_adaptation(make_artifact(WEIGHT), path, config=GainConfig())
    with pytest.raises(ArtifactError, match="adaptive already"):
        add_adaptation(path, tmp_path / "twice.onnx", config=GainConfig())


@pytest.mark.parametrize("update_every", [0, -1, 1025])
def test_update_every_out_of_range_is_refused(make_artifact, tmp_path, update_every):
    with pytest.raises(ConfigError, match="update_every"):
        add_adaptation(
            make_artifact(WEIGHT),
            tmp_path / "out.onnx",
            config=GainConfig(),
            update_every=update_every,
        )


def test_a_missing_folder_leaves_nothing_behind(make_artifact, tmp_path):
    artifact = make_artifact(WEIGHT)
    with pytest.raises(ArtifactError, match="cannot be written"):
        add_adaptation(artifact, tmp_path / "none" / "out.onnx", config=GainConfig())
    assert sorted(tmp_path.iterdir()) == [artifact]


def test_a_plain_artifact_is_not_loaded_as_adaptive(make_artifact):
    with pytest.raises(ArtifactError, match="plain artifact"):
        load_adaptive(make_artifact(WEIGHT))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("schema", "2", "schema 7, got 2"),
        ("config", "{}}", "malformed"),
        ("config", '{"half_life": -1.0}', "half_life"),
        ("input", "sound", "malformed"),
        ("state", '[{"name": "state.support"}]', "malformed"),
        ("update_every", "often", "malformed"),
        (
            "state",
            '[{"name": "state.mood", "next": "next_state.mood", "shape": [], "dtype": "float32", '
            '"initial": "zeros"}]',
            "lacks next_state.mood, state.mood",
        ),
    ],
)
def test_damaged_metadata_is_named(make_artifact, tmp_path, key, value, message):
    path = tmp_path / "tiny.adaptive.onnx"
    add_adaptation(make_artifact(WEIGHT), path, config=GainConfig())
    model = onnx.load(path)
    entry = next(item for item in model.metadata_props if item.key == f"gain.adaptive.{key}")
    entry.value = value
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ArtifactError, match=message):
        load_adaptive(path)


CONSTANTS = {LOG_LENGTHS, ASYMMETRY}


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        pytest.param({}, CONSTANTS, id="both-parts"),
        pytest.param({"mixture_test": False}, CONSTANTS - {ASYMMETRY}, id="no-mixture-test"),
        pytest.param({"match_scale": False}, CONSTANTS - {LOG_LENGTHS}, id="no-match-scale"),
        pytest.param({"proposal": "gaussian", "guard": False}, set(), id="gaussians"),
    ],
)
def test_what_the_artifact_measured_is_in_the_file(
    make_artifact, make_fitness, tmp_path, settings, written
):
    config, path = GainConfig(**settings), tmp_path / "tiny.adaptive.onnx"
    fitness = make_fitness(6, (-0.125, 0.25))
    add_adaptation(make_artifact(WEIGHT, fitness=fitness), path, config=config)
    assert {tensor.name for tensor in onnx.load(path).graph.initializer} & CONSTANTS == written
    found = load_adaptive(path).prototypes
    expected = prepare_prototypes(WEIGHT, config, asymmetry=fitness.asymmetry)
    assert_allclose(found.log_lengths, expected.log_lengths, rtol=0, atol=1e-6)
    if ASYMMETRY in written:
        assert_array_equal(found.asymmetry, expected.asymmetry)
    assert found.measured


def test_what_was_not_measured_is_a_guess_in_the_file(make_artifact, make_fitness, tmp_path):
    path = tmp_path / "tiny.adaptive.onnx"
    unsure = replace(make_fitness(6, PAIR), single_asymmetry=None, mixed_asymmetry=None)
    for fitness in (None, unsure):
        add_adaptation(make_artifact(WEIGHT, fitness=fitness), path, config=GainConfig())
        found, expected = load_adaptive(path).prototypes, prepare_prototypes(WEIGHT, GainConfig())
        assert_array_equal(found.asymmetry, expected.asymmetry)
        assert not found.measured


def test_a_constant_of_another_length_is_refused(make_artifact, tmp_path):
    path = tmp_path / "tiny.adaptive.onnx"
    add_adaptation(make_artifact(WEIGHT), path, config=GainConfig())
    model = onnx.load(path)
    tensor = next(item for item in model.graph.initializer if item.name == ASYMMETRY)
    tensor.CopyFrom(numpy_helper.from_array(np.zeros(3, np.float32), ASYMMETRY))
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ArtifactError, match=r"gain/asymmetry: expected \(2,\), got \(3,\)"):
        load_adaptive(path)


@pytest.mark.parametrize("name", ["vit.gain.onnx", "vit.onnx", "vit"])
def test_default_name(tmp_path, name):
    assert adaptive_path(tmp_path / name) == tmp_path / "vit.adaptive.onnx"


def test_importing_the_package_imports_no_library(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("gain_export.adaptive")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    import gain_export.adaptive

    assert "add_adaptation" in gain_export.adaptive.__all__
