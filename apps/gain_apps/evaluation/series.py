"""What the pictures of a report are drawn from, small enough to lie in the result file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gain_apps.evaluation.scores import calibration
from gain_apps.evaluation.streams import StreamBatch
from gain_apps.evaluation.trace import GainTrace, Trace

__all__ = ["series_record"]

MAX_WINDOWS = 150
MAX_PAIRS = 1000
MAX_SEGMENTS = 400
NUM_STRENGTH_BINS = 20


def series_record(
    trace: Trace, stream: Sequence[StreamBatch], /, *, num_bins: int
) -> dict[str, Any]:
    """Series of one run.

    Parameters
    ----------
    trace : Trace
    stream : sequence of StreamBatch
        The stream it is of.
    num_bins : int

    Returns
    -------
    dict
        `over_time`: accuracy and ECE in per cent and mean strength by windows of whole batches,
        each with its first sample. `segments`: [first sample, domain index] of every visit,
        empty where they are too many to draw. `reliability`: counts, accuracy and confidence
        per bin. `strength`: counts per bin. `gain_pairs`: [expected, realised] of some samples.
        Strength and gains are those before a batch is learned from, see `GainTrace`.
    """
    bins = calibration(trace.confidence, trace.correct, num_bins=num_bins)
    record: dict[str, Any] = {
        "over_time": _over_time(trace, stream, num_bins=num_bins),
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


def _over_time(
    trace: Trace, stream: Sequence[StreamBatch], *, num_bins: int
) -> dict[str, list[Any]]:
    """Scores of consecutive windows of whole batches."""
    edges = np.cumsum([0, *(len(item.images) for item in stream)])
    chosen = np.unique(np.linspace(0, len(stream), min(MAX_WINDOWS, len(stream)) + 1).astype(int))
    record: dict[str, list[Any]] = {"first": [], "accuracy": [], "ece": []}
    if trace.gain is not None:
        record["strength"] = []
    for first, last in zip(edges[chosen[:-1]], edges[chosen[1:]], strict=True):
        rows = slice(int(first), int(last))
        bins = calibration(trace.confidence[rows], trace.correct[rows], num_bins=num_bins)
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
