"""LAME: predictions of one batch made to agree between neighbours in feature space."""

from __future__ import annotations

import numpy as np

from gain_apps.evaluation.methods.protocol import Batch, Cost, Floats
from gain_apps.evaluation.methods.softmax import log_softmax, unit_rows
from gain_core.errors import ConfigError

__all__ = ["Lame"]

PROB_FLOOR = 1e-10
MAX_ITERATIONS = 100
SETTLED = 1e-8


class Lame:
    """Laplacian adjusted maximum-likelihood estimation; nothing is remembered between batches.

    Parameters
    ----------
    num_neighbours : int
        k of the nearest-neighbour affinity, cut to B - 1 in small batches.
    """

    def __init__(self, *, num_neighbours: int = 5) -> None:
        if num_neighbours < 1:
            raise ConfigError(f"num_neighbours: expected at least 1, got {num_neighbours}")
        self._num_neighbours = num_neighbours

    @property
    def cost(self) -> Cost:
        """One forward pass."""
        return Cost()

    def predict(self, batch: Batch, /) -> Floats:
        """Minimise sum Y log Y + Y U - Y (W Y) by Y <- softmax(-U + W Y), U = -log(s + 1e-10).

        A single frame has no neighbour and keeps the source's answer.
        """
        source = log_softmax(batch.logits.astype(np.float64))
        neighbours = min(self._num_neighbours, len(source) - 1)
        if neighbours == 0:
            return source
        affinity = knn_affinity(batch.features, neighbours)
        unary = -np.log(np.exp(source) + PROB_FLOOR)
        log_assigned = log_softmax(-unary)
        before = np.inf
        for _ in range(MAX_ITERATIONS):
            pairwise = affinity @ np.exp(log_assigned)
            log_assigned = log_softmax(-unary + pairwise)
            assigned = np.exp(log_assigned)
            terms = assigned * (log_assigned + unary) - assigned * (affinity @ assigned)
            energy = float(terms.sum())
            if abs(before - energy) < SETTLED:
                break
            before = energy
        return log_assigned

    def reset(self) -> None:
        """Nothing to forget."""


def knn_affinity(features: Floats, neighbours: int, /) -> Floats:
    """1 for each of a sample's nearest neighbours by cosine, made symmetric by the mean, (B, B)."""
    directions = unit_rows(features.astype(np.float64))
    closeness = directions @ directions.T
    np.fill_diagonal(closeness, -np.inf)
    nearest = np.argsort(-closeness, axis=1, kind="stable")[:, :neighbours]
    affinity = np.zeros_like(closeness)
    np.put_along_axis(affinity, nearest, 1.0, axis=1)
    result: Floats = 0.5 * (affinity + affinity.T)
    return result
