"""A Gaussian world whose frames are of all classes, then of one, then of all and hardly told."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["ASYMMETRY", "ChangingWorld", "changing_world"]

# Of one class the logits lie evenly, of all these classes not: what clean images would say.
ASYMMETRY = (0.0, 0.2)
# What a heavy corruption leaves of the distance between classes.
LEFT = 0.35
Floats = npt.NDArray[np.float64]


class ChangingWorld(NamedTuple):
    """A head (K, D), batches (features, logits, labels), and which are the last two parts."""

    prototypes: Floats
    batches: list[tuple[Floats, Floats, npt.NDArray[np.int64]]]
    single: slice
    hidden: slice


def changing_world(
    num_classes: int = 10,
    feature_dim: int = 16,
    *,
    parts: tuple[int, int, int],
    batch_size: int = 16,
    signal: float = 0.8,
    left: float = LEFT,
    seed: int = 0,
) -> ChangingWorld:
    """Frames in no order, under one domain's shift; the last part has another's.

    Parameters
    ----------
    num_classes, feature_dim : int
    parts : tuple of int
        Batches of all classes, of one class, and of all under a corruption which keeps `left` of
        the distance between classes.
    batch_size : int
    signal : float
        Scale of the class means, over features' noise of one.
    left : float
    seed : int
        Also which class is the one.
    """
    rng = np.random.default_rng(seed)
    prototypes = signal * rng.normal(size=(num_classes, feature_dim))
    thresholds = 0.5 * np.sum(prototypes * prototypes, axis=1)
    first, last = 1.5 * rng.normal(size=(2, num_classes))
    one, hidden = parts[0], parts[0] + parts[1]
    batches = []
    for index in range(sum(parts)):
        labels = rng.integers(num_classes, size=batch_size)
        if one <= index < hidden:
            labels = np.full(batch_size, seed % num_classes)
        corrupted = index >= hidden
        means = (left if corrupted else 1.0) * prototypes[labels]
        features = means + rng.normal(size=(batch_size, feature_dim))
        logits = features @ prototypes.T - thresholds + (last if corrupted else first)
        batches.append((features, logits, labels))
    return ChangingWorld(prototypes, batches, slice(one, hidden), slice(hidden, sum(parts)))
