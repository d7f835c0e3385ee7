"""A Gain with some history, and what its state must satisfy."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from gaussian_world import gaussian_world
from numpy.testing import assert_allclose

from gain_core import Gain, GainConfig, GainState, Prediction, ShiftState

__all__ = [
    "assert_bitwise",
    "assert_sound",
    "assert_states_close",
    "every_array",
    "learned",
    "one_batch",
    "taught",
]


def every_array(state: GainState) -> dict[str, np.ndarray]:
    """Copies of all arrays of a NumPy state, derived ones included."""
    return {
        f"{record.name}.{item.name}": np.array(getattr(getattr(state, record.name), item.name))
        for record in fields(state)
        for item in fields(getattr(state, record.name))
    }


def learned(state: GainState) -> Any:
    """What predictions read of a state, in its library: the shift, or the class centres."""
    return state.shift.vector if isinstance(state, ShiftState) else state.centers


def assert_bitwise(result: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """The same arrays to the last bit."""
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        assert result[name].dtype == value.dtype, name
        assert result[name].tobytes() == value.tobytes(), name


def assert_states_close(result: GainState, expected: GainState, atol: float = 1e-9) -> None:
    """Every array, over one plus the largest entry that is expected."""
    mine, theirs = every_array(result), every_array(expected)
    assert mine.keys() == theirs.keys()
    for name, wanted in theirs.items():
        peak = 1.0 + np.max(np.abs(wanted), initial=0.0)
        assert mine[name].shape == wanted.shape, name
        assert_allclose(mine[name] / peak, wanted / peak, rtol=0, atol=atol, err_msg=name)


def assert_sound(result: Prediction, state: GainState) -> None:
    """A distribution, a strength, a finite state."""
    tiny = 1e-12 if result.probs.dtype == np.float64 else 1e-5
    assert_allclose(np.sum(result.probs, axis=1), 1.0, rtol=0, atol=tiny)
    assert np.all((result.strength >= 0) & (result.strength <= 1))
    for item in fields(result):
        assert np.all(np.isfinite(getattr(result, item.name))), item.name
    assert bool(result.finite)
    for name, value in every_array(state).items():
        assert np.all(np.isfinite(value)), name
    if isinstance(state, ShiftState):
        assert state.shift.variance >= 0
        assert 0 <= state.shift.trust <= 1
        return
    assert np.all(state.geometry.variance > 0)
    assert_allclose(np.sum(np.exp(state.geometry.log_prior)), 1.0, rtol=1e-4)


def taught(
    config: GainConfig | None = None, *, update_every: int = 1, dtype: Any = np.float32
) -> Gain:
    """A Gain with K = 6 and D = 4 that has learned from 80 frames."""
    world = gaussian_world(6, 4, num_batches=5, seed=61)
    gain = Gain(world.prototypes.astype(dtype), config, update_every=update_every)
    for features, logits, _ in world.batches:
        gain.step(features.astype(dtype), logits.astype(dtype))
    return gain


def one_batch(*, seed: int = 62, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Features (16, 4) and logits (16, 6)."""
    features, logits, _ = gaussian_world(6, 4, num_batches=1, seed=seed).batches[0]
    return features.astype(dtype), logits.astype(dtype)
