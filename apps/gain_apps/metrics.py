"""Accuracy and calibration of a set of predictions, as the paper counts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gain_core.errors import ArrayError, ConfigError

__all__ = [
    "accuracy",
    "calibration_excess",
    "expected_calibration_error",
    "negative_log_likelihood",
]

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]


def accuracy(probs: Floats, labels: Ints, /) -> float:
    """Share of samples whose most probable class is the label.

    Parameters
    ----------
    probs : array, (N, K) floating
        Any score that ranks classes; ties go to the lowest index.
    labels : array, (N,) integer
        Class indices.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    ArrayError
        If the shapes do not fit, N is 0 or a label is out of range.
    """
    _check(probs, labels)
    return float(np.mean(np.argmax(probs, axis=1) == labels))


def expected_calibration_error(probs: Floats, labels: Ints, /, *, num_bins: int = 20) -> float:
    """ECE on the top confidence with equal-width bins.

    Parameters
    ----------
    probs : array, (N, K) floating
        Rows sum to one.
    labels : array, (N,) integer
        Class indices.
    num_bins : int
        Bins [i/num_bins, (i+1)/num_bins); a confidence of exactly 1 falls into the last one.

    Returns
    -------
    float
        Sum over bins of (share of samples) x |accuracy - mean confidence|, in [0, 1].

    Raises
    ------
    ArrayError
        As `accuracy`.
    ConfigError
        If `num_bins` is below 1.
    """
    excess = calibration_excess(probs, labels, num_bins=num_bins)
    return float(np.abs(excess).sum() / len(probs))


def calibration_excess(
    probs: Floats, labels: Ints, /, *, num_bins: int = 20
) -> npt.NDArray[np.float64]:
    """Confidence minus correctness, summed per confidence bin: what the ECE is made of.

    Parts of a stream add up, so that the ECE of a long one needs no stored predictions.

    Parameters
    ----------
    probs, labels, num_bins
        As for `expected_calibration_error`.

    Returns
    -------
    array, (num_bins,) float64
        The ECE is the sum of its absolute values over N.

    Raises
    ------
    ArrayError, ConfigError
        As `expected_calibration_error`.
    """
    _check(probs, labels)
    if num_bins < 1:
        raise ConfigError(f"num_bins: expected at least 1, got {num_bins}")
    top = np.argmax(probs, axis=1)
    confidence = probs[np.arange(len(probs)), top].astype(np.float64)
    bins = np.clip((confidence * num_bins).astype(np.int64), 0, num_bins - 1)
    excess = np.bincount(bins, weights=confidence - (top == labels), minlength=num_bins)
    return excess.astype(np.float64, copy=False)


def negative_log_likelihood(log_probs: Floats, labels: Ints, /) -> float:
    """Mean of -log p(label), in nats.

    Parameters
    ----------
    log_probs : array, (N, K) floating
        Normalised log-probabilities.
    labels : array, (N,) integer
        Class indices.

    Returns
    -------
    float
        Infinite where a label was given no probability.

    Raises
    ------
    ArrayError
        As `accuracy`.
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
