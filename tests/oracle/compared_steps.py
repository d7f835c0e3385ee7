"""A prediction of the fast code beside the oracle's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gain_oracle import OracleStep
from numpy.testing import assert_allclose

from gain_core import Prediction

__all__ = ["Tolerance", "assert_scaled", "assert_step_matches"]

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Tolerance:
    """Absolute for probabilities and strength, relative to 1 + |value| for the rest."""

    probs: float
    scores: float
    sums: float


def assert_step_matches(
    result: Prediction, expected: OracleStep, tolerance: Tolerance, *, prob_floor: float
) -> None:
    """Every field of a prediction.

    Where the correction hardly moves the prediction, J is flat and the strength is anything:
    its error counts by the curvature there, the variance of xi under p*. Where xi is rounding
    alone, strength 0 (the source itself) and 1 (its floored copy) are both right, eps_p apart.
    """
    telling = np.max(np.abs(expected.evidence), axis=1, initial=0.0) > tolerance.scores
    slack = np.where(telling, tolerance.probs, tolerance.probs + prob_floor)
    K = expected.probs.shape[1]
    assert np.all(np.abs(result.probs - expected.probs) <= K * slack[:, None])
    assert_allclose(result.probs[telling], expected.probs[telling], rtol=0, atol=tolerance.probs)
    assert_scaled(result.log_probs[telling], expected.log_probs[telling], tolerance.scores)
    assert_scaled(result.source_log_probs, expected.source_log_probs, tolerance.scores)
    assert_scaled(result.gain, expected.gain, tolerance.scores)
    mean = np.sum(expected.probs * expected.evidence, axis=1, keepdims=True)
    curvature = np.sum(expected.probs * (expected.evidence - mean) ** 2, axis=1)
    off = np.abs(result.strength - expected.strength)
    assert_scaled(off * np.minimum(curvature, 1.0), np.zeros_like(off), tolerance.scores)
    assert bool(result.finite)


def assert_scaled(result: Floats, expected: Floats, tolerance: float) -> None:
    """Equal to `tolerance` times one plus the largest magnitude of the row."""
    peak = np.max(np.abs(expected), axis=-1, keepdims=True, initial=0.0)
    assert_allclose(result / (1.0 + peak), expected / (1.0 + peak), rtol=0, atol=tolerance)
