"""The GPU script: the dry run for real, and its judgement on made-up numbers."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_check.sh"

torch = pytest.importorskip("torch", reason="the export extra is not installed")


@pytest.fixture(scope="module")
def script():
    """The script as a module, its siblings found as they are when it is started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        yield importlib.import_module("gpu_check")


def start(*args):
    """The shell script in a process of its own."""
    return subprocess.run(
        [SCRIPT, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory):
    """The result of one dry run."""
    path = tmp_path_factory.mktemp("gpu") / "result.json"
    done = start("--cpu-dry-run", "--json", path)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text())


def test_the_dry_run_measures_every_size_and_precision(dry_run):
    assert dry_run["dry_run"] is True
    assert dry_run["card"] is None
    sizes = {(row["precision"], row["batch_size"], row["num_classes"]) for row in dry_run["cost"]}
    assert sizes == {(p, b, k) for p in ("fp16", "bf16") for b in (1, 4) for k in (10, 33)}
    assert all(
        row["step"]["device_ms"] > 0 < row["forward"]["device_ms"] for row in dry_run["cost"]
    )
    assert {row["batch_size"] for row in dry_run["throughput"]} == {1, 4}


def test_the_dry_run_agrees_with_numpy_and_counts_operators(dry_run):
    assert all(row["ok"] for row in dry_run["agreement"])
    errors = [error for row in dry_run["agreement"] for error in row["largest_errors"].values()]
    assert max(errors) > 0
    assert all(row["unit"] == "operators" and row["count"] > 10 for row in dry_run["launches"])


def test_the_dry_run_runs_the_suite_and_the_benchmark(dry_run):
    assert dry_run["suite"]["ok"]
    assert dry_run["suite"]["by_library"]["torch"]["passed"] >= 4
    assert dry_run["stream"]["ran"], dry_run["stream"]
    assert dry_run["stream"]["result"]["frozen"]["rate_hz"] > 0


def test_a_dry_run_judges_no_target(dry_run):
    assert len(dry_run["targets"]) == 7
    assert all(target["met"] is None for target in dry_run["targets"])


def test_without_a_card_it_says_so(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    done = start("--json", tmp_path / "result.json")
    assert done.returncode == 1
    assert done.stdout == "gpu_check: error: torch finds no CUDA device; --cpu-dry-run needs none\n"
    assert list(tmp_path.iterdir()) == []


def report(*, percent, step_ms, ratio, error, failures):
    """A result with the sizes that the targets are about."""
    cost = [
        {
            "precision": "fp16",
            "batch_size": size,
            "num_classes": 1000,
            "percent": percent,
            "step": {"device_ms": step_ms},
        }
        for size in (1, 64)
    ]
    return {
        "dry_run": False,
        "cost": cost,
        "throughput": [{"ratio": 1.0}, {"ratio": ratio}],
        "agreement": [{"largest_errors": {"probs": error, "strength": 1.0}}],
        "adaptive": [{"batch_size": 64, "step_percent": percent}, {"agreement": error, "ok": True}],
        "suite": {"by_library": {"cupy": {"passed": 3, "failed": failures, "skipped": 0}}},
    }


def test_targets_are_met_or_missed_by_the_numbers(script):
    good = report(percent=1.9, step_ms=0.05, ratio=0.99, error=1e-5, failures=0)
    bad = report(percent=5.1, step_ms=0.07, ratio=0.97, error=1e-2, failures=1)
    assert [target["met"] for target in script.judge(good)] == [True] * 7
    assert [target["met"] for target in script.judge(bad)] == [False] * 7
    between = report(percent=3.0, step_ms=0.05, ratio=1.0, error=0.0, failures=0)
    assert [target["met"] for target in script.judge(between)][:2] == [False, True]


def test_the_best_library_counts(script):
    result = report(percent=9.0, step_ms=0.5, ratio=1.0, error=0.0, failures=0)
    faster = report(percent=1.0, step_ms=0.01, ratio=1.0, error=0.0, failures=0)
    result["cost"] += faster["cost"]
    result["adaptive"] = faster["adaptive"]
    assert [target["met"] for target in script.judge(result)] == [True] * 7


def test_a_suite_that_did_not_finish_is_no_success(script):
    result = report(percent=1.0, step_ms=0.01, ratio=1.0, error=0.0, failures=0)
    result["suite"] = {"ok": False, "why": "took more than 300 s"}
    assert script.judge(result)[-1]["met"] is None


def test_a_value_that_is_not_finite_is_no_agreement(script):
    relative = importlib.import_module("gpu_measure").relative
    expected = np.ones(3)
    assert relative(np.array([1.0, 1.0, 1.5]), expected) == 0.25
    assert relative(np.array([1.0, np.nan, 1.0]), expected) > script.AGREEMENT


def test_outcomes_are_counted_by_library(script, tmp_path):
    path = tmp_path / "suite.xml"
    path.write_text(
        "<testsuites><testsuite>"
        '<testcase name="test_a[tracked-torch-cuda]"/>'
        '<testcase name="test_a[tracked-torch]"><failure/></testcase>'
        '<testcase name="test_a[tracked-cupy]"><skipped/></testcase>'
        '<testcase name="test_b"><error/></testcase>'
        "</testsuite></testsuites>"
    )
    counts = script.count_cases(path)
    assert counts["torch-cuda"] == {"passed": 1, "failed": 0, "skipped": 0}
    assert counts["torch"] == {"passed": 0, "failed": 1, "skipped": 0}
    assert counts["cupy"] == {"passed": 0, "failed": 0, "skipped": 1}
    assert counts["others"] == {"passed": 0, "failed": 1, "skipped": 0}
    assert script.count_cases(tmp_path / "none.xml") == {}


def test_a_command_that_fails_or_hangs_is_told_in_a_line(script, monkeypatch):
    assert script.run_module(["platform"]) is None
    assert "no_such_module" in script.run_module(["no_such_module"])
    monkeypatch.setattr(script, "MODULE_TIMEOUT_S", 0.2)
    assert script.run_module(["http.server", "0"]) == "took more than 0.2 s"
