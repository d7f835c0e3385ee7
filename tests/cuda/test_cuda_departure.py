"""A mixture that gives way to one class and comes back, in the kernels on the host.

The reference is `Gain` on the same stream, in float64.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from taught_gain import assert_bitwise, assert_states_close, every_array

from gain_core import PRESETS, Gain, departure, predict, shift
from gain_core.departure import BESIDE_DIMS
from gain_runtime.cuda import CudaGain, kernel_source, shift_step

TRACKED = replace(PRESETS["tracked"], half_life=512.0)
# Of one class the logits lie evenly, of all these classes not.
ASYMMETRY = (0.0, 0.2)
NUM_CLASSES, FEATURE_DIM = 10, 40
MIXED, SINGLE = 40, 16
# Sums of the guard's that make it trip after the next batch.
TRIPPING = {"count": 300.0, "agreement": 1.0, "confidence": 290.0}


def rounded(array):
    """The nearest float32 values, so that both precisions see the same."""
    return array.astype(np.float32).astype(np.float64)


@cache
def world(feature_dim: int = FEATURE_DIM):
    """A head and batches: of all classes, from `MIXED` on of one, and `SINGLE` later of all again.

    Nothing but the class moves features, and classes differ in the span of the head's rows alone.
    """
    rng = np.random.default_rng(1)
    head = 3.2 * rng.normal(size=(NUM_CLASSES, feature_dim)) / np.sqrt(feature_dim)
    head = rounded(head - np.mean(head, axis=0))
    biases = rng.normal(size=NUM_CLASSES) - 0.5 * np.sum(head * head, axis=1)
    batches = []
    for index in range(MIXED + SINGLE + 24):
        size = (16, 7, 25)[index % 3]
        labels = rng.integers(NUM_CLASSES, size=size)
        if MIXED <= index < MIXED + SINGLE:
            labels[:] = 3
        features = rounded(head[labels] + rng.normal(size=(size, feature_dim)))
        batches.append((features, rounded(features @ head.T + biases)))
    return head, tuple(batches)


def both(host_kernels, config=TRACKED, *, dtype=np.float64, threads=2, head=None, **options):
    """The kernels and their reference on one head."""
    head = world()[0] if head is None else head
    options = {"asymmetry": ASYMMETRY, **options}
    gain = CudaGain(head.astype(dtype), config, kernels=host_kernels(threads), **options)
    return gain, Gain(head, config, **options)


def step_both(gain, plain, batches, *, atol=1e-9, dtype=np.float64):
    """Each batch on both; how surely the mixture had gone after each."""
    gone = []
    for features, logits in batches:
        result = gain.step(features.astype(dtype), logits.astype(dtype))
        assert_allclose(result.probs, plain.step(features, logits).probs, rtol=0, atol=atol)
        mine, theirs = (float(each.state.sums.departure) for each in (gain, plain))
        assert abs(mine - theirs) < 10 * atol
        gone.append(theirs)
    return np.asarray(gone)


@cache
def gone():
    """The reference's state in the midst of the one class."""
    head, batches = world()
    plain = Gain(head, TRACKED, asymmetry=ASYMMETRY)
    for batch in batches[: MIXED + 8]:
        plain.step(*batch)
    assert plain.state.sums.departure > 0.5
    return plain.state


@pytest.mark.parametrize("update_every", [1, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_one_class_comes_and_goes(host_kernels, dtype, update_every):
    atol = 1e-4 if dtype is np.float32 else 1e-9
    gain, plain = both(host_kernels, dtype=dtype, update_every=update_every)
    says = step_both(gain, plain, world()[1], atol=atol, dtype=dtype)
    assert np.max(says[:MIXED]) < 0.1
    assert np.max(says[MIXED : MIXED + SINGLE]) > 0.9
    assert np.any((says > 0.05) & (says < 0.95))
    assert says[-1] < 0.01
    assert_states_close(gain.state, plain.state, atol)
    assert np.min(gain.state.sums.window_beside_power) > 100.0
    gain.flush()
    plain.flush()
    assert_states_close(gain.state, plain.state, atol)


def test_the_estimate_reads_it_after_the_frames(host_kernels):
    """Told that a mixture has gone, no memory moves the shift; told less, it does."""
    batches = world()[1]
    mixture = Gain(world()[0], TRACKED, asymmetry=ASYMMETRY)
    for batch in batches[:MIXED]:
        mixture.step(*batch)
    state, trusts = mixture.state, []
    for before in (0.0, 0.05, 0.9):
        gain, plain = both(host_kernels)
        sums = replace(state.sums, departure=np.asarray(before))
        for each in (gain, plain):
            each.load_state(replace(state, sums=sums), frames=9)
        # No feature says that the mixture is there, so that labels alone end it, by and by.
        features, logits = batches[0]
        (after,) = step_both(gain, plain, [(features[:5, :2], logits[:5])])
        assert 0.5 * before <= after <= 0.95 * before
        assert_states_close(gain.state, plain.state)
        trusts.append(float(gain.state.shift.trust))
    assert trusts[0] > trusts[1] + 0.01 > trusts[2] + 0.02


@pytest.mark.parametrize("other", [FEATURE_DIM - 1, FEATURE_DIM + 3, 0], ids=str)
def test_features_of_another_number_say_nothing(host_kernels, other):
    batches = [(np.resize(features, (len(features), other)), y) for features, y in world()[1]]
    gain, plain = both(host_kernels, update_every=24)
    step_both(gain, plain, batches[MIXED - 20 : MIXED + 8])
    assert_array_equal(gain.state.sums.window_beside, 0.0)
    assert_array_equal(gain.state.sums.window_beside_power, 0.0)
    assert float(gain.state.sums.departure) == 0.0
    assert_states_close(gain.state, plain.state)
    # What there was before is forgotten all the same.
    for each in (gain, plain):
        each.load_state(gone(), frames=9)
    step_both(gain, plain, batches[MIXED + 8 : MIXED + 16])
    power, before = (state.sums.window_beside_power for state in (gain.state, gone()))
    assert np.all(power < before)
    assert np.all(power > 0.0)
    assert_states_close(gain.state, plain.state)


@pytest.mark.parametrize("length", [1e20, 3e38])
def test_features_whose_squares_overflow_say_nothing(host_kernels, length):
    gain, plain = both(host_kernels, dtype=np.float32)
    batches = list(world()[1][MIXED - 4 : MIXED + 4])
    for index in (2, 5):
        features, logits = batches[index]
        features = features.copy()
        features[3] *= length / np.max(np.abs(features[3]))
        batches[index] = (features, logits)
    step_both(gain, plain, batches, atol=1e-4, dtype=np.float32)
    assert_states_close(gain.state, plain.state, 1e-4)
    assert np.all(np.isfinite(gain.state.sums.window_beside_power))
    assert np.min(gain.state.sums.window_beside_power) > 100.0


@pytest.mark.parametrize("update_every", [1, 60])
@pytest.mark.parametrize("given", ["features", "logits"])
def test_rejected_batches_add_nothing(host_kernels, given, update_every):
    gain, plain = both(host_kernels, update_every=update_every)
    says = []
    for index, (features, logits) in enumerate(world()[1][: MIXED + SINGLE]):
        if index % 4 != 2:
            says.extend(step_both(gain, plain, [(features, logits)]))
            continue
        features, logits = features.copy(), logits.copy()
        broken = features if given == "features" else logits
        broken[index % len(broken), 5] = (np.nan, np.inf)[index // 4 % 2]
        # On NumPy a step refuses the batch; an update passes it over.
        plain.update(features, predict(features, logits, plain.state, config=TRACKED))
        # Both ways to learn from it.
        if index % 8 == 2:
            assert not bool(gain.step(features, logits).finite)
        else:
            gain.update(features, gain.predict(features, logits))
    assert max(says) > 0.7
    assert_states_close(gain.state, plain.state)


@pytest.mark.parametrize("normalise", [False, True], ids=["as-they-are", "normalised"])
def test_apart_predict_and_update_read_the_same_features(host_kernels, normalise):
    config = replace(TRACKED, normalise=normalise)
    gain, plain = both(host_kernels, config, update_every=24)
    for features, logits in world()[1][MIXED - 20 : MIXED + 8]:
        # Not as the kernels want them: of another precision, and one column after the other.
        given = np.asfortranarray(features.astype(np.float32))
        for each in (gain, plain):
            each.update(given, each.predict(given, logits))
    assert_states_close(gain.state, plain.state)
    assert np.min(gain.state.sums.window_beside_power) > (1.0 if normalise else 100.0)


def test_it_is_loaded_dropped_and_reset(host_kernels):
    first, second, third, *rest = world()[1][MIXED + 8 : MIXED + 16]
    gain, plain = both(host_kernels)
    for each in (gain, plain):
        each.load_state(gone(), frames=9)
    assert_bitwise(every_array(gain.state), every_array(gone()))
    step_both(gain, plain, [first])
    for each in (gain, plain):
        each.update_every = 1000
    step_both(gain, plain, [second])
    kept = gain.state
    # What waits is dropped by a load.
    for each in (gain, plain):
        each.load_state(each.state, frames=9)
        each.update_every = 1
    step_both(gain, plain, [third])
    assert_states_close(gain.state, plain.state)
    assert not np.array_equal(gain.state.sums.window_beside, kept.sums.window_beside)
    # Another takes the stream over, then forgets it.
    other, _ = both(host_kernels)
    other.load_state(gain.state, frames=16)
    assert_bitwise(every_array(other.state), every_array(gain.state))
    for batch in rest:
        other.step(*batch)
    step_both(gain, plain, rest)
    assert_bitwise(every_array(other.state), every_array(gain.state))
    other.update_every = 1000
    other.step(*first)
    other.reset()
    fresh, _ = both(host_kernels, update_every=1000)
    for each in (other, fresh):
        each.update_every = 1
        each.step(*second)
    assert_bitwise(every_array(other.state), every_array(fresh.state))


def test_a_guard_that_trips_drops_it(host_kernels):
    batches = world()[1][MIXED + 8 : MIXED + 12]
    gain, plain = both(host_kernels)
    numbers = {name: np.asarray(value) for name, value in TRIPPING.items()}
    tripping = replace(gone(), guard=replace(gone().guard, **numbers))
    for each in (gain, plain):
        each.load_state(tripping, frames=9)
    step_both(gain, plain, batches[:1])
    sums = gain.state.sums
    assert float(gain.state.guard.trips) == 1.0
    assert float(sums.departure) == 0.0
    for dropped in (sums.window_beside, sums.window_beside_power, sums.newest_source):
        assert_array_equal(dropped, 0.0)
    step_both(gain, plain, batches[1:])
    assert_states_close(gain.state, plain.state)


@pytest.mark.parametrize("setting", ["independence_test", "mixture_test"])
def test_without_the_test_the_sums_are_kept_alone(host_kernels, setting):
    gain, plain = both(host_kernels, replace(TRACKED, **{setting: False}))
    half = replace(gone(), sums=replace(gone().sums, departure=np.asarray(0.5)))
    for each in (gain, plain):
        each.load_state(half, frames=9)
    step_both(gain, plain, world()[1][MIXED + 8 : MIXED + 12])
    assert float(gain.state.sums.departure) == 0.5
    assert_states_close(gain.state, plain.state)
    assert not np.array_equal(gain.state.sums.window_beside, gone().sums.window_beside)


class CountedKernels:
    """Those on the host; `blocks` of the last launch of each."""

    def __init__(self, kernels) -> None:
        self._kernels = kernels
        self.copy, self.record = kernels.copy, kernels.record
        self.blocks: dict[str, int] = {}

    def launch(self, name, arguments, /, *, blocks, threads, dtype) -> None:
        self.blocks[name] = blocks
        self._kernels.launch(name, arguments, blocks=blocks, threads=threads, dtype=dtype)


@pytest.mark.parametrize(("feature_dim", "blocks"), [(24, 5), (25, 5 * 9)])
def test_heads_without_room_start_no_blocks_for_it(host_kernels, feature_dim, blocks):
    head, batches = world(feature_dim)
    kernels = CountedKernels(host_kernels(2))
    gain = CudaGain(head, TRACKED, kernels=kernels, asymmetry=ASYMMETRY)
    plain = Gain(head, TRACKED, asymmetry=ASYMMETRY)
    step_both(gain, plain, [(features[:5], logits[:5]) for features, logits in batches[:6]])
    assert kernels.blocks["shift_rows"] == blocks
    assert np.any(gain.state.sums.window_beside != 0.0) == (blocks > 5)
    assert_states_close(gain.state, plain.state)
    # A step is as many kernels as ever.
    assert len(kernels.blocks) == 10


def test_blocks_of_more_than_one_warp(host_kernels):
    # Many threads at a barrier take a while on two cores, hence one step of few rows.
    config = replace(TRACKED, num_iters=6)
    features, logits = world()[1][MIXED + 8]
    wide, narrow = (both(host_kernels, config, threads=threads)[0] for threads in (64, 1))
    # A row's block has as many threads as there are classes, the columns' ones more.
    for each in (wide, narrow):
        each.load_state(gone(), frames=9)
        each.step(features[:3], logits[:3])
    assert_states_close(wide.state, narrow.state, 1e-12)


def test_numbers_written_in_the_source_are_the_rules():
    written = dict(re.findall(r"#define (BESIDE_\w+) (\d+)", kernel_source()))
    assert written == {
        "BESIDE_DIMS": str(BESIDE_DIMS),
        "BESIDE_PART": str(shift_step._BESIDE_PART),
    }
    assert BESIDE_DIMS % shift_step._BESIDE_PART == 0
    # One setting is both.
    assert departure.TINY == shift.TINY
