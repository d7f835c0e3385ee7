"""GAIN, one step at a time, in slow float64 NumPy: what the fast code is compared with.

Written from the equations (the labels in brackets are the paper's), with loops over samples and
classes and the sums kept in full: the second moment is (K, D) here, the centres are stored, the
root is found to `ROOT_TOLERANCE`. Nothing is shared with `gain_core` but the settings' names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Oracle", "OracleStep", "root_of_slope"]

Floats = npt.NDArray[np.float64]

ROOT_TOLERANCE = 1e-14
SEEN = 1e-12
LEAST_TOTAL_VARIANCE = 1e-6
LEAST_SCALE = 1e-2
LEAST_EVIDENCE_OF_SCALE = 1e-9


@dataclass
class OracleStep:
    """What one batch gets: the prediction and everything it was made of.

    Of the tracked shift also the features that came with it, if any did.
    """

    probs: Floats
    log_probs: Floats
    strength: Floats
    gain: Floats
    source_log_probs: Floats
    evidence: Floats
    log_proposal: Floats
    log_evaluator: Floats
    features: Floats | None = None


def log_softmax(scores: Floats) -> Floats:
    """Of one row."""
    shifted = scores - np.max(scores)
    return shifted - math.log(np.sum(np.exp(shifted)))


def floored(log_probs: Floats, floor: float) -> Floats:
    """One row with every probability raised to `floor`, renormalised."""
    if floor == 0.0:
        return log_probs
    probs = np.maximum(np.exp(log_probs), floor)
    return np.log(probs / np.sum(probs))


def along_path(log_source: Floats, evidence: Floats, strength: float) -> Floats:
    """p(lambda) of one row, as log-probabilities (eq:risk_calibrated_intervention)."""
    return log_softmax(log_source + strength * evidence)


def slope(log_source: Floats, evidence: Floats, gain: float, strength: float) -> float:
    """J'(lambda) of one row: G - E_{k ~ p(lambda)}[xi_k]."""
    return gain - float(np.sum(np.exp(along_path(log_source, evidence, strength)) * evidence))


def root_of_slope(log_source: Floats, evidence: Floats, gain: float) -> float:
    """lambda* of one row (eq:app_optimal_lambda)."""
    if slope(log_source, evidence, gain, 0.0) <= 0.0:
        return 0.0
    if slope(log_source, evidence, gain, 1.0) >= 0.0:
        return 1.0
    low, high = 0.0, 1.0
    while high - low > ROOT_TOLERANCE:
        middle = 0.5 * (low + high)
        if slope(log_source, evidence, gain, middle) > 0.0:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


class Oracle:
    """A stream's statistics and the two halves of a step.

    `config` is anything with `GainConfig`'s attributes and `strength_of_prior`.
    """

    def __init__(self, prototypes: npt.ArrayLike, config: Any) -> None:
        self.config = config
        self.c = self._scaled(np.asarray(prototypes, dtype=np.float64))
        K, D = self.c.shape
        self.kappa_0 = float(config.strength_of_prior(K))
        self.n, self.n_hat, self.Q = np.zeros(K), np.zeros(K), np.zeros(K)
        self.U, self.V = np.zeros((K, D)), np.zeros((K, D))
        self.z_count, self.z_sum, self.z_square = 0.0, np.zeros(D), np.zeros(D)
        self.a_numerator, self.a_denominator = 0.0, 0.0
        self.started = False
        self.m = self.c.copy()
        self.v, self.tau, self.log_pi = np.ones(D), 1.0, np.full(K, -math.log(K))

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
        K = self.c.shape[0]
        if not rows:
            wide, flat = np.zeros((0, K)), np.zeros(0)
            return OracleStep(wide, wide, flat, flat, wide, wide, wide, wide)
        return OracleStep(*(np.stack(column) for column in zip(*rows, strict=True)))

    def _predict_row(self, z: Floats, log_s: Floats) -> Sequence[Any]:
        if not self.started:
            return np.exp(log_s), log_s, 0.0, 0.0, log_s, 0.0 * log_s, log_s, log_s
        log_proposal, log_evaluator = self._posteriors(z)
        log_start = floored(log_s, self.config.prob_floor)
        log_end = floored(log_proposal, self.config.prob_floor)
        xi = log_end - log_start
        gain = float(np.sum(np.exp(log_evaluator) * xi))
        strength = root_of_slope(log_start, xi, gain)
        # The floor serves the log-ratio and the path between the two floored ends; a row that
        # is left alone keeps the source's own probabilities, and zeta is read from those.
        log_p = log_s if strength == 0.0 else along_path(log_start, xi, strength)
        return np.exp(log_p), log_p, strength, gain, log_s, xi, log_proposal, log_evaluator

    def _posteriors(self, z: Floats) -> tuple[Floats, Floats]:
        """Proposal (eq:target_posterior) and evaluator (eq:posterior_predictive_target)."""
        K, D = self.c.shape
        proposal, evaluator = np.zeros(K), np.zeros(K)
        for k in range(K):
            d = np.sum((z - self.m[k]) ** 2 / self.v)
            h = 1.0 + 1.0 / (self.kappa_0 + self.n[k])
            proposal[k] = self.log_pi[k] - self.tau * d / 2.0
            evaluator[k] = self.log_pi[k] - self.tau * (D / 2.0 * math.log(h) + d / (2.0 * h))
        return log_softmax(proposal), log_softmax(evaluator)

    def update(self, features: npt.ArrayLike, result: OracleStep) -> None:
        """Add one batch to the sums and rebuild everything derived from them."""
        z = self._scaled(np.asarray(features, dtype=np.float64))
        B = len(z)
        if B == 0:
            return
        decay = 0.5 ** (B / self.config.half_life)
        for name in ("n", "n_hat", "Q", "U", "V", "z_count", "z_sum", "z_square"):
            setattr(self, name, decay * getattr(self, name))
        for z_b, p, log_s in zip(z, result.probs, result.source_log_probs, strict=True):
            zeta = math.exp(log_s[np.argmax(p)])
            omega = zeta * p
            self.n = self.n + omega
            self.n_hat = self.n_hat + p
            self.Q = self.Q + omega**2
            self.U = self.U + omega[:, None] * z_b
            self.V = self.V + omega[:, None] * z_b**2
            self.z_count = self.z_count + 1.0
            self.z_sum = self.z_sum + z_b
            self.z_square = self.z_square + z_b**2
        self.rebuild(scale_decay=0.5 ** (B / self.config.scale_half_life))

    def rebuild(self, *, scale_decay: float) -> None:
        """Centres, variance, temper and class prior from the sums (app:continual_statistics)."""
        K = self.c.shape[0]
        u, a = self._anchor(scale_decay)
        kappa, kappa_hat = self.kappa_0 + self.n, self.kappa_0 + self.n_hat
        self.m = np.stack(
            [(self.kappa_0 * (u + a * self.c[k]) + self.U[k]) / kappa[k] for k in range(K)]
        )
        self.v = self._variance()
        self.tau = 1.0
        if self.config.temper == "head":
            self.tau = float(np.sum(self.c**2) / (a * np.sum(self.c**2 / self.v)))
        prior = kappa / kappa_hat**2
        self.log_pi = np.log(prior / np.sum(prior))
        self.started = True

    def _anchor(self, scale_decay: float) -> tuple[Floats, float]:
        """Shift u and scale a; a class without evidence sits at u + a c_k."""
        K, D = self.c.shape
        if self.config.anchor == "prototype":
            return np.zeros(D), 1.0
        w = self.n / (self.n + 1.0)
        means = [self.U[k] / max(self.n[k], 1e-9) for k in range(K)]
        if np.sum(w) == 0.0:
            z_tilde, c_tilde = self.z_sum / self.z_count, np.mean(self.c, axis=0)
        else:
            z_tilde = sum(w[k] * means[k] for k in range(K)) / np.sum(w)
            c_tilde = sum(w[k] * self.c[k] for k in range(K)) / np.sum(w)
        self.a_numerator *= scale_decay
        self.a_denominator *= scale_decay
        for k in range(K):
            self.a_numerator += w[k] * float(np.dot(means[k] - z_tilde, self.c[k] - c_tilde))
            self.a_denominator += w[k] * float(np.sum((self.c[k] - c_tilde) ** 2))
        if self.a_denominator <= LEAST_EVIDENCE_OF_SCALE:
            a = 1.0
        else:
            a = max(self.a_numerator / self.a_denominator, LEAST_SCALE)
        return z_tilde - a * c_tilde, a

    def _variance(self) -> Floats:
        """The shared diagonal covariance, floored and, where asked, averaged."""
        K, D = self.c.shape
        mean = self.z_sum / self.z_count
        total = np.maximum(self.z_square / self.z_count - mean**2, LEAST_TOTAL_VARIANCE)
        prior = total if self.config.prior_variance == "total" else np.ones(D)
        scatter, nu = np.zeros(D), 0.0
        for k in range(K):
            if self.n[k] > SEEN:
                scatter = scatter + self.V[k] - self.U[k] ** 2 / self.n[k]
                nu += self.n[k] - self.Q[k] / self.n[k]
        # Under forgetting Q decays like n instead of n^2, so that long unseen classes count for
        # less than nothing: the pooled degrees of freedom stop at zero, and so does the scatter.
        scatter, nu = np.maximum(scatter, 0.0), max(nu, 0.0)
        v = (self.kappa_0 * prior + scatter) / (self.kappa_0 + nu)
        v = np.maximum(v, self.config.variance_floor)
        v = np.maximum(v, self.config.variance_floor_ratio * total)
        return np.full(D, np.mean(v)) if self.config.variance == "isotropic" else v
