"""Streams that a camera meets and a data set does not: new classes, a parked camera, one class.

    python benchmarks/hard_streams.py --bed NAME=PATH ... --json RESULT.json

Beds are `.npz` files of frozen features with their clean ones, as for `adaptation.py`; a Gaussian
world is always run. Accuracy and ECE count the frames named in `STREAMS`, over all domains.

    python benchmarks/hard_streams.py --json RESULT.json --into docs/adaptation.md

puts the table into a page and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from adaptation import DEFAULT, MEASURED, write_gaussian_world
from marks import markdown, put_tables

from gain_apps.evaluation.beds import CLEAN, load_bed
from gain_apps.evaluation.methods import Batch, Head, make_method
from gain_apps.evaluation.orders import image_order
from gain_apps.evaluation.scores import calibration
from gain_apps.evaluation.source_head import source_head
from gain_apps.evaluation.store import ANY_SEVERITY, FeatureStore

METHODS = ("source", DEFAULT, MEASURED, "neo-continual", "recentre")
BATCH_SIZE = 64
NUM_SEEDS = 5
ONE_CLASS_FRAMES = 10_000
AFTERWARDS_FRAMES = 3_000
PARKED_FRAMES = 640
ROUNDS = 10
# Share of the classes that the head does not know.
NOVEL_SHARE = 0.2
Ints = npt.NDArray[np.int64]


class World(NamedTuple):
    """A bed under a head that may know fewer classes than its frames show."""

    head: Head
    labels: Ints
    store: FeatureStore


class Stretch(NamedTuple):
    """Frames of one domain in order, and whether they count."""

    domain: int
    images: Ints
    counts: bool = True


def ten_rounds(world: World, rng: np.random.Generator) -> Iterator[Stretch]:
    """All domains in turn, ten times, with a tenth of their images each time."""
    parts = [
        np.array_split(rng.permutation(len(world.labels)), ROUNDS) for _ in world.store.domains
    ]
    for number in range(ROUNDS):
        for domain, images in enumerate(parts):
            yield Stretch(domain, images[number])


def parked(world: World, rng: np.random.Generator) -> Iterator[Stretch]:
    """Before each domain's images, one of them again and again; only the others count."""
    for domain in range(len(world.store.domains)):
        images = rng.permutation(len(world.labels))
        yield Stretch(domain, np.repeat(images[:1], PARKED_FRAMES), counts=False)
        yield Stretch(domain, images)


def one_class(
    world: World, rng: np.random.Generator, *, counts: bool = True, first: int = 0
) -> Iterator[Stretch]:
    """Ten thousand frames of one class, through all domains in turn, beginning with `first`."""
    label = rng.choice(np.unique(world.labels))
    images = np.flatnonzero(world.labels == label)
    visits = -(-ONE_CLASS_FRAMES // len(images))
    for number in range(visits):
        domain = (first + number) % len(world.store.domains)
        yield Stretch(domain, rng.permutation(images), counts)


def after_one_class(world: World, rng: np.random.Generator) -> Iterator[Stretch]:
    """The same, and then every image of every domain; only these count."""
    yield from one_class(world, rng, counts=False)
    yield from shuffled(world, rng)


def before_one_class(
    world: World, rng: np.random.Generator, *, first: int = 0
) -> Iterator[Stretch]:
    """Every image of every domain, and then frames of one class; only these count."""
    yield from shuffled(world, rng, counts=False)
    left = AFTERWARDS_FRAMES
    for stretch in one_class(world, rng, first=first):
        yield stretch._replace(images=stretch.images[:left])
        left -= len(stretch.images)
        if left <= 0:
            return


def before_one_class_here(world: World, rng: np.random.Generator) -> Iterator[Stretch]:
    """The same, the class beginning in the last domain, before it goes through the others."""
    yield from before_one_class(world, rng, first=len(world.store.domains) - 1)


def shuffled(world: World, rng: np.random.Generator, *, counts: bool = True) -> Iterator[Stretch]:
    """One domain after the other."""
    for domain in range(len(world.store.domains)):
        yield Stretch(domain, rng.permutation(len(world.labels)), counts)


def long_tailed(world: World, rng: np.random.Generator) -> Iterator[Stretch]:
    """One domain after the other, some classes a hundred times as often as others."""
    ranking = rng.permutation(np.unique(world.labels))
    for domain in range(len(world.store.domains)):
        images = image_order("long-tailed", world.labels, rng=rng, ranking=ranking)
        yield Stretch(domain, images)


STREAMS: dict[str, Callable[[World, np.random.Generator], Iterator[Stretch]]] = {
    "a fifth of the frames of classes it does not know": shuffled,
    "some classes a hundred times as often as others": long_tailed,
    "ten rounds of all domains": ten_rounds,
    "a parked camera before each domain": parked,
    "10,000 frames of one class": one_class,
    "all classes after 10,000 frames of one": after_one_class,
    "3,000 frames of one class after all classes": before_one_class,
    "3,000 frames of one class after all classes, in their last domain": before_one_class_here,
}
NOVEL = next(iter(STREAMS))


def main() -> int:
    """Run everything and write it, or put it into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bed", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--into", type=Path, help="put the table into this page, run nothing")
    args = parser.parse_args()
    if args.into:
        put_tables(args.into, {"hard streams": table}, json.loads(args.json.read_text()))
        return 0
    report: dict[str, Any] = {"command": "python benchmarks/hard_streams.py", "cells": {}}
    with tempfile.TemporaryDirectory() as folder:
        gaussian = Path(folder) / "world.npz"
        write_gaussian_world(gaussian)
        for text in (f"gaussian world={gaussian}", *args.bed):
            name, _, path = text.partition("=")
            for stream in STREAMS:
                world = open_world(Path(path), novel=stream == NOVEL)
                key = f"{name}, {stream}"
                report["cells"][key] = {each: mean_run(world, stream, each) for each in METHODS}
                print(key, json.dumps(report["cells"][key]), flush=True)
                args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def open_world(path: Path, /, *, novel: bool) -> World:
    """A bed; with `novel`, under a head without its last classes, whose frames stay."""
    store = load_bed(path).store
    weight, bias, labels = store.head.weight, store.head.bias, store.labels
    known = len(weight) - int(NOVEL_SHARE * len(weight)) if novel else len(weight)
    with np.load(path) as arrays:
        clean = arrays[CLEAN].astype(np.float32)[labels < known]
    return World(source_head(weight[:known], bias[:known], clean=clean), labels, store)


def mean_run(world: World, stream: str, method: str) -> dict[str, float]:
    """Accuracy and ECE in per cent, the mean over seeds."""
    runs = [run(world, STREAMS[stream], method, seed=seed) for seed in range(NUM_SEEDS)]
    accuracy, ece = np.mean(runs, axis=0)
    return {"accuracy": round(float(accuracy), 2), "ece": round(float(ece), 2)}


def run(
    world: World,
    make: Callable[[World, np.random.Generator], Iterator[Stretch]],
    method: str,
    *,
    seed: int,
) -> tuple[float, float]:
    """Accuracy and ECE in per cent of the frames that count and whose class the head knows."""
    adapting = make_method(method, world.head)
    correct, confidence = [], []
    for stretch in make(world, np.random.default_rng(seed)):
        outputs = world.store.outputs[world.store.domains[stretch.domain], ANY_SEVERITY][0]
        for start in range(0, len(stretch.images), BATCH_SIZE):
            rows = stretch.images[start : start + BATCH_SIZE]
            features = outputs.features[rows].astype(np.float32)
            log_probs = adapting.predict(
                Batch(features=features, logits=world.head.logits(features))
            )
            labels = world.labels[rows]
            asked = (labels < world.head.num_classes) & stretch.counts
            correct.append((np.argmax(log_probs, axis=1) == labels)[asked])
            confidence.append(np.exp(np.max(log_probs, axis=1))[asked])
    right, sure = np.concatenate(correct), np.concatenate(confidence).astype(np.float64)
    return 100.0 * float(right.mean()), 100.0 * calibration(sure, right).error


def table(report: Mapping[str, Any], /) -> str:
    """Accuracy / ECE of every pair."""
    rows = [
        [key, *(f"{row[name]['accuracy']:.1f} / {row[name]['ece']:.1f}" for name in METHODS)]
        for key, row in report["cells"].items()
    ]
    return markdown(["test bed, stream", *(f"`{name}`" for name in METHODS)], rows)


if __name__ == "__main__":
    raise SystemExit(main())
