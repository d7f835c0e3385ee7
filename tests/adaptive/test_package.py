"""Writing adaptive files: what is in them, and what is refused."""

import json
import re
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto, numpy_helper

from gain_core import PRESETS, Gain, config_from_dict
from gain_core.errors import ArtifactError, ConfigError
from gain_export.adaptive import adaptive_path, add_adaptation
from gain_runtime.files.adaptive import (
    ADAPTIVE_PREFIX,
    ADAPTIVE_SCHEMA_VERSION,
    load_adaptive,
)
from gain_runtime.files.artifact import load_artifact
from gain_runtime.files.manifest import Preprocess

RNG = np.random.default_rng(0)
# Multiples of 1/8 survive float16 unchanged.
WEIGHT = (RNG.integers(-16, 17, size=(6, 10)) / 8).astype(np.float32)
PIXELS_RNG = np.random.default_rng(1)
# Brighter than noise about zero, which moves all logits.
PIXELS = [
    PIXELS_RNG.normal(size=(size, 3, 8, 8)).astype(np.float32) + np.float32(0.5)
    for size in (12, 1, 16) * 8
]
# Noise has no skewness; with this pair that is what a mixture of classes looks like.
PAIR = (-0.5, 0.0)
# Most nodes of the step itself, of the branch that learns, and of the one that answers anew.
MOST_NODES = {"shift": (600, 300), "paper": (560, 80), "paper-l2": (572, 80)}
# Elementwise, reductions, shapes and two products: what small runtimes have as well.
PLAIN = """
    Add Sub Mul Div Max Min Clip Neg Abs Exp Log Sqrt
    Greater GreaterOrEqual Less LessOrEqual Equal And Or Not Where IsNaN IsInf Cast
    ReduceSum ReduceMean ReduceMax ReduceMin ArgMax Softmax LogSoftmax MatMul Gemm If
    Shape Concat Expand Gather GatherElements Slice Unsqueeze Reshape Transpose Identity
    """
OPERATORS = set(PLAIN.split())


# Every preset in every opset, with and without waits and a network in turn.
FILES = [
    pytest.param(
        preset,
        opset,
        waits,
        features_only,
        marks=()
        if (row + opset + index) % 2 == 0 and (row + opset // 2 + features_only) % 2 == 0
        else pytest.mark.slow,
    )
    for row, preset in enumerate(PRESETS)
    for opset in (17, 18, 19, 20)
    for index, waits in enumerate([(1, 1), (4, 9)])
    for features_only in (False, True)
]


@pytest.mark.parametrize(("preset", "opset", "waits", "features_only"), FILES)
def test_file_is_clean_old_enough_and_described(
    make_artifact, tmp_path, checked, preset, opset, waits, features_only
):
    path, (update_every, warmup_frames) = tmp_path / "tiny.adaptive.onnx", waits
    report = add_adaptation(
        make_artifact(WEIGHT, opset=opset),
        path,
        config=PRESETS[preset],
        update_every=update_every,
        warmup_frames=warmup_frames,
        features_only=features_only,
    )
    model = checked(path)
    assert model.ir_version <= 10
    assert [(item.domain, item.version) for item in model.opset_import] == [("", opset)]
    assert report.size_bytes == path.stat().st_size
    outputs = {value.name: value.type.tensor_type for value in model.graph.output}
    assert outputs["probs"].shape.dim[0].dim_param == "B"
    assert outputs["probs"].shape.dim[1].dim_value == 6
    artifact = load_adaptive(path)
    inputs = {value.name: value.type.tensor_type for value in model.graph.input}
    assert set(inputs) == {*artifact.input_names, "update", *(s.name for s in artifact.state)}
    if features_only:
        assert ("features" in inputs) == (preset != "shift")
    kinds = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
    for item in artifact.state:
        for tensor in (inputs[item.name], outputs[item.next_name]):
            assert tuple(dim.dim_value for dim in tensor.shape.dim) == item.shape
            assert tensor.elem_type == kinds[item.dtype]
    waiting = [item for item in artifact.state if item.field.startswith("pending_")]
    assert bool(waiting) == (waits != (1, 1))
    assert report.state_bytes == sum(item.zeros().nbytes for item in artifact.state)
    metadata = {item.key: item.value for item in model.metadata_props}
    assert config_from_dict(json.loads(metadata["gain.adaptive.config"])) == PRESETS[preset]
    assert metadata["gain.labels"] == json.dumps([f"class {k}" for k in range(6)])


@pytest.mark.parametrize("preset", PRESETS)
def test_the_step_stays_small_and_plain(make_graph, preset):
    """Runtimes without an operator, or that follow every way through a graph, take it as well."""
    model = onnx.load(make_graph(WEIGHT, PRESETS[preset]).path)
    most, learns = MOST_NODES[preset]
    (conditional,) = [node for node in model.graph.node if node.op_type == "If"]
    inner = {item.name: item.g.node for item in conditional.attribute}
    then, other = inner["then_branch"], inner["else_branch"]
    assert len(model.graph.node) <= most
    assert 0 < len(then) <= learns
    # What is kept is passed through, or chosen, tensor by tensor.
    assert len(other) <= 2 * sum(item.name.startswith("state.") for item in model.graph.input)
    assert {node.op_type for node in (*model.graph.node, *then, *other)} <= OPERATORS


@pytest.mark.parametrize("preset", PRESETS)
def test_weights_are_in_the_file_once(make_artifact, tmp_path, preset):
    artifact, path = make_artifact(WEIGHT), tmp_path / "tiny.adaptive.onnx"
    add_adaptation(artifact, path, config=PRESETS[preset])
    before = {tensor.name: tensor for tensor in onnx.load(artifact).graph.initializer}
    after = {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}
    assert all(after[name] == tensor for name, tensor in before.items())
    added = [numpy_helper.to_array(after[name]).size for name in after.keys() - before.keys()]
    assert max(added) <= 4


# How an artifact may differ.
ARTIFACTS = {
    "float32": {},
    "transposed": {"layout": "DK"},
    "float16-head": {"data_type": TensorProto.FLOAT16},
    "float16-transposed": {"layout": "DK", "data_type": TensorProto.FLOAT16},
    "network-value-named-as-an-output": {"hidden": "probs"},
    "network-value-named-as-a-state": {"hidden": "state.frames"},
    "opset-20": {"opset": 20},
}
# The plain one with every preset, the others with one of them; the rest are slow.
PIXEL_CELLS = [
    pytest.param(
        preset,
        settings,
        id=f"{preset}-{name}",
        marks=() if name == "float32" or index % len(PRESETS) == row else pytest.mark.slow,
    )
    for row, preset in enumerate(PRESETS)
    for index, (name, settings) in enumerate(ARTIFACTS.items())
]


@pytest.mark.parametrize(("preset", "settings"), PIXEL_CELLS)
def test_pixels_to_predictions_is_session_and_gain(
    make_artifact, make_fitness, tmp_path, open_file, preset, settings
):
    fitness = make_fitness(6, PAIR)
    artifact = load_artifact(make_artifact(WEIGHT, fitness=fitness, **settings))
    path = tmp_path / "tiny.adaptive.onnx"
    add_adaptation(artifact.path, path, config=PRESETS[preset], update_every=8, warmup_frames=16)
    plain = open_file(artifact.path).session
    graph, strengths = open_file(path), []
    gain = Gain(
        artifact.head_weight, PRESETS[preset], skewness=PAIR, update_every=8, warmup_frames=16
    )
    for pixel_values in PIXELS:
        features, logits = plain.run(["features", "logits"], {"pixel_values": pixel_values})
        expected = gain.step(features, logits)
        result = graph.step(pixel_values=pixel_values)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=2e-5)
        assert_array_equal(result["label"], np.argmax(expected.probs, axis=1))
        strengths.append(expected.strength)
    assert np.mean(np.concatenate(strengths) > 0.0) > 0.2
    assert np.max(np.concatenate(strengths)) > 0.5


@pytest.mark.parametrize("features_only", [False, True])
def test_default_needs_no_features(make_artifact, make_fitness, tmp_path, open_file, features_only):
    files = []
    for name, logits_only in (("with", False), ("without", True)):
        artifact = make_artifact(WEIGHT, logits_only=logits_only, fitness=make_fitness(6, PAIR))
        files.append(tmp_path / f"{name}.adaptive.onnx")
        add_adaptation(artifact, files[-1], features_only=features_only)
    graphs = [open_file(path) for path in files]
    for pixel_values in PIXELS:
        inputs = {"pixel_values": pixel_values}
        if features_only:
            inputs = {"logits": pixel_values[:, 0, 0, :6]}
        first, second = (graph.step(**inputs) for graph in graphs)
        assert_array_equal(first["probs"], second["probs"])
    with pytest.raises(ConfigError, match=r"expected the head's weight|needs features"):
        add_adaptation(artifact, files[0], config=PRESETS["paper"])


@pytest.mark.parametrize("pair", [PAIR, None])
def test_what_the_artifact_measured_is_in_the_file(make_artifact, make_fitness, tmp_path, pair):
    """Or the guess that is made in its place."""
    path = tmp_path / "tiny.adaptive.onnx"
    fitness = None if pair is None else make_fitness(6, pair)
    for features_only in (False, True):
        add_adaptation(make_artifact(WEIGHT, fitness=fitness), path, features_only=features_only)
        assert load_adaptive(path).method.measured == Gain(WEIGHT, skewness=pair).method.measured


def test_fixed_batch_size_is_kept(make_artifact, tmp_path, checked):
    path = tmp_path / "tiny.adaptive.onnx"
    for preset in PRESETS.values():
        add_adaptation(make_artifact(WEIGHT, batch=2), path, config=preset, update_every=3)
        outputs = {value.name: value.type.tensor_type for value in checked(path).graph.output}
        assert outputs["label"].shape.dim[0].dim_value == 2


def test_neither_kind_of_file_is_taken_for_the_other(make_artifact, tmp_path):
    artifact, path = make_artifact(WEIGHT), tmp_path / "tiny.adaptive.onnx"
    with pytest.raises(ArtifactError, match="plain artifact"):
        load_adaptive(artifact)
    add_adaptation(artifact, path)
    with pytest.raises(ArtifactError, match="adaptive already"):
        add_adaptation(path, tmp_path / "twice.onnx")


@pytest.fixture
def adaptive_model(make_artifact, tmp_path):
    """An adaptive file's model."""
    path = tmp_path / "tiny.adaptive.onnx"
    add_adaptation(make_artifact(WEIGHT), path)
    return onnx.load(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("schema", "9", r"schema 10, got 9; make the adaptive file again"),
        ("config", "{}}", "malformed"),
        ("config", '{"method": "shift", "half_life": -1.0}', "half_life"),
        ("config", '{"proposal": "shift"}', "method: expected one of"),
        ("measured", '{"mood": 1}', "malformed"),
        ("measured", '{"skewness": [2.0]}', "skewness"),
        ("input", "sound", "malformed"),
        ("update_every", "often", "malformed"),
        ("warmup_frames", "0", "malformed"),
    ],
)
def test_damaged_metadata_is_named(tmp_path, adaptive_model, key, value, message):
    path, model = tmp_path / "tiny.adaptive.onnx", adaptive_model
    entry = next(item for item in model.metadata_props if item.key == f"gain.adaptive.{key}")
    entry.value = value
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ArtifactError, match=message):
        load_adaptive(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("renamed", r"lacks state\.last,.*make the adaptive file again"),
        ("reshaped", r"lacks state\.last, or has them in another shape"),
        ("added", r"has state\.mood, which its method does not know"),
    ],
)
def test_a_state_that_is_not_the_methods_is_named(tmp_path, adaptive_model, damage, message):
    path, model = tmp_path / "tiny.adaptive.onnx", adaptive_model
    value = next(item for item in model.graph.input if item.name == "state.last")
    if damage == "renamed":
        value.name = "stale.last"
    elif damage == "reshaped":
        value.type.tensor_type.shape.dim[0].dim_value = 7
    else:
        model.graph.input.append(onnx.helper.make_tensor_value_info("state.mood", 1, []))
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ArtifactError, match=message):
        load_adaptive(path)


@pytest.mark.parametrize("name", ["vit.gain.onnx", "vit.onnx", "vit"])
def test_default_name(tmp_path, name):
    assert adaptive_path(tmp_path / name) == tmp_path / "vit.adaptive.onnx"


# Four are used; a builder that follows every way through a graph would need hours.
MOST_CPU_SECONDS = 60.0


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["shift", "paper-l2"])
def test_the_step_of_a_thousand_classes_is_built(make_graph, preset):
    """TensorRT for RTX builds it in seconds, on a machine without a GPU."""
    trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    weight = np.random.default_rng(0).normal(size=(1000, 64)).astype(np.float32)
    path = make_graph(weight, PRESETS[preset]).path
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, trt.Logger(trt.Logger.ERROR))
    assert parser.parse(path.read_bytes()), parser.get_error(0).desc()
    profile, config = builder.create_optimization_profile(), builder.create_builder_config()
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    for tensor in inputs:
        if -1 in (shape := tuple(tensor.shape)):
            sizes = [tuple(n if size == -1 else size for size in shape) for n in (1, 16, 64)]
            profile.set_shape(tensor.name, *sizes)
    config.add_optimization_profile(profile)
    began = time.process_time()
    plan = builder.build_serialized_network(network, config)
    assert plan is not None
    assert time.process_time() - began < MOST_CPU_SECONDS


# The contract's page.
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "adaptive-file.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "how-to" / "adaptive-file.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("waits", "stated"),
    [
        pytest.param(1, r"`80 K` bytes .*: (\d+) kB at K = 1000", id="nothing-waits"),
        pytest.param(None, r"and (\d+) kB in a\sfile as", id="as-exported"),
    ],
)
def test_the_size_of_a_shifts_state(make_artifact, tmp_path, waits, stated):
    weight = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
    settings = {} if waits is None else {"update_every": waits, "warmup_frames": waits}
    report = add_adaptation(make_artifact(weight), tmp_path / "tiny.adaptive.onnx", **settings)
    found = re.search(stated, PAGE)
    assert found is not None
    assert round(report.state_bytes / 1000) == int(found[1])
    by_class = 80 if waits else 80 + 28
    assert 0 <= report.state_bytes - by_class * 1000 < 1000
    assert "`28 K` more" in PAGE


@pytest.mark.parametrize("preset", ["shift", "paper"])
def test_the_table_of_the_state_is_the_files(make_artifact, tmp_path, preset):
    """Names, shapes and types, whatever the method keeps."""
    K, D, M = 5, 7, 3
    weight = np.random.default_rng(0).normal(size=(K, D)).astype(np.float32)
    path, waits = tmp_path / "tiny.adaptive.onnx", {"update_every": 2, "warmup_frames": M}
    add_adaptation(make_artifact(weight), path, config=PRESETS[preset], **waits)
    part = PAGE.split("With the presets `paper`")[0 if preset == "shift" else 1]
    part = part.split("## State")[-1].split("Together")[0]
    sizes = {"K": K, "D": D, "J": 2, "M - 1": M - 1}
    stated = {}
    for names, shapes, dtypes in re.findall(r"^\| (`[^|]+) \| ([^|]+) \| (\w+) \|", part, re.M)[1:]:
        fields_here = re.findall(r"`(\w+)`", names)
        found = re.findall(r"\(([^)]*)\)", shapes)
        for field, shape in zip(fields_here, found * (len(fields_here) // len(found)), strict=True):
            axes = [axis.strip() for axis in shape.split(",") if axis.strip()]
            stated[field] = tuple(sizes.get(axis) or int(axis) for axis in axes), dtypes
    assert stated == {item.field: (item.shape, item.dtype) for item in load_adaptive(path).state}


def test_every_key_of_the_metadata_has_a_row(adaptive_model):
    keys = {item.key for item in adaptive_model.metadata_props}
    assert set(re.findall(rf"`({ADAPTIVE_PREFIX}\w+)`", PAGE)) == {
        key for key in keys if key.startswith(ADAPTIVE_PREFIX)
    }
    assert f"| `{ADAPTIVE_PREFIX}schema` | `{ADAPTIVE_SCHEMA_VERSION}`;" in PAGE


def test_every_key_of_the_preprocessing_has_a_row(adaptive_model):
    metadata = {item.key: item.value for item in adaptive_model.metadata_props}
    written = json.loads(metadata["gain.preprocess"])
    assert written.keys() == {field.name for field in fields(Preprocess)}
    table = PAGE.split("**Preparing a frame.**")[1].split("## Outputs")[0]
    rows = re.findall(r"^\| (`[^|]+`) \|", table, flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == written.keys()
    assert "(level / 255 - mean) / std" in table


def test_the_short_program_reads_outputs_that_exist(adaptive_model):
    program = GUIDE.split("```text")[1].split("```")[0]
    used = set(re.findall(r"outputs\.(\w+)", program)) - {"next_state"}
    assert used <= {value.name for value in adaptive_model.graph.output}
    skipped, _, _ = program.partition("use outputs")
    assert "if not outputs.finite: continue" in skipped
