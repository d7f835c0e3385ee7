"""gain-export --adaptive: the adaptive file beside the artifact, or of an artifact."""

import json

import numpy as np
import onnx
import pytest
from PIL import Image

from gain_apps.export import main
from gain_apps.streaming.config import StreamConfig
from gain_core import PRESETS, UPDATE_EVERY, WARMUP_FRAMES, preset
from gain_export.graph import rename_value
from gain_runtime.files.adaptive import load_adaptive
from gain_runtime.files.artifact import load_artifact
from gain_runtime.sessions.adaptive import AdaptiveSession

PREPROCESSING = ["--mean", "0.5", "0.5", "0.5", "--std", "0.25", "0.25", "0.25"]
PREPROCESSING += ["--crop-pct", "1", "--interpolation", "bilinear"]


def test_both_files_are_written_and_the_adaptive_one_runs(classifier, saved, capsys):
    path = saved(classifier.plain())
    flags = [*PREPROCESSING, "--adaptive", "--set=update-every=4", "--json=-"]
    assert main([str(path), *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    target = path.with_name("net.adaptive.onnx")
    assert report["adaptive"]["path"] == str(target)
    assert report["adaptive"]["update_every"] == 4
    with AdaptiveSession(target) as session:
        size = (2, 3, report["preprocess"]["height_px"], report["preprocess"]["width_px"])
        prediction = session.step(np.zeros(size, np.float32))
        assert prediction.probs.shape == (2, report["num_classes"])
        assert session.pending_frames == 2


def test_of_an_artifact_only_the_adaptive_file_is_written(classifier, saved, capsys):
    path = saved(classifier.plain())
    assert main([str(path), *PREPROCESSING]) == 0
    artifact = path.with_name("net.gain.onnx")
    before = artifact.read_bytes()
    assert main([str(artifact), "--adaptive", "--set=preset=paper"]) == 0
    assert "net.adaptive.onnx" in capsys.readouterr().err
    assert artifact.read_bytes() == before
    assert main([str(artifact), "--adaptive"]) == 1
    assert "exists already; --force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(
            ["--set=features-only=true"],
            "--set features-only: is a setting of --adaptive",
            id="alone",
        ),
        pytest.param(
            ["--set=preset=paper"], "--set preset: is a setting of --adaptive", id="preset"
        ),
        pytest.param(["--adaptive", "--set=preset=none"], "preset: expected one of", id="unknown"),
        pytest.param(["--set=warm-up=9"], "--set warm-up: is a setting of --adaptive", id="wait"),
        *(
            pytest.param(
                ["--adaptive", f"--set={key}={frames}"],
                f"--set {key}: expected 1 to 1024 frames, which wait in the file's state, got",
                id=f"{key}-{frames}",
            )
            for key in ("update-every", "warm-up")
            for frames in ("0", "-3", "1025")
        ),
    ],
)
def test_bad_settings_are_one_line_and_nothing_is_written(
    classifier, saved, capsys, flags, message
):
    path = saved(classifier.plain())
    assert main([str(path), *PREPROCESSING, *flags]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert list(path.parent.glob("*.onnx")) == [path]


def test_preset_and_waits_are_baked_in(classifier, saved, capsys):
    path = saved(classifier.plain())
    flags = ["--set=preset=paper", "--set=warm-up=9", "--set=update-every=3"]
    assert main([str(path), *PREPROCESSING, "--adaptive", *flags]) == 0
    assert "update every 3, warm-up 9" in capsys.readouterr().err
    artifact = load_adaptive(path.with_name("net.adaptive.onnx"))
    assert artifact.config == preset("paper")
    assert (artifact.update_every, artifact.warmup_frames) == (3, 9)


@pytest.mark.parametrize("preset", PRESETS)
def test_what_nobody_says_is_what_a_stream_does(classifier, saved, preset):
    path = saved(classifier.plain())
    assert main([str(path), *PREPROCESSING, "--adaptive", f"--set=preset={preset}"]) == 0
    artifact = load_adaptive(path.with_name("net.adaptive.onnx"))
    stream = StreamConfig(input="clip.mp4", model="net.gain.onnx", preset=preset)
    assert artifact.config == stream.gain_config()
    assert (stream.update_every, stream.warm_up) == (None, None)
    assert (artifact.update_every, artifact.warmup_frames) == (UPDATE_EVERY, WARMUP_FRAMES)


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
def artifact(classifier, saved, capsys):
    """An artifact, alone with its original."""
    path = saved(classifier.plain())
    assert main([str(path), *PREPROCESSING]) == 0
    capsys.readouterr()
    return path.with_name("net.gain.onnx")


def rename_logits(path, name):
    """Another name for an artifact's logits, as another exporter might have chosen it."""
    model = onnx.load(path)
    rename_value(model, "logits", name)
    next(item for item in model.metadata_props if item.key == "gain.logits_name").value = name
    path.write_bytes(model.SerializeToString())


def refused(capsys, artifact, *flags):
    """The one line of a command that is refused and leaves every file as it is."""
    before = {path: path.read_bytes() for path in artifact.parent.glob("*.onnx")}
    assert main([str(artifact), *map(str, flags)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    after = {path: path.read_bytes() for path in artifact.parent.glob("*.onnx")}
    assert after == before
    return error


@pytest.mark.parametrize(
    "earlier", [["--calibrate", "photos"], ["--precision", "fp16"]], ids=["calibrate", "precision"]
)
def test_clashing_names_are_found_before_an_earlier_step(
    artifact, photos, capsys, monkeypatch, earlier
):
    monkeypatch.chdir(photos.parent)
    rename_logits(artifact, "probs")
    error = refused(capsys, artifact, *earlier, "--adaptive")
    assert "probs: an adaptive file's own inputs and outputs need these names; rename" in error
    # With features and logits in, the network and its names are not there.
    assert main([str(artifact), *earlier, "--adaptive", "--set=features-only=true"]) == 0


def test_artifact_that_is_lowered_is_not_calibrated_before_it_is_refused(artifact, photos, capsys):
    assert main([str(artifact), "--precision", "fp16"]) == 0
    capsys.readouterr()
    lowered = artifact.with_name("net.fp16.gain.onnx")
    for precision in ("fp16", "int8", "fp32"):
        error = refused(capsys, lowered, "--calibrate", photos, "--precision", precision)
        assert "expected a float32 artifact, got one in fp16" in error


@pytest.mark.parametrize("wanted", [["--precision", "fp16"], ["--adaptive"]])
def test_images_and_folders_are_looked_at_before_an_artifact_is_calibrated(
    artifact, photos, capsys, wanted
):
    calibrate = ["--calibrate", photos, *wanted]
    none = photos.with_name("none")
    error = refused(capsys, artifact, *calibrate, "--verify-images", none)
    assert f"{none}: expected a folder of images" in error
    kind = "fp16.gain" if "fp16" in wanted else "adaptive"
    target = artifact.with_name(f"net.{kind}.onnx")
    target.mkdir()
    assert main([str(artifact), *map(str, calibrate), "--force"]) == 1
    assert f"{target}: expected a file to write, got a folder" in capsys.readouterr().err
    assert load_artifact(artifact).manifest.fitness is None


def test_clean_images_are_looked_at_before_the_export(classifier, saved, photos, capsys):
    path = saved(classifier.plain())
    flags = [*PREPROCESSING, "--calibrate"]
    none = photos.with_name("none")
    assert f"{none}: expected a folder of images" in refused(capsys, path, *flags, none)
    (photos / "1.png").unlink()
    error = refused(capsys, path, *flags, photos)
    assert f"{photos}: expected at least two images that can be read, found 1" in error
