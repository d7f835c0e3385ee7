"""Fog rolls in over a folder of photographs: the frozen source against the adapted prediction.

    python benchmarks/fog_ramp.py efficientnet_lite0.gain.onnx PHOTOS \
        --json benchmarks/results/fog_ramp.json

Runs `gain-stream PHOTOS --model ARTIFACT --corrupt fog:0-5 --shuffle --seed S --json` once per seed
and keeps its scores; PHOTOS holds a classes.tsv. Flags after `--` go to gain-stream.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from gain_core import __version__

CORRUPT = "fog:0-5"
MEASURES = ("accuracy_percent", "ece_percent", "nll_nats")


def run(artifact: Path, photos: Path, *, seed: int, extra: list[str]) -> dict[str, Any]:
    """One run of the command; its summary."""
    command = [sys.executable, "-m", "gain_apps.stream", str(photos), "--model", str(artifact)]
    command += ["--corrupt", CORRUPT, "--shuffle", "--seed", str(seed), "--json", *extra]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def mean_scores(runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Each measure of both predictions, averaged over the runs."""
    return {
        who: {name: round(fmean(run["truth"][who][name] for run in runs), 3) for name in MEASURES}
        for who in ("source", "adapted")
    }


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; exit status 1 if a run classified no photo with a known class."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="orders, seeds 0 to N-1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    given = sys.argv[1:] if argv is None else argv
    split = given.index("--") if "--" in given else len(given)
    arguments, extra = parser.parse_args(given[:split]), given[split + 1 :]
    runs = [
        run(arguments.artifact, arguments.photos, seed=seed, extra=extra)
        for seed in range(arguments.seeds)
    ]
    if any(one["truth"] is None for one in runs):
        print("no photo's class is known: is there a classes.tsv?", file=sys.stderr)
        return 1
    report = {
        "command": " ".join(["python", "benchmarks/fog_ramp.py", *given]),
        "version": __version__,
        "machine": platform.machine(),
        "mean": mean_scores(runs),
        "runs": [
            {
                "seed": one["config"]["seed"],
                **{key: one[key] for key in ("frames", "truth", "changed_percent", "rate_hz")},
                **{key: one[key] for key in ("strength_mean", "gain_mean_nats", "stages_ms")},
                "preset": one["config"]["preset"],
                "gain": one["config"]["gain"],
                "artifact": one["artifact"],
                "provider": one["provider"],
            }
            for one in runs
        ],
    }
    text = json.dumps(report, indent=2)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(json.dumps(report["mean"], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
