"""Scores of a run: for the whole stream, per domain, and as the paper counts them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.trace import Reals, Trace
from gain_core.errors import ConfigError

__all__ = [
    "Calibration",
    "Scores",
    "calibration",
    "correlations",
    "domain_scores",
    "mean_scores",
    "round_scores",
    "score",
]

Mask = npt.NDArray[np.bool_]


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
    """A reliability diagram: per equal-width bin of confidence, (num_bins,) each.

    Attributes
    ----------
    counts : array of int64
    accuracy, confidence : array of float64
        Means over the bin's samples; zero in an empty bin.
    """

    counts: npt.NDArray[np.int64]
    accuracy: Reals
    confidence: Reals

    @property
    def error(self) -> float:
        """ECE in [0, 1]."""
        gaps = self.counts * np.abs(self.accuracy - self.confidence)
        return float(gaps.sum() / self.counts.sum())


def calibration(confidence: Reals, correct: Mask, /, *, num_bins: int = 20) -> Calibration:
    """Sort samples into bins of confidence.

    Parameters
    ----------
    confidence : array, (T,)
        In [0, 1].
    correct : array, (T,) bool
    num_bins : int
        Bins [i/num_bins, (i+1)/num_bins); a confidence of exactly 1 falls into the last one.

    Returns
    -------
    Calibration

    Raises
    ------
    ConfigError
        If `num_bins` is below 1.
    """
    if num_bins < 1:
        raise ConfigError(f"bins: expected at least 1, got {num_bins}")
    bins = np.clip((confidence * num_bins).astype(np.int64), 0, num_bins - 1)
    counts = np.bincount(bins, minlength=num_bins)
    divisor = np.maximum(counts, 1)
    return Calibration(
        counts=counts.astype(np.int64),
        accuracy=np.bincount(bins, weights=correct, minlength=num_bins) / divisor,
        confidence=np.bincount(bins, weights=confidence, minlength=num_bins) / divisor,
    )


def score(trace: Trace, mask: Mask | None = None, /, *, num_bins: int = 20) -> Scores:
    """Scores of the samples in `mask` (of all of them by default), pooled."""
    chosen = np.ones(len(trace.correct), dtype=np.bool_) if mask is None else mask
    bins = calibration(trace.confidence[chosen], trace.correct[chosen], num_bins=num_bins)
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


def domain_scores(trace: Trace, /, *, num_bins: int = 20) -> dict[int, Scores]:
    """Scores per domain: pooled within each round, then the mean over rounds."""
    cells = _cells(trace, num_bins=num_bins)
    return {
        domain: mean_scores(value for (_, name), value in cells.items() if name == domain)
        for domain in _ordered(trace.domains)
    }


def round_scores(trace: Trace, /, *, num_bins: int = 20) -> list[Scores]:
    """Scores per round: pooled within each domain, then the mean over domains."""
    cells = _cells(trace, num_bins=num_bins)
    return [
        mean_scores(value for (name, _), value in cells.items() if name == number)
        for number in _ordered(trace.rounds)
    ]


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


def _cells(trace: Trace, *, num_bins: int) -> dict[tuple[int, int], Scores]:
    """Scores by (round, domain)."""
    return {
        (number, domain): score(trace, mask, num_bins=num_bins)
        for number in _ordered(trace.rounds)
        for domain in _ordered(trace.domains)
        for mask in ((trace.rounds == number) & (trace.domains == domain),)
        if mask.any()
    }


def _ordered(values: npt.NDArray[np.int64]) -> list[int]:
    """Distinct values, ascending."""
    return [int(value) for value in np.unique(values)]


def _pearson(first: Reals, second: Reals) -> float | None:
    """Pearson correlation, or None where either does not vary."""
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Reals) -> Reals:
    """Ranks from 0, ties sharing their mean rank."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1
    ranks: Any = (last - 0.5 * (counts - 1))[group]
    result: Reals = ranks.astype(np.float64)
    return result
