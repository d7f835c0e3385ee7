"""Algorithm 1 in float64, one frame and one class at a time, written from the paper's equations.

The sums are kept in full and about zero: the second moment is (K, D) here, the centres are stored,
the strength is bisected to `ROOT_TOLERANCE`. Nothing is shared with `gain_core` but the names of
the settings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ROOT_TOLERANCE = 1e-14
SEEN = 1e-12


@dataclass
class OracleStep:
    """What one batch gets: the prediction and what it was made of; `evidence` is xi."""

    probs: Floats
    log_probs: Floats
    strength: Floats
    gain: Floats
    source_log_probs: Floats
    evidence: Floats


def log_softmax(scores: Floats) -> Floats:
    """Of one row."""
    shifted = scores - np.max(scores)
    return shifted - math.log(np.sum(np.exp(shifted)))


def floored(log_probs: Floats, floor: float) -> Floats:
    """One row with every probability raised to `floor`, renormalised."""
    probs = np.maximum(np.exp(log_probs), floor)
    return np.log(probs / np.sum(probs))


def slope(log_start: Floats, xi: Floats, gain: float, strength: float) -> float:
    """J'(lambda) of one row: G - E_{k ~ p(lambda)}[xi_k]."""
    return gain - float(np.sum(np.exp(log_softmax(log_start + strength * xi)) * xi))


def root_of_slope(log_start: Floats, xi: Floats, gain: float) -> float:
    """lambda* of one row (eq:app_optimal_lambda)."""
    if slope(log_start, xi, gain, 0.0) <= 0.0:
        return 0.0
    if slope(log_start, xi, gain, 1.0) >= 0.0:
        return 1.0
    low, high = 0.0, 1.0
    while high - low > ROOT_TOLERANCE:
        middle = 0.5 * (low + high)
        if slope(log_start, xi, gain, middle) > 0.0:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def row_answer(
    log_s: Floats, log_start: Floats, log_end: Floats, log_evaluator: Floats
) -> Sequence[Any]:
    """The fields of `OracleStep` for one row: as much of the correction as is expected to help.

    The floor serves the log-ratio and the path between the two floored ends; a row that is left
    alone keeps the source's own probabilities.
    """
    xi = log_end - log_start
    gain = float(np.sum(np.exp(log_evaluator) * xi))
    strength = root_of_slope(log_start, xi, gain)
    log_p = log_s if strength == 0.0 else log_softmax(log_start + strength * xi)
    return np.exp(log_p), log_p, strength, gain, log_s, xi


class Oracle:
    """A stream's statistics and the two halves of a step; `config` has `PaperConfig`'s names."""

    def __init__(self, prototypes: npt.ArrayLike, config: Any) -> None:
        self.config = config
        self.c = self._scaled(np.asarray(prototypes, dtype=np.float64))
        K, D = self.c.shape
        self.n, self.n_hat, self.Q = np.zeros(K), np.zeros(K), np.zeros(K)
        self.U, self.V = np.zeros((K, D)), np.zeros((K, D))
        self.started = False
        self.m, self.v, self.log_pi = self.c.copy(), np.ones(D), np.full(K, -math.log(K))

    def _scaled(self, rows: Floats) -> Floats:
        if not self.config.normalise:
            return rows
        return np.stack([row / np.linalg.norm(row) for row in rows]) if len(rows) else rows

    def step(self, features: npt.ArrayLike, logits: npt.ArrayLike) -> OracleStep:
        """Predict one batch against the state before it, then learn from it."""
        result = self.predict(features, logits)
        self.update(features, result)
        return result

    def predict(self, features: npt.ArrayLike, logits: npt.ArrayLike) -> OracleStep:
        """The prediction of every row of a batch; the state does not change."""
        z = self._scaled(np.asarray(features, dtype=np.float64))
        rows = [
            self._predict_row(z_b, log_softmax(logits_b))
            for z_b, logits_b in zip(z, np.asarray(logits, dtype=np.float64), strict=True)
        ]
        return OracleStep(*(np.stack(column) for column in zip(*rows, strict=True)))

    def _predict_row(self, z: Floats, log_s: Floats) -> Sequence[Any]:
        if not self.started:
            return np.exp(log_s), log_s, 0.0, 0.0, log_s, 0.0 * log_s
        log_proposal, log_evaluator = self.posteriors(z)
        floor = self.config.prob_floor
        return row_answer(log_s, floored(log_s, floor), floored(log_proposal, floor), log_evaluator)

    def posteriors(self, z: Floats) -> tuple[Floats, Floats]:
        """Proposal (eq:target_posterior) and evaluator (eq:posterior_predictive_target)."""
        K, D = self.c.shape
        proposal, evaluator = np.zeros(K), np.zeros(K)
        for k in range(K):
            d = np.sum((z - self.m[k]) ** 2 / self.v)
            h = 1.0 + 1.0 / (self.config.prior_strength + self.n[k])
            proposal[k] = self.log_pi[k] - d / 2.0
            evaluator[k] = self.log_pi[k] - D / 2.0 * math.log(h) - d / (2.0 * h)
        return log_softmax(proposal), log_softmax(evaluator)

    def update(self, features: npt.ArrayLike, result: OracleStep) -> None:
        """Add one batch to the sums and rebuild what follows (app:continual_statistics)."""
        z = self._scaled(np.asarray(features, dtype=np.float64))
        for z_b, p, log_s in zip(z, result.probs, result.source_log_probs, strict=True):
            omega = math.exp(log_s[np.argmax(p)]) * p
            self.n = self.n + omega
            self.n_hat = self.n_hat + p
            self.Q = self.Q + omega**2
            self.U = self.U + omega[:, None] * z_b
            self.V = self.V + omega[:, None] * z_b**2
        kappa_0 = self.config.prior_strength
        kappa, kappa_hat = kappa_0 + self.n, kappa_0 + self.n_hat
        self.m = (kappa_0 * self.c + self.U) / kappa[:, None]
        self.v = self._variance(kappa_0)
        self.log_pi = np.log(kappa / kappa_hat**2 / np.sum(kappa / kappa_hat**2))
        self.started = True

    def _variance(self, kappa_0: float) -> Floats:
        """The shared diagonal covariance, shrunk towards 1 and floored."""
        scatter, nu = np.zeros(self.c.shape[1]), 0.0
        for k in np.flatnonzero(self.n > SEEN):
            scatter = scatter + self.V[k] - self.U[k] ** 2 / self.n[k]
            nu += self.n[k] - self.Q[k] / self.n[k]
        return np.maximum((kappa_0 + scatter) / (kappa_0 + nu), self.config.variance_floor)
