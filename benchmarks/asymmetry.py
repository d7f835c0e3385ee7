"""Can frames of one class be told from frames of many? The asymmetry of the logits on every bed.

    python benchmarks/asymmetry.py --artifact ARTIFACT --bed NAME=PATH:SEVERITY ... \
        --json benchmarks/results/asymmetry.json --picture docs/images/asymmetry.png

Beds and ARTIFACT are those of `adaptation.py`. Each bed's domains are streamed shuffled, and once
for each of ten classes with the frames of that class alone, where a class has enough of them; what
is recorded is the asymmetry that the shift itself would read, from the 64th frame of a domain on;
and how few classes the source calls the frames of a domain, and those of one class.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from adaptation import write_gaussian_world
from roadsigns_adaptation import write_still_signs

from gain_apps.evaluate import build_parser
from gain_apps.evaluation.streams import StreamPlan, make_stream
from gain_apps.evaluation.subject import Subject, open_subject
from gain_core import Gain
from gain_core.prototypes import DEFAULT_ASYMMETRY
from gain_core.shift import SCALE_RAMP, SHIFT_RAMP, asymmetry_of

Floats = npt.NDArray[np.float64]
# Half-life of 341 frames: one domain, as a rule.
WINDOW = 3
SETTLED_FRAMES = 64
# With fewer frames of a class, a stream of it would be all changes of domain.
LEAST_FRAMES = 96
NUM_CLASSES = 10
# The labels of fewer frames are few by chance.
LEAST_LABELS = 20
SEED = 0


def main() -> int:
    """Measure every bed, write the numbers and draw them."""
    args = parsed(__doc__)
    report: dict[str, Any] = {"command": "python benchmarks/asymmetry.py", "beds": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in subjects(args, Path(folder)):
            options = ["--methods", "tracked:measured=true", "--cache", args.cache]
            subject = open_subject(build_parser().parse_args([*arguments, *options]))
            report["beds"][name] = measured(subject)
            print(name, json.dumps(summary(report["beds"][name])), flush=True)
    args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.picture:
        draw(report["beds"], args.picture)
    return 0


def parsed(description: str) -> argparse.Namespace:
    """The flags of a script that measures every bed."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--artifact", help="the road-sign model's")
    parser.add_argument("--bed", action="append", default=[], metavar="NAME=PATH:SEVERITY")
    parser.add_argument("--cache", default=str(Path.home() / ".cache" / "gain-edge" / "eval"))
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    return parser.parse_args()


def subjects(args: argparse.Namespace, folder: Path) -> list[tuple[str, list[str]]]:
    """Name and `gain-eval` arguments of every bed."""
    world = folder / "world.npz"
    write_gaussian_world(world)
    found = []
    for text in (f"gaussian world={world}:3", *args.bed):
        name, _, place = text.partition("=")
        path, _, severity = place.rpartition(":")
        found.append((name, [path, "--severity", severity]))
    if args.artifact:
        signs = folder / "signs.npz"
        write_still_signs(signs)
        found.append(("road signs", [args.artifact, str(signs), "--severity", "5"]))
    return found


def measured(subject: Subject) -> dict[str, Any]:
    """The source's own two numbers, and the asymmetry on streams of one class and of all."""
    store = subject.store
    classes, counts = np.unique(store.labels, return_counts=True)
    repeated = classes[counts >= LEAST_FRAMES]
    chosen = repeated[:: max(1, len(repeated) // NUM_CLASSES)]
    single, mixed = store.head.asymmetry or DEFAULT_ASYMMETRY
    return {
        "single": single,
        "mixed": mixed,
        "of_all_classes": streamed(subject, None),
        "of_one_class": [value for label in chosen for value in streamed(subject, int(label))],
        **labelled(subject),
    }


def labelled(subject: Subject) -> dict[str, Any]:
    """How few classes the source's labels are of, from 0 to 1: in each domain, and of one class.

    Of all classes under all domains, that which is called the most things.
    """
    store, of_all, of_one = subject.store, [], []
    plan = StreamPlan(kind="csc", num_domains=len(store.domains), order="list", seed=SEED)
    parts: dict[int, list[tuple[Floats, npt.NDArray[np.int64]]]] = {}
    for item in make_stream(plan, store.labels):
        logits = store.batch(item).logits.astype(np.float64)
        odds = np.exp(logits - np.max(logits, axis=1, keepdims=True))
        probs = odds / np.sum(odds, axis=1, keepdims=True)
        parts.setdefault(int(item.domains[0]), []).append((probs, store.labels[item.images]))
    for batches in parts.values():
        probs, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
        of_all.append(concentration(probs))
        for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
            if count >= LEAST_LABELS:
                of_one.append(concentration(probs[labels == label]))
    found: dict[str, Any] = {"labels_of_all_classes": [round(value, 4) for value in of_all]}
    if of_one:
        found["labels_of_one_class_at_least"] = round(min(of_one), 4)
    return found


def concentration(probs: Floats) -> float:
    """Of the mean of the rows (N, K): 0 where all classes are alike, 1 where there is one."""
    share, equal = np.mean(probs, axis=0), 1.0 / probs.shape[1]
    return float((np.sum(share * share) - equal) / (1.0 - equal))


def streamed(subject: Subject, only_class: int | None) -> list[float]:
    """Asymmetry after every batch of a stream, but for the first frames of a domain."""
    store = subject.store
    plan = StreamPlan(
        kind="csc",
        num_domains=len(store.domains),
        order="shuffled" if only_class is None else "one-class",
        only_class=only_class,
        seed=SEED,
    )
    gain = Gain(store.head.weight, bias=store.head.bias, asymmetry=store.head.asymmetry)
    values, frames, domain = [], 0, -1
    for item in make_stream(plan, store.labels):
        batch = store.batch(item)
        gain.step(batch.features, batch.logits)
        if item.domains[0] != domain:
            frames, domain = 0, int(item.domains[0])
        frames += len(item.images)
        if frames >= SETTLED_FRAMES:
            values.append(round(float(asymmetry_of(gain.state.sums)[WINDOW]), 4))
    return values


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """Quantiles, and the share on the wrong side of the middle of the shift's ramp."""
    gap = record["mixed"] - record["single"]
    middle = record["single"] + sum(SHIFT_RAMP) / 2 * gap
    one, many = np.asarray(record["of_one_class"]), np.asarray(record["of_all_classes"])
    found = {"single": record["single"], "mixed": record["mixed"], "middle": round(middle, 3)}
    found["many_below"] = round(float(np.mean(many < middle)), 3)
    if len(one):
        found["one_above"] = round(float(np.mean(one > middle)), 3)
    return found


def draw(beds: dict[str, Any], path: Path) -> None:
    """A panel for each bed: how often which asymmetry, of one class and of all."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = 3
    rows = -(-len(beds) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(11, 2.6 * rows), squeeze=False)
    bins = np.linspace(-0.1, 0.7, 65)
    for axis, (name, record) in zip(axes.flat, beds.items(), strict=False):
        for key, label, colour in (
            ("of_one_class", "frames of one class", "#d95f02"),
            ("of_all_classes", "frames of all classes", "#1b9e77"),
        ):
            if record[key]:
                weights = np.full(len(record[key]), 100.0 / len(record[key]))
                axis.hist(record[key], bins, weights=weights, color=colour, alpha=0.6, label=label)
        gap = record["mixed"] - record["single"]
        for ramp, shade in ((SHIFT_RAMP, 0.25), (SCALE_RAMP, 0.12)):
            edges = [record["single"] + share * gap for share in ramp]
            axis.axvspan(*edges, color="black", alpha=shade, linewidth=0)
        axis.set_title(name, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[len(beds) :]:
        axis.set_visible(False)
    axes.flat[0].legend(fontsize=7, frameon=False)
    figure.supxlabel(
        "asymmetry; dark: where a shift begins to count and counts in full, light: deviations",
        fontsize=9,
    )
    figure.supylabel("% of batches", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    raise SystemExit(main())
