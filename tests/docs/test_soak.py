"""The soak of a service, a minute of it: what it counts after a kill, and its table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "models" / "roadsigns"


def run(*command: object) -> None:
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_short_soak_survives_its_kill(tmp_path):
    pytest.importorskip("fastapi", reason="fastapi is not installed")
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    artifact, result = tmp_path / "roadsigns.gain.onnx", tmp_path / "soak.json"
    run(
        *("-m", "gain_apps.export", MODELS / "roadsigns.onnx", "--output", artifact),
        *("--labels", MODELS / "labels.txt", "--mean", 0.5, 0.5, 0.5, "--std", 0.5, 0.5, 0.5),
        *("--crop-pct", 1, "--crop-mode", "squash", "--interpolation", "bicubic"),
    )
    run(
        *(ROOT / "benchmarks" / "soak.py", "--artifact", artifact, "--minutes", 1, "--kills", 1),
        *("--cameras", 4, "--come-and-go", 1, "--rate", 8, "--note-seconds", 5),
        *("--port", 8931, "--json", result),
    )
    report = json.loads(result.read_text())
    first, second = report["lives"]
    assert (first["killed"], second["killed"]) == (True, False)
    assert set(second["lost"]) == {"camera-00", "camera-01", "camera-02"}
    # A snapshot's frames, and those that were learned while it was written and the kill came.
    assert max(second["lost"].values()) <= 2 * report["snapshot_every"]
    assert (second["set_aside"], second["torn_inside"], second["exit_status"]) == (0, 0, 143)
    assert "| kills survived | 1 |" in result.with_suffix(".md").read_text()
