"""DOTA, ported from vision-language heads: a Gaussian discriminant beside a cosine classifier."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from gain_apps.evaluation.methods.protocol import Batch, Cost, Floats, Head
from gain_apps.evaluation.methods.softmax import log_softmax, unit_rows
from gain_core.errors import ConfigError

__all__ = ["Dota"]

COSINE_SCALE = 100.0
INITIAL_COUNT = 1.0
INITIAL_VARIANCE = 0.002
SHRINKAGE = 1e-4
WEIGHT_RATE, MAX_WEIGHT = 0.005, 0.2
MAX_STATE_BYTES = 2 << 30

Covariance = Literal["per-class", "pooled"]


class Dota:
    """Distributional test-time adaptation.

    Parameters
    ----------
    head : Head
        Its rows play the part of the text embeddings; the bias is not used.
    covariance : {"per-class", "pooled"}
        `per-class` keeps one (D, D) matrix per class and averages them with equal weights, as
        described. `pooled` averages them by their counts, which needs one (D, D) matrix only:
        with a thousand classes the described form needs gigabytes.

    Raises
    ------
    ConfigError
        If the per-class matrices would take more than 2 GiB, or the choice is unknown.
    """

    def __init__(self, head: Head, /, *, covariance: Covariance = "per-class") -> None:
        num_classes, feature_dim = head.weight.shape
        if covariance not in get_args(Covariance):
            raise ConfigError(f"covariance: expected per-class or pooled, got {covariance!r}")
        size = num_classes * feature_dim**2 * np.float32().nbytes
        if covariance == "per-class" and size > MAX_STATE_BYTES:
            raise ConfigError(
                f"dota: expected at most {MAX_STATE_BYTES >> 20} MiB of covariances, got "
                f"{size >> 20} MiB for {num_classes} classes of {feature_dim} dimensions; "
                "use dota:covariance=pooled"
            )
        self._directions = unit_rows(head.weight)
        self._per_class = covariance == "per-class"
        self.reset()

    @property
    def cost(self) -> Cost:
        """One forward pass, the class means and the covariances."""
        arrays = (self._count, self._means, self._scatter, self._precision)
        return Cost(state_bytes=sum(array.nbytes for array in arrays))

    def predict(self, batch: Batch, /) -> Floats:
        """log-softmax of the cosine logits plus the weighted discriminant; then learn, (B, K)."""
        rows = unit_rows(batch.features)
        logits = COSINE_SCALE * rows @ self._directions.T
        projected = self._means @ self._precision
        score = rows @ projected.T - 0.5 * np.sum(projected * self._means, axis=1)
        weight = min(WEIGHT_RATE * float(self._count.mean()) / len(rows), MAX_WEIGHT)
        self._learn(rows, np.exp(log_softmax(logits)))
        return log_softmax(logits + weight * score)

    def reset(self) -> None:
        """Counts of one, means at zero, covariances of 0.002 I."""
        num_classes, feature_dim = self._directions.shape
        dtype = self._directions.dtype
        self._count: Floats = np.full(num_classes, INITIAL_COUNT, dtype=dtype)
        self._means: Floats = np.zeros((num_classes, feature_dim), dtype=dtype)
        identity = np.eye(feature_dim, dtype=dtype) * dtype.type(INITIAL_VARIANCE)
        # Sums of outer products, that is covariance times count; pooled: over all classes.
        self._scatter: Floats = (
            np.tile(identity, (num_classes, 1, 1)) * INITIAL_COUNT
            if self._per_class
            else identity * num_classes * INITIAL_COUNT
        )
        self._precision: Floats = self._inverse()

    def _learn(self, rows: Floats, assigned: Floats) -> None:
        """Running means and covariances, each sample weighted by its cosine probabilities."""
        mass = assigned.sum(axis=0)
        count = self._count + mass
        self._means = (self._count[:, None] * self._means + assigned.T @ rows) / count[:, None]
        self._count = count
        if self._per_class:
            for label, weights in enumerate(assigned.T):
                deviation = rows - self._means[label]
                self._scatter[label] += (weights[:, None] * deviation).T @ deviation
        else:
            # The rows of `assigned` sum to one, so the sum over classes collapses.
            cross = rows.T @ (assigned @ self._means)
            spread = (mass[:, None] * self._means).T @ self._means
            self._scatter += rows.T @ rows - cross - cross.T + spread
        self._precision = self._inverse()

    def _inverse(self) -> Floats:
        """Inverse of the shrunk mean covariance, (D, D)."""
        covariance = (
            np.tensordot(1.0 / self._count, self._scatter, axes=1) / len(self._count)
            if self._per_class
            else self._scatter / self._count.sum()
        )
        identity = np.eye(len(covariance), dtype=covariance.dtype)
        result: Floats = np.linalg.inv((1.0 - SHRINKAGE) * covariance + SHRINKAGE * identity)
        return result
