"""`gain-stream --adaptive`: the graph that learns by itself in place of a model."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from numpy.testing import assert_allclose

from gain_apps.stream import main
from gain_core import GainConfig
from gain_export.adaptive import add_adaptation

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def adaptive_path(artifact_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adaptive") / "tiny.adaptive.onnx"
    add_adaptation(artifact_path, path, config=GainConfig.preset("tracked"))
    return path


def read_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_it_is_the_model_and_its_state_file_is_the_models(
    command: Command, artifact_path: Path, adaptive_path: Path, photo_folder: Path, tmp_path: Path
) -> None:
    rows = {}
    for name, file in (("model", artifact_path), ("adaptive", adaptive_path)):
        done = command(
            *(photo_folder, f"--{name}", file, "--jsonl", tmp_path / name, "--json"),
            *("--state-out", tmp_path / f"{name}.state"),
            *(("--warm-up", 1, "--update-every", 1) if name == "model" else ()),
        )
        assert done.returncode == 0, done.stderr
        rows[name] = read_rows(tmp_path / name)
        summary = json.loads(done.stdout)
        assert summary["frames_learned"] == 12
    assert summary["config"]["gain"] == GainConfig.preset("tracked").to_dict()
    assert summary["config"]["preset"] is None
    for plain, baked in zip(rows["model"], rows["adaptive"], strict=True):
        assert plain["adapted"][0]["index"] == baked["adapted"][0]["index"]
        assert_allclose(baked["strength"], plain["strength"], atol=1e-3)
    crossed = command(
        *(photo_folder, "--model", artifact_path, "--state-in", tmp_path / "adaptive.state"),
        *("--freeze", "--json"),
    )
    assert crossed.returncode == 0, crossed.stderr
    assert json.loads(crossed.stdout)["frames_learned"] == 12


def test_its_snapshots_are_continued(
    command: Command, adaptive_path: Path, photo_folder: Path, tmp_path: Path
) -> None:
    for total in (12, 24):
        done = command(photo_folder, "--adaptive", adaptive_path, "--snapshots", tmp_path, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["frames_learned"] == total


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--preset", "paper"], "--preset: an adaptive file has its own"),
        (["--half-life", "100"], "--half-life: an adaptive file has its own"),
        (["--update-every", "4"], "--update-every: an adaptive file has its own"),
        (["--warm-up", "8"], "--warm-up: an adaptive file has its own"),
        (["--model", "tiny.onnx"], "--model, --adaptive: an adaptive file holds its network"),
    ],
)
def test_what_is_baked_in_cannot_be_asked_for(
    adaptive_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    expected: str,
) -> None:
    assert main(["test://pattern?frames=2", "--adaptive", str(adaptive_path), *flags]) == 1
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_a_plain_artifact_is_refused(
    artifact_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test://pattern?frames=2", "--adaptive", str(artifact_path)]) == 1
    assert "gain-export" in capsys.readouterr().err
