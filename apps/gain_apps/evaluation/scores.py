"""Running methods over a stream, one record per scored sample, and the scores of these records."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.eval_input import FeatureStore
from gain_apps.evaluation.methods.protocol import (
    Batch,
    Cost,
    Diagnosing,
    Diagnosis,
    Floats,
    Method,
    OnPixels,
)
from gain_apps.evaluation.streams import StreamBatch
from gain_core.errors import NumericsError

__all__ = [
    "NUM_BINS",
    "Calibration",
    "GainTrace",
    "Scores",
    "Trace",
    "calibration",
    "correlations",
    "domain_scores",
    "mean_scores",
    "round_scores",
    "run_methods",
    "score",
]

# Normalised log-probabilities; single precision over a thousand classes stays well within.
MAX_NORM_ERROR = 1e-3
# Of the calibration error.
NUM_BINS = 20

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GainTrace:
    """What GAIN's parts said about each sample, (T,) each, before its batch was learned from.

    Attributes
    ----------
    strength, expected : array
        lambda and the expected gain in nats.
    realised : array
        log(q_hat / s) at the true class: what the full correction would have gained.
    """

    strength: Reals
    expected: Reals
    realised: Reals


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """A method's run over a stream of T scored samples.

    Attributes
    ----------
    domains, rounds : array, (T,) int64
    confidence : array, (T,)
        Probability of the predicted class.
    correct : array, (T,) bool
    nll : array, (T,)
        -log p(label), in nats; infinite where the label was given no probability.
    brier : array, (T,)
        Squared distance to the one-hot label.
    step_ms : array, (number of batches,)
        Wall time of `predict`: the network's forward pass is not in it, unless the method runs
        the network itself (`OnPixels`).
    cost : Cost
        As of the end.
    gain : GainTrace or None
        For methods of the GAIN family.
    """

    domains: npt.NDArray[np.int64]
    rounds: npt.NDArray[np.int64]
    confidence: Reals
    correct: npt.NDArray[np.bool_]
    nll: Reals
    brier: Reals
    step_ms: Reals
    cost: Cost
    gain: GainTrace | None


def run_methods(
    methods: Mapping[str, Method],
    stream: Sequence[StreamBatch],
    store: FeatureStore,
    /,
    *,
    noise: np.random.Generator | None = None,
    diagnose: bool = False,
    on_batch: Callable[[], None] | None = None,
) -> dict[str, Trace]:
    """Reset methods and run them over a stream, all of them batch by batch.

    Parameters
    ----------
    methods : mapping of str to Method
    stream : sequence of StreamBatch
        At least one batch that is scored.
    store : FeatureStore
    noise : Generator, optional
        See `FeatureStore.batch`.
    diagnose : bool
        Ask methods that can for strength and gain before each batch (not in their time).
    on_batch : callable, optional
        Called after every batch.

    Raises
    ------
    NumericsError
        If a prediction is not finite or its rows do not sum to one.
    ConfigError
        If the store lacks a domain at a severity, or what noise takes.
    """
    recorders = {name: _Recorder(method, diagnose=diagnose) for name, method in methods.items()}
    with_pixels = any(isinstance(method, OnPixels) for method in methods.values())
    for number, item in enumerate(stream):
        batch = store.batch(item, with_pixels=with_pixels, noise=noise)
        for recorder in recorders.values():
            recorder.step(batch, store.labels[item.images], scored=item.scored, number=number)
        if on_batch is not None:
            on_batch()
    scored = [item for item in stream if item.scored]
    return {name: recorder.trace(scored) for name, recorder in recorders.items()}


class _Recorder:
    """One method's run."""

    def __init__(self, method: Method, /, *, diagnose: bool) -> None:
        method.reset()
        self._method = method
        self._watched = method if diagnose and isinstance(method, Diagnosing) else None
        self._rows: list[tuple[Reals, npt.NDArray[np.bool_], Reals, Reals]] = []
        self._gains: list[tuple[Reals, Reals, Reals]] = []
        self._step_ms: list[float] = []

    def step(
        self, batch: Batch, labels: npt.NDArray[np.int64], /, *, scored: bool, number: int
    ) -> None:
        """Predict a batch, and keep what is scored of it."""
        if self._watched is not None and scored:
            self._gains.append(_gains(self._watched.diagnose(batch), labels))
        start = time.perf_counter_ns()
        log_probs = self._method.predict(batch)
        self._step_ms.append((time.perf_counter_ns() - start) / 1e6)
        _check(log_probs, self._method, number=number)
        if scored:
            self._rows.append(_sample_scores(log_probs, labels))

    def trace(self, scored: Sequence[StreamBatch], /) -> Trace:
        """Everything kept."""
        columns = zip(*self._rows, strict=True)
        confidence, correct, nll, brier = (np.concatenate(column) for column in columns)
        return Trace(
            domains=np.concatenate([item.domains for item in scored]),
            rounds=np.concatenate([item.rounds for item in scored]),
            confidence=confidence,
            correct=correct,
            nll=nll,
            brier=brier,
            step_ms=np.asarray(self._step_ms),
            cost=self._method.cost,
            gain=None if self._watched is None else _joined(self._gains),
        )


def _joined(gains: list[tuple[Reals, Reals, Reals]]) -> GainTrace:
    """The batches' gains one after another."""
    strength, expected, realised = (np.concatenate(part) for part in zip(*gains, strict=True))
    return GainTrace(strength=strength, expected=expected, realised=realised)


def _gains(diagnosis: Diagnosis, labels: npt.NDArray[np.int64]) -> tuple[Reals, Reals, Reals]:
    """Strength, expected and realised gain of each sample."""
    realised = diagnosis.evidence[np.arange(len(labels)), labels]
    return (
        diagnosis.strength.astype(np.float64),
        diagnosis.gain.astype(np.float64),
        realised.astype(np.float64),
    )


def _check(log_probs: Floats, method: Method, *, number: int) -> None:
    """The prediction is a distribution."""
    with np.errstate(over="ignore"):
        total = np.exp(log_probs.astype(np.float64)).sum(axis=1)
    # Written so that NaN fails it.
    if not (np.abs(total - 1.0) <= MAX_NORM_ERROR).all():
        raise NumericsError(
            f"{type(method).__name__}: expected probabilities that sum to one, got sums from "
            f"{total.min():g} to {total.max():g} in batch {number}"
        )


def _sample_scores(
    log_probs: Floats, labels: npt.NDArray[np.int64]
) -> tuple[Reals, npt.NDArray[np.bool_], Reals, Reals]:
    """Confidence, correctness, NLL and Brier score of each sample."""
    probs = np.exp(log_probs.astype(np.float64))
    each = np.arange(len(labels))
    top = log_probs.argmax(axis=1)
    brier = np.sum(probs * probs, axis=1) - 2.0 * probs[each, labels] + 1.0
    nll = -log_probs[each, labels].astype(np.float64)
    return probs[each, top], top == labels, nll, brier


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
    """A reliability diagram: per equal-width bin of confidence, (NUM_BINS,) each.

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


def calibration(confidence: Reals, correct: Mask, /) -> Calibration:
    """Sort samples into bins of confidence.

    Parameters
    ----------
    confidence : array, (T,)
        In [0, 1]; exactly 1 falls into the last bin.
    correct : array, (T,) bool
    """
    bins = np.clip((confidence * NUM_BINS).astype(np.int64), 0, NUM_BINS - 1)
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
    cells = _cells(trace)
    return {
        domain: mean_scores(value for (_, name), value in cells.items() if name == domain)
        for domain in _ordered(trace.domains)
    }


def round_scores(trace: Trace, /) -> list[Scores]:
    """Scores per round: pooled within each domain, then the mean over domains."""
    cells = _cells(trace)
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


def _cells(trace: Trace) -> dict[tuple[int, int], Scores]:
    """Scores by (round, domain)."""
    return {
        (number, domain): score(trace, mask)
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
