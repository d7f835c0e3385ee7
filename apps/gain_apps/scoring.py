"""Counting how right and how well calibrated two predictions are, over streams of any length."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_core.metrics import accuracy, calibration_excess, negative_log_likelihood

__all__ = ["NUM_BINS", "Score", "ScoreBoard", "percent"]

NUM_BINS = 20

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]


def percent(part: float, whole: int, /) -> float:
    """A share in per cent.

    Multiplied first: 100 * 1279 / 2000 is 63.95 and printed as 64.0, 100 * (1279 / 2000) as 63.9.

    Parameters
    ----------
    part : float
    whole : int
        At least 1.

    Returns
    -------
    float
    """
    return 100.0 * part / whole


@dataclass(slots=True)
class Score:
    """Running accuracy, ECE and NLL of one predictor; its memory does not grow."""

    count: int = 0
    correct: int = 0
    nll_sum: float = 0.0
    excess: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(NUM_BINS))

    def add(self, log_probs: Floats, labels: Ints, /) -> None:
        """Count a batch.

        Parameters
        ----------
        log_probs : array, (B, K) floating
            Normalised log-probabilities; B >= 1.
        labels : array, (B,) integer

        Raises
        ------
        ArrayError
            If the shapes do not fit or a label is out of range.
        """
        probs = np.exp(log_probs)
        self.count += len(labels)
        self.correct += round(accuracy(probs, labels) * len(labels))
        self.nll_sum += negative_log_likelihood(log_probs, labels) * len(labels)
        self.excess += calibration_excess(probs, labels, num_bins=NUM_BINS)

    def to_dict(self) -> dict[str, float | None]:
        """Accuracy and ECE in per cent and NLL in nats; None where nothing was counted."""
        if self.count == 0:
            return {"accuracy_percent": None, "ece_percent": None, "nll_nats": None}
        nll = self.nll_sum / self.count
        return {
            "accuracy_percent": percent(self.correct, self.count),
            "ece_percent": percent(float(np.abs(self.excess).sum()), self.count),
            # JSON has no infinity.
            "nll_nats": nll if math.isfinite(nll) else None,
        }


@dataclass(slots=True)
class ScoreBoard:
    """Scores of the frozen source and of the adapted prediction, overall and by condition."""

    source: Score = field(default_factory=Score)
    adapted: Score = field(default_factory=Score)
    conditions: dict[str, tuple[Score, Score]] = field(default_factory=dict)

    def add(
        self, source_log_probs: Floats, log_probs: Floats, /, *, truth: int, condition: str | None
    ) -> None:
        """Count one frame whose class is known.

        Parameters
        ----------
        source_log_probs, log_probs : array, (K,) floating
        truth : int
        condition : str or None
            Domain of the frame; None counts towards the whole only.

        Raises
        ------
        ArrayError
            If the class is out of range.
        """
        pairs = [(self.source, self.adapted)]
        if condition is not None:
            pairs.append(self.conditions.setdefault(condition, (Score(), Score())))
        labels = np.array([truth])
        for source, adapted in pairs:
            source.add(source_log_probs[None], labels)
            adapted.add(log_probs[None], labels)

    def to_dict(self) -> dict[str, Any]:
        """Plain values: `frames`, `source`, `adapted` and `conditions` by name."""
        return {
            "frames": self.source.count,
            "source": self.source.to_dict(),
            "adapted": self.adapted.to_dict(),
            "conditions": {
                name: {
                    "frames": source.count,
                    "source": source.to_dict(),
                    "adapted": adapted.to_dict(),
                }
                for name, (source, adapted) in self.conditions.items()
            },
        }
