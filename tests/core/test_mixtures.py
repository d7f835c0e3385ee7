"""What tells frames of many classes from frames of one: the asymmetry about the mean before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gaussian_world import gaussian_world
from logit_streams import answers, labels_of, learn, logits_of, source_answers, stream
from numpy.testing import assert_allclose, assert_array_equal
from taught_gain import assert_bitwise, every_array

from gain_core import (
    ConfigError,
    Gain,
    GainConfig,
    init_state,
    predict,
    prepare_prototypes,
    update,
)
from gain_core.prototypes import DEFAULT_ASYMMETRY
from gain_core.shift import asymmetry_of

TRACKED = GainConfig()
UNTESTED = replace(TRACKED, mixture_test=False)
EARLIER = replace(TRACKED, mixture_test=False, match_scale=False)


def offsets(num_domains: int, *, seed: int, num_classes: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num_domains, num_classes))


# --- frames of one class, and of all ---


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("batch_size", [16, 50])
def test_one_class_over_several_domains_is_the_source_to_the_last_bit(batch_size, dtype):
    """The source is often wrong, so that its answers are of many classes all the same."""
    labels = np.full(5000, 3)
    moved = logits_of(labels, seed=1, num_classes=20, signal=1.5)
    moved += np.repeat(0.5 * offsets(5, seed=2, num_classes=20), 1000, axis=0)
    head = np.eye(20, 24, dtype=dtype)
    results = list(stream(Gain(head, TRACKED), moved.astype(dtype), batch_size=batch_size))
    for result in results:
        assert_array_equal(result.log_probs, result.source_log_probs)
    earlier = list(stream(Gain(head, EARLIER), moved.astype(dtype), batch_size=batch_size))
    source = np.mean(source_answers(earlier) == labels)
    assert 0.2 < source < 0.6
    assert np.mean(answers(earlier) == labels) < source - 0.05


def test_a_mixture_is_corrected_as_well_as_without_the_test():
    labels = labels_of(4000, seed=3)
    moved = logits_of(labels, seed=4) + 2.0 * offsets(1, seed=5)
    accuracy = {}
    for name, config in (("tested", TRACKED), ("untested", UNTESTED)):
        results = list(stream(Gain(np.eye(12, 20), config), moved))
        accuracy[name] = np.mean(answers(results) == labels)
        source = np.mean(source_answers(results) == labels)
    assert accuracy["tested"] > source + 0.1
    assert accuracy["tested"] > accuracy["untested"] - 0.005


def test_the_asymmetry_is_that_of_the_frames_about_the_mean():
    """Of one class next to nothing, of all as much as the frames' own, of a memory the least."""
    many = labels_of(3000, seed=6)
    logits = {
        "one": logits_of(np.full(3000, 3), seed=7),
        "all": logits_of(many, seed=7),
        "all, then one": logits_of(np.where(np.arange(3000) < 2000, many, 3), seed=7),
    }
    found = {}
    for name, raw in logits.items():
        gain = Gain(np.eye(12, 20), TRACKED)
        learn(gain, raw)
        found[name] = asymmetry_of(gain.state.sums)
        assert np.all(np.diff(found[name]) >= 0)
    # The shortest memory holds some twenty frames.
    assert np.all(np.abs(found["one"]) < [0.06, 0.03, 0.02, 0.02, 0.02])
    y = logits["all"] - np.mean(logits["all"], axis=1, keepdims=True)
    y -= np.mean(y, axis=0)
    highest, lowest = np.max(y, axis=1), np.min(y, axis=1)
    expected = np.sum(highest + lowest) / np.sum(highest - lowest)
    assert_allclose(found["all"][-1], expected, rtol=0.05)
    assert found["all, then one"][0] < 0.05 < found["all, then one"][-1]


def test_measured_asymmetries_move_the_threshold():
    """The same stream is a mixture to one network, and a class's own scatter to another."""
    moved = logits_of(labels_of(2000, seed=8), seed=9) + 2.0 * offsets(1, seed=10)
    trust = []
    for pair in ((0.0, 0.3), DEFAULT_ASYMMETRY, (0.4, 0.8)):
        gain = Gain(np.eye(12, 20), TRACKED, asymmetry=pair)
        learn(gain, moved)
        trust.append(float(gain.state.shift.trust))
    assert trust[0] > 0.9
    assert trust[1] > 0.9
    assert trust[2] == 0.0


@pytest.mark.parametrize("config", [TRACKED, UNTESTED], ids=["tested", "untested"])
def test_two_classes_are_not_tested(config):
    """One logit is the other's negative: no asymmetry; nothing is divided by."""
    labels = labels_of(2000, seed=11, num_classes=2)
    moved = logits_of(labels, seed=12, num_classes=2) + np.array([1.5, -1.5])
    with np.errstate(all="raise"):
        gain = Gain(np.eye(2, 5), config)
        results = list(stream(gain, moved))
    assert_array_equal(gain.state.shift.stretch, 1.0)
    assert gain.state.shift.trust > 0.9
    assert np.mean(answers(results) == labels) > np.mean(source_answers(results) == labels) + 0.1


def test_three_classes_are_tested():
    noise = logits_of(np.full(3000, 1), seed=13, num_classes=3, signal=0.7)
    for config, still in ((TRACKED, True), (EARLIER, False)):
        gain = Gain(np.eye(3, 5), config)
        results = list(stream(gain, noise))
        same = [np.array_equal(result.log_probs, result.source_log_probs) for result in results]
        assert all(same) == still
    labels = labels_of(3000, seed=14, num_classes=3)
    gain = Gain(np.eye(3, 5), TRACKED)
    offset = np.array([2.0, 0.0, -2.0])
    results = list(stream(gain, logits_of(labels, seed=15, num_classes=3) + offset))
    assert gain.state.shift.trust > 0.9
    assert np.mean(answers(results) == labels) > np.mean(source_answers(results) == labels) + 0.1


# --- which mean a frame is measured from ---


def by_hand(logits: np.ndarray, mean: np.ndarray) -> tuple[float, float]:
    """Lean and range of some frames about a mean."""
    y = logits - np.mean(logits, axis=1, keepdims=True) - mean
    highest, lowest = np.max(y, axis=1), np.min(y, axis=1)
    return float(np.sum(highest + lowest)), float(np.sum(highest - lowest))


@pytest.mark.parametrize("sizes", [[16], [4], [1, 5, 10]], ids=["whole", "quarters", "uneven"])
def test_pending_batches_share_the_mean_before_them(sizes):
    logits = logits_of(labels_of(48, seed=25), seed=26)
    gain = Gain(np.eye(12, 20), replace(TRACKED, half_life=np.inf), update_every=16)
    lean = span = 0.0
    for start in (0, 16, 32):
        cut = np.cumsum(sizes * 4)
        for raw in np.split(logits[start : start + 16], cut[cut < 16]):
            gain.step(np.zeros((len(raw), 3)), raw)
        if start:
            # Frames before the first update have no mean to be measured from.
            before = logits[:start] - np.mean(logits[:start], axis=1, keepdims=True)
            added = by_hand(logits[start : start + 16], np.mean(before, axis=0))
            lean, span = lean + added[0], span + added[1]
        assert gain.frames == start + 16
        assert_allclose(gain.state.sums.window_lean, lean, rtol=1e-9, atol=1e-9)
        assert_allclose(gain.state.sums.window_range, span, rtol=1e-9, atol=1e-9)


def test_frames_learned_one_by_one_have_a_mean_each():
    logits = logits_of(labels_of(16, seed=27), seed=28)
    single, whole = (
        Gain(np.eye(12, 20), replace(TRACKED, half_life=np.inf), update_every=every)
        for every in (1, 16)
    )
    for gain in (single, whole):
        learn(gain, logits, batch_size=1)
    lean = span = 0.0
    for index in range(1, 16):
        before = logits[:index] - np.mean(logits[:index], axis=1, keepdims=True)
        added = by_hand(logits[index : index + 1], np.mean(before, axis=0))
        lean, span = lean + added[0], span + added[1]
    assert_allclose(single.state.sums.window_lean, lean, rtol=1e-9)
    assert_allclose(single.state.sums.window_range, span, rtol=1e-9)
    assert_array_equal(whole.state.sums.window_range, 0.0)


def test_after_a_trip_of_the_guard_there_is_no_mean():
    """Everything learned is dropped, the mean with it: the next batch is a first one."""
    gain = Gain(np.eye(4, 6), replace(EARLIER, shrinkage=0.0, label_draws=0.0, half_life=400.0))
    logits = logits_of(np.zeros(2000, dtype=int), seed=29, num_classes=4)
    before = 0
    for raw in np.split(logits, 250):
        gain.step(np.zeros((8, 3)), raw)
        if gain.state.guard.trips > before:
            break
    assert gain.state.guard.trips == 1
    gain.step(np.zeros((8, 3)), logits[:8])
    assert_array_equal(gain.state.sums.window_count, 8.0)
    assert_array_equal(gain.state.sums.window_range, 0.0)


# --- what the source's own asymmetries may be ---


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param((0.4, 0.03), id="turned-round"),
        pytest.param((0.2, 0.2), id="equal"),
        pytest.param((np.nan, 0.4), id="nan-single"),
        pytest.param((0.03, np.nan), id="nan-mixed"),
        pytest.param((0.03, np.inf), id="infinite"),
        pytest.param((-np.inf, 0.4), id="minus-infinite"),
        pytest.param((0.03, 0.2, 0.4), id="three"),
        pytest.param(("low", "high"), id="words"),
        pytest.param(0.3, id="one-number"),
    ],
)
def test_asymmetries_that_cannot_be_are_refused(pair):
    message = (
        r"^asymmetry: expected two finite numbers, .* the second the larger, got .*; "
        r"measure it with gain-export --calibrate$"
    )
    with pytest.raises(ConfigError, match=message):
        prepare_prototypes(np.eye(3, 4), TRACKED, asymmetry=pair)
    with pytest.raises(ConfigError, match=message):
        Gain(np.eye(3, 4), TRACKED, asymmetry=pair)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_asymmetries_are_kept_apart_and_in_the_heads_dtype(dtype):
    rows = np.eye(3, 4, dtype=dtype)
    kept = np.float64 if dtype == np.float64 else np.float32
    for given_pair, expected in (
        (None, DEFAULT_ASYMMETRY),
        ((0.0, 0.25), (0.0, 0.25)),
        ((0.1, 0.105), (0.1, 0.12)),
    ):
        prepared = prepare_prototypes(rows, TRACKED, asymmetry=given_pair)
        assert prepared.asymmetry.dtype == kept
        assert_allclose(prepared.asymmetry, expected, rtol=1e-6)
    assert prepare_prototypes(prepared, TRACKED, asymmetry=(0.0, 0.9)) is prepared


def test_a_record_of_the_head_keeps_its_asymmetries_through_a_stream():
    """By way of `Gain` and by way of the functions."""
    world = gaussian_world(7, 5, num_batches=30, seed=41)
    prepared = prepare_prototypes(world.prototypes, TRACKED, asymmetry=(0.0, 0.1))
    gain = Gain(world.prototypes, TRACKED, asymmetry=(0.0, 0.1))
    state = init_state(prepared, TRACKED)
    for features, logits, _ in world.batches:
        raw = logits + np.arange(7.0)
        result = predict(features, raw, state, config=TRACKED)
        state = update(features, result, state, prototypes=prepared, config=TRACKED)
        expected = gain.predict(features, raw)
        gain.update(features, expected)
        assert_array_equal(expected.probs, result.probs)
    assert state.shift.trust > 0.5
    assert_bitwise(every_array(gain.state), every_array(state))
