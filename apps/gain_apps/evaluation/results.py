"""The result file: every method's scores as plain JSON values, and as tables for a terminal."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich import progress as bars
from rich.console import Console
from rich.table import Table

from gain_apps.evaluation.eval_input import EvalInput
from gain_apps.evaluation.executor import GainTrace, Trace
from gain_apps.evaluation.experiment import Experiment, Run
from gain_apps.evaluation.methods.registry import MethodSpec, describe_method
from gain_apps.evaluation.streams import RAMP, StreamBatch
from gain_apps.metrics import (
    NUM_BINS,
    Reals,
    Scores,
    calibration,
    correlations,
    domain_scores,
    mean_scores,
    round_scores,
    score,
)
from gain_apps.system import peak_memory_bytes
from gain_core import __version__
from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.files.paths import write_atomically
from gain_runtime.frames import Closing

SCHEMA = 1
PACKAGES = ("numpy", "onnxruntime", "onnx", "opencv-python-headless", "pillow", "torch", "timm")
MEAN_OF_DOMAINS = "mean over domains, then over rounds"
POOLED = "pooled over the stream"


def make_results(
    experiment: Experiment,
    runs: Sequence[Run],
    /,
    *,
    of: EvalInput,
    command: str,
) -> dict[str, Any]:
    """Put a result together, of at least one run with a trace, as plain JSON values.

    `methods.NAME` holds `accuracy` and `ece` in per cent, `nll` in nats and `brier`, counted as
    `counting` says, and the same under `whole_stream`, `mean_over_domains` and `domains.NAME`.
    `methods.NAME.series` is of the first run: `over_time` by windows of whole batches, each with
    its first sample; `segments`, [first sample, domain index] of every visit, empty where they are
    too many to draw; `reliability` and `strength` per bin; `gain_pairs`, [expected, realised] of
    some samples. Strength and gains are those before a batch is learned from, see `GainTrace`.
    While runs are missing, `unfinished` lists them. `command` is the command line that makes the
    same result again.
    """
    found = {
        spec.text: [run for run in runs if spec.text in run.traces] for spec in experiment.methods
    }
    unfinished = [
        f"{task.title}, {spec.text}"
        for task in experiment.tasks()
        for spec in task.methods
        if (task.plan.severity, task.plan.seed)
        not in {(run.severity, run.seed) for run in found[spec.text]}
    ]
    domains = of.store.domains
    counting = POOLED if experiment.plan.pools_domains else MEAN_OF_DOMAINS
    plan = asdict(experiment.plan)
    # All traces are of equally many samples.
    samples = len(next(iter(runs[0].traces.values())).correct)
    del plan["severity"], plan["seed"]
    return {
        "schema": SCHEMA,
        "command": command,
        **of.record,
        "stream": {**plan, "domains": list(domains), "samples": samples},
        "severities": (
            sorted(set(RAMP)) if experiment.plan.kind == "ramp" else list(experiment.severities)
        ),
        "seeds": list(experiment.seeds),
        "counting": counting,
        "bins": {
            "num_bins": NUM_BINS,
            "kind": "equal width on the top confidence, exactly 1 in the last bin",
        },
        "versions": versions(),
        "machine": {
            "platform": platform.platform(),
            "processor": platform.machine(),
            "num_cpus": os.cpu_count(),
            "num_threads": os.environ.get("OMP_NUM_THREADS", "all"),
            # The process's, so far.
            "peak_memory_bytes": peak_memory_bytes(),
        },
        "methods": {
            spec.text: _method_record(experiment, found[spec.text], spec, domains=domains)
            for spec in experiment.methods
            if found[spec.text]
        },
        **({"unfinished": unfinished} if unfinished else {}),
    }


def write_results(path: Path, results: Mapping[str, Any], /) -> None:
    """Write a result file, whole or not at all; `ArtifactError` if it cannot be written."""
    text = json.dumps(results, indent=1, allow_nan=False) + "\n"
    write_atomically(path, text.encode(), error=ArtifactError)


def read_results(path: Path, /) -> dict[str, Any]:
    """Read a result file.

    `ArtifactError` if it is missing, no JSON, no result of this program or of another schema.
    """
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise ArtifactError(f"{path}: cannot be read ({err.strerror}); check the path") from err
    except ValueError as err:
        raise ArtifactError(f"{path}: expected a result file (JSON), got other text") from err
    if not isinstance(results, dict) or not isinstance(results.get("methods"), dict):
        raise ArtifactError(f"{path}: expected a result of gain-eval, got other JSON")
    if results.get("schema") != SCHEMA:
        raise ArtifactError(
            f"{path}: expected result schema {SCHEMA}, got {results.get('schema')!r}; run it again"
        )
    return results


def _method_record(
    experiment: Experiment, runs: Sequence[Run], spec: MethodSpec, *, domains: Sequence[str]
) -> dict[str, Any]:
    """Everything about one method."""
    traces = [run.traces[spec.text] for run in runs]
    pooled = [score(trace) for trace in traces]
    rounds = [round_scores(trace) for trace in traces]
    over_domains = [mean_scores(each) for each in rounds]
    headline = pooled if experiment.plan.pools_domains else over_domains
    by_domain = [domain_scores(trace) for trace in traces]
    record: dict[str, Any] = {
        **mean_scores(headline).to_dict(),
        "std_over_runs": _spread(headline),
        "whole_stream": mean_scores(pooled).to_dict(),
        "mean_over_domains": mean_scores(over_domains).to_dict(),
        "domains": {
            domains[index]: mean_scores(
                scores[index] for scores in by_domain if index in scores
            ).to_dict()
            for index in sorted(set().union(*by_domain))
        },
        "runs": [
            {"severity": run.severity, "seed": run.seed, **scores.to_dict()}
            for run, scores in zip(runs, headline, strict=True)
        ],
        "step_ms": _percentiles(np.concatenate([trace.step_ms for trace in traces])),
        "cost": traces[-1].cost.to_dict(),
        "configuration": describe_method(spec),
    }
    if len(rounds[0]) > 1:
        record["rounds"] = [mean_scores(each).to_dict() for each in zip(*rounds, strict=True)]
    if traces[0].gain is not None:
        record["gain"] = _gain_record(traces)
    record["series"] = _series_record(traces[0], runs[0].stream)
    return record


def _gain_record(traces: Sequence[Trace]) -> dict[str, Any]:
    """Strength and gain of a GAIN method over all runs, before each batch is learned from."""
    parts = [trace.gain for trace in traces if trace.gain is not None]
    strength = np.concatenate([part.strength for part in parts])
    pairs = [correlations(trace) for trace in traces]

    def mean_of(name: str) -> float | None:
        values = [pair[name] for pair in pairs]
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if known else None

    return {
        "mean_strength": float(strength.mean()),
        "share_at_zero": float((strength == 0.0).mean()),
        "share_at_one": float((strength == 1.0).mean()),
        "mean_expected_nats": _finite_mean([part.expected for part in parts]),
        "mean_realised_nats": _finite_mean([part.realised for part in parts]),
        "pearson": mean_of("pearson"),
        "spearman": mean_of("spearman"),
    }


def _finite_mean(parts: Sequence[Reals]) -> float | None:
    """Mean over all samples, or None where it is not finite: strict JSON has no infinity."""
    mean = float(np.concatenate(list(parts)).mean())
    return mean if math.isfinite(mean) else None


def _spread(scores: Sequence[Scores]) -> dict[str, float | None] | None:
    """Standard deviation over runs (n - 1), or None for a single run."""
    if len(scores) < 2:
        return None
    table = np.array([list(asdict(one).values()) for one in scores])
    # An infinite NLL has no spread; strict JSON has no NaN.
    with np.errstate(invalid="ignore"):
        spread = table.std(axis=0, ddof=1)
    return Scores(**dict(zip(asdict(scores[0]), spread.tolist(), strict=True))).to_dict()


def _percentiles(values: Any) -> dict[str, float]:
    """Milliseconds per step without the network's forward pass."""
    record = {f"p{share}": float(np.percentile(values, share)) for share in (50, 90, 99)}
    return {**record, "max": float(values.max()), "mean": float(values.mean())}


def versions() -> dict[str, str]:
    """This project's version and those of what it stands on, where installed."""
    found = {"gain-edge": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


MAX_WINDOWS = 150
MAX_PAIRS = 1000
MAX_SEGMENTS = 400
NUM_STRENGTH_BINS = 20


def _series_record(trace: Trace, stream: Sequence[StreamBatch], /) -> dict[str, Any]:
    """What is drawn of one run, see `make_results`."""
    bins = calibration(trace.confidence, trace.correct)
    record: dict[str, Any] = {
        "over_time": _over_time(trace, stream),
        "segments": _segments(trace),
        "reliability": {
            "counts": bins.counts.tolist(),
            "accuracy": _rounded(bins.accuracy),
            "confidence": _rounded(bins.confidence),
        },
    }
    if trace.gain is not None:
        counts, _ = np.histogram(trace.gain.strength, bins=NUM_STRENGTH_BINS, range=(0.0, 1.0))
        record["strength"] = counts.tolist()
        record["gain_pairs"] = _pairs(trace.gain)
    return record


def _over_time(trace: Trace, stream: Sequence[StreamBatch]) -> dict[str, list[Any]]:
    """Scores of consecutive windows of whole batches."""
    sizes = [len(item.images) for item in stream if item.scored]
    edges = np.cumsum([0, *sizes])
    chosen = np.unique(np.linspace(0, len(sizes), min(MAX_WINDOWS, len(sizes)) + 1).astype(int))
    record: dict[str, list[Any]] = {"first": [], "accuracy": [], "ece": []}
    if trace.gain is not None:
        record["strength"] = []
    for first, last in zip(edges[chosen[:-1]], edges[chosen[1:]], strict=True):
        rows = slice(int(first), int(last))
        bins = calibration(trace.confidence[rows], trace.correct[rows])
        record["first"].append(int(first))
        record["accuracy"].append(round(100.0 * float(trace.correct[rows].mean()), 3))
        record["ece"].append(round(100.0 * bins.error, 3))
        if trace.gain is not None:
            record["strength"].append(round(float(trace.gain.strength[rows].mean()), 4))
    return record


def _segments(trace: Trace) -> list[list[int]]:
    """Where each visit to a domain begins."""
    starts = np.flatnonzero(np.diff(trace.domains, prepend=-1))
    if len(starts) > MAX_SEGMENTS:
        return []
    return [[int(start), int(trace.domains[start])] for start in starts]


def _pairs(gain: GainTrace) -> list[list[float]]:
    """Expected and realised gain of evenly spaced samples."""
    step = -(-len(gain.expected) // MAX_PAIRS)
    pairs = np.stack([gain.expected, gain.realised], axis=1)[::step]
    return [_rounded(pair) for pair in pairs if np.isfinite(pair).all()]


def _rounded(values: Any) -> list[float]:
    """Enough digits for a picture."""
    return [round(float(value), 4) for value in values]


METRICS = ("accuracy", "ece", "nll", "brier")
# What fits beside a method's name into 80 columns; the rest is in the result file.
SHOWN = ("accuracy", "ece", "nll")
HEADINGS = {"accuracy": "accuracy %", "ece": "ECE %", "nll": "NLL nats"}
DIGITS = {"accuracy": 1, "ece": 1, "nll": 3}
LEAST_NAME_WIDTH = 14


def print_results(results: Mapping[str, Any], console: Console, /) -> None:
    """Print a line per method, each beside what the frozen source had."""
    source = results["methods"].get("source")
    stream = results["stream"]
    title = f"{stream['kind']}, {stream['order']} order, {len(results['seeds'])} seed(s)"
    normalise = results["model"].get("normalise")
    if normalise is not None:
        title += f", input normalised as {normalise}"
    table = _table(title)
    table.caption = results["counting"]
    for name in SHOWN:
        table.add_column(HEADINGS[name], justify="right", no_wrap=True)
    table.add_column("vs source", justify="right", no_wrap=True)
    table.add_column("ms/step", justify="right", no_wrap=True)
    for name, record in results["methods"].items():
        spread = record["std_over_runs"] or {}
        cells = [_number(record[metric], metric, spread=spread.get(metric)) for metric in SHOWN]
        gained = "" if source is None or name == "source" else _change(source, record)
        table.add_row(name, *cells, gained, f"{record['step_ms']['p50']:.2f}")
    console.print(table)


def compare_results(first: Mapping[str, Any], second: Mapping[str, Any], /) -> list[dict[str, Any]]:
    """Two results side by side: per method in both, each metric's `[first, second, difference]`.

    `ConfigError` if they share no method.
    """
    shared = [name for name in first["methods"] if name in second["methods"]]
    if not shared:
        raise ConfigError(
            f"compare: expected a method in both, got {', '.join(first['methods'])} "
            f"and {', '.join(second['methods'])}"
        )
    rows = []
    for name in shared:
        row: dict[str, Any] = {"method": name}
        for metric in METRICS:
            old, new = first["methods"][name][metric], second["methods"][name][metric]
            known = old is not None and new is not None
            row[metric] = [old, new, new - old if known else None]
        rows.append(row)
    return rows


def print_comparison(
    rows: Sequence[Mapping[str, Any]], console: Console, /, *, names: tuple[str, str]
) -> None:
    """Print what `compare_results` gave."""
    table = _table(f"{names[0]} -> {names[1]}")
    for metric in SHOWN:
        table.add_column(HEADINGS[metric], justify="right", no_wrap=True)
    for row in rows:
        cells = []
        for metric in SHOWN:
            old, new, _ = row[metric]
            cells.append(f"{_number(old, metric)} -> {_number(new, metric)}")
        table.add_row(row["method"], *cells)
    console.print(table)


def _table(title: str) -> Table:
    """A table whose first column is the method's whole name, folded where it must be."""
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("method", overflow="fold", min_width=LEAST_NAME_WIDTH)
    return table


def _number(value: float | None, metric: str, *, spread: float | None = None) -> str:
    """A metric's value; per cents with their deviation over runs where there is one."""
    if value is None:
        return "inf"
    text = f"{value:.{DIGITS[metric]}f}"
    return text if spread is None or metric == "nll" else f"{text} ± {spread:.1f}"


def _change(source: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Accuracy and ECE against the source's, in points."""
    accuracy = record["accuracy"] - source["accuracy"]
    ece = record["ece"] - source["ece"]
    return f"{accuracy:+.1f} / {ece:+.1f}"


def print_bars(judged: Sequence[Mapping[str, Any]], console: Console, /) -> None:
    """Print a suite's bars, met or missed."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("bar", overflow="fold")
    for name in ("measured", "verdict"):
        table.add_column(name, no_wrap=True)
    table.add_column("where", overflow="fold")
    for bar in judged:
        value = bar["measured"]
        table.add_row(
            bar["text"], "" if value is None else f"{value:.2f}", bar["verdict"], bar["where"]
        )
    console.print(table)


class Progress(Closing):
    """One bar per task, the last few shown (a context manager); none where there is no terminal."""

    def __init__(self, console: Console, /) -> None:
        self._bars = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task: bars.TaskID | None = None

    def start(self, title: str, total: int, /) -> Callable[[], None]:
        """Begin a task in place of the last one; call the result after each of `total` steps."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        task = self._task = self._bars.add_task(title, total=total)
        return lambda: self._bars.advance(task)

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def close(self) -> None:
        """Take the bars away; may be called twice."""
        self._bars.stop()
