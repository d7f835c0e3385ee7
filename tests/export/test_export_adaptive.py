"""gain-export --adaptive: the adaptive file beside the artifact, or of an artifact."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gain_apps.export import main
from gain_apps.export_text import Written, print_text
from gain_apps.stream_config import StreamConfig
from gain_core import PRESETS, GainConfig
from gain_export.adaptive import AdaptiveReport
from gain_runtime.adaptive_artifact import load_adaptive
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
        pytest.param(["--half-life", "9"], "--half-life: is a setting of --adaptive", id="memory"),
        pytest.param(["--warm-up", "9"], "--warm-up: is a setting of --adaptive", id="wait"),
        *(
            pytest.param(
                ["--adaptive", flag, frames],
                f"{flag}: expected 1 to 1024 frames, which wait in the file's state, got {frames}",
                id=f"{flag[2:]}-{frames}",
            )
            for flag in ("--update-every", "--warm-up")
            for frames in ("0", "-3", "1025")
        ),
        *(
            pytest.param(
                ["--adaptive", "--half-life", frames],
                f"--half-life {frames}: half_life: expected a number > 0",
                id=f"half-life-{frames}",
            )
            for frames in ("0", "-3", "nan")
        ),
        pytest.param(
            ["--adaptive", "--preset", "balanced", "--half-life", "inf"],
            "--half-life inf: prior_samples: expected 0",
            id="half-life-endless",
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


def test_memory_and_waits_are_baked_in(classifier, saved, capsys):
    path = saved(classifier.plain())
    flags = ["--preset", "balanced", "--half-life", "50", "--warm-up", "9", "--update-every", "3"]
    assert main([str(path), *PREPROCESSING, "--adaptive", *flags]) == 0
    assert "update every 3, warm-up 9" in capsys.readouterr().err
    artifact = load_adaptive(path.with_name("net.adaptive.onnx"))
    assert artifact.config == replace(GainConfig.preset("balanced"), half_life=50.0)
    assert (artifact.update_every, artifact.warmup_frames) == (3, 9)


@pytest.mark.parametrize("preset", PRESETS)
def test_what_nobody_says_is_what_a_stream_does(classifier, saved, preset):
    path = saved(classifier.plain())
    assert main([str(path), *PREPROCESSING, "--adaptive", "--preset", preset]) == 0
    artifact = load_adaptive(path.with_name("net.adaptive.onnx"))
    stream = StreamConfig(input="clip.mp4", model="net.gain.onnx", preset=preset)
    assert artifact.config == stream.gain_config()
    assert artifact.update_every == stream.update_every
    assert artifact.warmup_frames == stream.warm_up == 64


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(920, "0.9 kB"), (72_436, "72.4 kB"), (999_900, "999.9 kB"), (6_144_000, "6.1 MB")],
)
def test_a_small_state_has_a_size(capsys, size_bytes, text):
    report = AdaptiveReport(
        path=Path("net.adaptive.onnx"),
        size_bytes=2_000_000,
        opset=17,
        ir_version=8,
        num_nodes=1,
        state_bytes=size_bytes,
        update_every=16,
        warmup_frames=64,
        features_only=False,
    )
    print_text(Written(None, None, None, report, None))
    assert f"(2.0 MB, state {text}, update every 16, warm-up 64)" in capsys.readouterr().err
