"""The commands that the pages about exporting show, run as they stand there on small files."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from gain_apps.export import main
from gain_export import PreprocessOverrides, export_onnx
from gain_export.images import synthetic_images
from gain_runtime.files.artifact import load_artifact

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Torch, a thousand rendered signs, or the hub: more than a minute.
HEAVY = ("gain-export vit_b16.onnx", "--timm", "test://signs")


def shown(page):
    """Every gain-export command of a page, its comment left off."""
    text = (DOCS / page).read_text().replace("\\\n", " ")
    # A message of the command begins with its name and a colon.
    lines = [line for line in text.splitlines() if line.startswith("gain-export ")]
    return [shlex.split(line, comments=True) for line in lines]


def commands():
    for page in ("../README.md", "how-to/export.md", "how-to/precision.md"):
        for words in shown(page):
            text = shlex.join(words)
            heavy = text == HEAVY[0] or any(part in text for part in HEAVY[1:])
            # Of another page's subject, and tested with it.
            if "--adaptive" not in words and "models/" not in text and "out/" not in text:
                marks = [pytest.mark.slow] if heavy else []
                yield pytest.param(words, id=text[:60], marks=marks)


def network(size_px, *, boxes):
    """Convolutions, a pooled vector, a Softmax; `boxes` adds a second output."""
    rng = np.random.default_rng(2)
    tensors = {
        "kernel": rng.normal(size=(12, 3, 4, 4)).astype(np.float32),
        "w": rng.normal(size=(5, 12)).astype(np.float32),
        "box": rng.normal(size=(4, 12)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["input", "kernel"], ["maps"], strides=[4, 4]),
        helper.make_node("Relu", ["maps"], ["positive"]),
        helper.make_node("GlobalAveragePool", ["positive"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["vector"]),
        helper.make_node("Gemm", ["vector", "w"], ["scores"], transB=1),
        helper.make_node("Softmax", ["scores"], ["probs"]),
        helper.make_node("Gemm", ["vector", "box"], ["boxes"], transB=1),
    ]
    widths = {"probs": 5, "boxes": 4} if boxes else {"probs": 5}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3, size_px, size_px])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", width])
            for name, width in widths.items()
        ],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of drawn images; read only."""
    folder = tmp_path_factory.mktemp("drawn")
    for index, image in enumerate(synthetic_images(12, seed=3)):
        Image.fromarray(image).save(folder / f"{index}.png")
    return folder


@pytest.fixture
def desk(tmp_path, photos, monkeypatch):
    """A folder with the files that the commands name."""
    monkeypatch.chdir(tmp_path)
    onnx.save(network(224, boxes=False), "classifier.onnx")
    onnx.save(network(32, boxes=True), "detector.onnx")
    Path("names.txt").write_text("".join(f"kind {index}\n" for index in range(5)))
    shutil.copytree(photos, "photos")
    return tmp_path


def prepare(words, desk):
    """What the command before it would have written."""
    if words[1] == "vit_b16.onnx" and len(words) > 2:
        spec = PreprocessOverrides(
            mean=(0.5,) * 3, std=(0.5,) * 3, crop_fraction=1.0, interpolation="bilinear"
        )
        export_onnx("classifier.onnx", output="vit_b16.onnx", preprocess=spec)
    if words[1] == "roadsigns.gain.onnx":
        root = DOCS.parent / "models" / "roadsigns"
        spec = PreprocessOverrides(
            mean=(0.5,) * 3, std=(0.5,) * 3, crop_fraction=1.0, interpolation="bicubic"
        )
        export_onnx(root / "roadsigns.onnx", output="roadsigns.gain.onnx", preprocess=spec)
    if "mine.safetensors" in words:
        timm = pytest.importorskip("timm", reason="the extra export is not installed")
        from safetensors.torch import save_file

        model = timm.create_model("deit_tiny_patch16_224", num_classes=5)
        save_file(model.state_dict(), "mine.safetensors")


@pytest.mark.parametrize("words", tuple(commands()))
def test_a_command_of_the_pages_does_what_they_say(words, desk, capsys):
    prepare(words, desk)
    before = set(desk.iterdir())
    status = main(words[1:])
    said = capsys.readouterr().err
    if words == ["gain-export", "vit_b16.onnx"] and status:
        # Without the hub, one line says how to go on.
        assert "--weights FILE" in said
        assert said.count("\n") == 1
        return
    assert status == 0, said
    made = set(desk.iterdir()) - before
    if "--calibrate" in words and "--precision" not in words:
        (path,) = made or {Path(words[1])}
        assert load_artifact(path).manifest.fitness is not None
        return
    (path,) = made
    artifact = load_artifact(path)
    assert path.suffix == ".onnx"
    assert artifact.manifest.verification.get("verified", "yes") == "yes"


def test_the_refusal_that_the_page_shows_is_the_one_that_comes(desk, capsys):
    flags = ["--mean", "0.5", "--std", "0.25", "--crop-pct", "1", "--interpolation", "bilinear"]
    onnx.save(network(32, boxes=True), "net.onnx")
    assert main(["net.onnx", *flags]) == 1
    shown_text = " ".join((DOCS / "how-to" / "export.md").read_text().split())
    assert " ".join(capsys.readouterr().err.split()) in shown_text
