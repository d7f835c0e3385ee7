"""The script of the photographs: a result grows by methods, and rows of two streams never mix."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "photos.py"


def photos(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120.0,
        check=False,
    )


def test_a_result_grows_by_the_methods_it_lacks(artifact, colours, tmp_path):
    folder = colours.folders(tmp_path / "data", per_class=2)
    target = tmp_path / "photos.json"
    command = (artifact, folder, "--cache", tmp_path / "cache", "--json", target)
    done = photos(*command, "--views", "2", "--methods", "neo")
    assert done.returncode == 0, done.stderr
    first = json.loads(target.read_text("utf-8"))
    assert list(first["methods"]) == ["source", "neo"]
    assert first["stream"]["samples"] == 15 * 6 * 2

    done = photos(*command, "--views", "2", "--methods", "neo,tracked")
    assert done.returncode == 0, done.stderr
    second = json.loads(target.read_text("utf-8"))
    assert list(second["methods"]) == ["source", "tracked", "neo"]
    # Its times too: it was not run again.
    assert second["methods"]["neo"] == first["methods"]["neo"]
    assert str(tmp_path) not in target.read_text("utf-8")

    done = photos(*command, "--views", "1", "--methods", "recentre")
    assert done.returncode == 1
    assert "data is" in done.stderr
    assert json.loads(target.read_text("utf-8")) == second
