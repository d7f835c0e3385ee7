"""Accuracy and calibration, as the paper counts them: of predictions, and of a method's trace."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gain_core.errors import ArrayError, ConfigError

if TYPE_CHECKING:
    from gain_apps.evaluation.executor import Trace

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]
Reals = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

# Of the calibration error.
NUM_BINS = 20


def accuracy(probs: Floats, labels: Ints, /) -> float:
    """Share of samples, in [0, 1], whose most probable class is the label.

    `probs` (N, K) is any score that ranks classes, ties go to the lowest index; `labels` (N,) are
    class indices. ArrayError if the shapes do not fit, N is 0 or a label is out of range.
    """
    _check(probs, labels)
    return float(np.mean(np.argmax(probs, axis=1) == labels))


def expected_calibration_error(
    probs: Floats, labels: Ints, /, *, num_bins: int = NUM_BINS
) -> float:
    """ECE on the top confidence, in [0, 1], with equal-width bins.

    The sum over bins of (share of samples) x |accuracy - mean confidence|. Rows of `probs` (N, K)
    sum to one. The bins are [i/num_bins, (i+1)/num_bins); a confidence of exactly 1 falls into the
    last one. ArrayError as `accuracy`, ConfigError if `num_bins` is below 1.
    """
    excess = calibration_excess(probs, labels, num_bins=num_bins)
    return float(np.abs(excess).sum() / len(probs))


def calibration_excess(
    probs: Floats, labels: Ints, /, *, num_bins: int = NUM_BINS
) -> npt.NDArray[np.float64]:
    """Confidence minus correctness, summed per confidence bin: what the ECE is made of.

    (num_bins,) float64; the ECE is the sum of its absolute values over N. Parts of a stream add up,
    so that the ECE of a long one needs no stored predictions. Arguments and errors are those of
    `expected_calibration_error`.
    """
    _check(probs, labels)
    if num_bins < 1:
        raise ConfigError(f"num_bins: expected at least 1, got {num_bins}")
    top = np.argmax(probs, axis=1)
    confidence = probs[np.arange(len(probs)), top].astype(np.float64)
    bins = _bins(confidence, num_bins)
    excess = np.bincount(bins, weights=confidence - (top == labels), minlength=num_bins)
    return excess.astype(np.float64, copy=False)


def negative_log_likelihood(log_probs: Floats, labels: Ints, /) -> float:
    """Mean of -log p(label), in nats; infinite where a label was given no probability.

    `log_probs` (N, K) are normalised. ArrayError as `accuracy`.
    """
    _check(log_probs, labels)
    return float(-np.mean(log_probs[np.arange(len(labels)), labels], dtype=np.float64))


def _check(scores: Floats, labels: Ints) -> None:
    """One score row per label, and labels that are class indices."""
    if scores.ndim != 2 or labels.ndim != 1 or len(scores) != len(labels) or len(labels) == 0:
        raise ArrayError(
            "probs, labels: expected (N, K) and (N,) with N >= 1, "
            f"got {scores.shape} and {labels.shape}"
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise ArrayError(f"labels: expected integers, got {labels.dtype}")
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise ArrayError(
            f"labels: expected class indices in [0, {scores.shape[1]}), "
            f"got {labels.min()} to {labels.max()}"
        )


def _bins(confidence: Reals, num_bins: int) -> npt.NDArray[np.int64]:
    """The equal-width bin of each confidence; exactly 1 falls into the last."""
    return np.clip((confidence * num_bins).astype(np.int64), 0, num_bins - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Accuracy and ECE in per cent, NLL in nats, Brier score in [0, 2]."""

    accuracy: float
    ece: float
    nll: float
    brier: float

    def to_dict(self) -> dict[str, float | None]:
        """Plain values; an infinite NLL becomes None, because JSON has no infinity."""
        return {key: value if math.isfinite(value) else None for key, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """A reliability diagram: per equal-width bin of confidence, (NUM_BINS,) each.

    `accuracy` and `confidence` are means over the bin's samples; zero in an empty bin.
    """

    counts: npt.NDArray[np.int64]
    accuracy: Reals
    confidence: Reals

    @property
    def error(self) -> float:
        """ECE in [0, 1]."""
        gaps = self.counts * np.abs(self.accuracy - self.confidence)
        return float(gaps.sum() / self.counts.sum())


def calibration(confidence: Reals, correct: Mask, /) -> Calibration:
    """Sort samples by confidence (T,) in [0, 1] into bins; exactly 1 falls into the last."""
    bins = _bins(confidence, NUM_BINS)
    counts = np.bincount(bins, minlength=NUM_BINS)
    divisor = np.maximum(counts, 1)
    return Calibration(
        counts=counts.astype(np.int64),
        accuracy=np.bincount(bins, weights=correct, minlength=NUM_BINS) / divisor,
        confidence=np.bincount(bins, weights=confidence, minlength=NUM_BINS) / divisor,
    )


def score(trace: Trace, mask: Mask | None = None, /) -> Scores:
    """Scores of the samples in `mask` (of all of them by default), pooled."""
    chosen = np.ones(len(trace.correct), dtype=np.bool_) if mask is None else mask
    bins = calibration(trace.confidence[chosen], trace.correct[chosen])
    return Scores(
        accuracy=100.0 * float(trace.correct[chosen].mean()),
        ece=100.0 * bins.error,
        nll=float(trace.nll[chosen].mean()),
        brier=float(trace.brier[chosen].mean()),
    )


def mean_scores(scores: Iterable[Scores], /) -> Scores:
    """Each score's plain mean."""
    listed = list(scores)
    return Scores(
        **{
            item.name: float(np.mean([getattr(one, item.name) for one in listed]))
            for item in fields(Scores)
        }
    )


def domain_scores(trace: Trace, /) -> dict[int, Scores]:
    """Scores per domain: pooled within each round, then the mean over rounds."""
    return _means(trace, by_round=False)


def round_scores(trace: Trace, /) -> list[Scores]:
    """Scores per round: pooled within each domain, then the mean over domains."""
    return list(_means(trace, by_round=True).values())


def correlations(trace: Trace, /) -> dict[str, float | None]:
    """Pearson and Spearman correlation of expected and realised gain; None where undefined.

    Samples predicted without history, whose gains are zero by definition, are left out, and so
    are infinite gains.
    """
    if trace.gain is None:
        return {"pearson": None, "spearman": None}
    known = (trace.gain.expected != 0.0) | (trace.gain.realised != 0.0)
    known &= np.isfinite(trace.gain.expected) & np.isfinite(trace.gain.realised)
    expected, realised = trace.gain.expected[known], trace.gain.realised[known]
    return {
        "pearson": _pearson(expected, realised),
        "spearman": _pearson(_ranks(expected), _ranks(realised)),
    }


def _means(trace: Trace, *, by_round: bool) -> dict[int, Scores]:
    """Mean scores of each round or domain, ascending, over its cells of one round and domain."""
    cells: dict[int, list[Scores]] = {}
    for number, domain in np.unique(np.stack([trace.rounds, trace.domains], axis=1), axis=0):
        scores = score(trace, (trace.rounds == number) & (trace.domains == domain))
        cells.setdefault(int(number if by_round else domain), []).append(scores)
    return {key: mean_scores(cells[key]) for key in sorted(cells)}


def _pearson(first: Reals, second: Reals) -> float | None:
    """Pearson correlation, or None where either does not vary."""
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Reals) -> Reals:
    """Ranks from 0, ties sharing their mean rank."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1
    ranks: Reals = (last - 0.5 * (counts - 1))[group]
    return ranks
