"""What the tracked shift must and must not follow, whatever the numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gaussian_world import gaussian_world
from logit_streams import learn, logits_of, stream
from numpy.testing import assert_allclose, assert_array_equal
from scaled_world import scaled_world
from taught_gain import every_array

from gain_core import Gain, GainConfig

TRACKED = GainConfig()


def head(num_classes: int = 12) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(num_classes, 20))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0], ids=["black", "unsure", "sure"])
def test_one_frame_ten_thousand_times_is_the_source_to_the_last_bit(scale, dtype):
    """A camera that looks at a wall; `black` are equal logits."""
    row = scale * np.random.default_rng(3).normal(size=(1, 12))
    gain = Gain(head().astype(dtype), TRACKED)
    for result in stream(gain, row.repeat(10_000, axis=0).astype(dtype), batch_size=8):
        assert_array_equal(result.log_probs, result.source_log_probs)


# Of frames that are no draws.
DEPENDENT = replace(TRACKED, independence_test=False)


@pytest.mark.parametrize(
    ("config", "most"),
    [
        pytest.param(replace(DEPENDENT, match_scale=False), 0.05, id="means"),
        # Until the shortest memory holds that frame alone, the deviations are taken for a domain's.
        pytest.param(DEPENDENT, 0.3, id="deviations-too"),
    ],
)
def test_one_frame_after_a_healthy_stream_is_not_followed(config, most):
    labels = np.random.default_rng(4).integers(0, 12, 2000)
    gain = Gain(head(), config)
    learn(gain, logits_of(labels, seed=5))
    row = 2.0 * np.random.default_rng(3).normal(size=(1, 12))
    for index, result in enumerate(stream(gain, row.repeat(4000, axis=0), batch_size=8)):
        off = np.abs(result.probs - np.exp(result.source_log_probs))
        assert np.max(off) < (most if index < 64 else 0.05)
        assert np.argmax(result.probs[0]) == np.argmax(row)
    assert gain.state.guard.trips == 0


def test_one_frame_after_independent_ones_keeps_its_label_and_is_let_go():
    """Its steps are nothing; the mean of the steps falls with the longest memory."""
    gain = Gain(head(), TRACKED)
    learn(gain, logits_of(np.random.default_rng(4).integers(0, 12, 2000), seed=5))
    assert gain.state.shift.independence == 1.0
    row = 2.0 * np.random.default_rng(3).normal(size=(1, 12))
    for index, result in enumerate(stream(gain, row.repeat(2000, axis=0), batch_size=8)):
        assert np.argmax(result.probs[0]) == np.argmax(row)
        if index >= 30:
            assert gain.state.shift.independence == 0.0
        off = np.max(np.abs(result.probs - np.exp(result.source_log_probs)))
        assert off < (0.2 if index >= 30 else 1.0)
    assert off < 0.02
    assert gain.state.guard.trips == 0


@pytest.mark.parametrize("batch_size", [1, 16])
def test_one_class_for_ten_thousand_frames_keeps_the_sources_labels(batch_size):
    num_frames = 2_000 if batch_size == 1 else 10_000
    labels = np.full(num_frames, 3)
    gain, wrong = Gain(head(), TRACKED), 0
    for result in stream(gain, logits_of(labels, seed=6), batch_size=batch_size):
        source = np.argmax(result.source_log_probs, axis=1)
        wrong += np.sum(np.argmax(result.probs, axis=1) != source)
    assert wrong <= 0.005 * num_frames
    assert gain.state.guard.trips == 0


@pytest.mark.parametrize(
    ("num_frames", "least"), [(256, 0.6), (1024, 0.9), (4096, 0.95)], ids=["256", "1k", "4k"]
)
def test_a_constant_offset_of_a_balanced_stream_is_recovered(num_frames, least):
    """The share of it that is found grows with the frames seen."""
    rng = np.random.default_rng(7)
    offset = rng.normal(size=12)
    offset -= np.mean(offset)
    labels = rng.permutation(np.arange(num_frames) % 12)
    gain = Gain(head(), replace(TRACKED, half_life=np.inf))
    *_, result = stream(gain, logits_of(labels, seed=8) + offset)
    found = gain.state.shift.vector @ offset / (offset @ offset)
    assert least < found < 1.1
    off = gain.state.shift.vector - found * offset
    assert np.linalg.norm(off) < 0.5 * np.linalg.norm(offset)
    assert np.max(np.abs(result.log_probs - result.source_log_probs)) > 0.1


def test_a_recovered_offset_brings_the_accuracy_back():
    rng = np.random.default_rng(9)
    offset = 2.0 * rng.normal(size=12)
    labels = rng.integers(0, 12, 4000)
    logits = logits_of(labels, seed=10)
    results = list(stream(Gain(head(), TRACKED), logits + offset))[125:]
    truth = labels[2000:]
    adapted = np.concatenate([result.probs for result in results]).argmax(axis=1)
    source = np.concatenate([result.source_log_probs for result in results]).argmax(axis=1)
    undisturbed = np.mean(logits[2000:].argmax(axis=1) == truth)
    assert np.mean(source == truth) < undisturbed - 0.15
    assert np.mean(adapted == truth) > undisturbed - 0.03


def test_a_constant_added_to_all_logits_of_a_frame_changes_nothing():
    prototypes, batches = scaled_world(10, 20, num_batches=60)
    rng = np.random.default_rng(12)
    # A mixture of many classes in few dimensions leans less than a network's.
    plain, moved = (Gain(prototypes, TRACKED, asymmetry=(0.0, 0.2)) for _ in range(2))
    for z, logits in batches:
        constant = 100.0 * rng.normal(size=(len(z), 1))
        expected = plain.step(z, logits)
        result = moved.step(z, logits + constant)
        assert_allclose(result.probs, expected.probs, rtol=0, atol=1e-9)
    for name, wanted in every_array(plain.state).items():
        assert_allclose(every_array(moved.state)[name], wanted, rtol=1e-9, atol=1e-9, err_msg=name)
    assert plain.state.shift.trust > 0.1
    assert np.max(np.abs(plain.state.shift.stretch - 1.0)) > 0.005


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_shrinkage_that_lets_nothing_move_is_the_source_to_the_last_bit(dtype):
    config = replace(TRACKED, shrinkage=1e9)
    world = gaussian_world(7, 5, num_batches=80, seed=13)
    gain = Gain(world.prototypes.astype(dtype), config)
    for z, logits, _ in world.batches:
        result = gain.step(z.astype(dtype), (logits + np.arange(7)).astype(dtype))
        assert_array_equal(result.log_probs, result.source_log_probs)
        assert_array_equal(result.strength, 0.0)
    assert_array_equal(gain.state.shift.vector, 0.0)
    assert gain.state.sums.window_count[0] > 0


def test_features_are_not_read():
    world = gaussian_world(6, 4, num_batches=40, seed=14)
    one, other = (Gain(world.prototypes, TRACKED) for _ in range(2))
    for z, logits, _ in world.batches:
        expected = one.step(z, logits + np.arange(6))
        result = other.step(np.zeros((len(z), 9)), logits + np.arange(6))
        assert_array_equal(result.log_probs, expected.log_probs)


def test_a_short_memory_follows_a_jump_and_the_long_ones_keep_calm():
    """After a jump the shortest memory leads; in calm its noise does not get through."""
    rng = np.random.default_rng(15)
    labels = rng.integers(0, 12, 4000)
    offsets = np.repeat([[0.0], [1.0]], 2000, axis=0) * 3.0 * rng.normal(size=12)
    gain = Gain(head(), TRACKED)
    shifts = []
    for _ in stream(gain, logits_of(labels, seed=16) + offsets):
        shifts.append(gain.state.shift.vector)
    wanted = offsets[-1] - np.mean(offsets[-1])
    before, soon = np.stack(shifts[60:125]), shifts[125 + 16]
    assert np.max(np.abs(before)) < 0.5
    # 256 frames after the jump three quarters of it are tracked.
    assert soon @ wanted / (wanted @ wanted) > 0.75
