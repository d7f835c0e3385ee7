"""Seeded Gaussian worlds: class means along the head's rows, moved by one domain after another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """A head and a stream that its source classifier finds hard but not hopeless.

    Attributes
    ----------
    prototypes : array, (K, D) float64
    batches : tuple of (features, logits, labels)
        (B, D) float64, (B, K) float64, (B,) int64 each.
    """

    prototypes: Floats
    batches: tuple[tuple[Floats, Floats, npt.NDArray[np.int64]], ...]


def gaussian_world(
    num_classes: int,
    feature_dim: int,
    *,
    num_batches: int = 40,
    batch_sizes: tuple[int, ...] = (16,),
    domain_every: int = 10,
    offset: float = 0.0,
    seed: int = 0,
) -> World:
    """Draw a head and a stream whose mean and spread jump every `domain_every` batches.

    `batch_sizes` repeat in a cycle; `offset` is added to every feature, as a ReLU's mean is, and
    is not in the logits. Everything is rounded to float32, so that both precisions see the same.
    """
    rng = np.random.default_rng(seed)
    prototypes = rng.normal(size=(num_classes, feature_dim)) * 3.0 / np.sqrt(feature_dim)
    bias = 0.1 * rng.normal(size=num_classes)
    batches = []
    shift, spread = np.zeros(feature_dim), 1.0
    for index in range(num_batches):
        if index and index % domain_every == 0:
            shift = rng.normal(size=feature_dim) * 0.5
            spread = rng.uniform(0.6, 1.4)
        size = batch_sizes[index % len(batch_sizes)]
        labels = rng.integers(0, num_classes, size=size)
        noise = rng.normal(size=(size, feature_dim))
        features = 1.2 * prototypes[labels] + shift + spread * noise
        logits = features @ prototypes.T + bias
        batches.append((_rounded(features + offset), _rounded(logits), labels))
    return World(_rounded(prototypes), tuple(batches))


@dataclass(frozen=True)
class CameraWorld:
    """What a camera sees of a Gaussian world: objects that stay, in domains that move the features.

    Attributes
    ----------
    prototypes : array, (K, D) float64
    domains : array, (number of domains, D) float64
        What each adds to the features; the first adds nothing.
    """

    prototypes: Floats
    domains: Floats

    def frames(
        self, classes: npt.ArrayLike, *, domain: int, stay: int = 12, seed: int = 0
    ) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Logits (N, K) float64 and labels (N,): an object of each class, `stay` frames of it.

        An object scatters about its class's mean, and its frames a little about the object. In the
        first domain the head is the best classifier that there is, as a trained one nearly is.
        """
        rng = np.random.default_rng([seed, domain])
        labels = np.asarray(classes, dtype=np.int64)
        shape = (len(labels), self.prototypes.shape[1])
        objects = self.prototypes[labels] + self.domains[domain] + rng.normal(size=shape)
        features = np.repeat(objects, stay, axis=0)
        features = features + 0.1 * rng.normal(size=features.shape)
        bias = -0.5 * np.sum(self.prototypes**2, axis=1)
        return _rounded(features @ self.prototypes.T + bias), np.repeat(labels, stay)


def camera_world(
    num_classes: int, *, num_domains: int = 4, size: float = 1.2, level: float = 3.2, seed: int = 0
) -> CameraWorld:
    """Draw head and domains; `level` is the length of a row, `size` how far a domain leads."""
    rng = np.random.default_rng(seed)
    dim = max(16, num_classes)
    prototypes = rng.normal(size=(num_classes, dim)) * level / np.sqrt(dim)
    domains = size * rng.normal(size=(num_domains, dim)) / np.sqrt(dim) * np.sqrt(level)
    domains[0] = 0.0
    return CameraWorld(_rounded(prototypes), domains)


def _rounded(array: Floats) -> Floats:
    """The nearest float32 values, as float64."""
    return array.astype(np.float32).astype(np.float64)
