"""The prior on the classes: its closed form, what it brings under label shift, and its limits."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from compared_steps import Tolerance, assert_step_matches
from numpy.testing import assert_allclose, assert_array_equal
from shift_oracle import ShiftOracle
from tailed_world import ASYMMETRY, tailed_world

from gain_core import Gain, GainConfig, class_prior, predict
from gain_core.class_prior import MOST_SHARE, SHARE_NOISE, SHARE_POWER, log_class_prior
from gain_core.guard import GuardSums, observe
from gain_core.shift import SHARE_MEMORY, ShiftSums
from gain_core.step import add_up, advance_shift, collect

TRACKED = GainConfig()
WITHOUT = replace(TRACKED, class_prior=False)
BOUND = SHARE_POWER * np.log(MOST_SHARE)
FLOAT64 = Tolerance(probs=1e-9, scores=1e-9, sums=1e-9)
FLOAT32 = Tolerance(probs=1e-4, scores=1e-3, sums=1e-4)


def accuracies(world, *gains):
    """Shares of right labels: the source's, then of every `Gain`."""
    right, frames = np.zeros(1 + len(gains)), 0
    for features, logits, labels in world.batches:
        results = [gain.step(features, logits) for gain in gains]
        chosen = [results[0].source_log_probs, *(result.probs for result in results)]
        right += [np.sum(np.argmax(rows, axis=1) == labels) for rows in chosen]
        frames += len(labels)
    return right / frames


# --- closed form ---


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("count", [0.0, 1.0, 1e6])
def test_equal_shares_expect_nothing(dtype, count):
    mass = np.full(8, count / 8, dtype=dtype)
    assert_array_equal(log_class_prior(mass, np.asarray(count, dtype=dtype)), np.zeros(8))


def test_shares_that_chance_explains_expect_nothing():
    rng = np.random.default_rng(2)
    counts = rng.multinomial(200, np.full(10, 0.1)).astype(np.float64)
    assert np.ptp(counts) > 10
    assert_array_equal(log_class_prior(counts, np.asarray(200.0)), np.zeros(10))
    # So many frames do not differ by chance, but no more than a network's mistakes may.
    many = 10_000.0 * (0.1 + 0.9 * np.sqrt(SHARE_NOISE / 100) * np.array([1.0, -1.0] * 5))
    assert_array_equal(log_class_prior(many, np.asarray(10_000.0)), np.zeros(10))


def test_shares_are_shrunk_and_squared():
    shares = np.array([0.16, 0.06, 0.11, 0.09, 0.13, 0.07, 0.1, 0.08, 0.12, 0.08])
    count = 4000.0
    kept = 1.0 - (1.0 / count + SHARE_NOISE / 10) / (np.sum(shares**2) - 0.1)
    assert 0.1 < kept < 0.9
    found = log_class_prior(count * shares, np.asarray(count))
    assert_allclose(found, SHARE_POWER * np.log(1.0 + kept * (10 * shares - 1.0)), rtol=1e-12)


def test_no_share_is_told_beyond_the_bound():
    mass = np.array([1e5, 1.0, 1.0, 1.0])
    found = log_class_prior(mass, np.asarray(np.sum(mass)))
    assert_allclose(found, [BOUND, -BOUND, -BOUND, -BOUND], rtol=1e-12)


# --- label shift ---


@pytest.mark.parametrize("seed", [0, 2, 5, 6, 7])
def test_under_label_shift_frequent_classes_are_expected(seed):
    world = tailed_world(num_batches=150, seed=seed)
    gain, without = (Gain(world.prototypes, c, asymmetry=ASYMMETRY) for c in (TRACKED, WITHOUT))
    source, adapted, unexpecting = accuracies(world, gain, without)
    assert adapted > source + 0.01
    assert adapted > unexpecting + 0.015
    log_prior = gain.state.shift.log_prior
    frequent, rare = np.argsort(world.shares)[-2:], np.argsort(world.shares)[:2]
    assert np.all(log_prior[frequent] > 0.4)
    assert np.all(log_prior[rare] < -0.5)
    assert_array_equal(without.state.shift.log_prior, np.zeros(10))


def test_classes_that_come_alike_are_expected_alike():
    world = tailed_world(num_batches=150, imbalance=1.0, seed=2)
    gain, without = (Gain(world.prototypes, c, asymmetry=ASYMMETRY) for c in (TRACKED, WITHOUT))
    _, adapted, unexpecting = accuracies(world, gain, without)
    assert gain.state.sums.share_count > 1000
    assert np.max(np.abs(gain.state.shift.log_prior)) < 0.1
    assert abs(adapted - unexpecting) < 0.005


def test_runs_of_a_class_and_videos_expect_nothing():
    world = tailed_world(num_batches=150, seed=5)
    order = np.argsort(np.concatenate([labels for *_, labels in world.batches]), kind="stable")
    features, logits, _ = zip(*world.batches, strict=True)
    features, logits = (np.concatenate(rows)[order] for rows in (features, logits))
    gain = Gain(world.prototypes, TRACKED, asymmetry=ASYMMETRY)
    for start in range(0, len(order), 16):
        gain.step(features[start : start + 16], logits[start : start + 16])
        assert_array_equal(gain.state.shift.log_prior, np.zeros(10))


def test_the_prior_does_not_confirm_itself(monkeypatch):
    """What is learned is the same whatever the prior makes of the predictions."""
    world = tailed_world(num_batches=80, seed=5)
    unguarded = replace(TRACKED, guard=False)
    states, probs = [], []
    for power in (SHARE_POWER, 8.0 * SHARE_POWER):
        monkeypatch.setattr(class_prior, "SHARE_POWER", power)
        gain = Gain(world.prototypes, unguarded, asymmetry=ASYMMETRY)
        probs.append([gain.step(features, logits).probs for features, logits, _ in world.batches])
        states.append(gain.state)
    assert np.max(np.abs(probs[0][-1] - probs[1][-1])) > 0.1
    for item in fields(ShiftSums):
        assert_array_equal(getattr(states[0].sums, item.name), getattr(states[1].sums, item.name))


def test_shares_last_longer_than_the_longest_memory():
    world = tailed_world(num_batches=150, seed=5)
    config = replace(TRACKED, half_life=200.0)
    gain = Gain(world.prototypes, config, asymmetry=ASYMMETRY)
    accuracies(world, gain)
    before = gain.state.sums
    # A frame of zeros has no class; what it adds to the shares is 1/K of its weight at most.
    gain.step(np.zeros((100, 16)), np.zeros((100, 10)))
    after = gain.state.sums
    weight = after.share_count - before.share_count * 0.5 ** (100 / (SHARE_MEMORY * 200.0))
    assert 0.0 <= weight <= 100.0
    assert before.share_count * 0.5 ** (100 / 200.0) < after.share_count - weight


# --- the guard ---


def test_the_guard_watches_what_is_answered():
    world = tailed_world(num_batches=60, seed=5)
    gain = Gain(world.prototypes, TRACKED, asymmetry=ASYMMETRY)
    accuracies(world, gain)
    assert np.max(np.abs(gain.state.shift.log_prior)) > 0.5
    apart = 0
    for features, logits, _ in world.batches:
        result = predict(features, logits, gain.state, config=TRACKED)
        evidence = collect(features, result, gain.state, config=TRACKED)
        source = np.argmax(result.source_log_probs, axis=1)
        agreed = np.argmax(result.probs, axis=1) == source
        assert_array_equal(evidence.answered == source, agreed)
        assert observe(evidence).agreement == np.sum(agreed)
        apart += int(np.sum(agreed != (np.argmax(evidence.probs, axis=1) == source)))
    assert apart > 0


def test_a_guard_that_trips_drops_the_shares():
    world = tailed_world(num_batches=80, seed=5)
    gain = Gain(world.prototypes, TRACKED, asymmetry=ASYMMETRY)
    accuracies(world, gain)
    assert gain.state.sums.share_count > 100
    features, logits, _ = world.batches[-1]
    result = predict(features, logits, gain.state, config=TRACKED)
    evidence = collect(features, result, gain.state, config=TRACKED)
    added = add_up(evidence, gain.state, prototypes=world.prototypes, config=TRACKED)
    frames, nothing = np.asarray(3000.0), np.asarray(0.0)
    astray = GuardSums(count=frames, agreement=nothing, confidence=frames)
    after = advance_shift(
        gain.state, replace(added, guard=astray), prototypes=world.prototypes, config=TRACKED
    )
    assert after.guard.trips == 1.0
    assert after.sums.share_count == 0.0
    assert_array_equal(after.sums.share_mass, np.zeros(10))
    assert_array_equal(after.shift.log_prior, np.zeros(10))


# --- against the oracle ---


@pytest.mark.parametrize("update_every", [1, 40])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        pytest.param(np.float64, FLOAT64, id="float64"),
        pytest.param(np.float32, FLOAT32, id="float32"),
    ],
)
def test_predictions_are_the_oracles(dtype, tolerance, update_every):
    world = tailed_world(num_batches=90, seed=5)
    config = replace(TRACKED, num_iters=60 if dtype is np.float64 else 24)
    gain = Gain(
        world.prototypes.astype(dtype), config, asymmetry=ASYMMETRY, update_every=update_every
    )
    oracle = ShiftOracle(world.prototypes, config, asymmetry=ASYMMETRY)
    waiting = []
    for features, logits, _ in world.batches:
        features, logits = features.astype(dtype), logits.astype(dtype)
        learns = gain.pending_frames + len(logits) >= update_every
        result = gain.step(features, logits)
        if learns:
            expected = oracle.step(logits, *waiting)
            waiting = []
        else:
            expected = oracle.predict(logits)
            waiting.append(expected)
        assert_step_matches(result, expected, tolerance, prob_floor=0.0)
    assert_allclose(gain.state.shift.log_prior, oracle.log_prior, rtol=0, atol=tolerance.scores)
    assert np.max(np.abs(oracle.log_prior)) > 0.5
