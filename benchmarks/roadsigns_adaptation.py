"""The road-sign classifier under every preset and NEO: five drives, and still signs corrupted.

    python benchmarks/roadsigns_adaptation.py ARTIFACT --json RESULT.json

ARTIFACT is `models/roadsigns/roadsigns.onnx` after `gain-export`; `make demo` leaves one. Every
row is a `gain-eval` run; batches are the paper's 64 frames. A drive of 6,000 frames has eleven
stretches of weather of 545 frames, some seventeen signs each: `balanced` is run with its own
half-life of 420 frames and with one of 60, well below a stretch; `tracked` finds its own.

    python benchmarks/roadsigns_adaptation.py --json RESULT.json --into models/roadsigns/README.md

puts the tables into a page and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from marks import markdown, put_tables

from gain_apps.roadsigns.sample import render_labelled

METHODS = "paper,paper-l2,balanced,balanced:half_life=60,tracked,neo,neo-continual"
DRIVE = "test://drive?frames={frames}&resolution=crop&seed={seed}"
NUM_SEEDS = 5
# Neither the training's nor the validation's: see models/roadsigns/train.py and evaluate.py.
STILL_SEED = 3_000_017
STILL_SIGNS = 1_060
SCORES = ("accuracy", "ece", "nll")
DIGITS = (1, 1, 2)
BY_CONDITION = ("source", "tracked", "balanced:half_life=60", "neo-continual")


def main() -> int:
    """Run everything, print the tables and write them, or put them into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact", type=Path, nargs="?")
    parser.add_argument("--frames", type=int, default=6000, help="length of each drive")
    parser.add_argument("--cache", type=Path, help="folder for features (default: gain-eval's)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--into", type=Path, help="put --json's tables into this page, run nothing")
    args = parser.parse_args()
    if args.into:
        if not args.json:
            parser.error("--into: expected --json RESULT.json, whose tables the page is to show")
        tables = {"adapted": methods_table, "by condition": conditions_table}
        put_tables(args.into, tables, json.loads(args.json.read_text()))
        return 0
    if not args.artifact:
        parser.error("ARTIFACT: expected the road-sign artifact; `make demo` leaves one")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        drives = [
            evaluate(
                args, DRIVE.format(frames=args.frames, seed=seed), folder, "--stream", "recorded"
            )
            for seed in range(NUM_SEEDS)
        ]
        signs = folder / "signs.npz"
        write_still_signs(signs)
        still = {
            f"severity {severity}": evaluate(
                args, str(signs), folder, "--severity", str(severity), "--seeds", str(NUM_SEEDS)
            )
            for severity in (3, 5)
        }
    report = {
        "command": "python benchmarks/roadsigns_adaptation.py ARTIFACT",
        "batch_size": 64,
        "versions": drives[0]["versions"],
        "artifact": drives[0]["model"],
        "counting": "per condition or corruption, then averaged; in per cent, nll in nats",
        "drive": over_seeds(drives),
        "still_signs": {name: table(result) for name, result in still.items()},
    }
    print_table("drive, five seeds", report["drive"]["methods"])
    for name, rows in report["still_signs"].items():
        print_table(f"fifteen corruptions, {name}, five orders", rows)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def evaluate(args: argparse.Namespace, data: str, folder: Path, *flags: str) -> dict[str, Any]:
    """Result of one `gain-eval` run."""
    target = folder / "result.json"
    command = [sys.executable, "-m", "gain_apps.evaluate", str(args.artifact), data]
    command += ["--methods", METHODS, "--batch-size", "64", "--json", str(target), *flags]
    if args.cache:
        command += ["--cache", str(args.cache)]
    subprocess.run(command, check=True)
    return json.loads(target.read_text())


def write_still_signs(path: Path) -> None:
    """Signs as the classifier was trained on, of a seed of their own."""
    pairs = [
        render_labelled(index, seed=STILL_SEED, size_px=64, severity=1.0)
        for index in range(STILL_SIGNS)
    ]
    np.savez(
        path,
        images=np.stack([image for image, _ in pairs]),
        labels=np.array([label for _, label in pairs], dtype=np.int64),
    )


def over_seeds(drives: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and spread over drives, and accuracy and ECE per condition."""
    methods = {
        name: {
            score: spread([drive["methods"][name][score] for drive in drives]) for score in SCORES
        }
        for name in drives[0]["methods"]
    }
    conditions = {
        name: {
            condition: {
                score: round(
                    statistics.fmean(
                        drive["methods"][name]["domains"][condition][score] for drive in drives
                    ),
                    2,
                )
                for score in SCORES
            }
            for condition in drives[0]["methods"][name]["domains"]
        }
        for name in drives[0]["methods"]
    }
    return {"stream": drives[0]["stream"], "methods": methods, "conditions": conditions}


def table(result: dict[str, Any]) -> dict[str, Any]:
    """Mean and spread over the runs of one result."""
    return {
        name: {score: spread([run[score] for run in row["runs"]]) for score in SCORES}
        for name, row in result["methods"].items()
    }


def spread(values: list[float]) -> dict[str, float]:
    """Mean and standard deviation over seeds."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": round(statistics.fmean(values), 3), "std": round(deviation, 3)}


def methods_table(report: dict[str, Any]) -> str:
    """Accuracy, ECE and NLL of every method, with the spread over seeds."""
    streams = [report["drive"]["methods"], *report["still_signs"].values()]
    names = ["drive", *(f"corruptions, {name}" for name in report["still_signs"])]
    rows = [[name, *(scores(stream[name]) for stream in streams)] for name in streams[0]]
    return markdown(["method", *names], rows)


def conditions_table(report: dict[str, Any]) -> str:
    """Accuracy and ECE under every condition of the drive."""
    found = report["drive"]["conditions"]
    rows = [
        [
            condition,
            *(
                "{accuracy:.1f} / {ece:.1f}".format(**found[name][condition])
                for name in BY_CONDITION
            ),
        ]
        for condition in found["source"]
    ]
    return markdown(["condition", *BY_CONDITION], rows)


def scores(row: dict[str, Any]) -> str:
    """Mean and standard deviation of each."""
    return " / ".join(
        f"{row[score]['mean']:.{digits}f} ± {row[score]['std']:.{digits}f}"
        for score, digits in zip(SCORES, DIGITS, strict=True)
    )


def print_table(title: str, rows: dict[str, Any]) -> None:
    """One line per method."""
    print(f"\n{title}")
    for name, row in rows.items():
        cells = "   ".join(
            f"{score} {row[score]['mean']:7.2f} +- {row[score]['std']:.2f}" for score in SCORES
        )
        print(f"  {name:24s} {cells}")


if __name__ == "__main__":
    sys.exit(main())
