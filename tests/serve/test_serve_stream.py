"""`gain-stream --serve`: the command in a process of its own, watched and commanded over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from gain_apps.stream_page import status_words

from gain_apps.commands import CommandQueue
from gain_apps.stop_request import StopRequest
from gain_apps.stream_commands import carry_out, drain_commands
from gain_apps.stream_config import StreamConfig
from gain_core.errors import ArtifactError, ConfigError

ROADSIGNS = Path(__file__).resolve().parents[2] / "models" / "roadsigns"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """The shipped road-sign network as an artifact."""
    target = tmp_path_factory.mktemp("artifact") / "roadsigns.gain.onnx"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gain_apps.export", ROADSIGNS / "roadsigns.onnx"),
            *("--output", target, "--labels", ROADSIGNS / "labels.txt"),
            *("--mean", "0.5", "0.5", "0.5", "--std", "0.5", "0.5", "0.5"),
            *("--crop-pct", "1", "--crop-mode", "squash", "--interpolation", "bicubic"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target


class Running:
    """A `gain-stream` that serves, and its address."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "gain_apps.stream", *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        )
        self.log: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r"watch it at (http://\S+/)", line)
            if found is not None:
                self.url = found[1]
                return
        raise AssertionError("".join(self.log))

    def get(self, path: str, **headers: str):
        # Also where it listens on every address of the machine.
        url = self.url.replace("0.0.0.0", "127.0.0.1")
        request = urllib.request.Request(url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=10) as reply:
            return json.loads(reply.read())

    def post(self, path: str) -> int:
        request = urllib.request.Request(self.url + path, method="POST")
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status

    def stop(self) -> tuple[str, str]:
        """Ask it to end; what it wrote."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=20)


def test_a_run_is_watched_commanded_and_ended(artifact, until, tmp_path):
    state = tmp_path / "state.safetensors"
    running = Running(
        *("test://drive?frames=100000", "--model", artifact, "--serve", "0", "--json"),
        *("--warm-up", "16", "--update-every", "8", "--threads", "1", "--state-out", state),
    )
    try:
        until(lambda: running.get("api/status")["frames_learned"] >= 24, timeout_s=60)
        status = running.get("api/status")
        assert status["stream"]["artifact"] == "roadsigns.gain.onnx"
        assert status["commands"] == ["freeze", "unfreeze", "reset", "save", "roll-back"]
        assert set(status["newest"]["stage_ms"]) == {"preprocess", "forward", "adapt"}
        running.post("api/commands/save")
        until(state.exists)
        running.post("api/commands/reset")
        running.post("api/commands/freeze")
        until(lambda: running.get("api/status")["frozen"])
        assert running.get("api/status")["frames_learned"] == 0
        running.post("api/commands/roll-back")
        until(lambda: running.get("api/status")["frames_learned"] >= 24)
        with urllib.request.urlopen(running.url + "picture.jpg", timeout=10) as reply:
            assert reply.read(3) == b"\xff\xd8\xff"
    finally:
        out, err = running.stop()
    assert running.process.returncode == 143
    assert json.loads(out)["stopped_by"] == "SIGTERM"
    assert "rolled back" in err
    assert "Traceback" not in err


def test_with_a_token_it_listens_everywhere_and_answers_who_knows_it(artifact, until, tmp_path):
    token = tmp_path / "token"
    token.write_text("a-secret-of-some-length\n")
    token.chmod(0o600)
    running = Running(
        *("test://drive?frames=100000", "--model", artifact, "--threads", "1"),
        *("--serve", "0.0.0.0:0", "--serve-token-file", token, "--debug"),
    )
    try:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            running.get("api/status")
        known = {"Authorization": "Bearer a-secret-of-some-length"}
        until(lambda: running.get("api/status", **known)["frames"] > 0, timeout_s=60)
    finally:
        _, err = running.stop()
    assert "a-secret" not in err + "".join(running.log)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(["--serve", "0.0.0.0:0"], "--serve-token-file FILE", id="no token"),
        pytest.param(["--serve", "here"], r"--serve: expected \[HOST:\]PORT", id="no port"),
        pytest.param(["--serve-token-file", "t"], r"expected --serve \[HOST:\]PORT", id="alone"),
        pytest.param(
            ["--serve", "0", "--serve-token-file", "/nowhere/t"], "cannot be read", id="no file"
        ),
    ],
)
def test_wrong_settings_are_one_line(artifact, flags, message):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gain_apps.stream", "test://drive?frames=22"),
            *("--model", artifact, "--log-level", "error", *flags),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert re.search(message, done.stderr)
    assert len(done.stderr.splitlines()) == 1


def test_the_token_never_reaches_settings_or_logs(tmp_path):
    token = tmp_path / "token"
    token.write_text("a-secret-of-some-length")
    config = StreamConfig(input="0", model="m", serve="8080", serve_token_file=str(token))
    assert "a-secret" not in json.dumps(config.to_dict())


@pytest.fixture
def adapter():
    """Records what it is asked for."""
    calls: list[str] = []
    return SimpleNamespace(
        calls=calls,
        frozen=False,
        reset=lambda: calls.append("reset"),
        freeze=lambda: calls.append("freeze"),
        unfreeze=lambda: calls.append("unfreeze"),
        save_state=lambda path: calls.append(f"save {path}"),
        load_state=lambda path: calls.append(f"load {path}"),
    )


def test_commands_do_what_they_say(adapter, tmp_path):
    state = str(tmp_path / "state")
    stop = StopRequest()
    for command in ("freeze", "unfreeze", "reset", "save", "roll-back"):
        carry_out(command, adapter, stop, state_out=state)
    Path(state).touch()
    carry_out("roll-back", adapter, stop, state_out=state)
    assert adapter.calls == ["freeze", "unfreeze", "reset", f"save {state}", f"load {state}"]
    assert not stop
    carry_out("quit", adapter, stop, state_out=None)
    assert stop.reason == "quit"


@pytest.mark.parametrize("command", ["save", "roll-back"])
def test_without_a_file_nothing_is_saved_and_it_is_said(adapter, caplog, command):
    carry_out(command, adapter, StopRequest(), state_out=None)
    assert adapter.calls == []
    assert f"{command}: nothing done; name a file with --state-out" in caplog.text


def test_a_command_that_fails_does_not_end_the_stream(adapter, caplog):
    def fail(path: str) -> None:
        raise ArtifactError(f"{path}: no space left on device")

    adapter.save_state = fail
    queue = CommandQueue()
    for command in ("save", "reset"):
        queue.submit(command)
    drain_commands(queue, adapter, StopRequest(), state_out="s")
    assert adapter.calls == ["reset"]
    assert "save: s: no space left on device" in caplog.text


@dataclass
class Told:
    drift: float
    guard: str
    array: tuple[int, ...]


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        pytest.param(Told(0.5, "ok", (1,)), {"drift": 0.5, "guard": "ok"}, id="record"),
        pytest.param({"held": True, "since": None}, {"held": True, "since": None}, id="mapping"),
    ],
)
def test_status_is_taken_as_it_comes(status, shown):
    assert status_words(SimpleNamespace(status=lambda: status)) == shown
    assert status_words(SimpleNamespace()) == {}


def test_serve_belongs_to_the_help():
    done = subprocess.run(
        [sys.executable, "-m", "gain_apps.stream", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "--serve [HOST:]PORT" in done.stdout


def test_a_bad_address_is_found_before_anything_is_opened():
    with pytest.raises(ConfigError, match="--serve"):
        StreamConfig(input="0", model="m", serve="1.2.3.4")
