"""Worlds that nothing was tuned on: drawn at random, on shuffled, jumping and long-tailed streams.

    python benchmarks/random_worlds.py --json benchmarks/results/random_worlds.json

Each of 24 worlds has its own number of classes and dimensions, classes of unequal and correlated
scatter, a head that is rightly sure or too sure, and five domains that move, stretch and blur the
features. `tracked` with what clean images tell is compared with the source and with itself without
the prior on the classes, by `gain-eval`, two seeds. Some four minutes on two cores.

    python benchmarks/random_worlds.py --json RESULT.json --into docs/adaptation.md

puts the table into a page and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from adaptation import MEASURED
from marks import markdown, put_tables

from gain_apps.evaluate import main as gain_eval

FIRST_SEED, NUM_WORLDS, NUM_SEEDS = 500, 24, 2
NUM_IMAGES, LEAST_IMAGES = 2000, 20
WITHOUT = f"{MEASURED}:class_prior=false"
STREAMS = {
    "shuffled": ("--order", "shuffled"),
    "CDC": ("--stream", "cdc"),
    "long-tailed": ("--order", "long-tailed"),
}
# The names are those that a bed's domains must have.
DOMAINS = ("fog", "snow", "contrast", "gaussian_noise", "brightness")


def main() -> int:
    """Run every world, or put the table into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--into", type=Path, help="put the table into this page, run nothing")
    args = parser.parse_args()
    if args.into:
        put_tables(args.into, {"random worlds": table}, json.loads(args.json.read_text()))
        return 0
    report: dict[str, Any] = {"command": "python benchmarks/random_worlds.py", "worlds": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(FIRST_SEED, FIRST_SEED + NUM_WORLDS):
            path = Path(folder) / "world.npz"
            world: dict[str, Any] = {"seed": seed, **write_world(path, seed)}
            world |= {name: scores(path, flags) for name, flags in STREAMS.items()}
            report["worlds"].append(world)
            print(json.dumps(world), flush=True)
            args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def write_world(path: Path, seed: int) -> dict[str, Any]:
    """Draw a world, write it as a bed of features; returns what it is."""
    rng = np.random.default_rng(seed)
    num_classes = int(rng.choice([5, 10, 20, 40, 100]))
    feature_dim = int(rng.choice([8, 16, 32, 64]))
    apart, certainty = float(rng.choice([0.5, 0.7, 1.0, 1.4])), float(rng.choice([1.0, 1.5, 2.5]))
    centers = 0.7 * apart * rng.normal(size=(num_classes, feature_dim))
    labels = np.repeat(np.arange(num_classes), max(NUM_IMAGES // num_classes, LEAST_IMAGES))
    mixing = np.eye(feature_dim) + 0.3 * rng.normal(size=(feature_dim,) * 2) / np.sqrt(feature_dim)
    scatter = np.exp(0.3 * rng.normal(size=num_classes))
    noise = scatter[labels][:, None] * rng.normal(size=(len(labels), feature_dim))
    clean = centers[labels] + noise @ mixing
    lengths = rng.choice([0.5, 1.0, 1.5]) * rng.permutation([4.0, 3.0, 2.0, 1.0, 0.3])
    domains = {}
    for name, length in zip(DOMAINS, lengths, strict=True):
        direction = rng.normal(size=feature_dim)
        stretch = rng.choice([0.6, 1.0, 1.3, 1.0])
        blur = rng.choice([0.0, 0.7]) * rng.normal(size=clean.shape)
        moved = stretch * clean + length * direction / np.linalg.norm(direction) + blur
        domains[name] = moved.astype(np.float32)
    # Bayes' own head for classes of unit scatter, its logits times its certainty.
    bias = -0.5 * np.sum(centers * centers, axis=1)
    np.savez(
        path,
        weight=(certainty * centers).astype(np.float32),
        bias=(certainty * bias).astype(np.float32),
        labels=labels,
        clean=clean.astype(np.float32),
        **domains,
    )
    return {"classes": num_classes, "dimensions": feature_dim, "certainty": certainty}


def scores(path: Path, flags: tuple[str, ...]) -> dict[str, Any]:
    """Accuracy and ECE in per cent of the source, with the prior and without."""
    target = path.with_name("result.json")
    arguments = [str(path), "--severity", "3", *flags, "--seeds", str(NUM_SEEDS), "--no-diagnosis"]
    status = gain_eval([*arguments, "--methods", f"{MEASURED},{WITHOUT}", "--json", str(target)])
    if status != 0:
        raise SystemExit(status)
    methods = json.loads(target.read_text())["methods"]
    return {
        name: {"accuracy": round(record["accuracy"], 2), "ece": round(record["ece"], 2)}
        for name, record in methods.items()
    }


def table(report: Mapping[str, Any], /) -> str:
    """A row for every stream: means over the worlds, and the worst of them."""
    rows = []
    for stream in STREAMS:
        cells = [world[stream] for world in report["worlds"]]
        means = [
            f"{np.mean([cell[name]['accuracy'] for cell in cells]):.1f} / "
            f"{np.mean([cell[name]['ece'] for cell in cells]):.1f}"
            for name in ("source", WITHOUT, MEASURED)
        ]
        over_source, over_without = (
            [cell[MEASURED]["accuracy"] - cell[other]["accuracy"] for cell in cells]
            for other in ("source", WITHOUT)
        )
        worst = [
            f"{min(over_source):+.1f}",
            f"{min(over_without):+.1f}",
            f"{max(over_without):+.1f}",
        ]
        rows.append([stream, *means, *worst])
    heading = ["stream", "source", "without the prior", "`tracked`", "worst against the source"]
    return markdown([*heading, "worst against without", "best against without"], rows)


if __name__ == "__main__":
    raise SystemExit(main())
