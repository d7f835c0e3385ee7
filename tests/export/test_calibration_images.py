"""What --calibrate may be given: a folder, or the rendered stills of road signs."""

import json
import tempfile
from pathlib import Path

import pytest
from PIL import Image

from gain_apps.export import main
from gain_apps.exporting.adaptation import calibration_folder
from gain_runtime.files.artifact import load_artifact
from gain_scenes.roadsigns.sources import stills_source

MODEL = Path(__file__).resolve().parents[2] / "models" / "roadsigns" / "roadsigns.onnx"
FLAGS = ["--mean", *["0.5"] * 3, "--std", *["0.5"] * 3, "--crop-pct", "1"]
FLAGS += ["--crop-mode", "squash", "--interpolation", "bicubic", "--json=-"]


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """Where temporary folders go: nothing may be left in it."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_rendered_signs_measure_the_road_sign_network(tmp_path, scratch, capsys):
    path = tmp_path / "signs.gain.onnx"
    command = [str(MODEL), "--output", str(path), *FLAGS]
    assert main([*command, "--calibrate", "test://signs?frames=256"]) == 0
    fitness = json.loads(capsys.readouterr().out)["fitness"]
    assert fitness["num_images"] == 256
    one_class, mixture = load_artifact(path).measured["skewness"]
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


def test_a_folder_is_used_where_it_lies(tmp_path, scratch):
    with calibration_folder(str(tmp_path)) as folder:
        assert folder == tmp_path
    with calibration_folder(None) as nothing:
        assert nothing is None
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("location", "words"),
    [
        pytest.param("test://drive", "expected a folder of clean images, or test://signs", id="no"),
        pytest.param("test://x?frames=3", "the only test source of clean ones", id="unknown"),
        pytest.param("test://signs?frames=0", "frames: expected 1 to", id="out of range"),
        pytest.param("test://signs?weather=fog", "unknown parameter weather", id="parameter"),
    ],
)
def test_other_test_sources_are_refused_in_one_line(tmp_path, capsys, location, words):
    path = tmp_path / "signs.gain.onnx"
    assert main([str(MODEL), "--output", str(path), *FLAGS, "--calibrate", location]) == 1
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert not path.exists()


def test_a_full_disk_is_one_line(tmp_path, monkeypatch, capsys):
    path = tmp_path / "signs.gain.onnx"
    assert main([str(MODEL), "--output", str(path), *FLAGS]) == 0
    before = path.read_bytes()
    capsys.readouterr()

    def full(*arguments, **settings):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    assert main([str(path), "--calibrate", "test://signs?frames=2"]) == 1
    error = capsys.readouterr().err
    assert "No space left on device" in error
    assert error.count("\n") == 1
    assert path.read_bytes() == before
