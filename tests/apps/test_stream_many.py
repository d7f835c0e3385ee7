"""Several streams in one process: one network, and everything else apart."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from gain_apps.stream import main
from gain_apps.streaming.control import StopRequest
from gain_apps.streaming.plan import plan_streams
from gain_apps.streaming.service import run_service
from gain_core.errors import StreamError
from gain_runtime.files.snapshots import SnapshotStore

Command = Callable[..., subprocess.CompletedProcess[str]]
SMALL = "width=64&height=48"


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def assert_same_rows(rows: list[dict], expected: list[dict]) -> None:
    """The same predictions; a row of a larger batch is summed up in another order."""
    assert [row["index"] for row in rows] == [row["index"] for row in expected]
    for got, wanted in zip(rows, expected, strict=True):
        assert got["truth"] == wanted["truth"]
        for who in ("source", "adapted"):
            probs = [{item["label"]: item["prob"] for item in row[who]} for row in (got, wanted)]
            assert probs[0] == pytest.approx(probs[1], rel=1e-3, abs=1e-5)


def test_each_stream_ends_as_it_would_alone(
    command: Command,
    artifact_path: Path,
    clip_path: Path,
    photo_folder: Path,
    tmp_path: Path,
) -> None:
    inputs = (clip_path, photo_folder, f"test://pattern?{SMALL}&frames=30")
    common = ("--model", artifact_path, "--preset", "paper", "--set=warm-up=1", "--num-threads", 1)
    common += ("--set=top-k=5", "--update-every", 1)
    together = command(
        *inputs,
        *common,
        *("--names", "clip,photos,pattern", "--jsonl", tmp_path / "rows.jsonl", "--json=-"),
        *("--state-out", tmp_path / "s.safetensors", "--output", tmp_path / "out.avi"),
        *("--snapshots", tmp_path / "kept", "--set=snapshot-every=5", "--verbose"),
    )
    assert together.returncode == 0, together.stderr
    summaries = [json.loads(line) for line in together.stdout.splitlines()]
    assert [summary["name"] for summary in summaries] == ["clip", "photos", "pattern"]
    assert [summary["frames"] for summary in summaries] == [24, 12, 30]
    # One network for all of them, warmed up by each; how often they meet there is up to the clock.
    assert together.stderr.count("running on CPUExecutionProvider") == 1
    assert f"forward passes for {24 + 12 + 30 + 3} frames" in together.stderr
    for uri, name in zip(inputs, ("clip", "photos", "pattern"), strict=True):
        folder, alone = tmp_path / name, tmp_path / f"{name}-alone"
        alone.mkdir()
        done = command(
            *(uri, *common, "--jsonl", alone / "rows.jsonl"),
            *("--state-out", alone / "s.safetensors"),
        )
        assert done.returncode == 0, done.stderr
        assert_same_rows(rows_of(folder / "rows.jsonl"), rows_of(alone / "rows.jsonl"))
        expected = load_file(alone / "s.safetensors")
        for key, array in load_file(folder / "s.safetensors").items():
            np.testing.assert_allclose(array, expected[key], rtol=1e-2, atol=1e-4)
        assert (folder / "out.avi").stat().st_size > 1000
        with SnapshotStore(tmp_path / "kept" / name) as store:
            assert store.snapshots()[0].frames == len(rows_of(folder / "rows.jsonl"))
    assert re.search(r"^INFO: photos: .*state after 12 frames", together.stderr, re.MULTILINE)


def test_each_continues_from_its_own_snapshots(
    command: Command, artifact_path: Path, tmp_path: Path
) -> None:
    for run in (1, 2):
        done = command(
            *(f"test://pattern?{SMALL}&frames={frames}" for frames in (20, 9)),
            *("--model", artifact_path, "--set=warm-up=1", "--update-every", 1, "--num-threads", 1),
            *("--snapshots", tmp_path / "kept", "--names", "a,b", "--json=-", "--verbose"),
        )
        assert done.returncode == 0, done.stderr
        learned = [json.loads(line)["frames_learned"] for line in done.stdout.splitlines()]
        assert learned == [20 * run, 9 * run]
    assert re.search("^INFO: a: .*continued after 20 learned frames", done.stderr, re.MULTILINE)
    assert re.search("^INFO: b: .*continued after 9 learned frames", done.stderr, re.MULTILINE)


def test_a_stream_that_fails_is_said_and_the_others_go_on(
    command: Command, artifact_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    done = command(
        *(tmp_path / "empty", f"test://pattern?{SMALL}&frames=40"),
        *("--names", "gone,there", "--model", artifact_path, "--num-threads", 1, "--json=-"),
    )
    assert done.returncode == 1
    (summary,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (summary["name"], summary["frames"]) == ("there", 40)
    assert re.search(r"^ERROR: gone: .*; the other cameras continue$", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr


def test_a_wrong_setting_of_one_ends_it_alone(command: Command, artifact_path: Path) -> None:
    done = command(
        *(f"test://pattern?{SMALL}&frames=40", "test://nothing"),
        *("--names", "right,wrong", "--model", artifact_path, "--num-threads", 1, "--json=-"),
    )
    assert done.returncode == 1
    assert "ERROR: wrong: test://nothing: unknown test source" in done.stderr
    assert [json.loads(line)["frames"] for line in done.stdout.splitlines()] == [40]


def test_a_bug_in_one_stream_is_raised_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, artifact_path: Path
) -> None:
    from gain_apps.streaming import run as stream_run

    opened = stream_run.open_input

    def breaks(config, artifact, **more):
        if config.name == "stream-2":
            raise KeyError("a bug")
        return opened(config, artifact, **more)

    monkeypatch.setattr(stream_run, "open_input", breaks)
    plan = plan_streams(
        {
            "input": [f"test://pattern?{SMALL}&frames=40"] * 2,
            "model": str(artifact_path),
            "num_threads": 1,
        }
    )
    summaries: list[dict] = []
    with pytest.raises(KeyError, match="a bug"):
        run_service(plan, StopRequest(), report=summaries.append)
    assert [(summary["name"], summary["frames"]) for summary in summaries] == [("stream-1", 40)]


def test_the_exit_status_is_that_of_the_stream_that_failed(
    monkeypatch: pytest.MonkeyPatch,
    artifact_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from gain_apps.streaming import run as stream_run
    from gain_runtime.sources.reconnecting import SignalLostError

    opened = stream_run.open_input

    def breaks(config, artifact, **more):
        if config.name == "stream-1":
            raise SignalLostError("cam: lost for 300 s")
        return opened(config, artifact, **more)

    monkeypatch.setattr(stream_run, "open_input", breaks)
    uri = f"test://pattern?{SMALL}&frames=6"
    status = main([uri, uri, "--model", str(artifact_path), "--num-threads", "1", "--json=-"])
    captured = capsys.readouterr()
    assert status == 3
    assert "ERROR: stream-1: cam: lost for 300 s; the other cameras continue" in captured.err
    assert json.loads(captured.out)["frames"] == 6
    assert issubclass(SignalLostError, StreamError)


def answer_of(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return json.loads(reply.read())


def test_a_signal_ends_all_and_both_are_on_one_page(artifact_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="fastapi is not installed")
    live = "test://drive?live=1&resolution=crop&rate=20&frames=100000"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "gain_apps.stream", live, f"{live}&seed=5"),
            *("--model", str(artifact_path), "--num-threads", "1", "--names", "yard,door"),
            *("--snapshots", str(tmp_path / "kept"), "--serve", "0", "--json=-"),
            *("--set=truth=none", "--set=warm-up=1", "--update-every", "1"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )
    try:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "ended before its page was there"
            found = re.search(r"watch it at (\S+)/$", line.strip())
        deadline = time.monotonic() + 120.0
        while True:
            rows = answer_of(f"{found[1]}/api/cameras")["cameras"]
            if min(row["frames"] for row in rows) >= 5:
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert [(row["name"], row["state"]) for row in rows] == [("yard", "live"), ("door", "live")]
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 143, errors
    summaries = [json.loads(line) for line in output.splitlines()]
    assert [summary["name"] for summary in summaries] == ["yard", "door"]
    for summary in summaries:
        with SnapshotStore(tmp_path / "kept" / summary["name"]) as store:
            assert store.snapshots()[0].frames == summary["frames_learned"]
