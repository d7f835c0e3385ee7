"""GAIN on a CUDA device: tests, agreement with NumPy, cost, launches, throughput; one JSON.

    benchmarks/gpu_check.sh --json benchmarks/results/gpu_check.json

`--cpu-dry-run` runs the same code on torch's CPU with small sizes: it proves that the script runs,
and its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_measure import (
    AGREEMENT,
    compare_with_numpy,
    count_launches,
    judged,
    measure_cost,
    measure_throughput,
)
from gpu_network import CARD, DRY, Scale, optional

from gain_core import __version__
from gain_core.errors import GainError
from gain_runtime.atomic_file import write_atomically

MODULE_TIMEOUT_S = 60


def main() -> int:
    """Run every part, write the result and say which targets were met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--cpu-dry-run", action="store_true", help="torch's CPU, in small")
    args = parser.parse_args()
    if not args.json.parent.is_dir():
        parser.error(f"--json: no such folder {args.json.parent}")
    scale = DRY if args.cpu_dry_run else CARD
    if scale.device == "cuda" and not torch.cuda.is_available():
        print("gpu_check: error: torch finds no CUDA device; --cpu-dry-run needs none")
        return 1
    torch.manual_seed(0)
    report: dict[str, Any] = {"command": "benchmarks/gpu_check.sh", **describe(args.cpu_dry_run)}
    parts: tuple[tuple[str, Callable[[Scale], Any]], ...] = (
        ("cost", measure_cost),
        ("agreement", compare_with_numpy),
        ("launches", count_launches),
        ("throughput", measure_throughput),
        ("preprocess", partial(beside, "gpu_preprocess", "measure_preprocess")),
        ("adaptive", partial(beside, "gpu_adaptive", "measure_adaptive")),
        ("stream", run_bench),
        ("suite", run_suite),
    )
    began = time.monotonic()
    for name, part in parts:
        report[name] = part(scale)
        print(f"{time.monotonic() - began:6.1f} s  {name}", flush=True)
        report["seconds"] = round(time.monotonic() - began, 1)
        # After every part, so that a run that is cut off leaves what it has measured.
        write_atomically(args.json, (json.dumps(report, indent=1) + "\n").encode())
    report["targets"] = judge(report)
    write_atomically(args.json, (json.dumps(report, indent=1) + "\n").encode())
    for target in report["targets"]:
        unjudged = "dry run" if args.cpu_dry_run else "not measured"
        verdict = {None: unjudged, True: "met", False: "MISSED"}[target["met"]]
        print(f"{verdict:12s}  {target['name']}: {target['value']} (at most {target['limit']})")
    # Speed is a finding; a test that fails or a number that is wrong is a failure.
    sound = report["suite"]["ok"] and all(row["ok"] for row in report["agreement"])
    return 0 if sound else 1


def describe(dry_run: bool) -> dict[str, Any]:
    """The card and the versions."""
    versions = {"gain-edge": __version__, "numpy": np.__version__, "torch": torch.__version__}
    for name in ("cupy", "timm", "onnxruntime"):
        module = optional(name)
        versions[name] = None if module is None else module.__version__
    record: dict[str, Any] = {
        "dry_run": dry_run,
        "python": platform.python_version(),
        "versions": versions,
        "card": None,
    }
    if not dry_run:
        card = torch.cuda.get_device_properties(0)
        record["card"] = card.name
        record["compute_capability"] = f"{card.major}.{card.minor}"
        record["memory_bytes"] = card.total_memory
        record["cuda"] = torch.version.cuda
    return record


def beside(module: str, function: str, scale: Scale) -> Any:
    """A measurement that needs a card and has a script of its own; why not, where it cannot run."""
    if scale.device != "cuda":
        return {"ran": False, "why": "a dry run has no card"}
    script = optional(module)
    if script is None:
        return {"ran": False, "why": f"{module} needs a library that is not here"}
    try:
        return getattr(script, function)(scale.rounds)
    except (GainError, RuntimeError) as err:
        return {"ran": False, "why": str(err)}


def run_bench(scale: Scale) -> dict[str, Any]:
    """`gain-bench` on the shipped road signs, on the device where ONNX Runtime has it."""
    device = "cuda" if scale.device == "cuda" else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        artifact, result = Path(folder) / "roadsigns.onnx", Path(folder) / "bench.json"
        export = (
            "gain_apps.export models/roadsigns/roadsigns.onnx --labels models/roadsigns/labels.txt "
            "--img-size 64 --mean .5 .5 .5 --std .5 .5 .5 --interpolation bicubic --crop-pct 1"
        )
        bench = (
            f"gain_apps.bench {artifact} --device {device} --batch 4 --frames {scale.rounds * 8}"
        )
        commands = (
            [*export.split(), "--output", str(artifact)],
            [*bench.split(), "--json", str(result)],
        )
        for command in commands:
            why = run_module(command)
            if why is not None:
                return {"ran": False, "command": command[0], "device": device, "why": why}
        return {"ran": True, "device": device, "result": json.loads(result.read_text())}


def run_module(command: list[str]) -> str | None:
    """Run a module with its arguments; the last line of what went wrong."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            capture_output=True,
            text=True,
            timeout=MODULE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"took more than {MODULE_TIMEOUT_S} s"
    return (done.stderr.strip().splitlines() or ["no message"])[-1] if done.returncode else None


def run_suite(scale: Scale) -> dict[str, Any]:
    """The core's own tests, with the device's array libraries among them."""
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "suite.xml"
        # Instead of the project's own options, which are strict about plug-ins not needed here.
        options = ["-o", "addopts=--import-mode=importlib", "-m", "gpu or not gpu", "-q"]
        options += ["-W", "ignore::pytest.PytestConfigWarning"]
        suite = [arg for arg in scale.suite if "/" not in arg or Path(arg).exists()]
        command = [sys.executable, "-m", "pytest", *suite, *options]
        try:
            done = subprocess.run(
                [*command, "-p", "no:cacheprovider", f"--junit-xml={xml}"],
                capture_output=True,
                text=True,
                timeout=scale.suite_timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"ok": False, "why": f"took more than {scale.suite_timeout_s} s"}
        counts = count_cases(xml)
        tail = done.stdout.strip().splitlines()[-5:]
    ran = sum(outcomes["passed"] for outcomes in counts.values())
    return {
        "ok": done.returncode == 0 and ran > 0,
        "command": " ".join(command[1:]),
        "by_library": counts,
        "tail": tail,
    }


def count_cases(xml: Path) -> dict[str, dict[str, int]]:
    """Outcomes by array library; a library that is missing shows as skipped."""
    counts: dict[str, Counter[str]] = {}
    if not xml.is_file():
        return {}
    for case in ElementTree.parse(xml).iter("testcase"):
        name = case.get("name", "")
        library = next((n for n in ("torch-cuda", "cupy", "torch") if n in name), "others")
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "passed"
        outcome = "skipped" if "skipped" in kinds else outcome
        counts.setdefault(library, Counter(passed=0, failed=0, skipped=0))[outcome] += 1
    return {library: dict(outcomes) for library, outcomes in counts.items()}


def judge(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Every target with the best library's value; None where nothing was measured for it."""
    fp16 = [row for row in report["cost"] if row["precision"] == "fp16"]

    def least(values: list[float]) -> float | None:
        return min(values, default=None)

    def cost(batch_size: int) -> list[dict[str, Any]]:
        wanted = (batch_size, 1000)
        return [row for row in fp16 if (row["batch_size"], row["num_classes"]) == wanted]

    ratios = [abs(1.0 - row["ratio"]) * 100.0 for row in report["throughput"]]
    worst = [
        error for row in report["agreement"] for error in judged(row["largest_errors"]).values()
    ]
    values = (
        (
            "adapt over fp16 forward at B = 64, percent",
            least([r["percent"] for r in cost(64)]),
            2.0,
        ),
        ("adapt over fp16 forward at B = 1, percent", least([r["percent"] for r in cost(1)]), 5.0),
        (
            "step at B = 1 and K = 1000, microseconds",
            least([1e3 * r["step"]["device_ms"] for r in cost(1)]),
            60.0,
        ),
        ("adapted and frozen throughput apart, percent", max(ratios), 2.0),
        ("adaptive over plain graph at B = 64, percent more", more_in_graph(report), 2.0),
        ("largest error against float64 NumPy", max(worst), AGREEMENT),
        ("failed tests", failed(report["suite"]), 0),
    )
    return [
        {"name": name, "value": value, "limit": limit, "met": met(value, limit, report["dry_run"])}
        for name, value, limit in values
    ]


def more_in_graph(report: dict[str, Any]) -> float | None:
    """By how much the adaptive file takes longer than the plain one; None where it did not run."""
    rows = report.get("adaptive")
    if not isinstance(rows, list):
        return None
    return next((row["step_percent"] for row in rows if row.get("batch_size") == 64), None)


def met(value: float | None, limit: float, dry_run: bool) -> bool | None:
    """Whether a target was met; a dry run's times mean nothing."""
    return None if value is None or dry_run else value <= limit


def failed(suite: dict[str, Any]) -> int | None:
    """Tests that failed; None where the suite did not finish."""
    counts = suite.get("by_library")
    return sum(outcomes["failed"] for outcomes in counts.values()) if counts else None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GainError as err:
        sys.exit(f"gpu_check: error: {err}")
