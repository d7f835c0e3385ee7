"""Every ablation of the paper, on 1,060 still road signs in four streams.

    python benchmarks/roadsigns_ablation.py ARTIFACT --json RESULT.json

ARTIFACT is `models/roadsigns/roadsigns.onnx` after `gain-export`; `make demo` leaves one. The
signs are those of `roadsigns_adaptation.py`, under the fifteen corruptions at severity 5. Every row
is `balanced:half_life=60` or `tracked` with one part exchanged, or another method, run by
`gain-eval`. LHA has ten rounds, and there are five seeds: some forty minutes on one core. The
result is written after every few methods, and what is in it already is not run again.

    python benchmarks/roadsigns_ablation.py --json RESULT.json --into docs/ablations.md

puts the tables of a result between the marks of a page, and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ablation_methods import BASE, DEFAULT, all_methods
from ablation_tables import TABLES
from marks import put_tables
from roadsigns_adaptation import SCORES, print_table, spread, write_still_signs

NUM_SEEDS = 5
ROUNDS = 10
# Strength and gain would double the time of a stream that is ten times as long as the others.
STREAMS = {"csc": (), "cdc": (), "mds": (), "lha": ("--rounds", str(ROUNDS), "--no-diagnosis")}
BATCH_SIZES = (1, 16, 64, 128)
BATCH_METHODS = (BASE, DEFAULT, "paper", "neo", "neo-continual", "recentre")
# Methods of one `gain-eval` run: what an interruption can lose.
CHUNK = 6
STRENGTH = ("mean_strength", "share_at_zero", "share_at_one", "pearson", "spearman")


def main() -> int:
    """Run what is missing, print the tables and write them; or put them into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact", type=Path, nargs="?")
    parser.add_argument("--cache", type=Path, help="folder for features (default: gain-eval's)")
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help=f"(default: {NUM_SEEDS})")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--into", type=Path, help="put the tables into this page, run nothing")
    args = parser.parse_args()
    if args.into:
        put_tables(args.into, TABLES, json.loads(args.json.read_text()))
        return 0
    if args.artifact is None:
        parser.error("ARTIFACT is needed to run anything")
    report = json.loads(args.json.read_text()) if args.json.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        signs = Path(name) / "signs.npz"
        write_still_signs(signs)
        for stream, options in STREAMS.items():
            flags = ("--stream", stream, *options)
            complete(args, signs, report, *flags, place=("streams", stream))
        for size in BATCH_SIZES:
            flags = ("--no-diagnosis", "--batch-size", str(size))
            place = ("csc_batch_sizes", f"batch size {size}")
            complete(args, signs, report, *flags, place=place)
    for group in ("streams", "csc_batch_sizes"):
        for name, part in report[group].items():
            print_table(name, part["methods"])
    return 0


def complete(
    args: argparse.Namespace,
    data: Path,
    report: dict[str, Any],
    /,
    *flags: str,
    place: tuple[str, str],
) -> None:
    """Run the methods that one table lacks, a few at a time."""
    group, title = place
    wanted = all_methods() if group == "streams" else BATCH_METHODS
    known = report.get(group, {}).get(title, {}).get("methods", {})
    missing = [method for method in wanted if method not in known]
    for start in range(0, len(missing), CHUNK):
        found = evaluate(args, data, tuple(missing[start : start + CHUNK]), *flags)
        shared = heading(found)
        if not report:
            report |= shared
        for key in ("severity", "seeds", "artifact", "images", "bins"):
            if report[key] != shared[key]:
                raise SystemExit(f"{args.json}: {key} is {report[key]}, this run's {shared[key]}")
        new = summary(found)
        rows = report[group].get(title, {}).get("methods", {}) | new["methods"]
        order = [name for name in ("source", *wanted) if name in rows]
        report[group][title] = new | {"methods": {name: rows[name] for name in order}}
        write(args.json, report)


def heading(first: dict[str, Any]) -> dict[str, Any]:
    """What all tables have in common."""
    return {
        "command": "python benchmarks/roadsigns_ablation.py ARTIFACT",
        "severity": 5,
        "seeds": first["seeds"],
        "base": BASE,
        "default": DEFAULT,
        "versions": first["versions"],
        "artifact": {key: value for key, value in first["model"].items() if key != "path"},
        "images": first["data"]["images"],
        "bins": first["bins"],
        "units": "accuracy and ece in per cent, nll in nats; shares in [0, 1]",
        "streams": {},
        "csc_batch_sizes": {},
    }


def write(target: Path, report: dict[str, Any], /) -> None:
    """The result so far."""
    unfinished = target.with_name(f"{target.name}.part")
    unfinished.write_text(json.dumps(report, indent=1) + "\n")
    unfinished.replace(target)


def evaluate(
    args: argparse.Namespace, data: Path, methods: tuple[str, ...], /, *flags: str
) -> dict[str, Any]:
    """Result of one `gain-eval` run."""
    target = data.parent / "result.json"
    command = [sys.executable, "-m", "gain_apps.evaluate", str(args.artifact), str(data)]
    command += ["--methods", ",".join(methods), "--severity", "5", "--seeds", str(args.seeds)]
    command += ["--json", str(target), *flags]
    if args.cache:
        command += ["--cache", str(args.cache)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads(target.read_text())


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Means and spreads over seeds, and what the strengths were."""
    return {
        "counting": result["counting"],
        "batch_size": result["stream"]["batch_size"],
        "rounds": result["stream"]["rounds"] if result["stream"]["kind"] == "lha" else 1,
        "samples": result["stream"]["samples"],
        "methods": {name: row(record) for name, record in result["methods"].items()},
    }


def row(record: dict[str, Any]) -> dict[str, Any]:
    """One method's numbers."""
    found: dict[str, Any] = {
        score: spread([run[score] for run in record["runs"]]) for score in SCORES
    }
    if "gain" in record:
        found["gain"] = {
            key: None if record["gain"][key] is None else round(record["gain"][key], 4)
            for key in STRENGTH
        }
    rounds = record.get("rounds")
    if rounds:
        found["rounds"] = [{score: round(each[score], 3) for score in SCORES} for each in rounds]
    found["step_ms_p50"] = round(record["step_ms"]["p50"], 3)
    return found


if __name__ == "__main__":
    sys.exit(main())
