"""`gain-stream` end to end, on real JPEGs and a real clip, and as a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
from jsonl_rows import count_rows, read_rows

from gain_apps.metrics import accuracy, expected_calibration_error, negative_log_likelihood
from gain_core import config_from_dict, preset
from gain_runtime.adapter import Adapter
from gain_runtime.engine import NetworkEngine, artifact_method
from gain_runtime.files.artifact import load_artifact
from gain_runtime.files.snapshots import SnapshotStore
from gain_runtime.files.state import load_state
from gain_runtime.sessions.session import open_session
from gain_runtime.sources.opening import open_source


def count_frames(path: Path) -> int:
    capture = cv2.VideoCapture(str(path))
    count = 0
    while capture.read()[0]:
        count += 1
    capture.release()
    return count


def test_photos_give_the_rows_the_adapter_gives(process, artifact_path, photo_folder, tmp_path):
    done = process(
        *(photo_folder, "--model", artifact_path, "--jsonl", tmp_path / "rows.jsonl"),
        *("--output", tmp_path / "out.mp4", "--state-out", tmp_path / "state", "--json=-"),
        *("--set=warm-up=1", "--update-every", "1"),
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    rows = read_rows(tmp_path / "rows.jsonl")
    assert len(rows) == summary["frames"] == 12
    with open_source(str(photo_folder)) as source, open_session(artifact_path) as session:
        adapter = Adapter(NetworkEngine(session, preset("shift"), update_every=1, warmup_frames=1))
        frames = list(source)
        batches = [adapter.step([frame.image]) for frame in frames]
    for row, frame, batch in zip(rows, frames, batches, strict=True):
        assert (row["index"], row["source_id"]) == (frame.index, frame.source_id)
        assert row["truth"] == frame.truth
        for key, probs in (("source", batch.source_probs[0]), ("adapted", batch.probs[0])):
            best = np.argsort(-probs, kind="stable")[:3]
            assert [item["index"] for item in row[key]] == best.tolist()
            assert [item["prob"] for item in row[key]] == probs[best].tolist()
        assert row["strength"] == float(batch.strength[0])
        assert row["gain"] == float(batch.gain[0])
    assert count_frames(tmp_path / "out.mp4") == 12
    assert summary["frames_learned"] == 12
    assert summary["artifact"]["sha256"] == adapter.artifact.sha256
    assert summary["provider"] == "CPUExecutionProvider"
    assert config_from_dict(summary["config"]["gain"]) == preset("shift")


def test_the_scores_of_both_predictions_come_from_one_pass(run, artifact_path, photo_folder):
    truth = run(photo_folder, "--model", artifact_path, "--corrupt", "fog:0-5")["truth"]
    at_once = ("--set=warm-up=1", "--update-every", "1", "--preset", "paper")
    plain = run(photo_folder, "--model", artifact_path, *at_once)
    scores = plain["truth"]
    with open_source(str(photo_folder)) as source, open_session(artifact_path) as session:
        adapter = Adapter(NetworkEngine(session, preset("paper"), update_every=1, warmup_frames=1))
        frames = list(source)
        batches = [adapter.step([frame.image]) for frame in frames]
    labels = np.array([frame.truth for frame in frames])
    for who, prefix in (("source", "source_"), ("adapted", "")):
        probs = np.concatenate([getattr(batch, f"{prefix}probs") for batch in batches])
        log_probs = np.concatenate([getattr(batch, f"{prefix}log_probs") for batch in batches])
        expected = {
            "accuracy_percent": 100 * accuracy(probs, labels),
            "ece_percent": 100 * expected_calibration_error(probs, labels),
            "nll_nats": negative_log_likelihood(log_probs, labels),
        }
        assert scores[who] == pytest.approx(expected, rel=1e-5)
    assert scores["source"] != scores["adapted"]
    assert scores["conditions"] == {}
    # A ramp over twelve photos passes every whole severity.
    assert list(truth["conditions"]) == [f"fog:{severity}" for severity in range(6)]
    assert sum(score["frames"] for score in truth["conditions"].values()) == 12
    line = next(line for line in plain["stderr"].splitlines() if "│ all " in line)
    cells = [cell.strip() for cell in line.strip("│ ").split("│")]
    shown = [
        f"{scores[who][name]:.{digits}f}"
        for name, digits in (("accuracy_percent", 1), ("ece_percent", 1), ("nll_nats", 3))
        for who in ("source", "adapted")
    ]
    assert cells == ["all", "12", *shown]


def test_a_frozen_clip_is_the_plain_source(run, artifact_path, clip_path, tmp_path):
    run(
        *(clip_path, "--model", artifact_path, "--freeze", "--jsonl", tmp_path / "rows.jsonl"),
        *("--output", tmp_path / "out.avi", "--side-by-side", "--batch-size", 5),
    )
    rows = read_rows(tmp_path / "rows.jsonl")
    assert len(rows) == 24
    assert all(row["source"] == row["adapted"] and row["strength"] == 0.0 for row in rows)
    assert not any(row["changed"] for row in rows)
    assert count_frames(tmp_path / "out.avi") == 24


def test_a_clip_cut_short_keeps_the_frames_before_the_cut(run, artifact_path, tmp_path):
    path = tmp_path / "cut.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10.0, (96, 64))
    rng = np.random.default_rng(0)
    for _ in range(40):
        writer.write(rng.integers(0, 256, size=(64, 96, 3), dtype=np.uint8))
    writer.release()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    rows = tmp_path / "rows.jsonl"
    summary = run(path, "--model", artifact_path, "--jsonl", rows)
    assert 10 <= summary["frames"] <= 25
    assert len(read_rows(rows)) == summary["frames"]
    assert summary["frames"] + summary["skipped"] == 40
    assert "cut short" in summary["stderr"]


ENDLESS = "test://pattern?frames=100000000&width=64&height=48"


@pytest.mark.parametrize(
    ("signum", "status"),
    [
        pytest.param(signal.SIGINT, 130, id="ctrl-c", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, id="sigterm"),
    ],
)
def test_a_signal_finishes_the_files_and_saves_the_state(
    start, until, artifact_path, tmp_path, signum, status
):
    rows_path, video, state = (tmp_path / name for name in ("rows.jsonl", "out.mp4", "state"))
    process = start(
        *(ENDLESS, "--model", artifact_path, "--json=-", "--jsonl", rows_path),
        *("--output", video, "--state-out", state, "--snapshots", tmp_path / "kept"),
    )
    until(lambda: count_rows(rows_path) >= 70)
    asked = time.monotonic()
    process.send_signal(signum)
    stdout, stderr = process.communicate(timeout=120)
    # Two seconds are promised; a machine that runs other tests meanwhile needs far more.
    assert time.monotonic() - asked < 20.0
    assert process.returncode == status, stderr
    summary = json.loads(stdout)
    assert summary["stopped_by"] == signal.Signals(signum).name
    assert len(read_rows(rows_path)) == summary["frames"] >= 10
    assert count_frames(video) == summary["frames"]
    assert "Traceback" not in stderr
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["kept", "out.mp4", "rows.jsonl", "state"]
    artifact = load_artifact(artifact_path)
    method = artifact_method(artifact)
    loaded = load_state(state, method=method, artifact_sha256=artifact.sha256)
    assert loaded.frames == summary["frames"] == summary["frames_learned"]
    # What was pending is learned for the state file, after the last snapshot.
    with SnapshotStore(tmp_path / "kept") as store:
        assert 0 <= loaded.frames - store.snapshots()[0].frames < 16


def test_signal_ends_wait_for_next_picture_without_a_word(start, until, artifact_path, tmp_path):
    process = start("-", "--model", artifact_path, "--jsonl", tmp_path / "rows.jsonl")
    picture = cv2.imencode(".jpg", np.full((48, 64, 3), 90, np.uint8))[1].tobytes()
    process.stdin.buffer.write(3 * picture)
    process.stdin.flush()
    until(lambda: count_rows(tmp_path / "rows.jsonl") >= 3)
    process.send_signal(signal.SIGTERM)
    # Not `communicate`, which would end the input.
    assert process.wait(timeout=120) == 143
    assert "WARNING" not in process.stderr.read()


def test_a_second_signal_ends_at_once():
    script = (
        "import os, signal, time\n"
        "from gain_apps.streaming.control import StopRequest, signals_handled\n"
        "stop = StopRequest()\n"
        "with signals_handled(stop):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    assert stop and stop.reason == 'SIGINT' and stop.exit_status == 130\n"
        "    print('asked', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('still here', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "asked\n", "")


def test_a_reader_that_goes_away_is_one_line(start, artifact_path):
    process = start(ENDLESS, "--model", artifact_path, "--jsonl", "-")
    assert json.loads(process.stdout.readline())["index"] == 0
    process.stdout.close()
    assert process.wait(timeout=120) == 1
    stderr = process.stderr.read()
    assert stderr.splitlines()[-1].startswith("gain-stream: error: --jsonl: standard output")
    assert "Exception ignored" not in stderr
    assert "Traceback" not in stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk without room")
def test_full_disk_does_not_take_other_outputs_with_it(command, artifact_path, clip_path, tmp_path):
    video, state = tmp_path / "out.mp4", tmp_path / "state"
    done = command(
        *(clip_path, "--model", artifact_path, "--jsonl", "/dev/full", "--json=-"),
        *("--output", video, "--state-out", state),
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("gain-stream: error: --jsonl: /dev/full")
    assert json.loads(done.stdout)["frames"] == 1
    assert count_frames(video) == 1
    assert state.is_file()


def test_the_launcher_is_the_command():
    launcher = Path(__file__).resolve().parents[2] / "apps" / "stream_video.py"
    done = subprocess.run(
        [sys.executable, launcher], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "INPUT is required" in done.stderr
