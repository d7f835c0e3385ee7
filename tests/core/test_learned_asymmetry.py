"""The asymmetry of a network's mixtures, learned from the stream where nobody measured it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from changing_world import ASYMMETRY, ChangingWorld, changing_world
from compared_steps import Tolerance, assert_step_matches
from numpy.testing import assert_allclose, assert_array_equal
from shift_oracle import ShiftOracle

from gain_core import Gain, GainConfig, GainState, prepare_prototypes
from gain_core.prototypes import DEFAULT_ASYMMETRY
from gain_core.shift import (
    GUESS_RAMP,
    LEARNED_RAMP,
    LEAST_SINGLE,
    REFERENCE_WINDOW,
    SINGLE_SHARE,
    SURE_FRAMES,
    asymmetry_of,
    empty_sums,
    forget_and_add,
    known_asymmetry,
)
from gain_core.step import merge_states

TRACKED = GainConfig()
FLOAT64 = Tolerance(probs=1e-9, scores=1e-9, sums=1e-9)
FLOAT32 = Tolerance(probs=1e-4, scores=1e-3, sums=1e-4)
BEGINS, ENDS = LEARNED_RAMP


def learned_from(world: ChangingWorld, config: GainConfig = TRACKED) -> Gain:
    """An adapter that knows nothing of its network and has seen the whole world."""
    gain = Gain(world.prototypes, config)
    for features, logits, _ in world.batches:
        gain.step(features, logits)
    return gain


def with_asymmetry(state: GainState, value: float) -> GainState:
    """The same state, but for what was learned."""
    return replace(state, sums=replace(state.sums, mixed_asymmetry=np.asarray(value)))


def learned_of(
    asymmetry: float, *, few: float = 0.0, count: float = 400.0, before: float = 0.0
) -> float:
    """What is learned of memories that lean so much and whose labels are `few` of a class more."""
    num_classes = 10
    share = np.full(num_classes, (1.0 - np.sqrt(few)) / num_classes)
    share[0] += np.sqrt(few)
    like = np.zeros(1)
    sums = empty_sums(num_classes, like=like)
    memories = np.ones_like(sums.window_count)
    sums = replace(
        sums,
        window_count=count * memories,
        window_lean=asymmetry * memories,
        window_range=memories,
        window_mass=count * memories[:, None] * share,
        mixed_asymmetry=np.asarray(before),
    )
    added = replace(empty_sums(num_classes, like=like), window_count=np.zeros(1))
    return float(forget_and_add(sums, added, config=TRACKED).mixed_asymmetry)


# --- what is learned ---


def test_frames_of_many_classes_show_what_mixtures_have():
    world = changing_world(parts=(60, 0, 0))
    gain = learned_from(world)
    learned = float(gain.state.sums.mixed_asymmetry)
    assert learned > ENDS
    assert learned >= asymmetry_of(gain.state.sums)[REFERENCE_WINDOW]
    prototypes = prepare_prototypes(world.prototypes, TRACKED)
    pair = known_asymmetry(gain.state.sums, prototypes=prototypes)
    assert_allclose(pair, (SINGLE_SHARE * learned, learned), rtol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_one_class_shows_nothing(seed):
    gain = learned_from(changing_world(parts=(0, 150, 0), seed=seed))
    assert gain.state.sums.mixed_asymmetry < BEGINS
    assert gain.state.shift.trust == 0.0


def test_it_outlasts_the_mixture():
    world = changing_world(parts=(60, 300, 0), seed=1)
    gain = Gain(world.prototypes, TRACKED)
    for index, (features, logits, _) in enumerate(world.batches):
        gain.step(features, logits)
        if index == world.single.start - 1:
            learned = gain.state.sums.mixed_asymmetry
    assert gain.state.sums.mixed_asymmetry >= learned > ENDS


def test_it_takes_many_classes():
    assert learned_of(0.2) == 0.2
    assert learned_of(0.2, few=0.02) == pytest.approx(0.2)
    assert learned_of(0.2, few=0.025) == pytest.approx(0.1)
    assert learned_of(0.2, few=0.03) == pytest.approx(0.0, abs=1e-12)
    assert learned_of(0.2, few=0.5) == 0.0


def test_it_takes_many_frames():
    assert learned_of(0.2, count=SURE_FRAMES / 4.0) == pytest.approx(0.05)
    assert learned_of(0.2, count=SURE_FRAMES) == pytest.approx(0.2)
    assert learned_of(0.0, count=0.0) == 0.0


def test_only_the_largest_stays():
    assert learned_of(0.2, before=0.3) == 0.3
    assert learned_of(0.2, before=0.1) == 0.2
    assert learned_of(-0.2) == 0.0


def test_what_is_no_number_teaches_nothing():
    assert learned_of(np.nan, before=0.2) == 0.2
    assert learned_of(0.2, few=np.nan, before=0.1) == 0.1


@pytest.mark.parametrize("num_classes", [2, 3])
def test_two_classes_have_no_asymmetry(num_classes):
    gain = learned_from(changing_world(num_classes, parts=(20, 0, 0)))
    assert (gain.state.sums.mixed_asymmetry > 0.0) == (num_classes == 3)


def test_without_the_test_for_mixtures_nothing_is_learned():
    config = replace(TRACKED, mixture_test=False)
    assert learned_from(changing_world(parts=(30, 0, 0)), config).state.sums.mixed_asymmetry == 0.0


# --- what it does ---


def pair_of(learned: float, *, few: float = 1.0, count: float = 400.0) -> tuple[float, float]:
    """What is known where the source's newest labels are `few` of a class more than chance."""
    num_classes = 10
    prototypes = prepare_prototypes(np.eye(num_classes, 12), TRACKED)
    share = np.full(num_classes, 1.0 / num_classes)
    excess = np.sqrt(max(few + 1.0 / count, 0.0))
    share = (1.0 - excess) * share + excess * np.eye(num_classes)[0]
    sums = empty_sums(num_classes, like=np.zeros(1))
    sums = replace(
        sums,
        window_count=count * np.ones_like(sums.window_count),
        newest_source=count * share,
        mixed_asymmetry=np.asarray(learned),
    )
    single, mixed = known_asymmetry(sums, prototypes=prototypes)
    return float(single), float(mixed)


def test_it_is_believed_by_and_by():
    assert_allclose(pair_of(0.0), DEFAULT_ASYMMETRY)
    assert_allclose(pair_of(BEGINS), DEFAULT_ASYMMETRY)
    assert_allclose(pair_of(ENDS), (SINGLE_SHARE * ENDS, ENDS))
    assert_allclose(pair_of(0.4), (SINGLE_SHARE * 0.4, 0.4))
    middle = 0.5 * (BEGINS + ENDS)
    guessed, believed = np.array(DEFAULT_ASYMMETRY), np.array((SINGLE_SHARE * middle, middle))
    assert_allclose(pair_of(middle), 0.5 * (guessed + believed))
    for learned in np.linspace(0.0, 0.6, 61):
        single, mixed = pair_of(learned)
        assert mixed - single >= 0.69 * BEGINS


def test_until_then_the_newest_labels_say_how_careful_to_be():
    begins, ends = GUESS_RAMP
    most, mixed = DEFAULT_ASYMMETRY
    assert_allclose(pair_of(0.0, few=begins), (LEAST_SINGLE, mixed))
    assert_allclose(pair_of(0.0, few=ends), (most, mixed))
    middle = 0.5 * (begins + ends)
    assert_allclose(pair_of(0.0, few=middle), (0.5 * (LEAST_SINGLE + most), mixed))
    # Of few frames, so much is chance.
    assert_allclose(pair_of(0.0, few=middle, count=20.0), (0.5 * (LEAST_SINGLE + most), mixed))
    assert_allclose(pair_of(0.4, few=begins), pair_of(0.4, few=ends))


def test_before_the_first_frame_there_is_a_guess():
    prototypes = prepare_prototypes(np.eye(10, 12), TRACKED)
    pair = known_asymmetry(empty_sums(10, like=np.zeros(1)), prototypes=prototypes)
    assert_allclose(pair, (LEAST_SINGLE, DEFAULT_ASYMMETRY[1]))


def test_a_network_that_was_measured_has_nothing_to_learn():
    """Bit for bit the same whatever the state has learned."""
    world = changing_world(parts=(40, 20, 0))
    gains = [Gain(world.prototypes, TRACKED, asymmetry=ASYMMETRY) for _ in range(2)]
    for features, logits, _ in world.batches:
        gains[1].load_state(with_asymmetry(gains[1].state, 0.45))
        first, second = (gain.step(features, logits) for gain in gains)
        assert_array_equal(first.log_probs, second.log_probs)
    assert_array_equal(gains[0].state.shift.vector, gains[1].state.shift.vector)


def test_classes_are_counted_once_mixtures_are_known():
    """By the careful guess this network's mixtures lean too little for that."""
    world = changing_world(parts=(150, 0, 0))
    gain = learned_from(world)
    assert gain.state.sums.share_count > 200.0
    kept = Gain(world.prototypes, TRACKED)
    for features, logits, _ in world.batches:
        kept.step(features, logits)
        kept.load_state(with_asymmetry(kept.state, 0.0))
    assert kept.state.sums.share_count < 20.0


@pytest.mark.parametrize("seed", range(4))
def test_as_much_is_won_as_with_clean_images(seed):
    world = changing_world(parts=(150, 0, 60), seed=seed)
    right = []
    for asymmetry in (None, ASYMMETRY):
        gain = Gain(world.prototypes, TRACKED, asymmetry=asymmetry)
        shares = []
        for features, logits, labels in world.batches:
            found = np.argmax(gain.step(features, logits).log_probs, axis=1)
            shares.append(np.mean(found == labels))
        right.append(np.mean(shares[world.hidden]))
    assert right[0] == pytest.approx(right[1], abs=0.01)


def test_of_two_streams_the_larger_stays():
    world = changing_world(parts=(30, 0, 0))
    states = [with_asymmetry(learned_from(world).state, value) for value in (0.2, 0.3)]
    for first, second in (states, states[::-1]):
        merged = merge_states(first, second, prototypes=world.prototypes, config=TRACKED)
        assert merged.sums.mixed_asymmetry == 0.3


# --- against the oracle ---


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        pytest.param(np.float64, FLOAT64, id="float64"),
        pytest.param(np.float32, FLOAT32, id="float32"),
    ],
)
@pytest.mark.parametrize("parts", [(20, 12, 8), (0, 20, 0)], ids=["many", "one"])
def test_predictions_are_the_oracles(dtype, tolerance, parts):
    world = changing_world(parts=parts, seed=2)
    config = replace(TRACKED, num_iters=60 if dtype is np.float64 else 24)
    gain = Gain(world.prototypes.astype(dtype), config)
    oracle = ShiftOracle(world.prototypes, config)
    for features, logits, _ in world.batches:
        features, logits = features.astype(dtype), logits.astype(dtype)
        expected = oracle.step(logits)
        result = gain.step(features, logits)
        assert_step_matches(result, expected, tolerance, prob_floor=0.0)
        learned = gain.state.sums.mixed_asymmetry
        assert_allclose(learned, oracle.learned_asymmetry, rtol=0, atol=tolerance.sums)
    assert_allclose(gain.state.shift.vector, oracle.beta, rtol=0, atol=tolerance.scores)
    assert (oracle.learned_asymmetry > ENDS) == (parts[0] > 0)
