"""A batch predicted again with what it taught, and frames compared across batches, on the host.

The reference is `Gain` on the same stream, in float64.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scaled_world import scaled_world
from taught_gain import assert_bitwise, assert_states_close, every_array

from gain_core import PRESETS, Gain, GainConfig, Prediction, predict
from gain_core.departure import BESIDE_DIMS
from gain_runtime.cuda import CudaGain, shift_step
from gain_runtime.cuda.shift_settings import shift_settings

TRACKED = PRESETS["tracked"]
# Nothing is forgotten, so that pairs of frames can be counted.
FOREVER = replace(TRACKED, half_life=math.inf)
NUM_CLASSES, FEATURE_DIM = 10, 20
# A mixture of many classes in few dimensions is less lopsided than a network's features.
FLAT = (0.0, 0.2)


def stream(num_frames: int, *, held: float, seed: int = 0):
    """A head, features and logits: each frame is the one before it again with a chance `held`."""
    head, batches = scaled_world(
        NUM_CLASSES, FEATURE_DIM, num_batches=1, batch_sizes=(num_frames,), seed=seed
    )
    rng = np.random.default_rng(seed)
    source = np.arange(num_frames)
    for index in range(1, num_frames):
        if rng.random() < held:
            source[index] = source[index - 1]
    features, logits = batches[0]
    noise = 0.1 * rng.normal(size=logits.shape)
    return head, features[source], (logits[source] + noise).astype(np.float32).astype(np.float64)


def cut(features, logits, *sizes: int):
    """Batches of these sizes in turn."""
    begin, index = 0, 0
    while begin < len(features):
        end = begin + sizes[index % len(sizes)]
        yield features[begin:end], logits[begin:end]
        begin, index = end, index + 1


def fields_of(prediction: Prediction) -> dict[str, np.ndarray]:
    return {item.name: np.array(getattr(prediction, item.name)) for item in fields(prediction)}


def assert_same(result: Prediction, expected: Prediction, atol: float) -> None:
    """Field by field, the strength apart: where J is flat it may be anything."""
    assert_allclose(result.probs, expected.probs, rtol=0, atol=atol)
    assert_allclose(result.gain, expected.gain, rtol=0, atol=10 * atol)
    assert_allclose(result.source_log_probs, expected.source_log_probs, rtol=0, atol=100 * atol)
    assert bool(result.finite)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_independent_frames_are_predicted_with_what_they_taught(host_kernels, dtype):
    head, features, logits = stream(320, held=0.0)
    atol = 1e-4 if dtype == np.float32 else 1e-9
    gain, plain = CudaGain(head.astype(dtype), kernels=host_kernels(4)), Gain(head)
    revised = 0.0
    for batch in cut(features, logits, 8, 1, 16):
        first = gain.predict(*(array.astype(dtype) for array in batch))
        result = gain.step(*(array.astype(dtype) for array in batch))
        assert_same(result, plain.step(*batch), atol)
        revised = max(revised, float(np.max(np.abs(result.probs - first.probs))))
        assert_array_equal(result.source_log_probs, first.source_log_probs)
    assert float(plain.state.shift.independence) == 1.0
    assert_states_close(gain.state, plain.state, atol)
    assert revised > 0.1


def test_frames_that_follow_from_each_other_keep_their_first_prediction(host_kernels):
    head, features, logits = stream(480, held=0.8)
    options = {"asymmetry": FLAT}
    gain = CudaGain(head, kernels=host_kernels(4), **options)
    plain = Gain(head, **options)
    corrected = 0
    for index, batch in enumerate(cut(features, logits, 16, 8)):
        first, result = gain.predict(*batch), gain.step(*batch)
        assert_same(result, plain.step(*batch), 1e-9)
        # The first steps of a stream are of few frames.
        if index < 4:
            continue
        assert_array_equal(gain.state.shift.independence, 0.0)
        assert_bitwise(fields_of(result), fields_of(first))
        corrected += bool(np.any(result.strength > 0))
    assert_states_close(gain.state, plain.state)
    assert corrected > 20


def test_frames_of_which_some_follow_go_a_part_of_the_way(host_kernels):
    head, features, logits = stream(480, held=0.28)
    options = {"asymmetry": FLAT}
    gain = CudaGain(head, kernels=host_kernels(4), **options)
    plain = Gain(head, **options)
    partly = 0
    for batch in cut(features, logits, 8):
        first, result = plain.predict(*batch), gain.step(*batch)
        assert_same(result, plain.step(*batch), 1e-9)
        independence = float(plain.state.shift.independence)
        assert_allclose(gain.state.shift.independence, independence, rtol=0, atol=1e-9)
        moved = float(np.max(np.abs(result.probs - first.probs)))
        partly += 0.1 < independence < 0.9 and moved > 1e-3
    assert partly > 10
    assert_states_close(gain.state, plain.state)


@pytest.mark.parametrize("setting", ["independence_test", "mixture_test"])
def test_without_the_test_nothing_is_revised(host_kernels, setting):
    head, features, logits = stream(160, held=0.0)
    config = replace(TRACKED, **{setting: False})
    kernels = host_kernels(4)
    gain, plain = CudaGain(head, config, kernels=kernels), Gain(head, config)
    corrected = 0
    for batch in cut(features, logits, 8):
        first, result = gain.predict(*batch), gain.step(*batch)
        assert_bitwise(fields_of(result), fields_of(first))
        assert_same(result, plain.step(*batch), 1e-9)
        corrected += bool(np.any(result.strength > 0))
    assert corrected > 10
    assert "revise_shift" not in kernels.launched
    assert_states_close(gain.state, plain.state)


def test_two_classes_are_never_revised(host_kernels):
    head, batches = scaled_world(2, 4, num_batches=20, only_class=0)
    kernels = host_kernels(2)
    gain, plain = CudaGain(head, kernels=kernels), Gain(head)
    for batch in batches:
        assert_same(gain.step(*batch), plain.step(*batch), 1e-9)
    assert "revise_shift" not in kernels.launched
    assert_states_close(gain.state, plain.state)
    assert float(plain.state.sums.step_count) > 0.0


def test_apart_predict_update_and_flush_revise_nothing(host_kernels):
    head, features, logits = stream(160, held=0.0)
    kernels = host_kernels(4)
    apart, whole = CudaGain(head, kernels=kernels), CudaGain(head, kernels=host_kernels(4))
    for batch in cut(features, logits, 16):
        prediction = apart.predict(*batch)
        kept = fields_of(prediction)
        apart.update(batch[0], prediction)
        assert_bitwise(fields_of(prediction), kept)
        whole.step(*batch)
    assert "revise_shift" not in kernels.launched
    assert float(apart.state.shift.independence) == 1.0
    assert_bitwise(every_array(apart.state), every_array(whole.state))


@pytest.mark.parametrize("held", [0.0, 0.8], ids=["independent", "video"])
def test_cuts_into_batches_do_not_matter(host_kernels, held):
    """Pairs across the borders of batches count, while frames wait and after they were learned."""
    head, features, logits = stream(240, held=held)
    options = {"config": FOREVER, "update_every": 24, "asymmetry": FLAT}
    plain = Gain(head, **options)
    for batch in cut(features, logits, 24):
        plain.step(*batch)
    for sizes in ((24,), (1, 7, 16), (6,)):
        gain = CudaGain(head, kernels=host_kernels(2), **options)
        reference = Gain(head, **options)
        for batch in cut(features, logits, *sizes):
            assert_same(gain.step(*batch), reference.step(*batch), 1e-9)
            assert_states_close(gain.state, reference.state)
        assert gain.pending_frames == 0
        assert_states_close(gain.state, plain.state)
        # All frames but the first follow one.
        assert float(gain.state.sums.step_count) == 239.0


@pytest.mark.parametrize("update_every", [1, 16])
def test_a_rejected_batch_breaks_the_chain(host_kernels, update_every):
    head, features, logits = stream(240, held=0.0)
    options = {"config": FOREVER, "update_every": update_every}
    gain = CudaGain(head, kernels=host_kernels(4), **options)
    plain = Gain(head, **options)
    known, accepted, chains = False, 0, 0
    for index, batch in enumerate(cut(features, logits, 4, 8)):
        if index % 5 == 2:
            broken = batch[1].copy()
            broken[1, 3] = np.nan
            assert not bool(gain.step(batch[0], broken).finite)
            # On NumPy a step refuses the batch before it is learned from; an update passes it over.
            plain.update(batch[0], predict(batch[0], broken, plain.state, config=FOREVER))
            known = False
        else:
            assert_same(gain.step(*batch), plain.step(*batch), 1e-9)
            chains += not known
            known, accepted = True, accepted + len(batch[0])
        assert (gain.frames, gain.pending_frames) == (plain.frames, plain.pending_frames)
        assert_states_close(gain.state, plain.state)
    gain.flush()
    plain.flush()
    assert_states_close(gain.state, plain.state)
    assert chains > 6
    assert float(gain.state.sums.step_count) == accepted - chains


def test_last_frame_is_loaded_dropped_and_reset(host_kernels):
    head, features, logits = stream(96, held=0.0)
    first, second, third, *rest = cut(features, logits, 8)
    gain, plain = CudaGain(head, FOREVER, kernels=host_kernels(4)), Gain(head, FOREVER)
    for each in (gain, plain):
        each.step(*first)
        each.update_every = 100
        each.step(*second)
    kept = gain.state
    assert float(kept.last.known) == 1.0
    # What waited is dropped, its last frame with it: the next is compared with the state's.
    for each in (gain, plain):
        each.load_state(each.state, frames=8)
        each.step(*third)
        each.flush()
    assert_states_close(gain.state, plain.state)
    assert float(gain.state.sums.step_count) == 15.0
    # Another takes the stream over, then forgets it.
    other = CudaGain(head, FOREVER, kernels=host_kernels(4))
    other.step(*second)
    other.load_state(gain.state, frames=16)
    assert_bitwise(every_array(other.state), every_array(gain.state))
    for each in (gain, plain):
        each.update_every = 1
    for batch in rest[:4]:
        expected = plain.step(*batch)
        assert_same(gain.step(*batch), expected, 1e-9)
        assert_same(other.step(*batch), expected, 1e-9)
    assert_states_close(other.state, plain.state)
    other.reset()
    fresh = CudaGain(head, FOREVER, kernels=host_kernels(4))
    assert_bitwise(every_array(other.state), every_array(fresh.state))
    for each in (other, fresh):
        each.step(*rest[4])
    assert_bitwise(every_array(other.state), every_array(fresh.state))
    assert float(other.state.sums.step_count) == 7.0


def test_state_that_was_read_stays_as_it_was(host_kernels):
    head, features, logits = stream(32, held=0.0)
    gain = CudaGain(head, kernels=host_kernels(4))
    first, second = cut(features, logits, 16)
    gain.step(*first)
    state = gain.state
    kept = every_array(state)
    gain.step(*second)
    assert_bitwise(every_array(state), kept)
    assert np.any(gain.state.last.logits != state.last.logits)


@pytest.mark.parametrize("held", [0.0, 0.9], ids=["independent", "video"])
@pytest.mark.parametrize("turn", ["trips", "lets-go"])
def test_guard_that_turns_answers_at_once(host_kernels, turn, held):
    """The revised prediction is by the guard as it is after the batch."""
    head, features, logits = stream(240, held=held)
    *batches, last = cut(features, logits, 16)
    options = {"asymmetry": FLAT}
    gain, plain = CudaGain(head, kernels=host_kernels(4), **options), Gain(head, **options)
    for batch in batches:
        assert_same(gain.step(*batch), plain.step(*batch), 1e-9)
    numbers = {"count": 300.0, "agreement": 1.0, "confidence": 290.0}
    if turn == "lets-go":
        numbers = {"hold": 10.0}
    for each in (gain, plain):
        changed = {name: np.asarray(value) for name, value in numbers.items()}
        guard = replace(each.state.guard, **changed)
        each.load_state(replace(each.state, guard=guard), frames=each.frames)
    first = gain.predict(*last)
    result, expected = gain.step(*last), plain.step(*last)
    assert_same(result, expected, 1e-9)
    assert np.any(first.strength > 0) == (turn == "trips")
    assert np.any(result.strength > 0) == (turn == "lets-go")
    assert float(gain.state.guard.trips) == (turn == "trips")
    assert (float(gain.state.shift.independence) > 0) == (turn == "lets-go" and held == 0.0)
    assert_states_close(gain.state, plain.state)
    # The frame after a trip is compared with the one before it: that is not of the sums.
    assert_array_equal(gain.state.last.known, 1.0)


def test_recorded_steps_are_revised_into_memory_of_their_own(host_kernels):
    head, features, logits = stream(96, held=0.0)
    options = {"update_every": 16}
    gain = CudaGain(head, kernels=host_kernels(4), **options)
    plain = Gain(head, **options)
    kept = []
    # Batches of one size, every second one of which is learned from.
    for batch in cut(features, logits, 8):
        kept.append((gain.step(*batch), plain.step(*batch)))
    for result, expected in kept:
        assert_same(result, expected, 1e-9)
    assert float(plain.state.shift.independence) == 1.0


def test_revision_that_is_not_finite_is_flagged(host_kernels):
    head, features, logits = stream(16, held=0.0)
    gain = CudaGain(head, kernels=host_kernels(4))
    made = gain.predict(features, logits)
    rows = np.ones(len(logits), np.bool_)
    scalars = np.zeros(shift_step._SCALARS)
    scalars[shift_step._MOVED + 1 :] = 1.0  # to be revised, with a variance and a shift
    shift, sizes = np.full((3, NUM_CLASSES), np.nan), (24, NUM_CLASSES, 20)
    matrices = (made.probs, made.log_probs, made.source_log_probs)
    inputs = (features, logits, shift, scalars, np.float64(-1e300), *map(np.int32, sizes))
    host_kernels(4).launch(
        "revise_shift",
        (*inputs, *matrices, made.strength, made.gain, rows, made.finite),
        blocks=len(logits),
        threads=32,
        dtype=np.dtype(np.float64),
    )
    assert not np.any(rows)
    assert not bool(made.finite)


def test_lengths_of_arrays_are_the_kernels(host_libraries):
    lengths = (ctypes.c_int * 4)()
    host_libraries["float32"].host_lengths(lengths)
    settings = len(shift_settings(GainConfig(), num_classes=3, measured=True))
    written = [shift_step._SCALARS, shift_step._FRESH, shift_step._TOTALS, settings]
    assert list(lengths) == written
    assert shift_step._ROW_SUMS == 2 + shift_step._TOTALS + BESIDE_DIMS
