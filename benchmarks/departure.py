"""Has the domain changed or have the classes? Moves of the logits and beside the head on every bed.

    python benchmarks/departure.py --artifact ARTIFACT --bed NAME=PATH:SEVERITY ... \
        --json benchmarks/results/departure.json --picture docs/images/departure.png

Beds and ARTIFACT are those of `adaptation.py`. As many frames as the reference memory remembers are
drawn from all classes of one domain, then as many as the newest one remembers: of one class in
that domain, of one class in another, or of all classes in another. What is recorded is the squared
move of the mean logits and that of the features beside the head's rows, as the shift reads them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from asymmetry import LEAST_FRAMES, NUM_CLASSES, SEED, parsed, subjects
from independence import draw_quantiles, opened, quantiles

from gain_apps.evaluation.streams import StreamPlan, make_stream
from gain_apps.evaluation.subject import Subject
from gain_core import GainConfig
from gain_core.departure import BESIDE_RAMP, MOVE_RAMP, beside_head, squared_move
from gain_core.shift import MOVED_FROM_WINDOW, NEWEST_WINDOW, NUM_WINDOWS, WINDOW_RATIO

Floats = npt.NDArray[np.float64]
ONE_CLASS = "one class in the same domain"
ONE_CLASS_ELSEWHERE = "one class in another domain"
ALL_CLASSES_ELSEWHERE = "all classes in another domain"


class Domain(NamedTuple):
    """Frames (N, .) of one domain, in no order."""

    logits: Floats
    beside: Floats
    labels: npt.NDArray[np.int64]


def remembered(window: int) -> int:
    """Frames that a memory holds: its half-life over log 2."""
    half_life = GainConfig().half_life / WINDOW_RATIO ** (NUM_WINDOWS - 1 - window)
    return round(half_life / np.log(2.0))


def main() -> int:
    """Measure every bed, write the numbers and draw them."""
    args = parsed(__doc__)
    report: dict[str, Any] = {"command": "python benchmarks/departure.py", "beds": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in subjects(args, Path(folder)):
            report["beds"][name] = measured(opened(arguments, args.cache))
            print(name, json.dumps(report["beds"][name]), flush=True)
    args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.picture:
        draw(report["beds"], args.picture)
    return 0


def measured(subject: Subject) -> dict[str, Any]:
    """Of each kind of change: the share that moved the logits, and the ratios where they did.

    Nothing where there is no room beside the head.
    """
    moves: dict[str, list[tuple[float, float]]] = {}
    domains = list(domains_of(subject))
    if not np.any(domains[0].beside):
        return {}
    for kind, move in changes(domains):
        moves.setdefault(kind, []).append(move)
    record = {}
    for kind, pairs in moves.items():
        logits, beside = np.array(pairs).T
        moved = logits > MOVE_RAMP[0]
        ratios = logits[moved] / np.maximum(beside[moved], 1e-9)
        record[kind] = {
            "changes": len(pairs),
            "moved_the_logits": round(float(np.mean(moved)), 3),
            "ratio": quantiles(list(np.minimum(ratios, 1e3))) if len(ratios) else [],
            "taken_for_classes": round(
                float(np.sum(ratios > np.mean(BESIDE_RAMP)) / len(pairs)), 3
            ),
        }
    return record


def domains_of(subject: Subject) -> Iterator[Domain]:
    """All frames of each domain, shuffled."""
    store = subject.store
    weight = store.head.weight.astype(np.float64)
    sketch = beside_head(weight - weight.mean(axis=0))
    plan = StreamPlan(kind="csc", num_domains=len(store.domains), order="shuffled", seed=SEED)
    batches: dict[int, list[tuple[Floats, Floats, npt.NDArray[np.int64]]]] = {}
    for item in make_stream(plan, store.labels):
        batch = store.batch(item)
        logits = batch.logits.astype(np.float64)
        logits = logits - logits.mean(axis=1, keepdims=True)
        rows = (logits, batch.features.astype(np.float64) @ sketch, store.labels[item.images])
        batches.setdefault(int(item.domains[0]), []).append(rows)
    for parts in batches.values():
        logits, beside, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        yield Domain(logits, beside, labels)


def changes(domains: list[Domain]) -> Iterator[tuple[str, tuple[float, float]]]:
    """The kind of each change, and the moves of the logits and beside the head."""
    rng = np.random.default_rng(SEED)
    long, short = remembered(MOVED_FROM_WINDOW), remembered(NEWEST_WINDOW)
    classes, counts = np.unique(domains[0].labels, return_counts=True)
    repeated = classes[counts >= LEAST_FRAMES]
    chosen = repeated[:: max(1, len(repeated) // NUM_CLASSES)]
    for number, domain in enumerate(domains):
        before = rng.permutation(len(domain.labels))[:long]
        others = [other for at, other in enumerate(domains) if at != number]
        for label in chosen:
            for kind, place in (
                (ONE_CLASS, domain),
                (ONE_CLASS_ELSEWHERE, others[rng.integers(len(others))]),
            ):
                frames = rng.permutation(np.flatnonzero(place.labels == label))[:short]
                yield kind, moves_between(domain, before, place, frames)
        for place in others:
            frames = rng.permutation(len(place.labels))[:short]
            yield ALL_CLASSES_ELSEWHERE, moves_between(domain, before, place, frames)


def moves_between(
    domain: Domain,
    before: npt.NDArray[np.int64],
    place: Domain,
    frames: npt.NDArray[np.int64],
) -> tuple[float, float]:
    """Of the mean logits, and of the features beside the head's rows."""
    found = []
    for old, new in ((domain.logits, place.logits), (domain.beside, place.beside)):
        scatter = np.sum(np.var(old[before], axis=0))
        count = np.asarray(float(len(frames)))
        means = np.mean(new[frames], axis=0), np.mean(old[before], axis=0)
        found.append(float(squared_move(*means, scatter=scatter, count=count)))
    return found[0], found[1]


def draw(beds: dict[str, dict[str, Any]], path: Path) -> None:
    """A row for each kind of change, in it a line for each bed: 5 to 95 % of the changes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ratios = {
        name: {kind: change["ratio"] for kind, change in record.items() if change["ratio"]}
        for name, record in beds.items()
        if record
    }
    figure, axis = pyplot.subplots(figsize=(9, 3.6))
    rows = [ONE_CLASS, ONE_CLASS_ELSEWHERE, ALL_CLASSES_ELSEWHERE]
    draw_quantiles(axis, ratios, rows=rows, ramp=BESIDE_RAMP)
    axis.set_xscale("log")
    axis.set_xlim(0.1, 40)
    axis.set_xticks([0.2, 0.5, 1, 2, 5, 10], ["0.2", "0.5", "1", "2", "5", "10"])
    axis.minorticks_off()
    axis.set_xlabel(
        "squared move of the mean logits over that beside the head's rows\n"
        "median, 5 to 95 % of the changes that move the logits; grey: from a domain to a class",
        fontsize=8,
    )
    axis.legend(fontsize=8, frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    raise SystemExit(main())
