"""`gain-stream` as a process: signals, kills, standard streams, and what others see of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from jsonl_rows import read_rows

from gain_apps.stream import main

# Two seconds are promised; a machine that runs other tests meanwhile needs far more. Still less
# than the half minute of an unanswered connection or of a long pause.
STOP_S = 20.0
LIVE = "test://pattern?live=1&rate=20&width=64&height=48&frames=1000000"
FAST = LIVE.replace("rate=20", "rate=100")


@contextmanager
def silent_host():
    """A host that accepts and says nothing."""
    with socket.socket() as host:
        host.bind(("127.0.0.1", 0))
        host.listen(16)
        yield host.getsockname()[1]


def test_a_run_is_watched_commanded_and_ended(run, until, tmp_path):
    state = tmp_path / "state.safetensors"
    running = run(
        *(FAST, "--json=-", "--set=warm-up=16", "--update-every", "8", "--state-out", state)
    )
    until(lambda: running.camera()["frames_learned"] >= 24)
    status = running.camera()
    assert status["artifact"] == "tiny.onnx"
    assert set(status["newest"]["stage_ms"]) == {"preprocess", "forward", "adapt"}
    assert running.command("save").startswith("saved to state.safetensors (")
    assert "everything learned is dropped" in running.command("reset")
    assert running.command("freeze") == "learning paused until the next start (no --snapshots)"
    until(lambda: running.camera()["camera"]["learning_paused"])
    assert running.command("roll-back").startswith("rolled back to ")
    until(lambda: running.camera()["frames_learned"] >= 24)
    with urllib.request.urlopen(running.url + "cameras/camera/picture.jpg", timeout=60) as reply:
        assert reply.read(3) == b"\xff\xd8\xff"
    out, err = running.stop()
    assert running.process.returncode == 143
    assert running.stop_s < STOP_S
    assert json.loads(out)["stopped_by"] == "SIGTERM"
    assert "rolled back" in err
    assert "Traceback" not in err


def test_paused_learning_survives_a_kill(artifact, run, run_inside, until, tmp_path):
    arguments = (
        *(LIVE, "--set=warm-up=1", "--update-every", "1", "--snapshots", tmp_path / "kept"),
        f"--set=events={tmp_path / 'events.sqlite'}",
    )
    running = run(*arguments)
    until(lambda: running.camera()["frames_learned"] > 3)
    assert running.command("freeze") == "learning paused, also over a restart"
    learned = running.camera()["frames_learned"]
    running.process.kill()
    running.process.wait()
    again = run_inside(*arguments, "--model", artifact, "--serve", "0", "--num-threads", "1")
    until(lambda: again.camera()["camera"]["frames"] > 5)
    assert again.camera()["camera"]["learning_paused"]
    assert again.camera()["frames_learned"] <= learned
    texts = [event["text"] for event in again.ask("api/events")["events"]]
    # Who did it and when is known after the restart, and so is what happened before it.
    assert any("still paused" in text and "API at 127.0.0.1" in text for text in texts)
    assert "learning paused, also over a restart" in texts
    assert again.command("unfreeze") == "learning again"
    before = again.camera()["frames_learned"]
    until(lambda: again.camera()["frames_learned"] > before)
    again.stop()
    assert not (tmp_path / "kept" / "learning-paused.json").exists()


def test_rows_go_on_over_restarts_and_a_hangup_opens_the_file_anew(
    artifact, run, until, tmp_path, capsys
):
    rows, rotated = tmp_path / "rows.jsonl", tmp_path / "rotated.jsonl"
    for _ in range(2):
        running = run(LIVE, "--jsonl", rows)
        until(lambda running=running: running.camera()["camera"]["frames"] > 5)
        assert main([LIVE, "--model", str(artifact), "--jsonl", str(rows)]) == 1
        assert "another run writes its rows there" in capsys.readouterr().err
        if not rotated.exists():
            rows.rename(rotated)
        running.process.send_signal(signal.SIGHUP)
        until(rows.exists)
        until(lambda: rows.stat().st_size > 0)
        running.stop()
        assert running.process.returncode == 143
    lines = read_rows(rotated) + read_rows(rows)
    moments = [datetime.fromisoformat(line["utc"].replace("Z", "+00:00")) for line in lines]
    assert moments == sorted(moments)
    assert abs(time.time() - moments[-1].timestamp()) < 600
    # Two runs: numbers begin anew once, at 0 or, where the machine was busy, a few frames later.
    numbers = [line["index"] for line in lines]
    assert sum(after <= before for before, after in pairwise(numbers)) == 1


def test_the_list_of_processes_shows_no_secret(run, until, network_camera):
    pytest.importorskip("setproctitle", reason="setproctitle is not installed")
    network_camera.appear()
    running = run(
        network_camera.uri,
        f"--set=webhook=http://u:sesame@127.0.0.1:{network_camera.port}/hooks/sesame",
    )
    title = Path(f"/proc/{running.process.pid}/cmdline")
    until(lambda: b"sesame" not in title.read_bytes())
    assert b"127.0.0.1" in title.read_bytes()
    _, err = running.stop()
    assert "sesame" not in err


@pytest.mark.parametrize(
    ("kind", "signum"),
    [
        ("pipe", signal.SIGTERM),
        ("silent host", signal.SIGINT),
        ("host away", signal.SIGTERM),
        ("many", signal.SIGINT),
    ],
    ids=lambda item: getattr(item, "name", item),
)
def test_a_signal_before_the_first_frame_ends_soon(artifact, start, until, tmp_path, kind, signum):
    with silent_host() as port:
        uris = {
            "pipe": ["-"],
            "silent host": [f"http://127.0.0.1:{port}/live"],
            "host away": ["rtsp://127.0.0.1:9/live", "--serve", "0"],
            "many": [f"http://127.0.0.1:{port}/live", "rtsp://127.0.0.1:9/live", LIVE],
        }[kind]
        rows = tmp_path / "rows.jsonl"
        process = start(*uris, "--model", artifact, "--num-threads", "1", "--jsonl", rows)
        # Python itself has a handler for SIGINT, and ours are there together.
        status = Path(f"/proc/{process.pid}/status")
        until(lambda: _catches(status, signal.SIGTERM))
        time.sleep(1.5)
        asked = time.monotonic()
        process.send_signal(signum)
        _, errors = process.communicate(timeout=120)
    assert time.monotonic() - asked < STOP_S
    assert process.returncode == 128 + signum, errors
    assert "Traceback" not in errors


def _catches(status: Path, signum: int) -> bool:
    """Whether a process has a handler for a signal."""
    line = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(line.split()[1], 16) >> (signum - 1) & 1)


def test_a_signal_during_a_reconnect_ends_soon(run, until, tmp_path, network_camera):
    network_camera.appear()
    kept = tmp_path / "kept"
    running = run(network_camera.uri, "--snapshots", kept, "--set=warm-up=1", "--update-every", "1")
    until(lambda: running.camera()["frames_learned"] > 3)
    network_camera.vanish()
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        until(lambda: _bound(silent, network_camera.port))
        silent.listen(16)
        until(lambda: running.states()["camera"] == "reconnecting")
        time.sleep(1.0)
        _, err = running.stop()
    assert running.stop_s < STOP_S
    assert running.process.returncode == 143, err
    assert list(kept.glob("snapshot-*"))


def _bound(listener: socket.socket, port: int) -> bool:
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


@contextmanager
def full_disk():
    """A file that takes nothing."""
    with Path("/dev/full").open("w") as full:
        yield full


@contextmanager
def pipe_without_reader():
    """The writing end of a pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        yield pipe


@pytest.mark.parametrize("log", [full_disk, pipe_without_reader])
def test_a_log_that_cannot_be_written_stops_no_stream(artifact, start, until, tmp_path, log):
    rows, summary = tmp_path / "rows.jsonl", tmp_path / "summary.json"
    written = tmp_path / "here" / "rows.jsonl"
    with log() as stderr:
        process = start(
            *(FAST, "rtsp://127.0.0.1:9/x", "--names", "here,away", "--model", artifact),
            *("--jsonl", rows, "--num-threads", "1", "--debug", "--json", summary),
            stderr=stderr,
        )
        until(lambda: written.exists() and written.read_bytes().count(b"\n") > 120)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 143
    assert json.loads(summary.read_text())["name"] == "here"


def test_a_port_that_is_taken_costs_the_page_and_no_row(artifact, start, until, tmp_path):
    rows = tmp_path / "rows.jsonl"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        process = start(
            *(FAST, "--model", artifact, "--num-threads", "1"), *("--serve", port, "--jsonl", rows)
        )
        until(lambda: rows.exists() and rows.read_bytes().count(b"\n") > 20)
        other.close()
        until(lambda: _healthy(port))
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    assert err.count(f"--serve 127.0.0.1:{port}: cannot be listened on") == 1
    assert err.count("watch it at") == 1


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


PATTERN = "'test://pattern?width=64&height=48&frames=6'"


@pytest.mark.parametrize(
    ("shell", "status", "message"),
    [
        pytest.param(
            f"{PATTERN} --json=- > /dev/full", 1, "standard output: cannot be written", id="full"
        ),
        pytest.param(f"{PATTERN} --json=- >&-", 2, "--json -: standard output is closed", id="out"),
        pytest.param(f"{PATTERN} --jsonl - >&-", 2, "--jsonl -: standard output is", id="rows"),
        pytest.param("- <&-", 2, "INPUT -: standard input is closed", id="in"),
        pytest.param(f"{PATTERN} --jsonl rows.jsonl >&- <&- 2>&-", 0, None, id="none needed"),
    ],
)
def test_standard_streams_that_are_closed_or_full_are_one_line(
    artifact, tmp_path, shell, status, message
):
    command = f"'{sys.executable}' -m gain_apps.stream --model '{artifact}' --set log-level=error"
    done = subprocess.run(
        f"{command} {shell}",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    if message is not None:
        assert message in done.stderr.splitlines()[-1]
    else:
        assert [row["index"] for row in read_rows(tmp_path / "rows.jsonl")] == [*range(6)]
