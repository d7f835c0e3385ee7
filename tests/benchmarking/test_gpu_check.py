"""The GPU script: the dry run for real, and its judgement on made-up numbers."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
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


@pytest.fixture(scope="module")
def verdict(script):
    """What judges its report."""
    return importlib.import_module("gpu_verdict")


@pytest.fixture(scope="module")
def apps(script):
    """What runs the applications for it."""
    return importlib.import_module("gpu_apps")


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
    assert dry_run["bench"]["ran"], dry_run["bench"]
    assert dry_run["bench"]["result"]["frozen"]["rate_hz"] > 0


def test_the_dry_run_runs_the_stream_application(dry_run):
    (row,) = dry_run["stream"]
    assert row["ok"], row
    assert "test://drive" in row["command"]
    assert "--device cpu --batch 4" in row["command"]
    assert row["summary"]["frames"] == 24
    assert row["summary"]["config"]["batch"] == 4
    assert row["summary"]["frames_learned"] > 0


def test_the_dry_run_finds_no_fault_and_names_what_it_left_out(dry_run):
    assert dry_run["faults"] == []
    for name in ("preprocess", "adaptive"):
        assert dry_run[name] == {"ran": False, "failed": False, "why": "a dry run has no card"}


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
        "agreement": [{"largest_errors": {"probs": error, "strength": 1.0}, "ok": True}],
        "preprocess": [{"frame": "500x375", "batch_size": 8, "equal": True}],
        "adaptive": [{"batch_size": 64, "step_percent": percent}, {"agreement": error, "ok": True}],
        "bench": {"ran": True},
        "stream": [{"command": "a stream", "ok": True, "summary": {}}],
        "suite": {
            "ok": failures == 0,
            "by_library": {"cupy": {"passed": 3, "failed": failures, "skipped": 0}},
        },
    }


def sound():
    """A result with nothing wrong."""
    return report(percent=1.0, step_ms=0.01, ratio=1.0, error=0.0, failures=0)


CRASHED = {"ran": False, "failed": True, "why": "CompileException: nvrtc: error: no such thing"}
LEFT_OUT = {"ran": False, "failed": False, "why": "cupy cannot be imported"}


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("agreement", [{"library": "fused", "ok": False}], "agreement: library fused"),
        ("agreement", [], "agreement: expected rows with 'ok', got none"),
        (
            "preprocess",
            [{"frame": "500x375", "equal": True}, {"frame": "1920x1080", "equal": False}],
            "preprocess: frame 1920x1080",
        ),
        (
            "adaptive",
            [{"batch_size": 1}, {"agreement": 0.5, "ok": False}],
            "adaptive: agreement 0.5",
        ),
        ("adaptive", [{"batch_size": 1}], "adaptive: expected rows with 'ok', got none"),
        (
            "stream",
            [{"command": "a stream", "ok": False, "why": "frames: expected 320, got 3"}],
            "stream: command a stream, why frames: expected 320, got 3",
        ),
        ("suite", {"ok": False, "why": "took more than 300 s"}, "suite: took more than 300 s"),
        ("suite", {"ok": False, "by_library": {}}, "suite: tests failed, or none ran"),
        *(
            (name, CRASHED, f"{name}: failed: CompileException: nvrtc: error: no such thing")
            for name in ("cost", "agreement", "throughput", "preprocess", "bench", "suite")
        ),
    ],
)
def test_what_is_wrong_is_named(verdict, part, value, said):
    assert verdict.faults(sound()) == []
    assert verdict.faults(sound() | {part: value}) == [said]


def test_what_has_no_library_is_named_and_no_fault(verdict):
    result = sound() | {"preprocess": LEFT_OUT, "stream": LEFT_OUT}
    assert verdict.faults(result) == []
    why = LEFT_OUT["why"]
    assert verdict.left_out(result) == {"preprocess": why, "stream": why}
    assert verdict.left_out(sound() | {"stream": CRASHED}) == {}


def test_targets_of_a_part_that_crashed_are_not_judged(verdict):
    result = sound() | dict.fromkeys(("cost", "throughput", "agreement", "adaptive"), CRASHED)
    result["suite"] = CRASHED
    assert [target["met"] for target in verdict.judge(result)] == [None] * 7


class CompileError(Exception):
    """As CuPy's CompileException, of no class that is expected."""


def test_a_part_that_ends_in_an_exception_leaves_the_others(script, monkeypatch, tmp_path, capsys):
    def crash(scale):
        raise CompileError("nvrtc: error:\n  no such thing")

    parts = {
        "measure_cost": lambda scale: sound()["cost"],
        "compare_with_numpy": crash,
        "count_launches": crash,
        "measure_throughput": lambda scale: sound()["throughput"],
        "run_bench": lambda scale, *, ends_s: {"ran": True},
        "run_stream": lambda scale, *, ends_s: sound()["stream"],
        "run_suite": lambda scale, *, ends_s: sound()["suite"],
    }
    for name, part in parts.items():
        monkeypatch.setattr(script, name, part)
    path = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--cpu-dry-run", "--json", str(path)])
    assert script.main() == 1
    result = json.loads(path.read_text())
    why = "CompileError: nvrtc: error: no such thing"
    assert result["agreement"] == {"ran": False, "failed": True, "why": why}
    assert result["faults"] == [f"agreement: failed: {why}", f"launches: failed: {why}"]
    assert result["suite"] == sound()["suite"]
    captured = capsys.readouterr()
    assert f"WRONG         agreement: failed: {why}" in captured.out
    assert "not run       adaptive: a dry run has no card" in captured.out
    # Where it came from is not lost either.
    assert "Traceback" in captured.err
    monkeypatch.setattr(script, "compare_with_numpy", lambda scale: sound()["agreement"])
    monkeypatch.setattr(script, "count_launches", lambda scale: [])
    assert script.main() == 0


def test_a_script_whose_libraries_are_missing_is_left_out(script, monkeypatch):
    card = importlib.import_module("gpu_network").CARD
    monkeypatch.setattr(script, "optional", lambda name: None)
    for module in script.NEEDED:
        part = script.attempt(lambda scale, m=module: script.beside(m, "any", scale), card)
        assert part["failed"] is False
        assert "cupy" in part["why"]


def test_targets_are_met_or_missed_by_the_numbers(verdict):
    good = report(percent=1.9, step_ms=0.05, ratio=0.99, error=1e-5, failures=0)
    bad = report(percent=5.1, step_ms=0.07, ratio=0.97, error=1e-2, failures=1)
    assert [target["met"] for target in verdict.judge(good)] == [True] * 7
    assert [target["met"] for target in verdict.judge(bad)] == [False] * 7
    between = report(percent=3.0, step_ms=0.05, ratio=1.0, error=0.0, failures=0)
    assert [target["met"] for target in verdict.judge(between)][:2] == [False, True]


def test_the_best_library_counts(verdict):
    result = report(percent=9.0, step_ms=0.5, ratio=1.0, error=0.0, failures=0)
    faster = report(percent=1.0, step_ms=0.01, ratio=1.0, error=0.0, failures=0)
    result["cost"] += faster["cost"]
    result["adaptive"] = faster["adaptive"]
    assert [target["met"] for target in verdict.judge(result)] == [True] * 7


def test_a_suite_that_did_not_finish_is_no_success(verdict):
    result = report(percent=1.0, step_ms=0.01, ratio=1.0, error=0.0, failures=0)
    result["suite"] = {"ok": False, "why": "took more than 300 s"}
    assert verdict.judge(result)[-1]["met"] is None


def test_a_value_that_is_not_finite_is_no_agreement(verdict):
    relative = importlib.import_module("gpu_measure").relative
    expected = np.ones(3)
    assert relative(np.array([1.0, 1.0, 1.5]), expected) == 0.25
    assert relative(np.array([1.0, np.nan, 1.0]), expected) > verdict.AGREEMENT


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


def test_a_command_that_fails_or_hangs_is_told_in_a_line(apps):
    assert apps.run_module(["platform"], timeout_s=60).strip()
    with pytest.raises(apps.CommandError, match=r"^no_such_module: exit status 1: .*No module"):
        apps.run_module(["no_such_module"], timeout_s=60)
    with pytest.raises(apps.CommandError, match=r"^http.server: took more than 0.2 s$"):
        apps.run_module(["http.server", "0"], timeout_s=0.2)


def test_processes_are_given_what_time_the_script_has_left(apps, script):
    now = time.monotonic()
    assert apps.seconds_left(now + 1000.0) == apps.MODULE_TIMEOUT_S
    assert 0.0 < apps.seconds_left(now + 20.0) <= 20.0
    assert apps.seconds_left(now - 5.0) == 1.0
    assert apps.seconds_left(now + 1000.0, at_most=300.0) == 300.0
    # gpu_check.sh kills what is left after 590 s; the verdict must be written before.
    assert "timeout --kill-after=10 590" in SCRIPT.read_text()
    assert script.BUDGET_S < 590


def summary(**changes):
    """Of a stream of the card's length that went well."""
    right = {"accuracy_percent": 98.0}
    return {
        "frames": 320,
        "rejected": 0,
        "dropped": 0,
        "provider": "CUDAExecutionProvider",
        "truth": {"source": right, "adapted": right},
        "frames_learned": 320,
    } | changes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"frames": 316}, ["frames: expected 320, got 316"]),
        ({"rejected": 4}, ["rejected: expected 0, got 4"]),
        (
            {"provider": "CPUExecutionProvider"},
            ["provider: expected CUDAExecutionProvider, got CPUExecutionProvider"],
        ),
        ({"frames_learned": 0}, ["frames_learned: expected some, got 0"]),
        (
            {
                "truth": {
                    "source": {"accuracy_percent": 98.0},
                    "adapted": {"accuracy_percent": 2.0},
                }
            },
            ["adapted: expected 90.0 % right, got 2.0"],
        ),
    ],
)
def test_a_stream_is_held_to_its_summary(apps, changes, said):
    card = importlib.import_module("gpu_network").CARD
    assert apps.stream_faults(summary(**changes), card) == said


def test_a_stream_that_fails_has_its_row_and_the_next_one_runs(apps, monkeypatch):
    card = importlib.import_module("gpu_network").CARD
    commands = []

    def run_module(command, /, *, timeout_s):
        commands.append(command)
        if command[0] == "gain_apps.stream" and "--device-preprocess" not in command:
            raise apps.CommandError("gain_apps.stream: exit status 1: no CUDA")
        return json.dumps(summary())

    monkeypatch.setattr(apps, "run_module", run_module)
    monkeypatch.setattr(apps, "_need_libraries", lambda scale: None)
    rows = apps.run_stream(card, ends_s=time.monotonic() + 60)
    assert [command[0] for command in commands] == ["gain_apps.export"] + 2 * ["gain_apps.stream"]
    assert rows[0]["why"] == "gain_apps.stream: exit status 1: no CUDA"
    assert [row["ok"] for row in rows] == [False, True]
    assert all("--device cuda" in row["command"] for row in rows)


def test_onnx_runtime_without_cuda_is_no_failure(apps, script):
    card = importlib.import_module("gpu_network").CARD
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    part = script.attempt(lambda scale: apps.run_stream(scale, ends_s=time.monotonic()), card)
    why = "no ONNX Runtime with CUDA is installed"
    assert part == {"ran": False, "failed": False, "why": why}
