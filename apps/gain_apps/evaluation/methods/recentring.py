"""Methods that move the features by one vector: NEO, FOA's shift, re-centring by batch."""

from __future__ import annotations

import numpy as np

from gain_apps.evaluation.methods.protocol import Batch, Cost, Floats, Head
from gain_apps.evaluation.methods.softmax import log_softmax
from gain_core.errors import ConfigError

__all__ = ["BatchRecentring", "FoaShift", "Neo", "NeoContinual"]


class Neo:
    """NEO: features about their running mean over all frames, the current batch included.

    Parameters
    ----------
    head : Head
    warm_up : int
        Frames that must have been seen before the mean is used; until then the source answers.
        After one frame the mean is that frame, and the answer would be the bias alone.
    """

    _count: int
    _mean: Floats

    def __init__(self, head: Head, /, *, warm_up: int = 2) -> None:
        if warm_up < 1:
            raise ConfigError(f"warm_up: expected at least 1 frame, got {warm_up}")
        self._head = head
        self._warm_up = warm_up
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
        if self._count < self._warm_up:
            return log_softmax(batch.logits)
        return log_softmax(self._head.logits(moved(batch.features, -self._mean)))

    def reset(self) -> None:
        """No frame seen."""
        self._count = 0
        self._mean = np.zeros(self._head.weight.shape[1])


class NeoContinual:
    """NEO's continual form: the mean forgets by a fixed rate per batch, starting at zero.

    Parameters
    ----------
    head : Head
    rate : float
        Weight of the newest batch's mean, in (0, 1].
    """

    _mean: Floats

    def __init__(self, head: Head, /, *, rate: float = 0.1) -> None:
        _check_rate(rate)
        self._head = head
        self._rate = rate
        self.reset()

    @property
    def cost(self) -> Cost:
        """One forward pass and a D-vector."""
        return Cost(state_bytes=self._mean.nbytes)

    def predict(self, batch: Batch, /) -> Floats:
        """log-softmax of W (z - g) + b with g = (1 - rate) g + rate mean(z)."""
        newest = batch.features.mean(axis=0, dtype=np.float64)
        self._mean = (1.0 - self._rate) * self._mean + self._rate * newest
        return log_softmax(self._head.logits(moved(batch.features, -self._mean)))

    def reset(self) -> None:
        """g = 0."""
        self._mean = np.zeros(self._head.weight.shape[1])


class FoaShift:
    """FOA's activation shift: features moved from the running target mean to the source's.

    Parameters
    ----------
    head : Head
        With its `source_mean`.
    rate : float
        Weight of the newest batch's mean, in (0, 1]; the first batch's mean is the start.

    Raises
    ------
    ConfigError
        If the source's mean feature is not known, or the rate is out of range.
    """

    _started: bool
    _target_mean: Floats

    def __init__(self, head: Head, /, *, rate: float = 0.1) -> None:
        _check_rate(rate)
        if head.source_mean is None:
            raise ConfigError(
                "foa-shift: expected the source's mean feature, got none; "
                "name a folder of uncorrupted images with --source-images"
            )
        self._head = head
        self._rate = rate
        self._source_mean = head.source_mean.astype(np.float64)
        self.reset()

    @property
    def cost(self) -> Cost:
        """One forward pass and two D-vectors."""
        return Cost(state_bytes=2 * self._source_mean.nbytes)

    def predict(self, batch: Batch, /) -> Floats:
        """log-softmax of W (z + mu_source - h) + b, h the running mean with this batch in it."""
        newest: Floats = batch.features.mean(axis=0, dtype=np.float64)
        rate = self._rate if self._started else 1.0
        self._started = True
        self._target_mean = (1.0 - rate) * self._target_mean + rate * newest
        shift = self._source_mean - self._target_mean
        return log_softmax(self._head.logits(moved(batch.features, shift)))

    def reset(self) -> None:
        """No batch seen."""
        self._started = False
        self._target_mean = np.zeros_like(self._source_mean)


class BatchRecentring:
    """Features about the mean of their own batch; nothing is remembered.

    Parameters
    ----------
    head : Head
    """

    def __init__(self, head: Head, /) -> None:
        self._head = head

    @property
    def cost(self) -> Cost:
        """One forward pass."""
        return Cost()

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
