"""Several streams in one process: one network, and everything else apart."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from jsonl_rows import read_rows
from safetensors.numpy import load_file

from gain_apps.streaming.control import StopRequest
from gain_apps.streaming.plan import plan_streams
from gain_apps.streaming.service import run_service
from gain_runtime.files.snapshots import SnapshotStore

SMALL = "width=64&height=48"


def assert_same_rows(rows: list[dict], expected: list[dict]) -> None:
    """The same predictions; a row of a larger batch is summed up in another order."""
    assert [row["index"] for row in rows] == [row["index"] for row in expected]
    for got, wanted in zip(rows, expected, strict=True):
        assert got["truth"] == wanted["truth"]
        for who in ("source", "adapted"):
            probs = [{item["label"]: item["prob"] for item in row[who]} for row in (got, wanted)]
            assert probs[0] == pytest.approx(probs[1], rel=1e-3, abs=1e-5)


def test_each_stream_ends_as_it_would_alone(
    command, artifact_path, clip_path, photo_folder, tmp_path
):
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
        assert_same_rows(read_rows(folder / "rows.jsonl"), read_rows(alone / "rows.jsonl"))
        expected = load_file(alone / "s.safetensors")
        for key, array in load_file(folder / "s.safetensors").items():
            np.testing.assert_allclose(array, expected[key], rtol=1e-2, atol=1e-4)
        assert (folder / "out.avi").stat().st_size > 1000
        with SnapshotStore(tmp_path / "kept" / name) as store:
            assert store.snapshots()[0].frames == len(read_rows(folder / "rows.jsonl"))
    assert re.search(r"^INFO: photos: .*state after 12 frames", together.stderr, re.MULTILINE)


def test_streams_that_fail_are_said_and_the_others_go_on(command, artifact_path, tmp_path):
    (tmp_path / "empty").mkdir()
    done = command(
        *(tmp_path / "empty", "test://nothing", f"test://pattern?{SMALL}&frames=40"),
        *("--names", "gone,wrong,there", "--model", artifact_path, "--num-threads", 1, "--json=-"),
    )
    assert done.returncode == 1
    (summary,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (summary["name"], summary["frames"]) == ("there", 40)
    assert re.search(r"^ERROR: gone: .*; the other cameras continue$", done.stderr, re.MULTILINE)
    assert "ERROR: wrong: test://nothing: unknown test source" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bug_in_one_stream_is_raised_and_the_others_go_on(monkeypatch, artifact_path):
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
