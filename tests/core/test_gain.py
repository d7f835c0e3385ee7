"""A Gain over a stream: pending frames, warm-up, freezing, resetting, snapshots, merging."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gaussian_world import World, gaussian_world
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.testing import assert_allclose, assert_array_equal
from taught_gain import (
    assert_bitwise,
    assert_states_close,
    copies,
    fields_of,
    make_gain,
    one_batch,
    taught,
)

from gain_core import PRESETS, Gain, make_method
from gain_core.records import arrays_of, nbytes, record_from_arrays

NAMES = list(PRESETS)
TAUGHT = {name: taught(name, dtype=np.float64) for name in NAMES}
QUICK = settings(max_examples=40, deadline=None, derandomize=True)
# What the shift keeps of the frames' order.
ORDERED = ("all_facts", "last", "block_facts", "unconfirmed", "trust", "confirmed")


def matrices(rows: int, columns: int, bound: float) -> st.SearchStrategy[np.ndarray]:
    """Finite float64 matrices within +-bound."""
    return npst.arrays(np.float64, (rows, columns), elements=st.floats(-bound, bound, width=32))


def normalised(scores: np.ndarray) -> np.ndarray:
    """Log-softmax of each row."""
    shifted = scores - np.max(scores, axis=1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))


@pytest.mark.parametrize("name", NAMES)
@QUICK
@given(features=matrices(3, 8, 100.0), logits=matrices(3, 10, 50.0), add=st.floats(-1e3, 1e3))
def test_prediction_is_distribution_on_the_way_from_source_to_proposal(name, features, logits, add):
    if name == "paper-l2":
        features = features + 1.0 * (np.linalg.norm(features, axis=1, keepdims=True) < 1e-3)
    gain = TAUGHT[name]
    result = gain.predict(features, logits)
    assert_allclose(np.sum(result.probs, axis=1), 1.0, rtol=0, atol=1e-12)
    assert np.all((result.strength >= 0) & (result.strength <= 1))
    assert_allclose(np.exp(result.log_probs), result.probs, rtol=0, atol=1e-15)
    assert_allclose(result.source_log_probs, normalised(logits), rtol=0, atol=1e-12)
    found = gain.method.posteriors(features, logits, gain.state)
    way = found.start + result.strength[:, None] * (found.log_proposal - found.start)
    moved = result.strength > 0
    assert_allclose(result.log_probs[moved], normalised(way)[moved], rtol=0, atol=1e-9)
    assert_array_equal(result.log_probs[~moved], result.source_log_probs[~moved])
    # A constant added to the logits changes nothing.
    assert_allclose(gain.predict(features, logits + add).probs, result.probs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@QUICK
@given(features=matrices(3, 8, 100.0), logits=matrices(3, 10, 1000.0))
def test_before_the_first_frame_the_source_answers_to_the_last_bit(name, features, logits):
    result = make_gain(np.eye(10, 8) + 0.5, name).predict(features, logits)
    assert_allclose(result.log_probs, normalised(logits), rtol=1e-14, atol=1e-12)
    assert_array_equal(result.log_probs, result.source_log_probs)
    assert_array_equal(result.strength, 0.0)
    assert_array_equal(result.gain, 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_permuting_the_classes_permutes_the_outputs(name):
    world = gaussian_world(10, 8, num_batches=8, seed=61)
    order = np.random.default_rng(22).permutation(10)
    gain, moved = make_gain(world.prototypes, name), make_gain(world.prototypes[order], name)
    for z, logits, _ in world.batches:
        left, right = gain.step(z, logits), moved.step(z, logits[:, order])
        assert_allclose(right.probs, left.probs[:, order], rtol=0, atol=1e-6)
        assert_allclose(right.gain, left.gain, rtol=1e-6, atol=1e-6)
    assert np.max(left.strength) > 0.5


@pytest.mark.parametrize("name", NAMES)
def test_permuting_a_batch_permutes_its_rows_and_leaves_the_sums(name):
    gain, moved = taught(name, dtype=np.float64), taught(name, dtype=np.float64)
    z, logits = one_batch(dtype=np.float64)
    order = np.random.default_rng(24).permutation(16)
    left, right = gain.predict(z, logits), moved.predict(z[order], logits[order])
    assert_allclose(right.probs, left.probs[order], rtol=0, atol=1e-9)
    gain.update(z, left)
    moved.update(z[order], right)
    read = (*ORDERED, "shift", "log_scale", "variance") if name == "shift" else ()
    assert_states_close(moved.state, gain.state, atol=1e-6, apart=read)


# --- batches and pending frames ---


def in_batches(world: World, sizes: list[int]):
    """The world's frames, cut anew."""
    features, logits, _ = (np.concatenate(parts) for parts in zip(*world.batches, strict=True))
    start = 0
    while start < len(features):
        for size in sizes:
            stop = min(start + size, len(features))
            if start < stop:
                yield features[start:stop], logits[start:stop]
            start = stop


def first_probs(gain: Gain, features: np.ndarray, logits: np.ndarray, dtype: type) -> np.ndarray:
    """As they were predicted before the batch was learned from."""
    result = gain.predict(features.astype(dtype), logits.astype(dtype))
    gain.update(features.astype(dtype), result)
    return result.probs


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "sizes", [[1], [4], [1, 3, 12]], ids=["frame-by-frame", "quarters", "uneven"]
)
@pytest.mark.parametrize("name", NAMES)
def test_sixteen_pending_frames_teach_what_a_batch_of_sixteen_does(name, sizes, dtype):
    world = gaussian_world(10, 8, num_batches=10, seed=61)
    head = world.prototypes.astype(dtype)
    whole, cut = make_gain(head, name), make_gain(head, name, update_every=16)
    expected = [first_probs(whole, z, logits, dtype) for z, logits, _ in world.batches]
    result = [first_probs(cut, z, logits, dtype) for z, logits in in_batches(world, sizes)]
    assert cut.frames == whole.frames == 160
    atol = 1e-6 if dtype == np.float64 else 1e-3
    assert_allclose(np.concatenate(result), np.concatenate(expected), rtol=0, atol=atol)
    assert_states_close(cut.state, whole.state, atol=atol)


@pytest.mark.parametrize(
    ("sizes", "update_every"), [([10], 16), ([5, 1, 20, 3], 16), ([7], 3)], ids=str
)
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_that_straddles_is_learned_with_what_was_pending(name, sizes, update_every):
    """Once `update_every` frames are pending, all of them are learned as one batch."""
    world = gaussian_world(10, 8, num_batches=8, seed=61)
    gain = make_gain(world.prototypes, name, update_every=update_every)
    method, waiting, count, learned = gain.method, [], 0, 0
    state = method.init_state()
    for z, logits in in_batches(world, sizes):
        result = gain.predict(z, logits)
        gain.update(z, result)
        waiting.append((z, result))
        count += len(z)
        if count >= update_every:
            state, learned = learn_together(method, waiting, state), learned + count
            waiting, count = [], 0
        assert (gain.frames, gain.pending_frames) == (learned, count)
        assert_states_close(gain.state, state, atol=1e-9)


def learn_together(method, waiting, state):
    """One update from several predicted batches, put together first."""
    parts = [fields_of(result) for _, result in waiting]
    whole = {
        name: np.concatenate([part[name] for part in parts])
        for name in parts[0]
        if name != "finite"
    }
    prediction = replace(waiting[0][1], **whole)
    features = np.concatenate([z for z, _ in waiting])
    return method.update(method.collect(features, prediction, state), state)


@pytest.mark.parametrize("name", NAMES)
def test_flush_learns_the_rest_and_then_nothing(name):
    world = gaussian_world(10, 8, num_batches=3, seed=61)
    waiting, whole = (make_gain(world.prototypes, name, update_every=n) for n in (1000, 1))
    z, logits = next(in_batches(world, [48]))
    for row in range(48):
        waiting.step(z[row : row + 1], logits[row : row + 1])
    assert (waiting.frames, waiting.pending_frames) == (0, 48)
    waiting.flush()
    whole.step(z, logits)
    assert_states_close(waiting.state, whole.state, atol=1e-9)
    before = copies(waiting.state)
    waiting.flush()
    assert_bitwise(copies(waiting.state), before)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_update_waits_for_the_warm_up(name):
    world = gaussian_world(10, 8, num_batches=4, batch_sizes=(10,), seed=61)
    patient = make_gain(world.prototypes, name, update_every=4, warmup_frames=10)
    plain = make_gain(world.prototypes, name)
    frames = list(in_batches(world, [1]))
    for z, logits in frames[:9]:
        result = patient.step(z, logits)
        assert_array_equal(result.log_probs, result.source_log_probs)
        assert patient.frames == 0
    for z, logits in frames[9:16]:
        patient.step(z, logits)
    # Ten frames at once, then every four.
    assert (patient.frames, patient.pending_frames) == (14, 2)
    for part in (frames[:10], frames[10:14]):
        plain.step(*(np.concatenate(arrays) for arrays in zip(*part, strict=True)))
    assert_states_close(patient.state, plain.state, atol=1e-9)
    patient.reset()
    patient.step(*frames[0])
    assert (patient.frames, patient.pending_frames) == (0, 1)


# --- freezing, resetting, snapshots ---


@pytest.mark.parametrize("name", NAMES)
def test_a_frozen_gain_predicts_and_does_not_learn_and_keeps_what_was_pending(name):
    gain = taught(name)
    gain.update_every = 20
    gain.step(*one_batch(seed=70))
    expected, before = gain.predict(*one_batch()), copies(gain.state)
    gain.freeze()
    for seed in (71, 72, 62):
        result = gain.step(*one_batch(seed=seed))
    assert_array_equal(result.probs, expected.probs)
    assert_bitwise(copies(gain.state), before)
    assert (gain.frozen, gain.frames, gain.pending_frames) == (True, 96, 16)
    gain.unfreeze()
    gain.step(*one_batch(seed=73))
    assert (gain.frozen, gain.frames, gain.pending_frames) == (False, 128, 0)


@pytest.mark.parametrize("update_every", [1, 40])
@pytest.mark.parametrize("name", NAMES)
def test_reset_returns_to_the_source_bit_by_bit(name, update_every):
    gain = make_gain(gaussian_world(10, 8, seed=61).prototypes, name, update_every=update_every)
    fresh = copies(gain.state)
    runs = []
    for _ in range(2):
        runs.append([gain.step(*one_batch(seed=seed)).probs for seed in range(7)])
        end, pending = copies(gain.state), gain.pending_frames
        assert pending == (0 if update_every == 1 else 16)
        gain.reset()
        assert (gain.frames, gain.pending_frames) == (0, 0)
        assert_bitwise(copies(gain.state), fresh)
    for first, second in zip(*runs, strict=True):
        assert_array_equal(first, second)
    assert any(end[key].tobytes() != fresh[key].tobytes() for key in fresh)


@pytest.mark.parametrize("name", NAMES)
def test_a_snapshot_is_its_own_and_replays_exactly(name):
    gain = taught(name)
    snapshot = gain.state
    kept = copies(snapshot)
    first = [gain.step(*one_batch(seed=seed)).probs for seed in range(80, 84)]
    assert_bitwise(copies(snapshot), kept)
    gain.load_state(snapshot, frames=96)
    assert (gain.frames, gain.pending_frames) == (96, 0)
    second = [gain.step(*one_batch(seed=seed)).probs for seed in range(80, 84)]
    for one, two in zip(first, second, strict=True):
        assert_array_equal(one, two)
    before, written = copies(gain.state), gain.state
    for value in (*arrays_of(written).values(), *arrays_of(snapshot).values()):
        value[...] = 7
    assert_bitwise(copies(gain.state), before)


@pytest.mark.parametrize("name", NAMES)
def test_pure_functions_leave_what_they_are_given_alone(name):
    gain = taught(name)
    method, state = gain.method, gain.state
    z, logits = one_batch()
    given = {"z": z.copy(), "logits": logits.copy()} | copies(state)
    result = method.predict(z, logits, state)
    kept = {key: np.array(value) for key, value in fields_of(result).items()}
    evidence = method.collect(z, result, state)
    held = copies(evidence)
    after = method.update(evidence, state)
    method.collect(z, result, after, evidence)
    method.merge(state, after)
    assert_bitwise({"z": z, "logits": logits} | copies(state), given)
    assert_bitwise({key: np.array(value) for key, value in fields_of(result).items()}, kept)
    assert_bitwise(copies(evidence), held)
    assert_bitwise(copies(method.update(evidence, state)), copies(after))


@pytest.mark.parametrize("name", NAMES)
def test_reused_buffers_do_not_reach_pending_frames(name):
    """A session may hand out the same output buffers for every frame."""
    world = gaussian_world(10, 8, num_batches=6, batch_sizes=(3,), seed=86)
    head = world.prototypes.copy()
    careful, reusing = (make_gain(a, name, update_every=9) for a in (world.prototypes, head))
    head[...] = 1e6
    z, scores = np.empty((3, 8)), np.empty((3, 10))
    for features, logits, _ in world.batches:
        careful.step(features, logits)
        z[...], scores[...] = features, logits
        reusing.step(z, scores)
        z[...], scores[...] = -7.0, 3.0
    assert_bitwise(copies(reusing.state), copies(careful.state))
    assert reusing.frames == 18


@pytest.mark.parametrize("name", NAMES)
def test_saved_arrays_bring_the_state_back(name):
    gain = taught(name)
    state = gain.state
    arrays = {key: np.array(value) for key, value in arrays_of(state).items()}
    again = record_from_arrays(gain.method.init_state(), arrays)
    assert type(again) is type(state)
    assert_bitwise(copies(again), copies(state))
    assert nbytes(state) == sum(value.nbytes for value in arrays.values())


def test_a_shifts_memory_is_twenty_one_numbers_a_class():
    """And that of the paper little more than two matrices."""
    assert nbytes(make_method(1000).init_state()) <= 4 * 21_100
    head = np.ones((500, 256), dtype=np.float32)
    assert nbytes(make_method(head, PRESETS["paper"]).init_state()) < 2.2 * head.nbytes


# --- merging what was learned apart ---


def halves(name: str):
    """A method, and what two devices learned: both states, and that of both streams in one."""
    world = gaussian_world(10, 8, num_batches=20, seed=61)
    guide = make_gain(world.prototypes, name)
    method = guide.method
    # The predictions are given, so that the responsibilities are the same however it is split.
    pairs = [(z, guide.step(z, logits)) for z, logits, _ in world.batches]

    def learn(part):
        state = method.init_state()
        for z, result in part:
            state = method.update(method.collect(z, result, state), state)
        return state

    return method, learn(pairs[:10]), learn(pairs[10:]), learn(pairs)


@pytest.mark.parametrize("name", ["paper", "paper-l2"])
def test_states_of_disjoint_streams_merge_to_that_of_their_union(name):
    method, left, right, union = halves(name)
    assert_states_close(method.merge(left, right), union)


def test_sums_of_accepted_blocks_add_up_and_open_blocks_are_dropped():
    method, left, right, _ = halves("shift")
    merged = method.merge(left, right)
    assert min(left.draws[-1], right.draws[-1]) > 0
    for key in ("label_facts", "draws", "memory", "recent", "reference_logits", "all_facts"):
        one, two, both = (getattr(state, key) for state in (left, right, merged))
        assert_allclose(both, one + two, rtol=1e-12, err_msg=key)
    assert_array_equal(merged.block, 0.0)
    assert np.any(merged.shift != 0)


@pytest.mark.parametrize("name", NAMES)
def test_merging_commutes_and_a_fresh_state_adds_nothing(name):
    method, left, right, _ = halves(name)
    one, two = method.merge(left, right), method.merge(right, left)
    z, logits = one_batch(dtype=np.float64)
    fresh = method.init_state()

    def probs(state):
        return method.predict(z, logits, state).probs

    assert_allclose(probs(one), probs(two), rtol=0, atol=1e-6)
    assert np.max(np.abs(probs(one) - probs(left))) > 1e-4
    for merged in (method.merge(left, fresh), method.merge(fresh, left)):
        assert_allclose(probs(merged), probs(left), rtol=0, atol=1e-9)
    nothing = method.predict(z, logits, method.merge(fresh, fresh))
    assert_array_equal(nothing.log_probs, nothing.source_log_probs)


def test_merging_does_not_revive_what_has_faded():
    method, left, _, _ = halves("shift")
    faded = replace(left, unconfirmed=left.unconfirmed + 2.0)
    merged = method.merge(faded, method.init_state())
    assert (merged.trust, merged.confirmed) == (0.0, 0.0)


def test_a_state_that_has_learned_nothing_suspends_no_other():
    method, left, _, _ = halves("shift")
    waited = replace(method.init_state(), unconfirmed=left.unconfirmed + 2.0)
    assert method.merge(left, waited).confirmed == method.merge(left, method.init_state()).confirmed
    assert method.merge(waited, left).confirmed > 0
