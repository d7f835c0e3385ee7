"""gain-export --adaptive: the adaptive file beside the artifact, or of an artifact."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gain_apps.export import main
from gain_runtime.adaptive_session import AdaptiveSession

PREPROCESSING = ["--mean", "0.5", "0.5", "0.5", "--std", "0.25", "0.25", "0.25"]
PREPROCESSING += ["--crop-pct", "1", "--interpolation", "bilinear"]


def test_both_files_are_written_and_the_adaptive_one_runs(classifier, saved, capsys):
    path = saved(classifier.plain())
    flags = [*PREPROCESSING, "--adaptive", "--update-every", "4", "--json"]
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
    assert main([str(artifact), "--adaptive", "--preset", "paper"]) == 0
    assert "net.adaptive.onnx" in capsys.readouterr().err
    assert artifact.read_bytes() == before
    assert main([str(artifact), "--adaptive"]) == 1
    assert "exists already; --force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(
            ["--features-only"], "--features-only: is a setting of --adaptive", id="alone"
        ),
        pytest.param(["--preset", "paper"], "--preset: is a setting of --adaptive", id="preset"),
        pytest.param(["--adaptive", "--preset", "none"], "preset: expected one of", id="unknown"),
        pytest.param(["--adaptive", "--update-every", "0"], "update_every: expected 1", id="zero"),
    ],
)
def test_bad_settings_are_one_line(classifier, saved, capsys, flags, message):
    path = saved(classifier.plain())
    assert main([str(path), *PREPROCESSING, *flags]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert [line for line in lines if not line.startswith("WARNING: labels:")] == lines[-1:]
    assert message in lines[-1]
    assert not path.with_name("net.adaptive.onnx").exists()
