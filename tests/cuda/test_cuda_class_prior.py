"""The prior on the classes in the kernels, on the host, where classes come unlike often.

The reference is `Gain` on the same stream, and the oracle, both in float64.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from changing_world import changing_world
from compared_steps import Tolerance, assert_step_matches
from numpy.testing import assert_allclose, assert_array_equal
from shift_oracle import ShiftOracle
from tailed_world import ASYMMETRY, tailed_world
from taught_gain import assert_bitwise, assert_states_close, every_array
from waiting_steps import WaitingOracle

from gain_core import PRESETS, Gain, predict
from gain_core.prototypes import prepare_prototypes
from gain_core.shift import SHARE_RAMP, asymmetry_of
from gain_core.state import state_from_arrays, state_to_arrays
from gain_runtime.cuda import CudaGain

TRACKED = PRESETS["tracked"]
# Rounding alone, and rounding that feeds back through the sums.
FLOAT64 = Tolerance(probs=1e-9, scores=1e-9, sums=1e-9)
FLOAT32 = Tolerance(probs=1e-4, scores=1e-3, sums=1e-4)
# Sums of the guard's that make it trip after the next batch.
TRIPPING = {"count": 300.0, "agreement": 1.0, "confidence": 290.0}


def batches_of(world) -> list[tuple[np.ndarray, np.ndarray]]:
    """Without the labels, rounded to float32, so that both precisions see the same."""
    return [
        tuple(array.astype(np.float32).astype(np.float64) for array in (features, logits))
        for features, logits, _ in world.batches
    ]


def head_of(world) -> np.ndarray:
    """Its rows, rounded alike."""
    return world.prototypes.astype(np.float32).astype(np.float64)


def both(host_kernels, world, config=TRACKED, *, dtype=np.float64, threads=2, **options):
    """The kernels and their reference on one head."""
    options = {"asymmetry": ASYMMETRY, **options}
    head, kernels = head_of(world), host_kernels(threads)
    gain = CudaGain(head.astype(dtype), config, kernels=kernels, **options)
    return gain, Gain(head, config, **options)


def step_both(gain, plain, batches, *, atol=FLOAT64.probs) -> None:
    """Each batch on both."""
    for features, logits in batches:
        result, expected = gain.step(features, logits), plain.step(features, logits)
        assert_allclose(result.probs, expected.probs, rtol=0, atol=atol)


@pytest.mark.parametrize("update_every", [1, 40])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        pytest.param(np.float64, FLOAT64, id="float64"),
        pytest.param(np.float32, FLOAT32, id="float32"),
    ],
)
def test_predictions_are_the_oracles(host_kernels, dtype, tolerance, update_every):
    world = tailed_world(num_batches=90, seed=5)
    config = replace(TRACKED, num_iters=60 if dtype is np.float64 else 24)
    options = {"dtype": dtype, "update_every": update_every}
    gain, plain = both(host_kernels, world, config, **options)
    oracle = WaitingOracle(ShiftOracle(head_of(world), config, asymmetry=ASYMMETRY), update_every)
    for features, logits in batches_of(world):
        result = gain.step(features.astype(dtype), logits.astype(dtype))
        assert_step_matches(result, oracle.step(logits), tolerance, prob_floor=0.0)
        plain.step(features, logits)
    # What waits in the oracle and here is not learned from yet.
    assert gain.pending_frames == plain.pending_frames == 90 * 16 % max(update_every, 48)
    assert_states_close(gain.state, plain.state, tolerance.sums)
    learned = oracle.oracle
    assert np.max(np.abs(learned.log_prior)) > 0.5
    assert_allclose(gain.state.shift.log_prior, learned.log_prior, rtol=0, atol=tolerance.scores)
    mass, count = learned.share_sums()
    assert_allclose(gain.state.sums.share_mass, mass, rtol=tolerance.sums, atol=tolerance.sums)
    assert_allclose(gain.state.sums.share_count, count, rtol=tolerance.sums, atol=0)


@pytest.mark.parametrize("update_every", [1, 24])
def test_a_guard_that_trips_drops_the_shares(host_kernels, update_every):
    world = tailed_world(num_batches=110, seed=5)
    batches = batches_of(world)
    gain, plain = both(host_kernels, world, update_every=update_every)
    step_both(gain, plain, batches[:75])
    assert plain.state.sums.share_count > 100.0
    assert np.max(np.abs(plain.state.shift.log_prior)) > 0.5
    # As a file holds it; what waits is dropped.
    head = prepare_prototypes(head_of(world), TRACKED, asymmetry=ASYMMETRY)
    saved = state_from_arrays(state_to_arrays(gain.state), prototypes=head, config=TRACKED)
    numbers = {name: np.asarray(value) for name, value in TRIPPING.items()}
    tripping = replace(saved, guard=replace(saved.guard, **numbers))
    for each in (gain, plain):
        each.load_state(tripping, frames=each.frames)
    assert_states_close(gain.state, plain.state, FLOAT64.sums)
    step_both(gain, plain, batches[75:77])
    assert float(gain.state.guard.trips) == 1.0
    assert float(gain.state.sums.share_count) == 0.0
    assert_array_equal(gain.state.sums.share_mass, np.zeros(10))
    assert_array_equal(gain.state.shift.log_prior, np.zeros(10))
    # While the guard holds, frames are learned as the source has them.
    step_both(gain, plain, batches[77:])
    assert_states_close(gain.state, plain.state, FLOAT64.sums)
    assert plain.state.sums.share_count > 0.0
    assert plain.state.guard.hold == 0.0
    assert np.any(plain.state.shift.log_prior)


def test_labels_count_as_far_as_the_shortest_memory_shows_many(host_kernels):
    world = tailed_world(num_batches=60, seed=5)
    _, known = both(host_kernels, world)
    for batch in batches_of(world):
        known.step(*batch)
    # In the middle of the ramp, so that the weight is neither none nor all.
    full = float(asymmetry_of(known.state.sums)[0]) / np.mean(SHARE_RAMP)
    gain, plain = both(host_kernels, world, asymmetry=(0.0, full), update_every=32)
    counts = [0.0]
    for batch in batches_of(world):
        step_both(gain, plain, [batch])
        counts.append(float(plain.state.sums.share_count))
        assert_states_close(gain.state, plain.state, FLOAT64.sums)
    added = np.diff(counts)
    assert np.sum((added > 1.0) & (added < 31.0)) > 5


def test_frames_are_learned_as_the_proposal_without_the_prior(host_kernels):
    """Where the answered class is another than the learned one; the guard counts the former."""
    world = tailed_world(num_batches=75, seed=5)
    batches = batches_of(world)
    gain, plain = both(host_kernels, world)
    step_both(gain, plain, batches[:60])
    before, apart = plain.state, 0
    for features, logits in batches[60:]:
        answered = plain.predict(features, logits)
        x = answered.source_log_probs - np.mean(answered.source_log_probs, axis=1, keepdims=True)
        learned = np.argmax((x - before.shift.vector) * before.shift.stretch, axis=1)
        apart += int(np.sum(np.argmax(answered.probs, axis=1) != learned))
        for each in (gain, plain):
            each.load_state(before, frames=100)
            each.update(features, each.predict(features, logits))
        assert_states_close(gain.state, plain.state, FLOAT64.sums)
        gained = plain.state.sums.window_mass[0] - before.sums.window_mass[0]
        assert np.max(np.abs(gained)) > 0.1
    assert apart > 5


@pytest.mark.parametrize("turn", ["proposes", "holds"])
def test_a_prior_alone_corrects_unless_the_guard_holds(host_kernels, turn):
    world = tailed_world(num_batches=4, seed=5)
    (features, logits), *rest = batches_of(world)
    gain, plain = both(host_kernels, world)
    fresh = gain.state
    shift = replace(fresh.shift, log_prior=np.linspace(-1.0, 1.0, 10))
    guard = replace(fresh.guard, hold=np.asarray(40.0 if turn == "holds" else 0.0))
    for each in (gain, plain):
        each.load_state(replace(fresh, shift=shift, guard=guard), frames=9)
    result, expected = gain.predict(features, logits), plain.predict(features, logits)
    assert np.any(expected.strength > 0) == (turn == "proposes")
    assert_allclose(result.probs, expected.probs, rtol=0, atol=1e-12)
    assert_allclose(result.gain, expected.gain, rtol=0, atol=1e-12)
    step_both(gain, plain, [(features, logits), *rest])
    assert_states_close(gain.state, plain.state, FLOAT64.sums)
    gain.reset()
    assert_bitwise(every_array(gain.state), every_array(fresh))
    assert_array_equal(gain.predict(features, logits).strength, 0.0)


def test_a_prior_that_was_learned_alone_corrects(host_kernels):
    """Nothing is left of shift and deviations, so that predictions have the prior only."""
    world = tailed_world(num_batches=70, seed=5)
    config = replace(TRACKED, shrinkage=1e6, match_scale=False)
    gain, plain = both(host_kernels, world, config)
    step_both(gain, plain, batches_of(world))
    assert_states_close(gain.state, plain.state, FLOAT64.sums)
    assert_array_equal(gain.state.shift.vector, np.zeros(10))
    assert_array_equal(gain.state.shift.stretch, np.ones(10))
    assert np.max(np.abs(gain.state.shift.log_prior)) > 0.3
    features, logits = batches_of(world)[0]
    result, expected = gain.predict(features, logits), plain.predict(features, logits)
    assert np.any(expected.strength > 0)
    assert_allclose(result.probs, expected.probs, rtol=0, atol=FLOAT64.probs)


def test_frames_of_which_some_follow_take_a_part_of_the_prior(host_kernels):
    world = tailed_world(num_batches=150, seed=5)
    features, logits = (np.concatenate(arrays) for arrays in zip(*batches_of(world), strict=True))
    rng = np.random.default_rng(3)
    source = np.arange(len(features))
    for index in range(1, len(source)):
        if rng.random() < 0.27:
            source[index] = source[index - 1]
    gain, plain = both(host_kernels, world)
    partly = 0
    for begin in range(0, len(source), 12):
        rows = source[begin : begin + 12]
        before = plain.state.shift
        step_both(gain, plain, [(features[rows], logits[rows])])
        after = plain.state.shift
        moved = np.max(np.abs(after.log_prior - before.log_prior))
        partly += bool(0.1 < after.independence < 0.9 and moved > 1e-4)
    assert partly > 10
    assert_states_close(gain.state, plain.state, FLOAT64.sums)


def test_batches_with_a_row_that_is_not_finite_are_passed_over(host_kernels):
    world = tailed_world(num_batches=70, seed=5)
    gain, plain = both(host_kernels, world, update_every=24)
    for index, (features, logits) in enumerate(batches_of(world)):
        if index % 5 != 4:
            step_both(gain, plain, [(features, logits)])
            continue
        logits = logits.copy()
        logits[3, index % 10] = np.nan
        plain.update(features, predict(features, logits, plain.state, config=TRACKED))
        assert not bool(gain.step(features, logits).finite)
    assert_states_close(gain.state, plain.state, FLOAT64.sums)
    assert plain.state.sums.share_count > 100.0
    assert np.any(plain.state.shift.log_prior)


def test_blocks_of_more_than_one_warp(host_kernels):
    # A hundred threads at a barrier take a while on two cores, hence one step of few iterations.
    world = tailed_world(40, 24, num_batches=60, seed=5)
    batches = batches_of(world)
    config = replace(TRACKED, num_iters=6)
    narrow, plain = both(host_kernels, world, config, threads=1)
    wide, _ = both(host_kernels, world, config, threads=64)
    step_both(narrow, plain, batches[:-1])
    assert np.max(np.abs(plain.state.shift.log_prior)) > 0.3
    wide.load_state(narrow.state, frames=narrow.frames)
    result, expected = wide.step(*batches[-1]), narrow.step(*batches[-1])
    assert_allclose(result.probs, expected.probs, rtol=0, atol=1e-12)
    assert_states_close(wide.state, narrow.state, 1e-12)


@pytest.mark.parametrize(
    ("dtype", "atol"),
    [
        pytest.param(np.float64, FLOAT64.probs, id="float64"),
        pytest.param(np.float32, FLOAT32.probs, id="float32"),
    ],
)
@pytest.mark.parametrize("parts", [(70, 40, 0), (100, 0, 20)], ids=["one", "hidden"])
def test_the_newest_labels_say_what_they_say_in_the_core(host_kernels, dtype, atol, parts):
    """One class after many, and a mixture which a corruption hides."""
    world = changing_world(parts=parts, seed=2)
    gain, plain = both(host_kernels, world, dtype=dtype)
    batches = [tuple(array.astype(dtype) for array in pair) for pair in batches_of(world)]
    step_both(gain, plain, batches, atol=atol)
    assert (plain.state.shift.trust < 0.01) == (parts[1] > 0)
    assert_states_close(gain.state, plain.state, atol)
