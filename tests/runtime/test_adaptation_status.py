"""The status record, and the one line a tripped guard is worth."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from gain_core import Gain, GainConfig, init_state, state_from_arrays, state_to_arrays
from gain_runtime.adaptation_status import status_of_state
from gain_runtime.adapter import Adapter
from gain_runtime.artifact import load_artifact
from gain_runtime.state_file import save_state

RNG = np.random.default_rng(2)
HEAD = RNG.normal(size=(6, 4)).astype(np.float32)


def test_a_fresh_state_has_learned_nothing():
    gain = Gain(HEAD)
    status = status_of_state(gain.state, frames=gain.frames, guarded=True)
    assert (status.frames, status.guard, status.guard_trips) == (0, "watching", 0)
    assert (status.shift_nats, status.trust) == (0.0, 0.0)


def test_a_shift_of_the_logits_shows_in_nats():
    gain = Gain(HEAD)
    offset = np.array([3.0, -3.0, 0.0, 0.0, 0.0, 0.0], dtype=np.float32)
    for _ in range(40):
        labels = RNG.permutation(np.repeat(np.arange(6), 8))
        logits = 6.0 * np.eye(6, dtype=np.float32)[labels] + offset
        gain.step(np.zeros((48, 4), np.float32), logits)
    status = status_of_state(gain.state, frames=gain.frames, guarded=True)
    assert status.frames == 40 * 48
    assert status.shift_nats == pytest.approx(np.sqrt(3.0), rel=0.2)
    assert 0.8 < status.trust <= 1.0


def test_gaussians_have_no_guard_to_report():
    config = GainConfig.preset("paper")
    gain = Gain(HEAD, config)
    status = status_of_state(gain.state, frames=3, guarded=config.guard)
    assert (status.frames, status.guard, status.trust) == (3, "off", 0.0)
    assert gain.guard_trips is None


class Certain:
    """A session that is sure of class 0 on every frame."""

    provider = "test"
    stream = None

    def __init__(self, artifact):
        self.artifact = artifact

    def infer(self, pixel_values):
        K, D = self.artifact.head_weight.shape
        logits = np.zeros((len(pixel_values), K), np.float32)
        logits[:, 0] = 6.0
        return np.zeros((len(pixel_values), D), np.float32), logits


def poisoned(adapter, num_classes):
    """A state that has believed in a shift of class 0 for very long, over all classes alike.

    Its frames lean as those of many classes do.
    """
    state = init_state(adapter.artifact.head_weight, adapter.config)
    frames = 1e6
    moved = np.full(num_classes, -9.0 / (num_classes - 1), np.float32)
    moved[0] = 9.0
    sums = replace(
        state.sums,
        window_count=np.full(5, frames, np.float32),
        window_logits=np.tile(np.float32(frames) * moved, (5, 1)),
        window_powers=np.tile(np.float32(frames * 2.0) * moved**2, (5, 1)),
        window_mass=np.full((5, num_classes), frames / num_classes, np.float32),
        window_lean=np.full(5, 5.0 * frames, np.float32),
        window_range=np.full(5, 10.0 * frames, np.float32),
    )
    arrays = state_to_arrays(replace(state, sums=sums))
    return state_from_arrays(arrays, prototypes=adapter.artifact.head_weight, config=adapter.config)


def test_a_trip_is_logged_once_and_the_source_answers(tiny_artifact, tmp_path, caplog):
    artifact = load_artifact(tiny_artifact)
    adapter = Adapter(Certain(artifact), GainConfig())
    num_classes = len(artifact.head_weight)
    path = tmp_path / "poisoned.safetensors"
    save_state(
        path,
        poisoned(adapter, num_classes),
        config=adapter.config,
        artifact_sha256=artifact.sha256,
        frames=1_000_000,
    )
    adapter.load_state(path)
    image = np.zeros((8, 8, 3), np.uint8)
    assert np.argmax(adapter.step([image]).probs[0]) != 0
    with caplog.at_level(logging.WARNING):
        for _ in range(34):
            last = adapter.step([image] * 16)
    status = adapter.status()
    assert (status.guard, status.guard_trips) == ("holding", 1)
    assert 0 < status.guard_hold_frames <= 256
    lines = [line for line in caplog.messages if line.startswith("guard:")]
    assert len(lines) == 1
    assert "256 frames (trip 1)" in lines[0]
    np.testing.assert_array_equal(last.probs, last.source_probs)
