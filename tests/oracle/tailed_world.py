"""A Gaussian world under label shift: some classes a hundred times as frequent as others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["ASYMMETRY", "TailedWorld", "tailed_world"]

# Of one class the logits lie evenly, of all these classes not: what clean images would say.
ASYMMETRY = (0.0, 0.2)
IMBALANCE = 100.0


class TailedWorld(NamedTuple):
    """A head (K, D), shares of the classes (K,), and batches (features, logits, labels)."""

    prototypes: npt.NDArray[np.float64]
    shares: npt.NDArray[np.float64]
    batches: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.int64]]]


def tailed_world(
    num_classes: int = 10,
    feature_dim: int = 16,
    *,
    num_batches: int,
    batch_size: int = 16,
    imbalance: float = IMBALANCE,
    seed: int = 0,
) -> TailedWorld:
    """Frames in no order of classes whose shares fall geometrically, under one domain's shift.

    But for the shift, the head is Bayes' own for classes that come alike.

    Parameters
    ----------
    num_classes, feature_dim : int
    num_batches, batch_size : int
    imbalance : float
        How often the most frequent class comes for one frame of the rarest; 1 is no label shift.
    seed : int
    """
    rng = np.random.default_rng(seed)
    prototypes = 0.8 * rng.normal(size=(num_classes, feature_dim))
    thresholds = 0.5 * np.sum(prototypes * prototypes, axis=1)
    shares = imbalance ** (-np.arange(num_classes) / (num_classes - 1))
    shares = rng.permutation(shares / np.sum(shares))
    offset = 1.5 * rng.normal(size=num_classes)
    batches = []
    for _ in range(num_batches):
        labels = rng.choice(num_classes, size=batch_size, p=shares)
        features = prototypes[labels] + rng.normal(size=(batch_size, feature_dim))
        logits = features @ prototypes.T - thresholds + offset
        batches.append((features, logits, labels))
    return TailedWorld(prototypes, shares, batches)
