"""Seeded streams whose logits a domain moves and stretches, each class by its own factor."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["scaled_world"]

Floats = npt.NDArray[np.float64]


def scaled_world(
    num_classes: int,
    feature_dim: int,
    *,
    num_batches: int = 40,
    batch_sizes: tuple[int, ...] = (8,),
    only_class: int | None = None,
    deviation: float = 0.4,
    seed: int = 0,
) -> tuple[Floats, tuple[tuple[Floats, Floats], ...]]:
    """Draw a head (K, D) and batches of features (B, D) and logits (B, K), float64.

    Every frame is of `only_class`, where one is given; else the classes come alike. `batch_sizes`
    repeat in a cycle; `deviation` is that of the logarithm of the classes' factors. Everything is
    rounded to float32, so that both precisions see the same.
    """
    rng = np.random.default_rng(seed)
    head = 3.0 * rng.normal(size=(num_classes, feature_dim)) / np.sqrt(feature_dim)
    moved = head @ (0.5 * rng.normal(size=feature_dim))
    factors = np.exp(deviation * rng.normal(size=num_classes))
    batches = []
    for index in range(num_batches):
        size = batch_sizes[index % len(batch_sizes)]
        labels = rng.integers(0, num_classes, size=size)
        if only_class is not None:
            labels[:] = only_class
        features = 1.2 * head[labels] + 0.5 * rng.normal(size=(size, feature_dim))
        batches.append((_rounded(features), _rounded((features @ head.T) * factors + moved)))
    return _rounded(head), tuple(batches)


def _rounded(array: Floats) -> Floats:
    """The nearest float32 values, as float64."""
    return array.astype(np.float32).astype(np.float64)
