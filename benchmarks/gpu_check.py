"""GAIN on a CUDA device: tests, agreement with NumPy, cost, launches, throughput; one JSON.

    benchmarks/gpu_check.sh --json benchmarks/results/gpu_check.json

`--cpu-dry-run` runs the same code on torch's CPU with small sizes: it proves that the script runs,
and its times mean nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import subprocess
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_apps import AbsentError, need_onnx_cuda, run_bench, run_stream, seconds_left
from gpu_measure import compare_with_numpy, count_launches, measure_cost, measure_throughput
from gpu_network import CARD, DRY, Scale, optional
from gpu_verdict import faults, judge, left_out

from gain_core import __version__
from gain_core.errors import GainError
from gain_runtime.atomic_file import write_atomically

Part = Callable[[Scale], Any]

# gpu_check.sh ends the script at 590 s; what it starts is given no more than this leaves.
BUDGET_S = 570.0
MAX_WHY = 500
# What a script beside this one imports, and a card may have to do without.
NEEDED = {"gpu_preprocess": ("cupy", "PIL"), "gpu_adaptive": ("cupy", "onnx", "timm")}


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
    began = time.monotonic()
    ends_s = began + BUDGET_S
    parts: tuple[tuple[str, Part], ...] = (
        ("cost", measure_cost),
        ("agreement", compare_with_numpy),
        ("launches", count_launches),
        ("throughput", measure_throughput),
        ("preprocess", partial(beside, "gpu_preprocess", "measure_preprocess")),
        ("adaptive", partial(beside, "gpu_adaptive", "measure_adaptive")),
        ("bench", partial(run_bench, ends_s=ends_s)),
        ("stream", partial(run_stream, ends_s=ends_s)),
        ("suite", partial(run_suite, ends_s=ends_s)),
    )
    for name, part in parts:
        report[name] = attempt(part, scale)
        print(f"{time.monotonic() - began:6.1f} s  {name}", flush=True)
        report["seconds"] = round(time.monotonic() - began, 1)
        # After every part, so that a run that is cut off leaves what it has measured.
        write_atomically(args.json, (json.dumps(report, indent=1) + "\n").encode())
    report["targets"], report["faults"] = judge(report), faults(report)
    write_atomically(args.json, (json.dumps(report, indent=1) + "\n").encode())
    print_verdict(report)
    # Speed is a finding; what fails or is wrong is a failure.
    return 1 if report["faults"] else 0


def print_verdict(report: dict[str, Any]) -> None:
    """The targets, what is wrong, and what was not there to be run."""
    for target in report["targets"]:
        unjudged = "dry run" if report["dry_run"] else "not measured"
        verdict = {None: unjudged, True: "met", False: "MISSED"}[target["met"]]
        print(f"{verdict:12s}  {target['name']}: {target['value']} (at most {target['limit']})")
    for name, why in left_out(report).items():
        print(f"{'not run':12s}  {name}: {why}")
    for fault in report["faults"]:
        print(f"{'WRONG':12s}  {fault}")


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


def attempt(part: Part, scale: Scale) -> Any:
    """What a part measured, or why it did not; whatever ends one part leaves the others alone."""
    try:
        return part(scale)
    except AbsentError as err:
        return {"ran": False, "failed": False, "why": str(err)}
    # The script's top: CuPy's CompileException, for one, is nothing but an Exception.
    except Exception as err:  # noqa: BLE001
        traceback.print_exc()
        why = " ".join(str(err).split())[:MAX_WHY]
        return {"ran": False, "failed": True, "why": f"{type(err).__name__}: {why}"}


def beside(module: str, function: str, scale: Scale) -> Any:
    """A measurement that needs a card and has a script of its own."""
    if scale.device != "cuda":
        raise AbsentError("a dry run has no card")
    missing = [name for name in NEEDED[module] if optional(name) is None]
    if missing:
        raise AbsentError(f"{', '.join(missing)} cannot be imported")
    if module == "gpu_adaptive":
        need_onnx_cuda()
    return getattr(importlib.import_module(module), function)(scale.rounds)


def run_suite(scale: Scale, *, ends_s: float) -> dict[str, Any]:
    """The core's own tests, with the device's array libraries among them."""
    timeout_s = seconds_left(ends_s, at_most=scale.suite_timeout_s)
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
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"ok": False, "why": f"took more than {timeout_s:.0f} s"}
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


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GainError as err:
        sys.exit(f"gpu_check: error: {err}")
