"""Methods that need forward passes only.

NEO, FOA's shift and re-centring move the features by one vector; LAME makes the predictions of a
batch agree between neighbours; T3A and DOTA classify by what they have kept of features seen.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, get_args

import numpy as np

from gain_apps.evaluation.methods.protocol import (
    Batch,
    Cost,
    Floats,
    Head,
    entropy,
    log_softmax,
    unit_rows,
)
from gain_core.errors import ConfigError


@dataclass(eq=False)
class Neo:
    """NEO: features about their running mean over all frames, the current batch included.

    The mean is used once `warm_up` frames have been seen; until then the source answers. After one
    frame the mean is that frame, and the answer would be the bias alone.
    """

    _head: Head
    _: KW_ONLY
    warm_up: int = 2
    _count: int = field(init=False)
    _mean: Floats = field(init=False)

    def __post_init__(self) -> None:
        if self.warm_up < 1:
            raise ConfigError(f"warm_up: expected at least 1 frame, got {self.warm_up}")
        self.reset()

    @property
    def cost(self) -> Cost:
        """One forward pass and a D-vector."""
        return Cost(state_bytes=self._mean.nbytes + np.int64().nbytes)

    def predict(self, batch: Batch, /) -> Floats:
        """log-softmax of W (z - g) + b with g = ((n - B) g + B mean(z)) / n, n counting B."""
        added = len(batch.features)
        self._count += added
        total = batch.features.mean(axis=0, dtype=np.float64) * added
        self._mean = ((self._count - added) * self._mean + total) / self._count
        if self._count < self.warm_up:
            return log_softmax(batch.logits)
        return log_softmax(self._head.logits(moved(batch.features, -self._mean)))

    def reset(self) -> None:
        """No frame seen."""
        self._count = 0
        self._mean = np.zeros(self._head.weight.shape[1])


@dataclass(eq=False)
class NeoContinual:
    """NEO's continual form: the mean forgets by a fixed rate per batch, starting at zero."""

    _head: Head
    _: KW_ONLY
    rate: float = 0.1  # weight of the newest batch's mean, in (0, 1]
    _mean: Floats = field(init=False)

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        self.reset()

    @property
    def cost(self) -> Cost:
        """One forward pass and a D-vector."""
        return Cost(state_bytes=self._mean.nbytes)

    def predict(self, batch: Batch, /) -> Floats:
        """log-softmax of W (z - g) + b with g = (1 - rate) g + rate mean(z)."""
        newest = batch.features.mean(axis=0, dtype=np.float64)
        self._mean = (1.0 - self.rate) * self._mean + self.rate * newest
        return log_softmax(self._head.logits(moved(batch.features, -self._mean)))

    def reset(self) -> None:
        """g = 0."""
        self._mean = np.zeros(self._head.weight.shape[1])


@dataclass(eq=False)
class FoaShift:
    """FOA's activation shift: features moved from the running target mean to the source's.

    A head without its `source_mean` is a `ConfigError`.
    """

    _head: Head
    _: KW_ONLY
    rate: float = 0.1  # of the newest batch's mean, in (0, 1]; the first batch's is the start
    _started: bool = field(init=False)
    _target_mean: Floats = field(init=False)

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        if self._head.source_mean is None:
            raise ConfigError(
                "foa-shift: expected the source's mean feature, got none; "
                "name a folder of uncorrupted images with --source-images"
            )
        self._source_mean = self._head.source_mean.astype(np.float64)
        self.reset()

    @property
    def cost(self) -> Cost:
        """One forward pass and two D-vectors."""
        return Cost(state_bytes=2 * self._source_mean.nbytes)

    def predict(self, batch: Batch, /) -> Floats:
        """log-softmax of W (z + mu_source - h) + b, h the running mean with this batch in it."""
        newest: Floats = batch.features.mean(axis=0, dtype=np.float64)
        rate = self.rate if self._started else 1.0
        self._started = True
        self._target_mean = (1.0 - rate) * self._target_mean + rate * newest
        shift = self._source_mean - self._target_mean
        return log_softmax(self._head.logits(moved(batch.features, shift)))

    def reset(self) -> None:
        """No batch seen."""
        self._started = False
        self._target_mean = np.zeros_like(self._source_mean)


class BatchRecentring:
    """Features about the mean of their own batch; nothing is remembered."""

    cost = Cost()

    def __init__(self, head: Head, /) -> None:
        self._head = head

    def predict(self, batch: Batch, /) -> Floats:
        """log-softmax of W (z - mean(z)) + b; a single frame has no mean, the source answers."""
        if len(batch.features) == 1:
            return log_softmax(batch.logits)
        mean = batch.features.mean(axis=0, dtype=np.float64)
        return log_softmax(self._head.logits(moved(batch.features, -mean)))

    def reset(self) -> None:
        """Nothing to forget."""


def moved(features: Floats, shift: Floats, /) -> Floats:
    """Features plus one vector, in their own precision."""
    result: Floats = features + shift.astype(features.dtype)
    return result


def _check_rate(rate: float) -> None:
    """A weight in (0, 1]."""
    if not 0.0 < rate <= 1.0:
        raise ConfigError(f"rate: expected a number in (0, 1], got {rate}")


PROB_FLOOR = 1e-10
MAX_ITERATIONS = 100
SETTLED = 1e-8


@dataclass(eq=False, kw_only=True)
class Lame:
    """Laplacian adjusted maximum-likelihood estimation; nothing is remembered between batches.

    The neighbours of the affinity are cut to B - 1 in small batches.
    """

    cost = Cost()
    num_neighbours: int = 5

    def __post_init__(self) -> None:
        if self.num_neighbours < 1:
            raise ConfigError(f"num_neighbours: expected at least 1, got {self.num_neighbours}")

    def predict(self, batch: Batch, /) -> Floats:
        """Minimise sum Y log Y + Y U - Y (W Y) by Y <- softmax(-U + W Y), U = -log(s + 1e-10).

        A single frame has no neighbour and keeps the source's answer.
        """
        source = log_softmax(batch.logits.astype(np.float64))
        neighbours = min(self.num_neighbours, len(source) - 1)
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


@dataclass(eq=False)
class T3A:
    """Test-time templates adjuster.

    Every class keeps its `num_supports` lowest-entropy supports. They start as the head's rows,
    each filed under the class the head gives it; every batch adds its features under the classes
    the source gives them. The classifier is the normalised sum of normalised supports.
    """

    _head: Head
    _: KW_ONLY
    num_supports: int = 20

    def __post_init__(self) -> None:
        if self.num_supports < 1:
            raise ConfigError(f"num_supports: expected at least 1, got {self.num_supports}")
        self.reset()

    @property
    def cost(self) -> Cost:
        """One forward pass, and the supports."""
        kept = sum(rows.nbytes for rows in self._supports)
        entropies = sum(values.nbytes for values in self._entropies)
        return Cost(state_bytes=kept + entropies + self._templates.nbytes)

    def predict(self, batch: Batch, /) -> Floats:
        """Add the batch to the supports, then log-softmax of z A, (B, K)."""
        self._add(batch.features, batch.logits)
        return log_softmax(batch.features @ self._templates.T)

    def reset(self) -> None:
        """The head's rows are the only supports."""
        num_classes, feature_dim = self._head.weight.shape
        nothing = np.zeros((0, feature_dim), dtype=self._head.weight.dtype)
        self._supports: list[Floats] = [nothing] * num_classes
        self._entropies: list[Floats] = [np.zeros(0)] * num_classes
        self._templates: Floats = np.zeros_like(self._head.weight)
        self._add(self._head.weight, self._head.logits(self._head.weight))

    def _add(self, rows: Floats, logits: Floats) -> None:
        """File rows under their predicted class, and drop the least sure of each class."""
        chosen = logits.argmax(axis=1)
        uncertainty = entropy(log_softmax(logits))
        directions = unit_rows(rows)
        for label in np.unique(chosen):
            new = chosen == label
            supports = np.concatenate([self._supports[label], directions[new]])
            entropies = np.concatenate([self._entropies[label], uncertainty[new]])
            surest = np.argsort(entropies, kind="stable")[: self.num_supports]
            self._supports[label] = supports[surest]
            self._entropies[label] = entropies[surest]
            self._templates[label] = unit_rows(self._supports[label].sum(axis=0))


COSINE_SCALE = 100.0
INITIAL_COUNT = 1.0
INITIAL_VARIANCE = 0.002
SHRINKAGE = 1e-4
WEIGHT_RATE, MAX_WEIGHT = 0.005, 0.2
MAX_STATE_BYTES = 2 << 30

Covariance = Literal["per-class", "pooled"]


class Dota:
    """Distributional test-time adaptation.

    The head's rows play the part of the text embeddings; the bias is not used. `per-class` keeps
    one (D, D) matrix per class and averages them with equal weights, as described; more than 2 GiB
    of them is a `ConfigError`. `pooled` averages them by their counts, which needs one (D, D)
    matrix only: with a thousand classes the described form needs gigabytes.
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
