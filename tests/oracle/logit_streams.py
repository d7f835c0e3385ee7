"""Streams of logits alone: a class's frames scatter evenly about their mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gain_core import Gain, Prediction

__all__ = ["answers", "labels_of", "learn", "logits_of", "source_answers", "stream"]

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def labels_of(num_frames: int, *, seed: int, num_classes: int = 12) -> Labels:
    """Labels (N,) of all classes alike."""
    return np.random.default_rng(seed).integers(0, num_classes, num_frames)


def logits_of(labels: Labels, *, seed: int, num_classes: int = 12, signal: float = 4.0) -> Floats:
    """Logits (N, K): `signal` for a frame's own class, and noise of unit variance."""
    noise = np.random.default_rng(seed).normal(size=(len(labels), num_classes))
    return signal * np.eye(num_classes)[labels] + noise


def stream(gain: Gain, logits: Floats, *, batch_size: int = 16) -> Iterator[Prediction]:
    """Step by step, the predictions of a stream without features."""
    for start in range(0, len(logits), batch_size):
        raw = logits[start : start + batch_size]
        yield gain.step(np.zeros((len(raw), 3), dtype=raw.dtype), raw)


def learn(gain: Gain, logits: Floats, *, batch_size: int = 16) -> None:
    """All steps of it."""
    for _ in stream(gain, logits, batch_size=batch_size):
        pass


def answers(results: Sequence[Prediction]) -> Labels:
    """The adapted labels (N,)."""
    return np.concatenate([result.probs for result in results]).argmax(axis=1)


def source_answers(results: Sequence[Prediction]) -> Labels:
    """The source's labels (N,)."""
    return np.concatenate([result.source_log_probs for result in results]).argmax(axis=1)
