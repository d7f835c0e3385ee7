"""Does adapting help everywhere? Every test bed on every kind of stream, against the bars.

    python benchmarks/adaptation.py --artifact ARTIFACT --bed NAME=PATH:SEVERITY ... \
        --json benchmarks/results/adaptation.json

ARTIFACT is the road-sign model after `gain-export` (`make demo` leaves one): its drive and still
signs are always run, and a Gaussian world whose answer is known. Beds are `.npz` files of frozen
features: those in `../shared/data/beds`, and what `cifar_vit.py` and `cifar_lite0.py` write. Every
cell is a `gain-eval` run over five seeds (ten where a stream is of one class, so that ten classes
are seen, and one where frames come one by one); a pair that is in the result file already is not
run again, but for the methods named by `--refresh`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from marks import markdown, put_tables
from roadsigns_adaptation import write_still_signs

from gain_apps.evaluate import main as gain_eval

DEFAULT, MEASURED = "tracked", "tracked:measured=true"
METHODS = "tracked,tracked:measured=true,balanced,paper-l2,neo,neo-continual,foa-shift,recentre"
RIVALS = ("neo", "neo-continual", "foa-shift", "recentre")
STREAMS = {
    "shuffled": ("--order", "shuffled"),
    "runs of one class": ("--order", "runs"),
    "sorted by class": ("--order", "sorted"),
    "long-tailed": ("--order", "long-tailed"),
    "one class only": ("--order", "one-class"),
    "recurring domains": ("--stream", "recurring", "--visits", "3"),
    "CDC": ("--stream", "cdc"),
    "MDS": ("--stream", "mds"),
    "severity ramp": ("--stream", "ramp"),
    "single frames": ("--batch-size", "1", "--domains", "gaussian_noise,fog,brightness"),
}
# One image of each class: an order by class is one more shuffle, and severities need images.
NEED_REPEATS = ("runs of one class", "sorted by class", "long-tailed", "one class only")
NEED_IMAGES = ("severity ramp",)
SINGLE_METHODS = "tracked,tracked:measured=true,tracked:update_every=16,neo-continual"
RECORDED_METHODS = "tracked,tracked:measured=true,balanced,paper-l2,neo,neo-continual,recentre"
# Frame by frame takes sixty-four times as many steps; a stream of one class has one class a seed.
SEEDS = {"single frames": ["--seeds", "1"], "one class only": ["--seeds", "10"]}
DRIVE = "test://drive?frames=6000&resolution=crop&seed={seed}"
LEAST_GAIN, MOST_LOSS, MOST_ECE = 4.0, 0.5, 2.0


def main() -> int:
    """Run what is missing, print the table and the bars, write both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--artifact", help="the road-sign model's")
    parser.add_argument("--bed", action="append", default=[], metavar="NAME=PATH:SEVERITY")
    parser.add_argument("--photos", action="append", default=[], metavar="NAME=ARTIFACT:FOLDER")
    parser.add_argument("--cache", default=str(Path.home() / ".cache" / "gain-edge" / "eval"))
    parser.add_argument("--only", action="append", help="this bed only; may be repeated")
    parser.add_argument("--refresh", metavar="METHODS", help="run these again in every pair")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--picture", type=Path, help="draw the result file and do nothing else")
    parser.add_argument("--into", type=Path, help="put the table into this page, run nothing")
    args = parser.parse_args()
    if args.picture or args.into:
        report = json.loads(args.json.read_text())
        if args.picture:
            draw(report["cells"], args.picture)
        if args.into:
            put_tables(args.into, TABLES, report)
        return 0
    report = json.loads(args.json.read_text()) if args.json.exists() else {"cells": {}}
    report["command"] = "python benchmarks/adaptation.py"
    with tempfile.TemporaryDirectory() as folder:
        for name, base, streams, seeds in subjects(args, Path(folder)):
            if args.only and name not in args.only:
                continue
            for stream in streams:
                key = f"{name}, {stream}"
                found = report["cells"].setdefault(key, {})
                methods = methods_to_run(stream, done=bool(found), refresh=args.refresh)
                if methods:
                    counted = SEEDS.get(stream, seeds)
                    flags = (*STREAMS.get(stream, ("--stream", "recorded")), *counted)
                    found |= cell(base, methods, flags, Path(folder))
                    report["bars"] = bars(report["cells"])
                    args.json.write_text(json.dumps(report, indent=1) + "\n")
                show(key, report["cells"][key])
    report["bars"] = bars(report["cells"])
    args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["bars"], indent=1))
    return 0


def subjects(
    args: argparse.Namespace, folder: Path
) -> list[tuple[str, list[str], list[str], list[str]]]:
    """Name, `gain-eval` arguments, streams and seeds of every test bed."""
    found = []
    world = folder / "world.npz"
    write_gaussian_world(world)
    beds = [f"gaussian world={world}:3", *args.bed]
    for text in beds:
        name, _, place = text.partition("=")
        path, _, severity = place.rpartition(":")
        with np.load(path) as data:
            repeated = len(data["labels"]) > len(data["weight"])
        streams = [
            stream
            for stream in STREAMS
            if stream not in NEED_IMAGES and (repeated or stream not in NEED_REPEATS)
        ]
        found.append((name, [path, "--severity", severity], streams, ["--seeds", "5"]))
    for text in args.photos:
        name, _, place = text.partition("=")
        artifact, _, images = place.partition(":")
        base = [artifact, images, "--views", "5", "--severity", "5", "--cache", args.cache]
        found.append((name, base, [s for s in STREAMS if s not in NEED_IMAGES], ["--seeds", "3"]))
    signs = folder / "signs.npz"
    write_still_signs(signs)
    for severity in ("5", "3"):
        base = [args.artifact, str(signs), "--severity", severity, "--cache", args.cache]
        found.append((f"road signs, severity {severity}", base, list(STREAMS), ["--seeds", "5"]))
    for seed in range(5):
        # A recorded drive has no clean frames of its own.
        base = [args.artifact, DRIVE.format(seed=seed), "--source-data", "test://signs"]
        base += ["--cache", args.cache]
        found.append((f"road-sign drive {seed}", base, ["as recorded"], ["--seeds", "1"]))
    return found


def methods_to_run(stream: str, /, *, done: bool, refresh: str | None) -> str:
    """Names, with commas between: all of a stream's, or those to run again, or none."""
    methods = {"single frames": SINGLE_METHODS, "as recorded": RECORDED_METHODS}.get(
        stream, METHODS
    )
    if not done:
        return methods
    wanted = (refresh or "").split(",")
    return ",".join(name for name in methods.split(",") if name in wanted)


def write_gaussian_world(path: Path) -> None:
    """Classes at c_k with unit noise, so that the head is Bayes' own; domains add a constant.

    Taking the constant out is the right answer, and gives the accuracy of the clean domain.
    """
    rng = np.random.default_rng(11)
    num_classes, feature_dim, count = 20, 32, 2000
    weight = rng.normal(size=(num_classes, feature_dim)) * 0.7
    labels = np.repeat(np.arange(num_classes), count // num_classes)
    clean = weight[labels] + rng.normal(size=(count, feature_dim))
    arrays = {
        "weight": weight,
        "bias": -0.5 * np.sum(weight * weight, axis=1),
        "labels": labels,
        "clean": clean.astype(np.float16),
    }
    for index, name in enumerate(("fog", "snow", "contrast", "gaussian_noise", "brightness")):
        direction = rng.normal(size=feature_dim)
        shift = direction * ((4.0, 3.0, 2.0, 1.0, 0.3)[index] / np.linalg.norm(direction))
        arrays[name] = (clean + shift).astype(np.float16)
    np.savez(path, **arrays)


def cell(base: list[str], methods: str, flags: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Accuracy and ECE of the source and every method on one stream."""
    target = folder / "result.json"
    arguments = [*base, *flags, "--methods", methods, "--no-diagnosis", "--json", str(target)]
    status = gain_eval(arguments)
    if status != 0:
        raise SystemExit(status)
    result = json.loads(target.read_text())
    return {
        name: {"accuracy": round(record["accuracy"], 2), "ece": round(record["ece"], 2)}
        for name, record in result["methods"].items()
    }


def bars(cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The promises, checked over all pairs, of the default without and with clean images."""
    return {method: promises(cells, method) for method in (DEFAULT, MEASURED)}


def promises(cells: dict[str, dict[str, Any]], method: str) -> dict[str, Any]:
    """The promises, checked over all pairs that have the method."""
    cells = {key: row for key, row in cells.items() if method in row}
    deltas = {
        key: row[method]["accuracy"] - row["source"]["accuracy"] for key, row in cells.items()
    }
    weak = [deltas[key] for key, row in cells.items() if row["source"]["accuracy"] < 70.0]
    calm = {key: row[method]["ece"] - row["source"]["ece"] for key, row in cells.items()}
    rivalled = [row for row in cells.values() if all(name in row for name in RIVALS)]
    means = {
        name: round(float(np.mean([row[name]["accuracy"] for row in rivalled])), 2)
        for name in ("source", DEFAULT, MEASURED, "balanced", "paper-l2", *RIVALS)
    }
    return {
        "pairs": len(cells),
        "worst_change_of_accuracy": {
            k: round(v, 2) for k, v in sorted(deltas.items(), key=lambda x: x[1])[:8]
        },
        "pairs_that_lose_more_than_half_a_point": sum(
            value < -MOST_LOSS for value in deltas.values()
        ),
        "mean_gain_where_the_source_is_below_70": round(float(np.mean(weak)), 2),
        "pairs_below_70": len(weak),
        "share_of_pairs_with_ece_at_most_the_sources": round(
            float(np.mean([value <= 0.0 for value in calm.values()])), 3
        ),
        "worst_change_of_ece": {
            k: round(v, 2) for k, v in sorted(calm.items(), key=lambda x: -x[1])[:5]
        },
        "mean_accuracy": means,
    }


def all_pairs(report: Mapping[str, Any], /) -> str:
    """Accuracy / ECE of every pair."""
    columns = ("source", DEFAULT, MEASURED, "balanced", *RIVALS)

    def text(scores: Mapping[str, float] | None) -> str:
        return "" if scores is None else f"{scores['accuracy']:.1f} / {scores['ece']:.1f}"

    rows = [
        [key, *(text(row.get(name)) for name in columns)] for key, row in report["cells"].items()
    ]
    return markdown(["test bed, stream", *(f"`{name}`" for name in columns)], rows)


TABLES = {"all pairs": all_pairs}


def draw(cells: dict[str, dict[str, Any]], path: Path) -> None:
    """Points of accuracy won or lost against the source, one panel a test bed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    beds: dict[str, dict[str, dict[str, Any]]] = {}
    for key, row in cells.items():
        name, _, stream = key.partition(", ")
        if name.startswith("road signs"):
            severity, _, stream = stream.partition(", ")
            name = f"{name}, {severity}"
        if name.startswith("road-sign drive"):
            name, stream = "road-sign drives", f"drive {name.split()[-1]}"
        beds.setdefault(name, {})[stream] = row
    shown = {MEASURED: "#1b9e77", DEFAULT: "#66c2a5", "neo-continual": "#d95f02"}
    columns = 2
    rows = -(-len(beds) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(11, 2.9 * rows), squeeze=False)
    for axis, (name, streams) in zip(axes.flat, beds.items(), strict=False):
        places = np.arange(len(streams))
        for offset, (method, colour) in zip((-0.25, 0.0, 0.25), shown.items(), strict=True):
            gains = [
                row[method]["accuracy"] - row["source"]["accuracy"] if method in row else np.nan
                for row in streams.values()
            ]
            axis.barh(places + offset, gains, height=0.24, color=colour, label=method)
        axis.axvline(0.0, color="black", linewidth=0.8)
        sources = [
            f"{stream} ({row['source']['accuracy']:.0f} %)" for stream, row in streams.items()
        ]
        axis.set_yticks(places, sources, fontsize=7)
        axis.invert_yaxis()
        axis.set_xlim(-8.0, 12.0)
        axis.tick_params(axis="x", labelsize=7)
        axis.set_title(name, fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[len(beds) :]:
        axis.set_visible(False)
    axes.flat[0].legend(fontsize=7, loc="lower right", frameon=False)
    figure.supxlabel(
        "points of accuracy against the frozen source (its own in brackets)", fontsize=9
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def show(key: str, row: dict[str, Any]) -> None:
    """One line."""
    entries = "  ".join(f"{n} {v['accuracy']:.1f}/{v['ece']:.1f}" for n, v in row.items())
    print(f"{key:45s} {entries}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
