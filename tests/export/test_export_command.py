"""The command gain-export: roads, flags, streams, exit codes, what is made of an artifact."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image
from without import OPTIONAL, run_without

import gain_export
from gain_apps.export import main
from gain_apps.exporting.adaptation import calibration_folder
from gain_apps.streaming.config import StreamConfig
from gain_core import PRESETS, UPDATE_EVERY, WARMUP_FRAMES, preset
from gain_core.errors import ConfigError
from gain_export.graph import rename_value
from gain_runtime.files.adaptive import load_adaptive
from gain_runtime.files.artifact import load_artifact
from gain_runtime.sessions.adaptive import AdaptiveSession
from gain_scenes.roadsigns.sources import stills_source

ROADSIGNS = Path(__file__).resolve().parents[2] / "models" / "roadsigns" / "roadsigns.onnx"
FLAGS = ["--mean", *["0.5"] * 3, "--std", *["0.25"] * 3, "--crop-pct", "1"]
FLAGS += ["--interpolation", "bilinear"]
MAIN = "from gain_apps.export import main\nsys.exit(main(sys.argv[1:]))\n"


@pytest.fixture
def path(classifier, saved):
    """A classifier, alone in its folder."""
    return saved(classifier.plain())


@pytest.fixture
def artifact(path, capsys):
    """Its artifact beside it."""
    assert main([str(path), *FLAGS]) == 0
    capsys.readouterr()
    return path.with_name("net.gain.onnx")


@pytest.fixture
def photos(tmp_path):
    """A folder of two images."""
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(3)
    for index in range(2):
        image = rng.integers(0, 256, size=(20, 20, 3), dtype=np.uint8)
        Image.fromarray(image).save(folder / f"{index}.png")
    return folder


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Where temporary folders go: nothing may be left in it."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def refused(tmp_path, capsys):
    """The one line of a command that is refused and leaves every file as it is."""

    def run(*arguments):
        before = {path: path.read_bytes() for path in tmp_path.glob("*.onnx") if path.is_file()}
        assert main(list(map(str, arguments))) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("gain-export: ")
        assert captured.err.count("\n") == 1, captured.err
        after = {path: path.read_bytes() for path in tmp_path.glob("*.onnx") if path.is_file()}
        assert after == before
        return captured.err

    return run


def test_an_onnx_file_is_exported(path, capsys):
    assert main([str(path), *FLAGS]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "labels     none known: numbered" in captured.err
    assert "net.gain.onnx" in captured.err
    assert "bilinear, center crop 1" in captured.err
    assert "top-1 100.0% (" in captured.err
    assert "verified   against the output of net.onnx" in captured.err
    assert load_artifact(path.with_name("net.gain.onnx")).manifest.feature_dim == 6


def test_json_is_one_object_on_standard_output(path, capsys):
    assert main([str(path), *FLAGS, "--json=-", "--output", str(path.with_name("a.onnx"))]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert captured.out.count("\n") == 1
    artifact = load_artifact(report["path"])
    assert report["sha256"] == artifact.sha256
    assert report["verification"] == artifact.manifest.verification
    assert report["preprocess"]["mean"] == [0.5, 0.5, 0.5]
    assert "WARNING: labels" in captured.err


def test_an_unknown_name_lists_the_aliases(tmp_path, refused, capsys):
    line = refused(tmp_path / "vit_b17.onnx")
    assert "no such file" in line
    assert "vit_b16" in line
    assert main([str(tmp_path / "vit_b17.onnx"), "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "flags", "reason"),
    [
        ("net.onnx", ["--weights", "a.pth"], "--weights: belongs to the export of a timm model"),
        ("net.onnx", ["--set=random-weights=true"], "--set random-weights: belongs to the export"),
        ("net.onnx", ["--set=opset=18"], "--set opset: belongs to"),
        ("net.onnx", ["--img-size", "1", "2", "3"], "one number or H W, got 3"),
        ("vit_b16.onnx", ["--head", "x"], "--head: belongs to the export of an existing ONNX file"),
        ("vit_b16.onnx", ["--set=seed=3"], "is the seed of --set random-weights"),
    ],
)
def test_flags_of_the_other_road_are_refused(path, refused, name, flags, reason):
    assert reason in refused(path.with_name(name), *FLAGS, *flags)


def test_weights_that_cannot_be_accessed_are_refused_without_torch(tmp_path):
    loop = tmp_path / "loop.pth"
    loop.symlink_to(loop)
    arguments = (tmp_path / "a.onnx", "--timm", "resnet18.a1_in1k", "--weights", loop)
    result = run_without(OPTIONAL, MAIN, *arguments)
    assert result.returncode == 1
    assert "loop.pth: cannot be accessed (it is a link that leads back to itself)" in result.stderr


def test_candidates_are_listed_and_chosen(classifier, saved, refused):
    nodes = [
        onnx.helper.make_node("Gemm", ["hidden", "w"], [name], transB=1, name=f"/{name}/Gemm")
        for name in ("main", "aux")
    ]
    path = saved(classifier.model(nodes, {"w": classifier.weight}, outputs=("main", "aux")))
    line = refused(path, *FLAGS)
    assert "'main' (5, no activation)" in line
    assert "'aux' (5, no activation)" in line
    assert main([str(path), *FLAGS, "--output-name", "aux", "--json=-"]) == 0
    assert main([str(path), *FLAGS, "--head", "/aux/Gemm", "--json=-", "--force"]) == 0


def test_like_takes_the_preprocessing_of_an_alias(path, capsys):
    pytest.importorskip("timm", reason="the extra export is not installed")
    assert main([str(path), "--like", "efficientnet_lite0", "--crop-pct", "0.5", "--json=-"]) == 0
    spec = json.loads(capsys.readouterr().out)["preprocess"]
    assert (spec["interpolation"], spec["crop_fraction"]) == ("bicubic", 0.5)
    assert spec["mean"] == pytest.approx([127 / 255] * 3)
    assert (spec["height_px"], spec["width_px"]) == (8, 8)


def test_an_alias_is_exported(tmp_path, capsys):
    timm = pytest.importorskip("timm", reason="the extra export is not installed")
    torch = pytest.importorskip("torch", reason="the extra export is not installed")
    path, weights = tmp_path / "resnet18.onnx", tmp_path / "a.pth"
    torch.save(timm.create_model("resnet18", num_classes=3).state_dict(), weights)
    assert main([str(path), "--weights", str(weights), "--img-size", "32", "--json=-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["num_classes"], report["preprocess"]["height_px"]) == (3, 32)
    assert report["source"] == "timm/resnet18.a1_in1k (a.pth)"
    assert load_artifact(path).manifest.source == report["source"]


def test_what_an_alias_was_exported_to_is_replaced_by_force_only(artifact, refused, monkeypatch):
    artifact = artifact.rename(artifact.with_name("resnet18.onnx"))
    calls = []

    def exported(name, output, **settings):
        calls.append((name, output, settings["force"]))
        raise ConfigError("stop here")

    monkeypatch.setattr(gain_export, "export_timm", exported, raising=False)
    refused(artifact)
    refused(artifact, "--force")
    assert calls == [("resnet18", artifact, False), ("resnet18", artifact, True)]
    other = artifact.rename(artifact.with_name("mine.onnx"))
    assert "got an artifact" in refused(other)


def test_an_interrupt_exits_with_130_and_leaves_nothing(path, monkeypatch, capsys):
    def interrupted(*args, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("gain_export.write.verify", interrupted)
    assert main([str(path), *FLAGS]) == 130
    assert [item.name for item in path.parent.iterdir()] == ["net.onnx"]
    assert "interrupted" in capsys.readouterr().err


def test_importing_the_packages_imports_nothing_heavy():
    code = "import gain_export, gain_export.adaptive, gain_export.engine\n"
    result = run_without((*OPTIONAL, "onnx", "onnxruntime"), code)
    assert result.returncode == 0, result.stderr


def test_surgery_works_without_torch(path):
    result = run_without(OPTIONAL, MAIN, path, *FLAGS)
    assert result.returncode == 0, result.stderr
    assert load_artifact(path.with_name("net.gain.onnx")).manifest.num_classes == 5


@pytest.mark.parametrize("arguments", [["vit_b16.onnx"], ["{path}", "--like", "vit_b16"]])
def test_without_torch_the_extra_is_named(path, arguments):
    result = run_without(OPTIONAL, MAIN, *(item.format(path=path) for item in arguments))
    assert result.returncode == 1
    assert "pip install -e '.[export]'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_artifact_and_the_adaptive_file_are_written_and_run(path, capsys):
    assert main([str(path), *FLAGS, "--adaptive", "--set=update-every=4", "--json=-"]) == 0
    report = json.loads(capsys.readouterr().out)
    target = path.with_name("net.adaptive.onnx")
    assert report["adaptive"]["path"] == str(target)
    assert report["adaptive"]["update_every"] == 4
    with AdaptiveSession(target) as session:
        size = (2, 3, report["preprocess"]["height_px"], report["preprocess"]["width_px"])
        prediction = session.step(np.zeros(size, np.float32))
        assert prediction.probs.shape == (2, report["num_classes"])
        assert session.pending_frames == 2


def test_of_an_artifact_only_the_adaptive_file_is_written(artifact, refused, capsys):
    before = artifact.read_bytes()
    flags = ["--set=preset=paper", "--set=warm-up=9", "--set=update-every=3"]
    assert main([str(artifact), "--adaptive", *flags]) == 0
    said = capsys.readouterr().err
    assert "net.adaptive.onnx" in said
    assert "update every 3, warm-up 9" in said
    assert artifact.read_bytes() == before
    adaptive = load_adaptive(artifact.with_name("net.adaptive.onnx"))
    assert adaptive.config == preset("paper")
    assert (adaptive.update_every, adaptive.warmup_frames) == (3, 9)
    assert "exists already; --force" in refused(artifact, "--adaptive")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--set=features-only=true"], "--set features-only: is a setting of --adaptive"),
        (["--set=preset=paper"], "--set preset: is a setting of --adaptive"),
        (["--adaptive", "--set=preset=none"], "preset: expected one of"),
        (["--set=warm-up=9"], "--set warm-up: is a setting of --adaptive"),
        *(
            (
                ["--adaptive", f"--set={key}={frames}"],
                f"--set {key}: expected 1 to 1024 frames, which wait in the file's state, got",
            )
            for key in ("update-every", "warm-up")
            for frames in ("0", "-3", "1025")
        ),
    ],
)
def test_bad_settings_are_one_line_and_nothing_is_written(path, refused, flags, message):
    assert message in refused(path, *FLAGS, *flags)


@pytest.mark.parametrize("preset", PRESETS)
def test_what_nobody_says_is_what_a_stream_does(path, preset):
    assert main([str(path), *FLAGS, "--adaptive", f"--set=preset={preset}"]) == 0
    artifact = load_adaptive(path.with_name("net.adaptive.onnx"))
    stream = StreamConfig(input="clip.mp4", model="net.gain.onnx", preset=preset)
    assert artifact.config == stream.gain_config()
    assert (stream.update_every, stream.warm_up) == (None, None)
    assert (artifact.update_every, artifact.warmup_frames) == (UPDATE_EVERY, WARMUP_FRAMES)


@pytest.mark.parametrize(
    "earlier", [["--calibrate", "photos"], ["--precision", "fp16"]], ids=["calibrate", "precision"]
)
def test_clashing_names_are_found_before_an_earlier_step(
    artifact, photos, refused, monkeypatch, earlier
):
    monkeypatch.chdir(photos.parent)
    # Another name for the logits, as another exporter might have chosen it.
    model = onnx.load(artifact)
    rename_value(model, "logits", "probs")
    next(item for item in model.metadata_props if item.key == "gain.logits_name").value = "probs"
    artifact.write_bytes(model.SerializeToString())
    error = refused(artifact, *earlier, "--adaptive")
    assert "probs: an adaptive file's own inputs and outputs need these names; rename" in error
    # With features and logits in, the network and its names are not there.
    assert main([str(artifact), *earlier, "--adaptive", "--set=features-only=true"]) == 0


def test_artifact_that_is_lowered_is_not_calibrated_before_it_is_refused(
    artifact, photos, refused, capsys
):
    assert main([str(artifact), "--precision", "fp16"]) == 0
    capsys.readouterr()
    lowered = artifact.with_name("net.fp16.gain.onnx")
    for precision in ("fp16", "int8", "fp32"):
        error = refused(lowered, "--calibrate", photos, "--precision", precision)
        assert "expected a float32 artifact, got one in fp16" in error


@pytest.mark.parametrize("wanted", [["--precision", "fp16"], ["--adaptive"]])
def test_images_and_folders_are_looked_at_before_an_artifact_is_calibrated(
    artifact, photos, refused, wanted
):
    calibrate = ["--calibrate", photos, *wanted]
    none = photos.with_name("none")
    error = refused(artifact, *calibrate, "--verify-images", none)
    assert f"{none}: expected a folder of images" in error
    kind = "fp16.gain" if "fp16" in wanted else "adaptive"
    target = artifact.with_name(f"net.{kind}.onnx")
    target.mkdir()
    error = refused(artifact, *calibrate, "--force")
    assert f"{target}: expected a file to write, got a folder" in error
    assert load_artifact(artifact).manifest.fitness is None


def test_clean_images_are_looked_at_before_the_export(path, photos, refused):
    none = photos.with_name("none")
    assert f"{none}: expected a folder of images" in refused(path, *FLAGS, "--calibrate", none)
    (photos / "1.png").unlink()
    error = refused(path, *FLAGS, "--calibrate", photos)
    assert f"{photos}: expected at least two images that can be read, found 1" in error


def test_rendered_signs_measure_the_road_sign_network(tmp_path, scratch, capsys):
    path = tmp_path / "signs.gain.onnx"
    command = [str(ROADSIGNS), "--output", str(path), *FLAGS, "--std", "0.5", "--json=-"]
    command += ["--crop-mode", "squash", "--interpolation", "bicubic"]
    assert main([*command, "--calibrate", "test://signs?frames=256"]) == 0
    report = json.loads(capsys.readouterr().out)
    fitness, artifact = report["fitness"], load_artifact(path)
    # Of the file with the measurement in it.
    assert (report["sha256"], report["size_bytes"]) == (artifact.sha256, path.stat().st_size)
    assert fitness["num_images"] == 256
    one_class, mixture = artifact.measured["skewness"]
    assert (one_class, mixture) == (fitness["one_class_skewness"], fitness["mixture_skewness"])
    assert -0.05 < one_class < 0.15
    assert 0.4 < mixture < 0.7
    assert list(scratch.iterdir()) == []


def test_the_folder_holds_the_frames_of_the_source(scratch):
    with calibration_folder("test://signs?frames=3") as folder:
        images = [Image.open(path) for path in sorted(folder.iterdir())]
        for image, frame in zip(images, stills_source({"frames": "3"}), strict=True):
            assert image.tobytes() == frame.image.tobytes()
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("test://drive", "expected a folder of clean images, or test://signs"),
        ("test://signs?frames=0", "frames: expected 1 to"),
        ("test://signs?weather=fog", "unknown parameter weather"),
    ],
)
def test_other_test_sources_are_refused_in_one_line(path, refused, location, words):
    assert words in refused(path, *FLAGS, "--calibrate", location)


def test_a_full_disk_is_one_line(artifact, scratch, refused, monkeypatch):
    def full(*arguments, **settings):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    error = refused(artifact, "--calibrate", "test://signs?frames=2")
    assert "No space left on device" in error
    assert list(scratch.iterdir()) == []
