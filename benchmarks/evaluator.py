"""When does the evaluator say no, and is it right? Expected against realised gain by situation.

    python benchmarks/evaluator.py --bed NAME=PATH ... --json RESULT.json --picture PICTURE.png

Beds are `.npz` files of frozen features with their clean ones, as for `hard_streams.py`; a Gaussian
world is always run. Of `tracked` with what clean images tell, the intervention strength and the
gain that q_bar expects of the full correction are taken before a batch is learned from, beside the
gain that the correction is worth at the true class, log q_hat(y) - log s(y). What is applied of it
is log p*(y) - log s(y).

    python benchmarks/evaluator.py --json RESULT.json --into docs/adaptation.md

puts the table into a page and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from adaptation import MEASURED, write_gaussian_world
from hard_streams import World, one_class, open_world, shuffled
from marks import markdown, put_tables

from gain_apps.evaluation.methods import Batch, make_method
from gain_apps.evaluation.store import ANY_SEVERITY

BATCH_SIZE = 64
NUM_SEEDS = 5
# Batches after a change of domain whose history is another domain's, and from which it is not.
JUMPED, SETTLED = 1, 4
BINS = 12
# With fewer of the frames acted on, in per cent, what they gained is chance.
LEAST_ACTED = 1.0
AFTER_A_JUMP = "the batch after a jump"
IN_CALM = "the domain known"
ONE_CLASS = "10,000 frames of one class"
NOVEL = "frames of classes it does not know"
Doubles = npt.NDArray[np.float64]


class Frames(NamedTuple):
    """Of each frame: lambda*, the gain expected, that of the full correction and the one had."""

    strength: Doubles
    expected: Doubles
    full: Doubles
    applied: Doubles


def main() -> int:
    """Run everything, write and draw it; or put the table into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bed", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--into", type=Path, help="put the table into this page, run nothing")
    args = parser.parse_args()
    if args.into:
        put_tables(args.into, {"evaluator": table}, json.loads(args.json.read_text()))
        return 0
    report: dict[str, Any] = {"command": "python benchmarks/evaluator.py", "beds": {}}
    with tempfile.TemporaryDirectory() as folder:
        gaussian = Path(folder) / "world.npz"
        write_gaussian_world(gaussian)
        for text in (f"gaussian world={gaussian}", *args.bed):
            name, _, path = text.partition("=")
            report["beds"][name] = situations(Path(path))
            print(name, json.dumps(report["beds"][name]), flush=True)
            args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.picture:
        draw(report["beds"], args.picture)
    return 0


def situations(path: Path) -> dict[str, Any]:
    """The summary of every situation, over all seeds."""
    world, novel = open_world(path, novel=False), open_world(path, novel=True)
    found: dict[str, list[Frames]] = {}
    for seed in range(NUM_SEEDS):
        for since, _, frames in watched(world, "shuffled", seed=seed):
            if since < JUMPED:
                found.setdefault(AFTER_A_JUMP, []).append(frames)
            elif since >= SETTLED:
                found.setdefault(IN_CALM, []).append(frames)
        for _, _, frames in watched(world, "one class", seed=seed):
            found.setdefault(ONE_CLASS, []).append(frames)
        for since, known, frames in watched(novel, "shuffled", seed=seed):
            if since >= SETTLED:
                unknown = Frames(*(column[~known] for column in frames))
                found.setdefault(NOVEL, []).append(unknown)
    return {
        name: summary(Frames(*(np.concatenate(column) for column in zip(*parts, strict=True))))
        for name, parts in found.items()
    }


def watched(
    world: World, stream: str, *, seed: int
) -> Iterator[tuple[int, npt.NDArray[np.bool_], Frames]]:
    """Batches since the last change of domain, which classes are known, and the frames.

    The first domain has no history that could be wrong and is left out of the shuffled streams.
    """
    method = make_method(MEASURED, world.head)
    make = shuffled if stream == "shuffled" else one_class
    for number, stretch in enumerate(make(world, np.random.default_rng(seed))):
        outputs = world.store.outputs[world.store.domains[stretch.domain], ANY_SEVERITY][0]
        for since, start in enumerate(range(0, len(stretch.images), BATCH_SIZE)):
            rows = stretch.images[start : start + BATCH_SIZE]
            features = outputs.features[rows].astype(np.float32)
            batch = Batch(features=features, logits=world.head.logits(features))
            diagnosis = method.diagnose(batch)
            method.predict(batch)
            if number == 0 and stream == "shuffled":
                continue
            labels = world.labels[rows]
            known = labels < world.head.num_classes
            yield (
                since,
                known,
                of_frames(diagnosis, batch.logits, np.where(known, labels, 0), known),
            )


def of_frames(
    diagnosis: Any, logits: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], known: Any
) -> Frames:
    """The four numbers of every frame; realised gains are NaN where the class is not known."""
    rows = np.arange(len(labels))
    evidence = diagnosis.evidence.astype(np.float64)
    strength = diagnosis.strength.astype(np.float64)
    raw = logits.astype(np.float64)
    source = raw - np.logaddexp.reduce(raw, axis=1, keepdims=True)
    moved = source + strength[:, None] * evidence
    adapted = moved - np.logaddexp.reduce(moved, axis=1, keepdims=True)
    nowhere = np.where(known, 0.0, np.nan)
    return Frames(
        strength=strength,
        expected=diagnosis.gain.astype(np.float64),
        full=evidence[rows, labels] + nowhere,
        applied=(adapted - source)[rows, labels] + nowhere,
    )


def summary(frames: Frames) -> dict[str, Any]:
    """Means, the share of frames left to the source, and realised gain by expected gain."""
    acted = frames.strength > 0.0
    known = np.isfinite(frames.full)
    record: dict[str, Any] = {
        "frames": len(acted),
        "left_to_the_source": round(100.0 * float(np.mean(~acted)), 2),
        "strength": round(float(np.mean(frames.strength)), 4),
        "expected_nats": round(float(np.mean(frames.expected)), 4),
    }
    if not known.any():
        return record
    record["full_nats"] = round(float(np.mean(frames.full[known])), 4)
    record["applied_nats"] = round(float(np.mean(frames.applied[known])), 4)
    if np.count_nonzero(acted & known) >= max(BINS, 0.01 * LEAST_ACTED * len(acted)):
        expected, full = frames.expected[acted & known], frames.full[acted & known]
        record["pearson"] = round(float(np.corrcoef(expected, full)[0, 1]), 3)
        parts = np.array_split(np.argsort(expected, kind="stable"), BINS)
        record["by_expected"] = [
            [round(float(values[part].mean()), 4) for values in (expected, full)] for part in parts
        ]
    return record


def table(report: Mapping[str, Any], /) -> str:
    """A row for every bed and situation."""

    def text(record: Mapping[str, Any], name: str) -> str:
        # No negative zero.
        return f"{round(record[name], 2) + 0.0:.2f}" if name in record else ""

    rows = [
        [
            f"{bed}, {situation}",
            f"{record['left_to_the_source']:.0f} %",
            *(
                text(record, name)
                for name in ("strength", "expected_nats", "full_nats", "applied_nats", "pearson")
            ),
        ]
        for bed, found in report["beds"].items()
        for situation, record in found.items()
    ]
    heading = ["test bed, situation", "left to the source", r"mean $\lambda^\star$"]
    heading += ["gain expected", "gain of the full correction", "gain had", "correlation"]
    return markdown(heading, rows)


def draw(beds: Mapping[str, Any], path: Path) -> None:
    """A panel for each bed: mean realised by mean expected gain, frames binned by the latter."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(beds), figsize=(2.9 * len(beds), 3.3), squeeze=False)
    colours = {AFTER_A_JUMP: "#d95f02", IN_CALM: "#1b9e77", ONE_CLASS: "#7570b3"}
    for axis, (name, found) in zip(axes.flat, beds.items(), strict=True):
        axis.axhline(0.0, color="black", linewidth=0.6)
        for situation, colour in colours.items():
            pairs = found[situation].get("by_expected")
            if pairs:
                axis.plot(
                    *zip(*pairs, strict=True), "o-", ms=3, lw=1, color=colour, label=situation
                )
        reach = axis.get_xlim()
        axis.plot(reach, reach, color="0.7", linewidth=0.8, zorder=0)
        axis.set_xlim(reach)
        axis.set_title(name, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    # The last bed is the one on which frames of one class are acted on.
    figure.legend(
        *axes.flat[-1].get_legend_handles_labels(), ncol=3, fontsize=8, loc="upper center"
    )
    figure.supxlabel("gain that the evaluator expects, nats (grey: what it should be)", fontsize=8)
    figure.supylabel("realised, nats", fontsize=8)
    figure.tight_layout(rect=(0.0, 0.0, 1.0, 0.92))
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    raise SystemExit(main())
