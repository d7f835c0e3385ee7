"""Every ablation of the paper, on 1,060 still road signs in four streams.

    python benchmarks/roadsigns_ablation.py ARTIFACT --json RESULT.json

ARTIFACT is `models/roadsigns/roadsigns.onnx` after `gain-export`; `make demo` leaves one. The
signs are those of `roadsigns_adaptation.py`, under the fifteen corruptions at severity 5. Every row
is `balanced:half_life=60` or `tracked` with one part exchanged, or another method; every table is a
`gain-eval` run. LHA has ten rounds, and there are five seeds: an hour on one core. The result is
written after every stream.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from roadsigns_adaptation import SCORES, print_table, spread, write_still_signs

NUM_SEEDS = 5
ROUNDS = 10
BASE = "balanced:half_life=60"
ABLATIONS = {
    "intervention": (
        "rule=retention",
        "rule=full",
        "rule=fixed:fixed_strength=0.5",
        "rule=entropy",
        "rule=disagreement",
    ),
    "roles": ("role=evaluator", "role=swapped"),
    "state updates": (
        "assignment=source",
        "assignment=source:reliability=false",
        "assignment=proposal",
        "assignment=proposal:reliability=false",
        "reliability=false",
    ),
    "class prior": ("prior=uniform", "prior=reliability", "prior=balancing"),
    "prior strength": tuple(
        f"prior_samples=0:prior_strength={value}" for value in (3, 10, 30, 100, 300, 1000, 3000)
    ),
}
DEFAULT = "tracked"
DEFAULT_ABLATIONS = {
    "intervention": (
        "rule=full",
        "rule=fixed:fixed_strength=0.5",
        "rule=entropy",
        "rule=disagreement",
    ),
    "roles": ("role=evaluator", "role=swapped"),
    "guard": ("guard=false",),
    "label evidence": ("label_draws=0", "label_draws=3", "label_draws=30"),
    "shrinkage": ("shrinkage=0", "shrinkage=1", "shrinkage=2"),
    "memory": ("half_life=128", "half_life=512", "half_life=4096"),
}
OTHERS = ("paper", "neo", "neo-continual", "foa-shift", "t3a", "lame", "recentre")
STREAMS = {"csc": (), "cdc": (), "mds": (), "lha": ("--rounds", str(ROUNDS))}
BATCH_SIZES = (1, 16, 64, 128)
BATCH_METHODS = (BASE, DEFAULT, "paper", "neo", "neo-continual", "recentre")
STRENGTH = ("mean_strength", "share_at_zero", "share_at_one", "pearson", "spearman")


def main() -> int:
    """Run everything, print the tables and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--cache", type=Path, help="folder for features (default: gain-eval's)")
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help=f"(default: {NUM_SEEDS})")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report: dict[str, Any] = {"command": "python benchmarks/roadsigns_ablation.py ARTIFACT"}
    with tempfile.TemporaryDirectory() as name:
        signs = Path(name) / "signs.npz"
        write_still_signs(signs)
        for stream, flags in STREAMS.items():
            found = evaluate(args, signs, all_methods(), "--stream", stream, *flags)
            if "base" not in report:
                report |= heading(found)
            report["streams"][stream] = summary(found)
            write(args.json, report)
        for size in BATCH_SIZES:
            flags = ("--no-diagnosis", "--batch-size", str(size))
            found = evaluate(args, signs, BATCH_METHODS, *flags)
            report["csc_batch_sizes"][f"batch size {size}"] = summary(found)
            write(args.json, report)
    for group in ("streams", "csc_batch_sizes"):
        for name, part in report[group].items():
            print_table(name, part["methods"])
    return 0


def all_methods() -> tuple[str, ...]:
    """Both bases with each part exchanged, and the others."""
    exchanged = [
        f"{base}:{change}"
        for base, groups in ((BASE, ABLATIONS), (DEFAULT, DEFAULT_ABLATIONS))
        for changes in groups.values()
        for change in changes
    ]
    return (BASE, DEFAULT, *exchanged, *OTHERS)


def heading(first: dict[str, Any]) -> dict[str, Any]:
    """What all tables have in common."""
    return {
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


def write(target: Path | None, report: dict[str, Any], /) -> None:
    """The result so far."""
    if target is not None:
        target.write_text(json.dumps(report, indent=1) + "\n")


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
