"""Does a frame say what the next one shows? The steps from frame to frame on every bed and stream.

    python benchmarks/independence.py --artifact ARTIFACT --bed NAME=PATH:SEVERITY ... \
        --json benchmarks/results/independence.json --picture docs/images/independence.png

Beds and ARTIFACT are those of `adaptation.py`. Each kind of stream is run once (ten classes where
one class is all it shows), and the ratio that the shift itself reads is recorded after every batch
from the 128th frame on: half the mean squared step over the longest memory's variance.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from adaptation import DRIVE, NEED_REPEATS
from asymmetry import LEAST_FRAMES, NUM_CLASSES, SEED, parsed, subjects

from gain_apps.evaluate import build_parser
from gain_apps.evaluation.streams import StreamPlan, make_stream
from gain_apps.evaluation.subject import Subject, open_subject
from gain_core import Gain, ShiftState
from gain_core.shift import STEP_RAMP

STREAMS: dict[str, dict[str, Any]] = {
    "shuffled": {"kind": "csc", "order": "shuffled"},
    "recurring domains": {"kind": "recurring", "order": "shuffled"},
    "CDC": {"kind": "cdc", "order": "shuffled"},
    "MDS": {"kind": "mds", "order": "shuffled"},
    "one class only": {"kind": "csc", "order": "one-class"},
    "sorted by class": {"kind": "csc", "order": "sorted"},
    "runs of one class": {"kind": "csc", "order": "runs"},
}
AS_RECORDED = "a drive, as recorded"
SETTLED_FRAMES = 128
QUANTILES = (5, 25, 50, 75, 95)


def main() -> int:
    """Measure every bed and stream, write the numbers and draw them."""
    args = parsed(__doc__)
    report: dict[str, Any] = {"command": "python benchmarks/independence.py", "beds": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in subjects(args, Path(folder)):
            subject = opened(arguments, args.cache)
            report["beds"][name] = {
                stream: quantiles(values) for stream, values in measured(subject)
            }
            print(name, json.dumps(report["beds"][name]), flush=True)
    if args.artifact:
        drive = [args.artifact, DRIVE.format(seed=SEED), "--stream", "recorded"]
        subject = opened(drive, args.cache)
        plan = StreamPlan(kind="recorded", num_domains=len(subject.store.domains), seed=SEED)
        report["beds"]["road signs"][AS_RECORDED] = quantiles(streamed(subject, plan))
    args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.picture:
        draw(report["beds"], args.picture)
    return 0


def opened(arguments: list[str], cache: str) -> Subject:
    """The frames of a bed."""
    options = ["--methods", "tracked", "--cache", cache]
    return open_subject(build_parser().parse_args([*arguments, *options]))


def measured(subject: Subject) -> Iterator[tuple[str, list[float]]]:
    """The ratios of every stream that the bed has images for."""
    store = subject.store
    classes, counts = np.unique(store.labels, return_counts=True)
    repeated = classes[counts >= LEAST_FRAMES]
    for stream, settings in STREAMS.items():
        if stream in NEED_REPEATS and not len(repeated):
            continue
        only: list[int | None] = [None]
        if stream == "one class only":
            only = [int(k) for k in repeated[:: max(1, len(repeated) // NUM_CLASSES)]]
        plans = (
            StreamPlan(num_domains=len(store.domains), seed=SEED, only_class=label, **settings)
            for label in only
        )
        yield stream, [value for plan in plans for value in streamed(subject, plan)]


def streamed(subject: Subject, plan: StreamPlan) -> list[float]:
    """The ratio after every batch but the first ones."""
    store = subject.store
    gain = Gain(store.head.weight, bias=store.head.bias, asymmetry=store.head.asymmetry)
    values = []
    for item in make_stream(plan, store.labels, recorded=subject.recorded):
        batch = store.batch(item)
        gain.step(batch.features, batch.logits)
        if gain.frames >= SETTLED_FRAMES:
            state = gain.state
            assert isinstance(state, ShiftState)
            values.append(step_ratio(state))
    return values


def step_ratio(state: ShiftState) -> float:
    """Half the mean squared step from frame to frame over the longest memory's variance."""
    sums = state.sums
    count = sums.window_count[-1]
    mean = sums.window_logits[-1, :] / count
    variance = np.sum(sums.window_powers[-1, :]) / count - np.sum(mean * mean)
    return float(sums.step_power / (sums.step_count * variance))


def quantiles(values: list[float]) -> list[float]:
    """At 5, 25, 50, 75 and 95 per cent."""
    return [round(float(value), 3) for value in np.percentile(values, QUANTILES)]


def draw(beds: dict[str, dict[str, list[float]]], path: Path) -> None:
    """A row for each kind of stream, in it a line for each bed: 5 to 95 % of the batches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(9, 4.6))
    draw_quantiles(axis, beds, rows=[*STREAMS, AS_RECORDED], ramp=STEP_RAMP)
    axis.set_xlim(0, 1.15)
    axis.set_xlabel(
        "half the mean squared step from frame to frame over the variance; median, 5 to 95 % of "
        "batches; grey: from 0 to 1",
        fontsize=8,
    )
    axis.legend(fontsize=8, frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def draw_quantiles(
    axis: Any,
    beds: dict[str, dict[str, list[float]]],
    *,
    rows: list[str],
    ramp: tuple[float, float],
) -> None:
    """In each row a line for each bed, from 5 to 95 %, and the ramp in grey."""
    from matplotlib import pyplot

    colours = pyplot.get_cmap("Dark2").colors
    for number, (name, record) in enumerate(beds.items()):
        offset = (number - (len(beds) - 1) / 2) * 0.12
        places = [rows.index(row) + offset for row in record]
        low, middle, high = ([values[at] for values in record.values()] for at in (0, 2, 4))
        axis.hlines(places, low, high, color=colours[number], linewidth=2, alpha=0.6)
        axis.plot(middle, places, "o", color=colours[number], markersize=4, label=name)
    axis.axvspan(*ramp, color="black", alpha=0.15, linewidth=0)
    axis.set_yticks(range(len(rows)), rows, fontsize=8)
    axis.invert_yaxis()
    axis.tick_params(axis="x", labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    raise SystemExit(main())
