"""Surgery on ONNX classifiers, end to end on small graphs: no torch is involved."""

import dataclasses
import hashlib
import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_text import nodes

from gain_core.errors import ArtifactError, ConfigError, EngineError, ParityError
from gain_export import export_onnx
from gain_export.verify import BATCH_SIZES
from gain_runtime.files.artifact import load_artifact
from gain_runtime.sessions.onnx import OnnxSession

IMAGES = np.random.default_rng(3).normal(size=(7, 3, 8, 8)).astype(np.float32)


def run_plain(path, values):
    """The original's own output."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: values})[0]


def infer(artifact, images=IMAGES):
    """Features and logits of an artifact."""
    with OnnxSession(artifact) as session:
        return session.infer(images)


def softmax(logits):
    exps = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exps / exps.sum(axis=1, keepdims=True)


def assert_same_output(report, path, *, rtol=1e-4, atol=1e-5):
    """What follows the logits in the original makes its own output of the artifact's."""
    features, logits = infer(report.path)
    assert (features is None) == (report.feature_dim is None)
    end = {
        "none": lambda logits: logits,
        "log_softmax": lambda logits: np.log(softmax(logits)),
        "sigmoid": lambda logits: 1 / (1 + np.exp(-logits)),
    }.get(report.activation, softmax)
    np.testing.assert_allclose(end(logits), run_plain(path, IMAGES), rtol=rtol, atol=atol)


def files(folder):
    return sorted(path.name for path in folder.rglob("*"))


def test_a_classifier_becomes_an_artifact_that_says_what_was_measured(classifier, saved, spec):
    path, steps = saved(classifier.plain()), []
    report = export_onnx(path, preprocess=spec, on_step=steps.append)
    expected = ["read", "run original", "settle", "surgery", "verify", "write"]
    assert steps == list(report.seconds) == expected
    assert report.path == path.with_name("net.gain.onnx")
    artifact = load_artifact(report.path)
    np.testing.assert_array_equal(artifact.head_weight, classifier.weight)
    np.testing.assert_array_equal(artifact.head_bias, classifier.bias)
    assert_same_output(report, path)
    features, logits = infer(artifact)
    composed = features @ classifier.weight.T + classifier.bias
    np.testing.assert_allclose(composed, logits, rtol=1e-5, atol=1e-6)
    data, manifest = report.path.read_bytes(), artifact.manifest
    assert report.sha256 == hashlib.sha256(data).hexdigest()
    assert report.size_bytes == len(data)
    assert manifest.weights_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert manifest.source == "net.onnx"
    assert manifest.verification == report.verification
    assert manifest.verification["images"] == sum(BATCH_SIZES)
    assert manifest.verification["top1_agreement"] == 1.0
    assert manifest.verification["output_max_abs_diff"] < 1e-5
    assert manifest.verification["verified"] == "yes"
    assert (manifest.num_classes, manifest.feature_dim) == (5, 6)
    assert manifest.preprocess.height_px == 8
    assert json.loads(json.dumps(report.to_dict()))["path"] == str(report.path)


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_a_trailing_softmax_is_dropped(classifier, saved, spec, arrays, operator):
    text = f"s = Gemm<transB=1>(hidden, w, b); features = {operator}<axis=-1>(s)"
    path = saved(classifier.model(nodes(text), arrays, outputs=("features",)))
    report = export_onnx(path, preprocess=spec)
    assert operator not in {item.op_type for item in onnx.load(report.path).graph.node}
    assert_same_output(report, path)


def test_the_artifact_has_the_names_shapes_and_versions_devices_read(classifier, saved, spec):
    model = classifier.plain(opset=22)
    model.ir_version = 11
    report = export_onnx(saved(model), preprocess=spec)
    assert {"changed: opset 22 to 20", "changed: IR 11 to 10"} <= set(report.notes)
    model = onnx.load(report.path)
    assert (model.opset_import[0].version, model.ir_version) == (20, 10)
    assert (report.opset, report.ir_version) == (20, 10)
    values = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert values == {
        "pixel_values": ["batch", 3, 8, 8],
        "features": ["batch", 6],
        "logits": ["batch", 5],
    }


def test_a_file_of_the_oldest_format_is_raised_whole(classifier, saved, spec):
    """Version 3 lists its initializers among the inputs; opset 7 has other operators."""
    model = classifier.plain(opset=8)
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    report = export_onnx(saved(model), preprocess=spec)
    assert (report.opset, report.ir_version) == (17, 8)
    assert report.verification["verified"] == "yes"
    assert [value.name for value in onnx.load(report.path).graph.input] == ["pixel_values"]


FIXED_BATCHES = {
    "scores": (4, "s = Gemm<transB=1>(hidden, w, b); out = Reshape(s, shape)", [4, 5]),
    "features": (1, "again = Reshape(hidden, shape); out = Gemm<transB=1>(again, w, b)", [1, 6]),
    "class-token": (
        1,
        "patches = Reshape(hidden, tokens); sequence = Concat<axis=1>(token, patches);"
        "row = Reshape(sequence, shape); out = Gemm<transB=1>(row, wide, b)",
        [1, 8],
    ),
}


@pytest.mark.parametrize("form", FIXED_BATCHES)
def test_a_batch_axis_that_is_only_declared_fixed_is_freed(classifier, saved, spec, arrays, form):
    batch, text, shape = FIXED_BATCHES[form]
    arrays |= {
        "shape": np.array(shape),
        "tokens": np.array([1, 3, 2]),
        "token": np.array([[[0.5, -1.0]]], np.float32),
        "wide": np.linspace(-1, 1, 40).reshape(5, 8).astype(np.float32),
    }
    path = saved(classifier.model(nodes(text), arrays, batch=batch))
    report = export_onnx(path, preprocess=spec)
    assert f"changed: batches of {batch} to any" in report.notes
    parts = [run_plain(path, IMAGES[at : at + batch]) for at in range(0, 8 - batch, batch)]
    expected = np.concatenate(parts)
    logits = infer(report.path).logits[: len(expected)]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "p = Add(hidden, each)",
        "x = Transpose<perm=[1, 0]>(hidden); y = Reshape(x, turned);"
        "z = Transpose<perm=[1, 0]>(y); p = Gather<axis=1>(z, columns)",
    ],
)
def test_a_graph_that_needs_its_batch_size_keeps_it(classifier, saved, spec, arrays, text):
    """Freed, the one fails, and the other gives two rows for any number of images."""
    layers = nodes(f"{text}; q = Relu(p); out = Gemm<transB=1>(q, w, b)")
    arrays["each"] = np.full((2, 6), 0.25, np.float32)
    arrays |= {"turned": np.array([6, 2]), "columns": np.arange(6)}
    path = saved(classifier.model(layers, arrays, batch=2))
    report = export_onnx(path, preprocess=spec)
    assert any("fixed to batches of 2" in note for note in report.notes)
    logits = infer(report.path, IMAGES[:5]).logits
    # The last batch is filled up with copies of its image.
    parts = [run_plain(path, IMAGES[pair]) for pair in ([0, 1], [2, 3], [4, 4])]
    np.testing.assert_allclose(logits, np.concatenate(parts)[:5], rtol=1e-5, atol=1e-6)
    assert infer(report.path, IMAGES[:0]).logits.shape == (0, 5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "m = ReduceMean<keepdims=1>(hidden, zero); x = Sub(hidden, m)",  # mixes images
            "output: largest difference",
        ),
        ("x = Log(hidden)", "NaN or infinity in the artifact"),
    ],
)
def test_what_fails_verification_is_not_written(
    classifier, saved, spec, arrays, tmp_path, text, reason
):
    layers = nodes(f"{text}; out = Gemm<transB=1>(x, w, b)")
    path = saved(classifier.model(layers, arrays | {"zero": np.array([0])}))
    with pytest.raises(ParityError, match=reason):
        export_onnx(path, preprocess=spec)
    assert files(tmp_path) == ["net.onnx"]


def test_external_weights_are_brought_into_the_file(classifier, spec, tmp_path):
    path, data = tmp_path / "net.onnx", tmp_path / "net.onnx.data"
    settings = {"save_as_external_data": True, "location": data.name, "size_threshold": 0}
    onnx.save_model(classifier.plain(), path, **settings)
    report = export_onnx(path, preprocess=spec)
    both = path.read_bytes() + data.read_bytes()
    assert report.weights_sha256 == hashlib.sha256(both).hexdigest()
    data.unlink()
    assert np.isfinite(infer(report.path).logits).all()
    with pytest.raises(ArtifactError, match=r"weights lie in net\.onnx\.data"):
        export_onnx(path, preprocess=spec, force=True)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = "x" * 300
    onnx.save(model, path)
    with pytest.raises(ArtifactError, match="the name is longer than the file system takes"):
        export_onnx(path, preprocess=spec, force=True)


@pytest.mark.parametrize(
    ("dtype", "shape", "reason"),
    [
        (TensorProto.FLOAT, ["N", 4, 8, 8], r"3 colour channels, or 1 of grey"),
        (TensorProto.INT64, ["N", 3, 8, 8], "uint8, got INT64"),
        (TensorProto.FLOAT, ["N", 3], r"images \(B, 3, H, W\).*got \(N, 3\)"),
    ],
)
def test_other_inputs_are_refused_with_the_reason(classifier, saved, spec, dtype, shape, reason):
    model = classifier.plain()
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("input", dtype, shape))
    with pytest.raises(ArtifactError, match=reason):
        export_onnx(saved(model), preprocess=spec)


def test_a_second_input_is_refused(classifier, saved, spec):
    model = classifier.plain()
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, [1]))
    with pytest.raises(ArtifactError, match=r"one input.*got 2 \(input, mask\)"):
        export_onnx(saved(model), preprocess=spec)


def with_input(classifier, first, *, shape, dtype=TensorProto.FLOAT, arrays=()):
    """The classifier behind nodes that make its (N, 3, 8, 8) float32 `image` of another input."""
    model = classifier.plain()
    for item in model.graph.node:
        for index, name in enumerate(item.input):
            if name == "input":
                item.input[index] = "image"
    for position, item in enumerate(nodes(first)):
        model.graph.node.insert(position, item)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("input", dtype, shape))
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in dict(arrays).items())
    return model


LEVELS = np.random.default_rng(5).integers(0, 256, size=(9, 3, 8, 8)).astype(np.float32)
GREY = np.array([0.299, 0.587, 0.114], np.float32).reshape(1, 3, 1, 1)
NORMAL = (LEVELS / 255 - 0.5) / 0.25
FORWARD = "image = Transpose<perm=[0, 3, 1, 2]>(input)"
PLANES, PIXELS = ["N", 3, 8, 8], ["N", 8, 8, 3]
SHARES = [[[0.485]], [[0.456]], [[0.406]]]
F32, F16, U8 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.UINT8
# The first nodes, the input's shape and type, the constant that shows the range of values where
# there is one, and the levels as the network takes them.
INPUTS = {
    "nhwc": (FORWARD, PIXELS, F32, None, NORMAL.transpose(0, 2, 3, 1)),
    "nhwc-open": (FORWARD, ["N", 8, 8, "c"], F32, None, NORMAL.transpose(0, 2, 3, 1)),
    "half": ("image = Cast<to=1>(input)", PLANES, F16, None, NORMAL.astype(np.float16)),
    "grey": (
        *("image = Concat<axis=1>(input, input, input)", ["N", 1, 8, 8], F32, None),
        (NORMAL * GREY).sum(axis=1, keepdims=True),
    ),
    "uint8": (
        *("f = Cast<to=1>(input); image = Div(f, scale)", PLANES, U8, 255.0),
        LEVELS.astype(np.uint8),
    ),
    "rescaling": ("image = Mul(input, scale)", PLANES, F32, 1 / 127.5, LEVELS),
    "means-of-shares": ("image = Sub(input, scale)", PLANES, F32, SHARES, LEVELS / np.float32(255)),
    "means-of-levels": ("image = Sub(input, scale)", PLANES, F32, 117.0, LEVELS),
}


@pytest.mark.parametrize("form", INPUTS)
def test_every_form_of_input_is_fed_inside_the_graph(classifier, saved, spec, form):
    first, shape, dtype, scale, values = INPUTS[form]
    arrays = {} if scale is None else {"scale": np.asarray(scale, dtype=np.float32)}
    path = saved(with_input(classifier, first, shape=shape, dtype=dtype, arrays=arrays))
    bare = dataclasses.replace(spec, mean=None, std=None)
    report = export_onnx(path, preprocess=spec if scale is None else bare)
    assert report.verification["verified"] == "yes"
    # The artifact on preprocessed levels, and the original on its own input, agree.
    settings = load_artifact(report.path).manifest.preprocess
    mean, std = (
        np.float32(numbers).reshape(1, 3, 1, 1) for numbers in (settings.mean, settings.std)
    )
    logits = infer(report.path, (LEVELS / np.float32(255) - mean) / std).logits
    allowed = 2e-2 if form == "half" else 1e-4
    expected = run_plain(path, np.ascontiguousarray(values))
    np.testing.assert_allclose(logits, expected, rtol=allowed, atol=allowed)
    if scale is not None:
        assert any("pixels 0 to " in note for note in report.notes)
        with pytest.raises(ConfigError, match="normalises its pixels itself"):
            export_onnx(path, preprocess=spec, force=True)


def test_the_range_of_a_graph_that_does_not_show_it_is_given(classifier, saved, spec):
    path = saved(classifier.plain())
    bare = dataclasses.replace(spec, mean=None, std=None, value_range=(-1.0, 1.0))
    stated = load_artifact(export_onnx(path, preprocess=bare).path).manifest.preprocess
    assert (stated.mean, stated.std) == ((0.5,) * 3, (0.5,) * 3)
    with pytest.raises(ConfigError, match="--input-range"):
        dataclasses.replace(spec, value_range=(0.0, 255.0))


def test_a_layout_that_nothing_shows_is_asked_for(classifier, saved, spec):
    model = with_input(classifier, "image = Relu(input)", shape=["N", "a", "b", "c"])
    sized = dataclasses.replace(spec, img_size=(8, 8))
    with pytest.raises(ConfigError, match="--set layout=NCHW or layout=NHWC"):
        export_onnx(saved(model), preprocess=sized)
    assert export_onnx(saved(model), preprocess=sized, layout="NCHW").num_classes == 5
    with pytest.raises(ConfigError, match="leave it out"):
        export_onnx(saved(classifier.plain(), "b.onnx"), preprocess=spec, layout="NHWC")


@pytest.mark.parametrize("name", ["mean", "std"])
def test_settings_of_0_to_255_pixels_are_refused_with_the_remedy(spec, name):
    with pytest.raises(ConfigError, match=rf"--{name}: .*divide by 255: --{name} 0\.4851"):
        dataclasses.replace(spec, **{name: (123.7, 116.3, 103.5)})


def test_an_image_size_that_is_open_is_asked_for_and_one_that_contradicts_the_graph_refused(
    classifier, saved, spec
):
    model = classifier.plain()
    other = dataclasses.replace(spec, img_size=(9, 9))
    with pytest.raises(ConfigError, match=r"expected 8 8 .* got 9 9"):
        export_onnx(saved(model), preprocess=other)
    for dim in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.ClearField("dim_value")
        dim.dim_param = "side"
    path = saved(model)
    with pytest.raises(ConfigError, match="--img-size"):
        export_onnx(path, preprocess=spec)
    export_onnx(path, preprocess=dataclasses.replace(spec, img_size=(8, 8)))
    with pytest.raises(EngineError, match="cannot run it"):
        export_onnx(path, preprocess=other, force=True)


def test_a_file_that_is_no_model_is_refused(tmp_path, spec):
    path = tmp_path / "net.onnx"
    with pytest.raises(ArtifactError, match="No such file"):
        export_onnx(path, preprocess=spec)
    for data, reason in (
        (b"", "without a graph"),
        (b"\xff\xd8\xff\xe0", "another file or a trunc"),
    ):
        path.write_bytes(data)
        with pytest.raises(ArtifactError, match=reason):
            export_onnx(path, preprocess=spec)


def test_where_an_artifact_may_be_written(classifier, saved, spec, tmp_path):
    path = saved(classifier.plain())
    first = export_onnx(path, preprocess=spec)
    before = first.path.read_bytes()
    with pytest.raises(ArtifactError, match="--force"):
        export_onnx(path, preprocess=spec)
    assert first.path.read_bytes() == before
    export_onnx(path, preprocess=dataclasses.replace(spec, channel_order="BGR"), force=True)
    assert load_artifact(first.path).manifest.preprocess.channel_order == "BGR"
    with pytest.raises(ArtifactError, match="got an artifact"):
        export_onnx(first.path, preprocess=spec)
    with pytest.raises(ArtifactError, match="expected its folder to exist"):
        export_onnx(path, preprocess=spec, output=tmp_path / "no" / "a.onnx")
    with pytest.raises(ConfigError, match="is the original itself"):
        export_onnx(path, preprocess=spec, output=path, force=True)


HEAD = "s = Gemm<transB=1>(hidden, w, b)"


def named(model):
    """The model with its only Gemm over `w` called `head`."""
    next(item for item in model.graph.node if "w" in item.input).name = "head"
    return model


@pytest.fixture
def arrays(classifier):
    rng = np.random.default_rng(11)
    return {
        "w": classifier.weight,
        "b": classifier.bias,
        "v": rng.normal(size=(5, 6)).astype(np.float32),
        "two": np.float32(2.0),
        "box": rng.normal(size=(6, 4)).astype(np.float32),
        "axes": np.array([1]),
        "k": np.array([2]),
    }


def test_the_output_is_never_chosen_by_which_could_be_read(classifier, saved, spec, arrays):
    """The classifier's end cannot be composed, the boxes' can: nothing follows from that."""
    text = f"{HEAD}; r = Relu(s); probs = Softmax(r); boxes = MatMul(hidden, box)"
    path = saved(classifier.model(nodes(text), arrays, outputs=("probs", "boxes")))
    with pytest.raises(ConfigError) as caught:
        export_onnx(path, preprocess=spec)
    message = str(caught.value)
    assert "'probs' (5, ends in Softmax)" in message
    assert "'boxes' (4, no activation)" in message
    assert "--output-name" in message
    report = export_onnx(path, preprocess=spec, output_name="probs")
    assert (report.num_classes, report.feature_dim) == (5, None)
    assert_same_output(report, path)
    with pytest.raises(ConfigError, match="is no output; those that have: 'probs'"):
        export_onnx(path, preprocess=spec, output_name="nowhere", force=True)


def test_logits_probabilities_and_class_of_one_head_are_one(classifier, saved, spec, arrays):
    text = "logits = Gemm<transB=1>(hidden, w, b); probs = Softmax(logits);"
    text += "number = ArgMax<axis=1, keepdims=0>(probs)"
    model = classifier.model(nodes(text), arrays, outputs=("probs", "number", "logits"))
    model.graph.output[1].type.tensor_type.elem_type = TensorProto.INT64
    report = export_onnx(saved(model), preprocess=spec)
    assert report.activation == "none"
    assert any("'logits' of 3" in note for note in report.notes)


HEADS_THAT_LIE = {
    "temperature": f"{HEAD}; t = Div(s, two); out = Softmax(t)",
    "averaged": f"{HEAD}; t = Gemm<transB=1>(hidden, v, b); out = Mean(s, t)",
    "scaled": f"{HEAD}; out = Mul(s, two)",
}


@pytest.mark.parametrize("form", HEADS_THAT_LIE)
def test_a_layer_that_is_not_the_models_own_output_is_refused(
    classifier, saved, spec, arrays, form, tmp_path
):
    path = saved(named(classifier.model(nodes(HEADS_THAT_LIE[form]), arrays)))
    with pytest.raises(ConfigError, match=r"--head head: .*leave --head out"):
        export_onnx(path, preprocess=spec, head="head")
    assert files(tmp_path) == ["net.onnx"]
    report = export_onnx(path, preprocess=spec)
    assert any("folded into one linear layer" in note for note in report.notes)
    assert_same_output(report, path)


def test_a_named_layer_is_compared_with_the_output_it_feeds(classifier, saved, spec, arrays):
    path = saved(named(classifier.model(nodes(f"{HEAD}; out = Sigmoid(s)"), arrays)))
    report = export_onnx(path, preprocess=spec, head="head")
    assert (report.activation, report.verification["verified"]) == ("sigmoid", "yes")
    assert any("several labels per image" in note for note in report.notes)
    assert_same_output(report, path)


def test_where_no_output_has_columns_nothing_is_called_verified(classifier, saved, spec, arrays):
    text = f"{HEAD}; best, which = TopK(s, k); out = ReduceMax<keepdims=0>(s, axes)"
    path = saved(named(classifier.model(nodes(text), arrays, outputs=("best", "out"))))
    report = export_onnx(path, preprocess=spec, head="head")
    assert report.verification["verified"] == "no"
    assert "no output of the model has 5 columns" in report.verification["reason"]
    assert "top1_agreement" not in report.verification


def test_a_name_that_fits_nothing_offers_the_layers_that_fit(classifier, saved, spec, arrays):
    text = "out = Gemm<transB=1>(hidden, w, b); b4 = MatMul(hidden, box)"
    path = saved(named(classifier.model(nodes(text), arrays)))
    with pytest.raises(ConfigError, match=r"those that fit: Gemm 'head' \(5 classes\)$"):
        export_onnx(path, preprocess=spec, head="nowhere")


def test_the_number_of_the_class_is_all_that_can_be_compared(classifier, saved, spec, arrays):
    text = f"{HEAD}; probs = Softmax(s); out = ArgMax<axis=1, keepdims=0>(probs)"
    model = classifier.model(nodes(text), arrays)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    path = saved(model)
    report = export_onnx(path, preprocess=spec)
    assert report.verification["verified"] == "class"
    chosen = infer(report.path).logits.argmax(axis=1)
    np.testing.assert_array_equal(chosen, run_plain(path, IMAGES))


def test_one_score_is_refused_with_the_way_to_two(classifier, saved, spec, arrays):
    model = classifier.model(
        nodes("s = MatMul(hidden, one); out = Sigmoid(s)"),
        arrays | {"one": np.ones((6, 1), np.float32)},
    )
    with pytest.raises(ArtifactError, match=r"two classes need two.*zeros_like"):
        export_onnx(saved(model), preprocess=spec)


LOGITS_ONLY = {
    "maximum-of-two-heads": f"{HEAD}; t = Gemm<transB=1>(hidden, v, b); out = Max(s, t)",
    "quantised": f"{HEAD}; q = QuantizeLinear(s, step); out = DequantizeLinear(q, step)",
    "ensemble-of-probabilities": f"{HEAD}; t = Gemm<transB=1>(hidden, v, b);"
    "p = Softmax(s); q = Softmax(t); out = Mean(p, q)",
    "softmax-spelt-out": f"{HEAD}; e = Exp(s); sum = ReduceSum(e, axes); out = Div(e, sum)",
}


@pytest.mark.parametrize("form", LOGITS_ONLY)
def test_where_no_features_can_be_exposed_there_are_logits(classifier, saved, spec, arrays, form):
    model = classifier.model(nodes(LOGITS_ONLY[form]), arrays | {"step": np.float32(0.125)})
    path = saved(model)
    report = export_onnx(path, preprocess=spec)
    assert report.feature_dim is None
    assert any("no features: " in note for note in report.notes)
    artifact = load_artifact(report.path)
    assert (artifact.head_weight, artifact.head_bias) == (None, None)
    assert (artifact.manifest.features_name, artifact.manifest.head) == (None, None)
    assert_same_output(report, path)
    assert [value.name for value in onnx.load(report.path).graph.output] == ["logits"]


def test_a_head_in_half_precision_is_kept_as_it_is(classifier, saved, spec, arrays):
    """Its composed form would not round as the model does."""
    text = "h = Cast<to=10>(hidden); s = MatMul(h, wh); out = Cast<to=1>(s)"
    half = {"wh": (300 * classifier.weight).T.astype(np.float16)}
    path = saved(classifier.model(nodes(text), arrays | half))
    assert_same_output(export_onnx(path, preprocess=spec), path, rtol=2e-2, atol=0.5)


def test_operators_of_one_runtime_are_said(classifier, saved, spec, arrays):
    text = "active = com.microsoft.Gelu(hidden); out = Gemm<transB=1>(active, w, b)"
    model = classifier.model(nodes(text), arrays)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    report = export_onnx(saved(model), preprocess=spec)
    assert any("com.microsoft:Gelu" in note and "TensorRT" in note for note in report.notes)


def test_the_files_own_names_come_before_any_others(classifier, saved, spec, caplog, tmp_path):
    model = classifier.plain()
    names = {index: f"kind {index}" for index in range(4)} | {4: "kind 0"}
    model.metadata_props.add(key="names", value=str(names))
    report = export_onnx(saved(model), preprocess=spec)
    assert load_artifact(report.path).manifest.labels == tuple(names.values())
    assert report.labels_source == "the file's own (names); kind 0 is the name of several classes"
    assert caplog.text == ""
    given = tmp_path / "given.txt"
    given.write_text("kind 0\nkind 1\nkind 2\nkind 3\nother\n")
    report = export_onnx(saved(model), preprocess=spec, labels=given, force=True)
    assert report.labels_source == "given.txt"
    assert "differ from the model's own (the file's own (names)) in 1 of 5" in caplog.text


def test_names_of_hugging_face_configuration_beside_it_are_taken(classifier, saved, spec, tmp_path):
    config = {"id2label": {str(index): f"kind {index}" for index in range(5)}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = export_onnx(saved(classifier.plain()), preprocess=spec)
    assert load_artifact(report.path).manifest.labels[4] == "kind 4"
    assert "config.json" in report.labels_source


def test_local_functions_are_inlined(classifier, saved, spec, arrays):
    inside = nodes("y = Gemm<transB=1>(x, w, b)")
    opsets = [helper.make_opsetid("", 18)]
    function = helper.make_function("local", "Head", ["x", "w", "b"], ["y"], inside, opsets)
    model = classifier.model(nodes("out = local.Head(hidden, w, b)"), arrays)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    report = export_onnx(saved(model), preprocess=spec)
    np.testing.assert_array_equal(load_artifact(report.path).head_weight, classifier.weight)


def test_values_and_arrays_of_reserved_names_do_not_collide(classifier, saved, spec):
    text = (
        "logits = Relu(hidden); features = Neg(logits); pixel_values = Gemm<transB=1>(features,b,w)"
    )
    layers = nodes(text)
    layers[-1].input[1:] = ["gain.head.bias", "gain.head.weight"]
    arrays = {"gain.head.bias": classifier.weight, "gain.head.weight": classifier.bias}
    path = saved(classifier.model(layers, arrays, outputs=("pixel_values",)))
    report = export_onnx(path, preprocess=spec)
    assert_same_output(report, path)
    np.testing.assert_array_equal(load_artifact(report.path).head_weight, classifier.weight)


def test_photographs_can_be_verified_on(classifier, saved, spec, photographs):
    report = export_onnx(saved(classifier.plain()), preprocess=spec, verify_images=photographs)
    assert report.verification["images"] == 64
    assert report.verification["image_source"] == "imagenet_samples"


def test_unused_arrays_are_dropped_and_used_ones_kept(classifier, saved, spec, arrays):
    text = "x = Mul(hidden, two); out = Gemm<transB=1>(x, w, b); nowhere = Identity(k)"
    report = export_onnx(saved(classifier.model(nodes(text), arrays)), preprocess=spec)
    tensors = {item.name: item for item in onnx.load(report.path).graph.initializer}
    assert "k" not in tensors
    assert numpy_helper.to_array(tensors["two"]) == np.float32(2.0)
