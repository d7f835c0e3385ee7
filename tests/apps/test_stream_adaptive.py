"""`gain-stream --adaptive`: the graph that learns by itself in place of a model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from numpy.testing import assert_allclose

from gain_apps.stream import main
from gain_apps.stream_config import StreamConfig
from gain_core import GainConfig
from gain_core.errors import ConfigError
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
    assert (summary["config"]["update_every"], summary["config"]["warm_up"]) == (1, 1)
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
        (["--half-life", "100", "--warm-up", "8"], "again with gain-export --adaptive and that"),
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


def test_fields_of_a_settings_file_are_baked_in_too() -> None:
    settings = {"input": "test://pattern", "adaptive": "a.onnx", "gain": {"shrinkage": 2.0}}
    with pytest.raises(ConfigError, match=r"\[gain\]: .*add_adaptation\(config=\.\.\.\)"):
        StreamConfig.resolve(settings)


@pytest.fixture(scope="session")
def waiting_path(artifact_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that updates every second frame, for the first time after eight."""
    path = tmp_path_factory.mktemp("adaptive") / "waiting.adaptive.onnx"
    config = GainConfig.preset("balanced")
    add_adaptation(artifact_path, path, config=config, update_every=2, warmup_frames=8)
    return path


def test_it_warms_up_as_the_model_does(
    command: Command, artifact_path: Path, waiting_path: Path, clip_path: Path, tmp_path: Path
) -> None:
    settings = ("--preset", "balanced", "--update-every", 2, "--warm-up", 8)
    for name, file in (("model", artifact_path), ("adaptive", waiting_path)):
        done = command(
            *(clip_path, f"--{name}", file, "--jsonl", tmp_path / name, "--json"),
            *(settings if name == "model" else ()),
        )
        assert done.returncode == 0, done.stderr
        config = json.loads(done.stdout)["config"]
        assert (config["update_every"], config["warm_up"]) == (2, 8)
    plain, baked = (read_rows(tmp_path / name) for name in ("model", "adaptive"))
    assert len(plain) == 24
    for one, other in zip(plain, baked, strict=True):
        assert_allclose(other["strength"], one["strength"], atol=1e-3)
        assert one["adapted"][0]["index"] == other["adapted"][0]["index"]
    assert {row["strength"] for row in baked[:8]} == {0.0}
    assert max(row["strength"] for row in baked[8:]) > 0.0


def test_a_state_of_the_model_is_continued(
    command: Command, artifact_path: Path, adaptive_path: Path, photo_folder: Path, tmp_path: Path
) -> None:
    state = tmp_path / "model.state"
    taught = command(
        *(photo_folder, "--model", artifact_path, "--state-out", state),
        *("--warm-up", 1, "--update-every", 1),
    )
    assert taught.returncode == 0, taught.stderr
    learned = {}
    for name, file in (("model", artifact_path), ("adaptive", adaptive_path)):
        done = command(
            *(photo_folder, f"--{name}", file, "--state-in", state),
            *("--jsonl", tmp_path / name, "--json"),
            *(("--warm-up", 1, "--update-every", 1) if name == "model" else ()),
        )
        assert done.returncode == 0, done.stderr
        learned[name] = json.loads(done.stdout)["frames_learned"]
    assert learned == {"model": 24, "adaptive": 24}
    plain, baked = (read_rows(tmp_path / name) for name in ("model", "adaptive"))
    for one, other in zip(plain, baked, strict=True):
        assert_allclose(other["strength"], one["strength"], atol=1e-3)


def test_a_state_of_another_network_is_refused(
    other_artifact_path: Path, adaptive_path: Path, command: Command, tmp_path: Path
) -> None:
    state = tmp_path / "other.state"
    taught = command(
        "test://pattern?frames=4", "--model", other_artifact_path, "--state-out", state
    )
    assert taught.returncode == 0, taught.stderr
    done = command("test://pattern?frames=4", "--adaptive", adaptive_path, "--state-in", state)
    assert done.returncode == 1
    assert "other.state" in done.stderr.splitlines()[-1]


class Served:
    """A running `gain-stream --serve`: its page's address, and how it ended."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.errors = ""

    def status(self) -> dict:
        with urllib.request.urlopen(self.url + "api/cameras/camera", timeout=10) as reply:
            return json.loads(reply.read())

    def post(self, name: str) -> None:
        request = urllib.request.Request(
            self.url + f"api/cameras/camera/commands/{name}", method="POST"
        )
        urllib.request.urlopen(request, timeout=10).close()

    def until(self, holds: Callable[[dict], bool]) -> dict:
        """The first status for which it holds."""
        deadline_s = time.monotonic() + 60.0
        while time.monotonic() < deadline_s:
            status = self.status()
            if holds(status):
                return status
            time.sleep(0.05)
        raise AssertionError(f"never came: {status}")


@contextmanager
def served(*arguments: object) -> Iterator[Served]:
    """The command in a process of its own; ended by a signal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gain_apps.stream", *map(str, arguments), "--serve", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )
    assert process.stderr is not None
    found, said = None, ""
    for line in process.stderr:
        said += line
        found = re.search(r"watch it at (http://\S+/)", line)
        if found is not None:
            break
    assert found is not None, said
    one = Served(process, found[1])
    try:
        yield one
    finally:
        process.send_signal(signal.SIGTERM)
        one.errors = said + process.communicate(timeout=30)[1]


@pytest.mark.parametrize("kind", ["tracked", "balanced"])
def test_its_page_tells_what_it_does_and_takes_commands(
    adaptive_path: Path, waiting_path: Path, tmp_path: Path, kind: str
) -> None:
    path = adaptive_path if kind == "tracked" else waiting_path
    state = tmp_path / "state.safetensors"
    with served(
        "test://pattern?frames=1000000", "--adaptive", path, "--threads", 1, "--state-out", state
    ) as running:
        status = running.until(lambda status: status["frames_learned"] >= 24)
        assert status["artifact"] == path.name
        assert status["device"]["update_every"] == (1 if kind == "tracked" else 2)
        assert status["adaptation"]["guard"] == ("watching" if kind == "tracked" else "off")
        assert status["adaptation"]["guard_trips"] == 0
        running.post("freeze")
        held = running.until(lambda status: status["camera"]["learning_paused"])["frames_learned"]
        running.post("save")
        running.until(lambda _: state.exists())
        running.post("reset")
        running.until(lambda status: status["frames_learned"] == 0)
        running.post("roll-back")
        # What waited is learned from before a state is written.
        running.until(lambda status: held <= status["frames_learned"] < held + 8)
        running.post("unfreeze")
        running.until(lambda status: status["frames_learned"] > held + 8)
    assert running.process.returncode == 143
    assert "reset: back to the source" in running.errors
    assert "rolled back to" in running.errors
    assert "Traceback" not in running.errors


def test_it_rolls_back_to_a_snapshot(waiting_path: Path, tmp_path: Path) -> None:
    with served(
        *("test://pattern?frames=1000000", "--adaptive", waiting_path, "--threads", 1),
        *("--snapshots", tmp_path, "--snapshot-every", 10**6, "--snapshot-seconds", 10**6),
    ) as running:
        running.until(lambda status: status["frames_learned"] >= 10)
        running.post("freeze")
        held = running.until(lambda status: status["camera"]["learning_paused"])["frames_learned"]
        running.post("save")
        running.until(lambda status: status["kept"]["frames_not_kept"] == 0)
        running.post("unfreeze")
        running.until(lambda status: status["frames_learned"] > held)
        running.post("freeze")
        running.until(lambda status: status["camera"]["learning_paused"])
        running.post("roll-back")
        running.until(lambda status: status["frames_learned"] == held)
    assert f"rolled back to {held} learned frames" in running.errors


def test_one_never_measured_says_so(
    command: Command, adaptive_path: Path, waiting_path: Path
) -> None:
    for path, says in ((adaptive_path, True), (waiting_path, False)):
        done = command("test://pattern?frames=2", "--adaptive", path)
        assert done.returncode == 0, done.stderr
        assert ("never measured on clean images" in done.stderr) == says
