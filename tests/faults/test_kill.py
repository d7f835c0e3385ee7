"""`kill -9` at any moment: what was learned up to the last snapshot is there at the next start."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gain_runtime.adapter import Adapter
from gain_runtime.files.snapshots import KEPT, SnapshotStore

EVERY = 3
LONGEST_RUN_S = 0.4
START_S = 120.0
# Two seconds are promised; a machine that runs other tests meanwhile needs far more. Still less
# than the half minute of an unanswered connection or of a long pause.
STOP_S = 20.0


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_often(
    num_kills: int,
    start: Callable[..., subprocess.Popen[str]],
    make_adapter: Callable[..., Adapter],
    artifact_path: Path,
    folder: Path,
) -> None:
    """Start, kill at a random moment, and check what the next start would find."""
    snapshots, rows = folder / "snapshots", folder / "rows.jsonl"
    moment = random.Random(num_kills)
    adapter = make_adapter()
    known = 0
    for kill in range(num_kills):
        rows.unlink(missing_ok=True)
        process = start(
            *("test://pattern?width=64&height=48&frames=1000000", "--model", artifact_path),
            *("--snapshots", snapshots, f"--set=snapshot-every={EVERY}", "--jsonl", rows),
            *("--set=warm-up=1", "--update-every", 1, "--num-threads", 1),
        )
        deadline = time.monotonic() + START_S
        while count_lines(rows) <= EVERY and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.005)
        time.sleep(moment.uniform(0.0, LONGEST_RUN_S))
        process.kill()
        errors = process.communicate()[1]
        assert process.returncode == -signal.SIGKILL
        assert "set aside" not in errors, f"kill {kill}"
        learned = known + count_lines(rows)
        with SnapshotStore(snapshots) as store:
            assert 1 <= len(store.snapshots()) <= KEPT + 1
            assert list(snapshots.glob("*.tmp")) == []
            restored = store.restore(adapter)
            assert restored is not None, f"kill {kill}"
            assert restored == store.snapshots()[0], f"kill {kill}: the newest was set aside"
        assert adapter.frames == restored.frames
        # A row is written after its frame was learned from and before a snapshot is looked at.
        assert learned - EVERY <= adapter.frames <= learned + 1, f"kill {kill}"
        known = adapter.frames


def test_a_few_kills(
    start: Callable[..., subprocess.Popen[str]],
    make_adapter: Callable[..., Adapter],
    artifact_path: Path,
    tmp_path: Path,
) -> None:
    kill_often(3, start, make_adapter, artifact_path, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_kills(
    start: Callable[..., subprocess.Popen[str]],
    make_adapter: Callable[..., Adapter],
    artifact_path: Path,
    tmp_path: Path,
) -> None:
    kill_often(200, start, make_adapter, artifact_path, tmp_path)


def test_killing_several_streams_costs_each_no_more(
    start: Callable[..., subprocess.Popen[str]],
    make_adapter: Callable[..., Adapter],
    artifact_path: Path,
    tmp_path: Path,
) -> None:
    names = ("yard", "door", "hall")
    known = dict.fromkeys(names, 0)
    moment = random.Random(3)
    for kill in range(2):
        process = start(
            *(f"test://pattern?width=64&height=48&frames={10**6 + n}" for n in range(3)),
            *("--names", ",".join(names), "--model", artifact_path, "--num-threads", 1),
            *("--snapshots", tmp_path / "kept", f"--set=snapshot-every={EVERY}"),
            *("--set=warm-up=1", "--update-every", 1),
            *("--jsonl", tmp_path / "rows.jsonl"),
        )
        rows = {name: tmp_path / name / "rows.jsonl" for name in names}
        deadline = time.monotonic() + START_S
        while min(map(count_lines, rows.values())) <= EVERY and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.005)
        time.sleep(moment.uniform(0.0, LONGEST_RUN_S))
        process.kill()
        assert "set aside" not in process.communicate()[1]
        for name, path in rows.items():
            adapter = make_adapter()
            with SnapshotStore(tmp_path / "kept" / name) as store:
                assert store.restore(adapter) == store.snapshots()[0], f"kill {kill}, {name}"
            learned = known[name] + count_lines(path)
            assert learned - EVERY <= adapter.frames <= learned + 1, f"kill {kill}, {name}"
            known[name] = adapter.frames
            path.unlink()


def test_a_stopped_stream_loses_nothing_and_the_next_one_goes_on(
    start: Callable[..., subprocess.Popen[str]], artifact_path: Path, tmp_path: Path
) -> None:
    arguments = (
        *("test://pattern?width=64&height=48&frames=40", "--model", artifact_path),
        *("--snapshots", tmp_path / "kept", "--set=warm-up=1", "--update-every", 1),
        *("--num-threads", 1, "--json=-", "--verbose"),
    )
    for total in (40, 80):
        process = start(*arguments)
        output, errors = process.communicate(timeout=START_S)
        assert process.returncode == 0, errors
        assert json.loads(output)["frames_learned"] == total
    assert "continued after 40 learned frames" in errors


@pytest.mark.parametrize(
    "signum",
    [
        pytest.param(signal.SIGTERM, id="SIGTERM"),
        pytest.param(signal.SIGINT, id="SIGINT", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_stream_soon(
    start: Callable[..., subprocess.Popen[str]],
    artifact_path: Path,
    tmp_path: Path,
    signum: signal.Signals,
) -> None:
    rows = tmp_path / "rows.jsonl"
    process = start(
        *("test://pattern?width=64&height=48&frames=1000000", "--model", artifact_path),
        *("--jsonl", rows, "--snapshots", tmp_path / "kept", "--num-threads", 1, "--json=-"),
    )
    deadline = time.monotonic() + START_S
    while count_lines(rows) < 70 and time.monotonic() < deadline:
        time.sleep(0.01)
    asked = time.monotonic()
    process.send_signal(signum)
    output, errors = process.communicate(timeout=120)
    assert time.monotonic() - asked < STOP_S
    assert process.returncode == 128 + signum, errors
    summary = json.loads(output)
    assert summary["stopped_by"] == signum.name
    with SnapshotStore(tmp_path / "kept") as store:
        assert store.snapshots()[0].frames == summary["frames_learned"]
