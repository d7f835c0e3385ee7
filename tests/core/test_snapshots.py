"""Freezing, resetting and snapshots: nothing is shared with what goes on learning."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from gaussian_world import gaussian_world
from numpy.testing import assert_array_equal
from taught_gain import assert_bitwise, every_array, one_batch, taught

from gain_core import (
    Gain,
    GainConfig,
    init_state,
    predict,
    state_to_arrays,
    update,
)

NAMES = ("tracked", "balanced", "paper", "paper-l2")
PRESETS = [pytest.param(GainConfig.preset(name), id=name) for name in NAMES]


@pytest.mark.parametrize("config", PRESETS)
def test_a_frozen_gain_predicts_and_does_not_learn(config):
    gain = taught(config)
    expected = gain.predict(*one_batch())
    before = every_array(gain.state)
    gain.freeze()
    assert gain.frozen
    for seed in (70, 71, 62):
        result = gain.step(*one_batch(seed=seed))
    assert_array_equal(result.probs, expected.probs)
    assert_bitwise(every_array(gain.state), before)
    assert (gain.frames, gain.pending_frames) == (80, 0)
    gain.unfreeze()
    assert not gain.frozen
    gain.step(*one_batch())
    assert gain.frames == 96


@pytest.mark.parametrize("config", PRESETS)
def test_pending_frames_outlive_a_freeze(config):
    world = gaussian_world(6, 4, num_batches=3, batch_sizes=(8,), seed=69)
    first, ignored, second = ((z, logits) for z, logits, _ in world.batches)
    frozen, plain = (Gain(world.prototypes, config, update_every=16) for _ in range(2))
    frozen.step(*first)
    frozen.freeze()
    frozen.step(*ignored)
    assert (frozen.frames, frozen.pending_frames) == (0, 8)
    frozen.unfreeze()
    frozen.step(*second)
    plain.step(*first)
    plain.step(*second)
    assert frozen.frames == plain.frames == 16
    assert_bitwise(every_array(frozen.state), every_array(plain.state))


@pytest.mark.parametrize("update_every", [1, 40])
@pytest.mark.parametrize("config", PRESETS)
def test_reset_returns_to_the_source_bit_by_bit(config, update_every):
    world = gaussian_world(6, 4, num_batches=6, seed=72)
    prototypes = world.prototypes.astype(np.float32)
    gain = Gain(prototypes, config, update_every=update_every)
    fresh = every_array(gain.state)
    assert_bitwise(fresh, every_array(init_state(prototypes, config)))
    runs = []
    for _ in range(2):
        batches = [(z.astype(np.float32), s.astype(np.float32)) for z, s, _ in world.batches]
        runs.append([gain.step(z[:11], s[:11]).probs for z, s in batches])
        end = every_array(gain.state)
        assert gain.pending_frames == (0 if update_every == 1 else 22)
        gain.reset()
        assert (gain.frames, gain.pending_frames) == (0, 0)
        assert_bitwise(every_array(gain.state), fresh)
    for first, second in zip(*runs, strict=True):
        assert_array_equal(first, second)
    assert any(end[name].tobytes() != fresh[name].tobytes() for name in fresh)


@pytest.mark.parametrize("update_every", [1, 5])
@pytest.mark.parametrize("config", PRESETS)
def test_a_snapshot_does_not_change_when_the_gain_goes_on(config, update_every):
    gain = taught(config, update_every=update_every)
    snapshot = gain.state
    kept = every_array(snapshot)
    kept_arrays = {name: value.copy() for name, value in state_to_arrays(snapshot).items()}
    for seed in range(73, 79):
        gain.step(*one_batch(seed=seed))
    gain.flush()
    assert_bitwise(every_array(snapshot), kept)
    assert_bitwise(state_to_arrays(snapshot), kept_arrays)
    assert any(
        value.tobytes() != kept[name].tobytes() for name, value in every_array(gain.state).items()
    )


@pytest.mark.parametrize("config", PRESETS)
def test_writing_to_a_snapshot_does_not_reach_the_gain(config):
    gain = taught(config)
    before = every_array(gain.state)
    state = gain.state
    for record in fields(state):
        for item in fields(getattr(state, record.name)):
            value = getattr(getattr(state, record.name), item.name)
            if isinstance(value, np.ndarray) and value.flags.writeable:
                value[...] = 0
    assert_bitwise(every_array(gain.state), before)


@pytest.mark.parametrize("config", PRESETS)
def test_a_loaded_state_is_not_changed_and_replays_exactly(config):
    gain = taught(config)
    snapshot = gain.state
    kept = every_array(snapshot)
    first = [gain.step(*one_batch(seed=seed)).probs for seed in range(80, 84)]
    gain.load_state(snapshot, frames=80)
    second = [gain.step(*one_batch(seed=seed)).probs for seed in range(80, 84)]
    for one, two in zip(first, second, strict=True):
        assert_array_equal(one, two)
    assert_bitwise(every_array(snapshot), kept)
    assert gain.frames == 80 + 64


@pytest.mark.parametrize("config", PRESETS)
def test_update_does_not_touch_its_input_state(config):
    world = gaussian_world(6, 4, num_batches=4, seed=85)
    state = init_state(world.prototypes, config)
    for features, logits, _ in world.batches:
        before = every_array(state)
        result = predict(features, logits, state, config=config)
        kept = {item.name: np.array(getattr(result, item.name)) for item in fields(result)}
        after = update(features, result, state, prototypes=world.prototypes, config=config)
        assert_bitwise(every_array(state), before)
        for name, value in kept.items():
            assert_array_equal(getattr(result, name), value, err_msg=name)
        again = update(features, result, state, prototypes=world.prototypes, config=config)
        assert_bitwise(every_array(after), every_array(again))
        state = after


@pytest.mark.parametrize("config", PRESETS)
def test_reused_input_buffers_do_not_reach_pending_frames(config):
    """A session may hand out the same output buffers for every frame."""
    world = gaussian_world(6, 4, num_batches=6, batch_sizes=(3,), seed=86)
    prototypes = world.prototypes.copy()
    careful = Gain(world.prototypes, config, update_every=9)
    reusing = Gain(prototypes, config, update_every=9)
    prototypes[...] = 1e6
    z, scores = np.empty((3, 4)), np.empty((3, 6))
    results = []
    for features, logits, _ in world.batches:
        careful.step(features, logits)
        z[...], scores[...] = features, logits
        results.append((reusing.step(z, scores), reusing.predict(z, scores).probs.copy()))
        z[...], scores[...] = -7.0, 3.0
    assert_bitwise(every_array(reusing.state), every_array(careful.state))
    assert reusing.frames == 18


@pytest.mark.parametrize("config", PRESETS)
def test_predictions_are_not_overwritten_by_later_ones(config):
    gain = taught(config)
    first = gain.step(*one_batch(seed=87))
    kept = {item.name: np.array(getattr(first, item.name)) for item in fields(first)}
    for seed in range(88, 91):
        gain.step(*one_batch(seed=seed))
    for name, value in kept.items():
        assert_array_equal(getattr(first, name), value, err_msg=name)
