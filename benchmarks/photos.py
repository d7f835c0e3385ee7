"""Presets and baselines on real photographs with ImageNet heads, under the fifteen corruptions.

    python benchmarks/photos.py efficientnet_lite0.onnx imagenet_samples --views 5 --severity 5 \
        --json benchmarks/results/photos_lite0_s5.json

The artifact is `gain-export --weights` of a published checkpoint, the data a folder with one
photograph of each of the thousand classes; views are crops and mirrored crops that leave the class
as it is. Every row is a `gain-eval` run on features that `--cache` keeps; a method that is in the
result file already is not run again.

    python benchmarks/photos.py --into docs/adaptation.md --picture docs/images/photos.png

puts the tables of the committed results into a page, draws them, and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from marks import put_tables
from photo_tables import TABLES, draw

from gain_apps.evaluate import main as gain_eval

RESULTS = Path(__file__).resolve().parent / "results"
METHODS = (
    "tracked",
    "tracked:measured=true",
    "balanced",
    "paper",
    "paper-l2",
    "neo",
    "neo-continual",
    "recentre",
    "foa-shift",
    "t3a",
    "lame",
    "dota:covariance=pooled",
)
# What must be the same for rows of two runs to stand in one table.
SAME = ("model", "data", "stream", "severities", "seeds", "bins", "counting")


def main() -> int:
    """Run what is missing and write it, or show what there is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact", type=Path, nargs="?")
    parser.add_argument("photos", type=Path, nargs="?")
    parser.add_argument("--views", type=int, default=5, help="of each photograph (default: 5)")
    parser.add_argument("--severity", default="5", help="(default: 5)")
    parser.add_argument("--methods", default=",".join(METHODS), help="(default: all of them)")
    parser.add_argument("--cache", type=Path, help="folder for features (default: gain-eval's)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--into", type=Path, help="put the tables into this page, run nothing")
    parser.add_argument("--picture", type=Path, help="draw the results, run nothing")
    args = parser.parse_args()
    if args.into or args.picture:
        show(args)
        return 0
    if None in (args.artifact, args.photos, args.json):
        parser.error("ARTIFACT, PHOTOS and --json are needed to run anything")
    report = json.loads(args.json.read_text()) if args.json.exists() else {}
    known = report.get("methods", {})
    for method in (name for name in args.methods.split(",") if name not in known):
        report = merged(report, evaluate(args, method), path=args.json)
        unfinished = args.json.with_name(f"{args.json.name}.part")
        unfinished.write_text(json.dumps(report, indent=1) + "\n")
        unfinished.replace(args.json)
    return 0


def show(args: argparse.Namespace, /) -> None:
    """Tables and picture of the committed results."""
    reports = {
        path.stem.removeprefix("photos_"): json.loads(path.read_text())
        for path in sorted(RESULTS.glob("photos_*.json"))
    }
    if args.into:
        put_tables(args.into, TABLES, reports)
    if args.picture:
        draw(reports, args.picture)


def evaluate(args: argparse.Namespace, method: str, /) -> dict[str, Any]:
    """What `gain-eval` says of one method, and of the source."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "result.json"
        flags = ["--views", str(args.views), "--severity", args.severity, "--methods", method]
        flags += ["--no-diagnosis", "--num-threads", "1", "--json", str(target)]
        if args.cache:
            flags += ["--cache", str(args.cache)]
        status = gain_eval([str(args.artifact), str(args.photos), *flags])
        if status != 0:
            raise SystemExit(status)
        found: dict[str, Any] = json.loads(target.read_text())
    found["command"] = (
        f"python benchmarks/photos.py {args.artifact.name} {args.photos.name} "
        f"--views {args.views} --severity {args.severity} --json {args.json.name}"
    )
    found["model"]["path"], found["data"]["path"] = args.artifact.name, args.photos.name
    for record in found["methods"].values():
        # A point for every few batches: what the report of a single run draws.
        record.pop("series", None)
    return found


def merged(report: dict[str, Any], new: dict[str, Any], /, *, path: Path) -> dict[str, Any]:
    """The report with another method's row, in the order of `METHODS`."""
    for key in SAME if report else ():
        if report[key] != new[key]:
            raise SystemExit(f"{path}: {key} is {report[key]}, this run's {new[key]}")
    rows = new["methods"] | report.get("methods", {})
    order = [name for name in ("source", *METHODS) if name in rows]
    order += [name for name in rows if name not in order]
    return (report or new) | {"methods": {name: rows[name] for name in order}}


if __name__ == "__main__":
    sys.exit(main())
