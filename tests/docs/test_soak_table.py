"""The soak's report and its tables: what is counted."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOAK = ROOT / "benchmarks" / "soak.py"
life_table = runpy.run_path(str(ROOT / "benchmarks" / "soak_table.py"))["life_table"]

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")


def soak(*args: object, timeout_s: float = 60.0) -> str:
    done = subprocess.run(
        [sys.executable, str(SOAK), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def cells(table: str) -> dict[str, str]:
    """The first table's rows, by name."""
    rows = [line.strip("| ").split(" | ") for line in table.split("\n\n")[0].splitlines()[2:]]
    return dict(rows)


def life(number: int, *, kib: tuple[int, int], lost: int | None) -> dict[str, object]:
    """A process of ten minutes at eight frames a second."""
    notes = [
        {
            "rss_kib": size,
            "frames": frames,
            "dropped": 3,
            "cpu_s": 240.0,
            "open_files": 14,
            "viewer": {"moved": frames > 0},
        }
        for size, frames in zip((kib[0] // 2, *kib), (0, 4300, 4800), strict=True)
    ]
    return {
        "number": number,
        "began_s": 600.0 * number,
        "ended_s": 600.0 * (number + 1),
        "notes": notes,
        "killed": number == 0,
        "restored_frames": None if lost is None else 4800 - lost,
        "set_aside": 0,
        "learned_at_end": 4700,
        "snapshots_so_far": 23,
        "first_frame_s": 1.5,
        "rows": {
            "frames": 4800,
            "with_truth": 4800,
            "source_right": 2400,
            "adapted_right": 3600,
            "torn": 0,
        },
    }


@pytest.mark.parametrize(("lost", "survived"), [(100, "1 of 1"), (4700, "0 of 1")])
def test_the_table_adds_up_what_was_noted(tmp_path: Path, lost: int, survived: str) -> None:
    report = {
        "minutes": 20.0,
        "snapshot_every": 200,
        "viewer": "a client",
        "lives": [
            life(0, kib=(204800, 206848), lost=None),
            life(1, kib=(204800, 204800), lost=lost),
        ],
    }
    path = tmp_path / "soak.json"
    path.write_text(json.dumps(report))
    table = soak("--table", path)
    shown = cells(table)
    assert shown["frames classified"] == "9,600, 8.00 a second"
    assert shown["frames dropped"] == "6"
    assert shown["kills survived"] == survived
    assert shown["viewer"] == "a client; the picture had moved at 4 of 6 looks"
    assert shown["processor"].startswith("0.40 of a core")
    assert shown["accuracy, frozen source"] == "50.0 % of 9,600"
    assert shown["accuracy, adapted"] == "75.0 % of 9,600"
    first, second = life_table(report).splitlines()[-2:]
    assert "| SIGKILL | - | 1.5 s | 200.0 MiB | 202.0 MiB | +1.00 % | 14 |" in first
    assert f"| SIGTERM | {lost:,} | 1.5 s | 200.0 MiB | 200.0 MiB | +0.00 % | 14 |" in second


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_soak_survives_its_kills(tmp_path: Path) -> None:
    """The whole of it in a minute: three processes, two of them killed."""
    pytest.importorskip("fastapi", reason="fastapi is not installed")
    artifact = tmp_path / "roadsigns.gain.onnx"
    models = ROOT / "models" / "roadsigns"
    subprocess.run(
        [
            *(sys.executable, "-m", "gain_apps.export", models / "roadsigns.onnx"),
            *("--output", artifact, "--labels", models / "labels.txt"),
            *("--mean", "0.5", "0.5", "0.5", "--std", "0.5", "0.5", "0.5"),
            *("--crop-pct", "1", "--crop-mode", "squash", "--interpolation", "bicubic"),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    result = tmp_path / "soak.json"
    soak(
        *("--artifact", artifact, "--minutes", 1, "--kill-minutes", 0.3, "--last-minutes", 0.25),
        *("--note-seconds", 4, "--port", 8931, "--json", result, "--folder", tmp_path / "run"),
        timeout_s=240.0,
    )
    report = json.loads(result.read_text())
    assert [life["killed"] for life in report["lives"]] == [True, True, False]
    assert all(life["lost_within_bound"] for life in report["lives"][1:])
    assert report["lives"][-1]["summary"]["stopped_by"] == "SIGTERM"
    assert cells(soak("--table", result))["kills survived"] == "2 of 2"
