"""`gain-stream --model` with an adaptive file: the graph that learns by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonl_rows import read_rows
from numpy.testing import assert_allclose

from gain_core import config_to_dict, preset
from gain_export.adaptive import add_adaptation


@pytest.fixture(scope="session")
def adaptive_path(artifact_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adaptive") / "tiny.adaptive.onnx"
    add_adaptation(artifact_path, path, config=preset("shift"), update_every=2, warmup_frames=4)
    return path


def test_it_is_the_model_and_its_state_file_is_the_models(
    run, artifact_path, adaptive_path, photo_folder, tmp_path
):
    rows = {}
    waits = ("--set=warm-up=4", "--update-every", 2)
    for name, file in (("model", artifact_path), ("adaptive", adaptive_path)):
        summary = run(
            *(photo_folder, "--model", file, "--jsonl", tmp_path / name),
            *("--state-out", tmp_path / f"{name}.state"),
            *(waits if name == "model" else ()),
        )
        rows[name] = read_rows(tmp_path / name)
        assert summary["frames_learned"] == 12
    assert summary["config"]["gain"] == json.loads(json.dumps(config_to_dict(preset("shift"))))
    assert summary["config"]["update_every"] == 2
    for plain, baked in zip(rows["model"], rows["adaptive"], strict=True):
        assert plain["adapted"][0]["index"] == baked["adapted"][0]["index"]
        assert_allclose(baked["strength"], plain["strength"], atol=1e-3)
    use = ("--model", artifact_path, "--state-in", tmp_path / "adaptive.state", "--freeze")
    assert run(photo_folder, *use)["frames_learned"] == 12


def test_its_snapshots_are_continued(run, adaptive_path, photo_folder, tmp_path):
    for total in (12, 24):
        use = ("--model", adaptive_path, "--snapshots", tmp_path)
        assert run(photo_folder, *use)["frames_learned"] == total


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        pytest.param(["--preset", "paper"], "config: fixed in", id="preset"),
        pytest.param(["--set=warm-up=9"], "warmup_frames: fixed in", id="warm-up"),
        pytest.param(["--update-every", "1"], "update_every: expected at least 2", id="update"),
    ],
)
def test_what_is_baked_in_cannot_be_asked_for(
    command, adaptive_path, photo_folder, flags, expected
):
    done = command(photo_folder, "--model", adaptive_path, *flags)
    assert done.returncode == 1
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
