"""A Gain with some history, and what its state and predictions must satisfy."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from gaussian_world import gaussian_world
from numpy.testing import assert_allclose

from gain_core import PRESETS, Gain, Prediction, ShiftConfig
from gain_core.records import arrays_of

K, D = 10, 8
# Of a `gaussian_world`; a guess from the head would read it on the host, once.
SKEWNESS = (0.05, 0.15)


def make_gain(head: Any, name: str, *, update_every: int = 1, warmup_frames: int = 1) -> Gain:
    """A Gain of a preset that learns at once; the default waits for less evidence than it does."""
    config = PRESETS[name]
    if isinstance(config, ShiftConfig):
        config = replace(config, standard_errors=1.0)
    return Gain(
        head,
        config,
        update_every=update_every,
        warmup_frames=warmup_frames,
        skewness=SKEWNESS,
    )


def taught(name: str, *, update_every: int = 1, dtype: Any = np.float32) -> Gain:
    """A Gain with K = 10 and D = 8 that has learned a correction from 96 frames."""
    world = gaussian_world(K, D, num_batches=6, seed=61)
    gain = make_gain(world.prototypes.astype(dtype), name, update_every=update_every)
    for features, logits, _ in world.batches:
        result = gain.step(features.astype(dtype), logits.astype(dtype))
    gain.flush()
    assert update_every > 16 or np.max(result.strength) > 0.5
    return gain


def one_batch(*, seed: int = 62, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Features (16, 8) and logits (16, 10)."""
    features, logits, _ = gaussian_world(K, D, num_batches=1, seed=seed).batches[0]
    return features.astype(dtype), logits.astype(dtype)


def copies(record: Any) -> dict[str, np.ndarray]:
    """Copies of all arrays of a NumPy record."""
    return {name: np.array(value) for name, value in arrays_of(record).items()}


def fields_of(prediction: Prediction) -> dict[str, Any]:
    """The arrays of a prediction by name."""
    return {item.name: getattr(prediction, item.name) for item in fields(prediction)}


def assert_bitwise(result: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """The same arrays to the last bit."""
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        assert result[name].dtype == value.dtype, name
        assert result[name].tobytes() == value.tobytes(), name


def assert_states_close(
    result: Any, expected: Any, *, atol: float = 1e-9, apart: tuple[str, ...] = ()
) -> None:
    """Every array but those `apart`, over one plus the largest entry that is expected."""
    mine, theirs = copies(result), copies(expected)
    assert mine.keys() == theirs.keys()
    for name in theirs.keys() - set(apart):
        peak = 1.0 + np.max(np.abs(theirs[name]), initial=0.0)
        assert_allclose(mine[name] / peak, theirs[name] / peak, rtol=0, atol=atol, err_msg=name)


def assert_sound(result: Prediction, state: Any) -> None:
    """A distribution, a strength, a finite state."""
    tiny = 1e-12 if result.probs.dtype == np.float64 else 1e-5
    assert_allclose(np.sum(result.probs, axis=1), 1.0, rtol=0, atol=tiny)
    assert np.all((result.strength >= 0) & (result.strength <= 1))
    for name, value in fields_of(result).items():
        assert np.all(np.isfinite(value)), name
    assert bool(result.finite)
    for name, value in copies(state).items():
        assert np.all(np.isfinite(value)), name
    assert np.all(state.variance >= 0)
