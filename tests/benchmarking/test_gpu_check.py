"""The GPU script on a machine without a GPU: it runs, is right, and judges no time."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_check.py"
COMPARED = ("host", "adaptive_file", "torch", "cupy")


@pytest.mark.slow
def test_a_dry_run_compares_every_way_with_float64(tmp_path):
    path = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--cpu-dry-run", "--json", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(path.read_text())
    assert report["wrong"] == []
    assert {target["met"] for target in report["targets"]} == {None}
    assert "tests" not in report
    for name in ("host", "adaptive_file"):
        assert report[name]["error"]["largest"] < 1e-5
        assert report[name]["error"]["corrected"] > 0
        assert [row["batch_size"] for row in report[name]["rows"]] == [1, 4]
    assert "not run     cupy" in done.stdout


@pytest.mark.parametrize(
    ("part", "said"),
    [
        pytest.param({"error": {"largest": 2e-5, "corrected": 9}}, "off by 2e-05", id="wrong"),
        pytest.param({"error": {"largest": float("nan"), "corrected": 9}}, "off by nan", id="nan"),
        pytest.param({"error": {"largest": 0.0, "corrected": 0}}, "nothing was", id="idle"),
        pytest.param({"failed": "RuntimeError: no"}, "RuntimeError: no", id="failed"),
        pytest.param({"absent": "cupy: cannot be imported"}, None, id="absent"),
    ],
)
def test_what_is_wrong_and_what_is_only_missing(part, said):
    wrong = runpy.run_path(str(SCRIPT))["wrong"]
    fine = {"error": {"largest": 1e-7, "corrected": 3}}
    faults = wrong(dict.fromkeys(COMPARED, fine) | {"adaptive_file": part})
    assert faults == ([] if said is None else faults)
    assert said is None or (len(faults) == 1 and said in faults[0])
