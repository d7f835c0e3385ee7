"""Whether frames say what the next one shows, and what follows where they do not."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from logit_streams import labels_of, learn, logits_of, stream
from numpy.testing import assert_allclose, assert_array_equal
from shift_oracle import ShiftOracle
from taught_gain import assert_bitwise, every_array

from gain_core import (
    Gain,
    GainConfig,
    Prediction,
    init_state,
    merge_states,
    predict,
    prepare_prototypes,
    state_from_arrays,
    state_to_arrays,
    update,
)
from gain_core.gain import MAX_PENDING_ROWS
from gain_core.shift import (
    FIRST_SHIFT_WINDOW,
    NUM_WINDOWS,
    STEP_RAMP,
    WINDOW_RATIO,
    Shift,
    ShiftSums,
    asymmetry_of,
    between,
    empty_sums,
    estimate_shift,
    independence_of,
)
from gain_core.step import revise

TRACKED = GainConfig()
ENDLESS = replace(TRACKED, half_life=np.inf)
QUICK = settings(max_examples=60, deadline=None, derandomize=True)
HEAD = np.eye(12, 20)


def x_of(logits: np.ndarray) -> np.ndarray:
    """What the sums are made of."""
    return logits - np.mean(logits, axis=1, keepdims=True)


def mixed(num_frames: int, *, seed: int, offset: float = 1.0) -> np.ndarray:
    """Logits (N, 12) of all classes in no order, under one shift."""
    moved = offset * np.random.default_rng(seed + 1).normal(size=12)
    return logits_of(labels_of(num_frames, seed=seed), seed=seed + 2) + moved


def in_runs(num_frames: int, *, seed: int, length: int = 60) -> np.ndarray:
    """The same with one class for `length` frames, then another."""
    labels = labels_of(-(-num_frames // length), seed=seed).repeat(length)[:num_frames]
    return logits_of(labels, seed=seed + 1) + np.random.default_rng(seed).normal(size=12)


def like_a_video(num_frames: int, *, seed: int) -> np.ndarray:
    """Runs whose frames hardly differ from one to the next, as a camera's do."""
    rng, noise = np.random.default_rng(seed), np.zeros(12)
    logits = in_runs(num_frames, seed=seed, length=97)
    for index in range(num_frames):
        noise = 0.98 * noise + 0.2 * rng.normal(size=12)
        logits[index] = 0.1 * logits[index] + noise
    return logits


def one_step(gain: Gain, logits: np.ndarray) -> tuple[Prediction, Prediction]:
    """The prediction before a batch was learned from, and the one that `step` returns."""
    features = np.zeros((len(logits), 3), dtype=logits.dtype)
    return gain.predict(features, logits), gain.step(features, logits)


def assert_same_prediction(result: Prediction, expected: Prediction) -> None:
    """To the last bit."""
    for item in fields(Prediction):
        assert_array_equal(
            getattr(result, item.name), getattr(expected, item.name), err_msg=item.name
        )


# --- which streams are independent ---


@pytest.mark.parametrize("batch_size", [1, 16, 64])
def test_frames_in_no_order_are_independent_within_a_few_hundred(batch_size):
    gain = Gain(HEAD, TRACKED)
    learn(gain, mixed(320, seed=1), batch_size=batch_size)
    assert gain.state.shift.independence == 1.0
    first, result = one_step(gain, mixed(16, seed=4))
    assert np.max(np.abs(result.probs - first.probs)) > 1e-3


@pytest.mark.parametrize("make", [in_runs, like_a_video], ids=["runs", "video"])
def test_of_runs_and_videos_the_first_prediction_stands_to_the_last_bit(make):
    logits = make(3000, seed=11)
    gain = Gain(HEAD, TRACKED)
    learn(gain, logits[:1200])
    for raw in np.split(logits[1200:], 100):
        first, result = one_step(gain, raw)
        assert gain.state.shift.independence == 0.0
        assert_same_prediction(result, first)
    sums = gain.state.sums
    mean = sums.window_logits[-1] / sums.window_count[-1]
    spread = np.sum(sums.window_powers[-1]) / sums.window_count[-1] - mean @ mean
    assert sums.step_power / sums.step_count < STEP_RAMP[0] * spread


def test_one_class_in_no_order_is_independent_and_no_mixture():
    """Its frames are draws of their own noise, and none of a class: nothing is moved."""
    gain = Gain(HEAD, TRACKED)
    labels = np.full(2000, 3)
    for result in stream(gain, logits_of(labels, seed=14) + np.linspace(-1.0, 1.0, 12)):
        assert_array_equal(result.log_probs, result.source_log_probs)
    assert gain.state.shift.independence == 1.0
    assert np.all(asymmetry_of(gain.state.sums)[FIRST_SHIFT_WINDOW:] < 0.05)
    assert_array_equal(gain.state.shift.vector, 0.0)


def test_two_classes_are_never_independent():
    labels = labels_of(1000, seed=15, num_classes=2)
    logits = logits_of(labels, seed=16, num_classes=2) + np.array([1.5, -1.5])
    gain = Gain(np.eye(2, 5), TRACKED)
    for raw in np.split(logits, 100):
        first, result = one_step(gain, raw)
        assert_same_prediction(result, first)
    assert gain.state.shift.independence == 0.0
    assert gain.state.sums.step_count > 0.0


@pytest.mark.parametrize(
    "config",
    [replace(TRACKED, independence_test=False), replace(TRACKED, mixture_test=False)],
    ids=["no-independence-test", "no-mixture-test"],
)
def test_untested_frames_are_never_independent(config):
    gain = Gain(HEAD, config)
    for raw in np.split(mixed(960, seed=17), 60):
        first, result = one_step(gain, raw)
        assert_same_prediction(result, first)
    assert gain.state.shift.independence == 0.0
    assert gain.state.shift.trust > 0.5


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0], ids=["begins", "partly", "ends"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_ramp_between_steps_and_variance(share, dtype):
    begins, ends = STEP_RAMP
    ratio = begins + share * (ends - begins)
    sums = empty_sums(5, like=np.zeros(1, dtype=dtype))
    power = np.asarray(ratio * 7.0 * 30.0, dtype=dtype)
    sums = replace(sums, step_power=power, step_count=np.asarray(30.0, dtype=dtype))
    found = independence_of(sums, np.asarray(7.0, dtype=dtype))
    assert found.dtype == dtype
    assert_allclose(found, share, rtol=0, atol=1e-5)
    # One in a million to either side of the ends is outside.
    assert independence_of(sums, np.asarray(7e6, dtype=dtype)) == 0.0
    assert independence_of(sums, np.asarray(7e-6, dtype=dtype)) == 1.0


# --- what independence does to an estimate ---


def test_not_independent_only_the_three_longer_memories_are_asked():
    untested = replace(TRACKED, independence_test=False)
    prepared = prepare_prototypes(HEAD, TRACKED)
    gain = Gain(prepared, TRACKED)
    learn(gain, mixed(1024, seed=21, offset=1.0))
    # A jump, which the short memories know of before the long ones.
    learn(gain, mixed(16, seed=24, offset=2.0))
    sums = gain.state.sums
    longer = np.arange(NUM_WINDOWS) >= FIRST_SHIFT_WINDOW
    blind = {
        item.name: np.where(longer if value.ndim == 1 else longer[:, None], value, 0.0)
        for item in fields(ShiftSums)
        if len(value := np.atleast_1d(getattr(sums, item.name))) == NUM_WINDOWS
    }
    estimate = {
        (config.independence_test, len(emptied)): estimate_shift(
            replace(sums, **emptied), prototypes=prepared, config=config
        )
        for config in (TRACKED, untested)
        for emptied in (blind, {})
    }
    with_all, with_longer = estimate[False, 0], estimate[False, len(blind)]
    for item in fields(Shift):
        assert_array_equal(getattr(with_all, item.name), getattr(with_longer, item.name))
    assert with_all.independence == 0.0
    assert with_all.trust > 0.5
    with_all, with_longer = estimate[True, 0], estimate[True, len(blind)]
    assert np.max(np.abs(with_all.vector - with_longer.vector)) > 0.1


@pytest.mark.parametrize("seed", range(3))
def test_the_batch_in_which_a_domain_changes_is_revised(seed):
    rng = np.random.default_rng(31 + seed)
    right = np.zeros(2)
    for _ in range(8):
        gain, offsets = Gain(HEAD, TRACKED), 1.5 * rng.normal(size=(2, 12))
        labels = rng.integers(0, 12, 1024 + 64)
        logits = logits_of(labels, seed=int(rng.integers(1 << 30)))
        learn(gain, logits[:1024] + offsets[0], batch_size=64)
        first, result = one_step(gain, logits[1024:] + offsets[1])
        for index, answer in enumerate((first, result)):
            right[index] += np.mean(np.argmax(answer.probs, axis=1) == labels[1024:]) / 8
        assert gain.guard_trips == 0
    assert right[1] > right[0] + 0.1


# --- when a prediction is revised ---


def test_predict_and_update_apart_never_revise():
    together, apart = Gain(HEAD, TRACKED), Gain(HEAD, TRACKED)
    for raw in np.split(mixed(640, seed=41), 40):
        features = np.zeros((16, 3))
        first, result = one_step(together, raw)
        prediction = apart.predict(features, raw)
        kept = np.array(prediction.probs)
        apart.update(features, prediction)
        assert_same_prediction(prediction, first)
        assert_array_equal(prediction.probs, kept)
        assert_bitwise(every_array(apart.state), every_array(together.state))
    assert np.max(np.abs(result.probs - first.probs)) > 1e-3


def test_only_the_batch_that_is_learned_from_at_once_is_revised():
    gain = Gain(HEAD, TRACKED)
    learn(gain, mixed(320, seed=43))
    gain.update_every = 64
    revised = []
    for raw in np.split(mixed(128, seed=43, offset=2.0), 8):
        first, result = one_step(gain, raw)
        revised.append(bool(np.any(result.probs != first.probs)))
    assert revised == [False, False, False, True] * 2
    gain.update_every = 1
    gain.freeze()
    first, result = one_step(gain, raw)
    assert_same_prediction(result, first)


def test_a_revision_is_a_prediction_with_a_shift_on_the_way():
    gain = Gain(HEAD, TRACKED)
    logits = mixed(320, seed=45)
    learn(gain, logits[:304])
    before, features, raw = gain.state, np.zeros((16, 3)), logits[304:]
    first, result = one_step(gain, raw)
    after = gain.state
    halfway = replace(after, shift=replace(after.shift, independence=np.asarray(0.5)))
    kept = every_array(before), every_array(halfway)
    revised = revise(first, before=before, after=halfway, config=TRACKED)
    middle = between(before.shift, halfway.shift)
    for name in ("vector", "stretch", "log_prior", "variance"):
        both = getattr(before.shift, name) + getattr(after.shift, name)
        assert_allclose(getattr(middle, name), 0.5 * both, rtol=1e-12)
    wanted = predict(features, raw, replace(after, shift=middle), config=TRACKED)
    assert_same_prediction(revised, wanted)
    assert np.max(np.abs(revised.probs - first.probs)) > 0.0
    assert np.max(np.abs(revised.probs - result.probs)) > 0.0
    assert_bitwise(every_array(before), kept[0])
    assert_bitwise(every_array(halfway), kept[1])
    off = replace(TRACKED, independence_test=False)
    assert revise(first, before=before, after=after, config=off) is first


# --- the steps, however the stream is cut ---


@pytest.mark.parametrize(
    "sizes", [[1], [16], [7, 50, 7], [64], [128]], ids=["1", "16", "uneven", "64", "128"]
)
@pytest.mark.parametrize("update_every", [1, 64])
def test_the_steps_do_not_depend_on_how_the_stream_is_cut(sizes, update_every):
    logits = mixed(512, seed=51)
    gain = Gain(HEAD, ENDLESS, update_every=update_every)
    cut = np.cumsum(sizes * 512)
    for raw in np.split(logits, cut[cut < 512]):
        gain.step(np.zeros((len(raw), 3)), raw)
    assert gain.frames == 512
    x = x_of(logits)
    assert gain.state.sums.step_count == 511.0
    assert_allclose(gain.state.sums.step_power, 0.5 * np.sum(np.diff(x, axis=0) ** 2), rtol=1e-9)
    assert_allclose(gain.state.last.logits, x[-1], rtol=1e-9, atol=1e-12)
    assert gain.state.last.known == 1.0


@pytest.mark.parametrize("sizes", [[1], [16], [7, 50, 7]], ids=["1", "16", "uneven"])
def test_batches_that_wait_teach_what_one_batch_of_them_does(sizes):
    logits = mixed(512, seed=53)
    whole, parts = (Gain(HEAD, TRACKED, update_every=64) for _ in range(2))
    learn(whole, logits, batch_size=64)
    cut = np.cumsum(sizes * 512)
    for raw in np.split(logits, cut[cut < 512]):
        parts.step(np.zeros((len(raw), 3)), raw)
    expected, result = every_array(whole.state), every_array(parts.state)
    for name, wanted in expected.items():
        assert_allclose(result[name], wanted, rtol=1e-9, atol=1e-9, err_msg=name)
    assert whole.state.shift.independence > 0.0


@pytest.mark.parametrize("size", [1, 96, 500])
def test_sums_that_wait_know_the_newest_frame(size):
    """Rows that wait are folded into sums now and then; the next ones follow the last of them."""
    num_frames = 2 * MAX_PENDING_ROWS + 100
    logits = mixed(num_frames, seed=54)
    gain = Gain(HEAD, ENDLESS, update_every=num_frames)
    learn(gain, logits, batch_size=size)
    assert gain.frames == num_frames
    assert gain.state.sums.step_count == num_frames - 1.0
    power = 0.5 * np.sum(np.diff(x_of(logits), axis=0) ** 2)
    assert_allclose(gain.state.sums.step_power, power, rtol=1e-9)


def test_the_steps_are_forgotten_as_the_longest_memory():
    logits = mixed(96, seed=55)
    gain = Gain(HEAD, replace(TRACKED, half_life=50.0))
    learn(gain, logits, batch_size=8)
    weights = 0.5 ** ((95 - np.arange(96)) // 8 * 8 / 50.0)
    steps = 0.5 * np.sum(np.diff(x_of(logits), axis=0) ** 2, axis=1)
    assert_allclose(gain.state.sums.step_power, weights[1:] @ steps, rtol=1e-9)
    assert_allclose(gain.state.sums.step_count, np.sum(weights[1:]), rtol=1e-9)
    for window in range(NUM_WINDOWS):
        half_life = 50.0 / WINDOW_RATIO ** (NUM_WINDOWS - 1 - window)
        kept = np.sum(0.5 ** ((95 - np.arange(96)) // 8 * 8 / half_life))
        assert_allclose(gain.state.sums.window_count[window], kept, rtol=1e-9)


def test_no_frame_follows_a_rejected_one():
    logits = mixed(48, seed=57)
    state, features = init_state(HEAD, ENDLESS), np.zeros((16, 3))
    oracle = ShiftOracle(HEAD, ENDLESS)
    for index, raw in enumerate(np.split(logits, 3)):
        if index == 1:
            raw = np.where(np.arange(16)[:, None] == 5, np.nan, raw)
        result = predict(features, raw, state, config=ENDLESS)
        state = update(features, result, state, prototypes=HEAD, config=ENDLESS)
        oracle.update(None if index == 1 else oracle.predict(raw))
        assert state.last.known == float(index != 1)
    assert state.sums.step_count == 30.0
    x = x_of(logits)
    steps = sum(np.sum(np.diff(part, axis=0) ** 2) for part in (x[:16], x[32:]))
    assert_allclose(state.sums.step_power, 0.5 * steps, rtol=1e-9)
    assert_allclose(oracle.step_sums(), (state.sums.step_power, 30.0), rtol=1e-9)
    assert_allclose(state.shift.independence, oracle.iota, rtol=1e-9)


# --- saved, united, dropped ---


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_loaded_state_goes_on_from_the_last_frame(dtype):
    logits = mixed(640, seed=61).astype(dtype)
    gain, loaded = (Gain(HEAD.astype(dtype), TRACKED) for _ in range(2))
    learn(gain, logits[:320])
    arrays = {name: np.array(value) for name, value in state_to_arrays(gain.state).items()}
    assert {"step_power", "step_count", "last_logits", "last_known"} <= arrays.keys()
    assert arrays["last_logits"].dtype == dtype
    state = state_from_arrays(arrays, prototypes=HEAD.astype(dtype), config=TRACKED)
    assert_bitwise(every_array(state), every_array(gain.state))
    loaded.load_state(state, frames=320)
    for raw in np.split(logits[320:], 20):
        (_, expected), (_, result) = one_step(gain, raw), one_step(loaded, raw)
        assert_same_prediction(result, expected)
    assert_bitwise(every_array(loaded.state), every_array(gain.state))


def test_a_united_state_has_no_last_frame():
    left, right, more = (mixed(160, seed=seed) for seed in (63, 64, 65))
    states = []
    for logits in (left, right):
        gain = Gain(HEAD, ENDLESS)
        learn(gain, logits)
        states.append(gain.state)
    merged = merge_states(*states, prototypes=HEAD, config=ENDLESS)
    assert_array_equal(merged.last.logits, 0.0)
    assert merged.last.known == 0.0
    assert merged.sums.step_count == 318.0
    assert_allclose(
        merged.sums.step_power, sum(state.sums.step_power for state in states), rtol=1e-12
    )
    gain = Gain(HEAD, ENDLESS)
    gain.load_state(merged, frames=320)
    learn(gain, more)
    assert gain.state.sums.step_count == 318.0 + 159.0


# It takes a run of one class for a shift.
RUNAWAY = GainConfig(shrinkage=0.0, label_draws=0.0, half_life=400.0)


def test_of_the_batch_that_trips_the_guard_the_source_answers(xp):
    """The steps are dropped with all sums, and the frame after follows the last one all the same.

    When the guard lets go, the batch that it does so at is corrected again.
    """
    logits = 4.0 * np.eye(4)[[0]] + 0.5 * np.random.default_rng(9).normal(size=(100, 8, 4))
    z = xp.from_numpy(np.zeros((8, 3)))
    gain, plain = Gain(xp.from_numpy(np.eye(4, 6)), RUNAWAY), Gain(np.eye(4, 6), RUNAWAY)
    held, source = [], []
    for index, raw in enumerate(logits):
        result = gain.step(z, xp.from_numpy(raw))
        expected = plain.step(np.zeros((8, 3)), raw)
        assert_allclose(xp.to_numpy(result.probs), expected.probs, rtol=0, atol=1e-6)
        held.append(bool(xp.to_numpy(gain.state.guard.hold) > 0))
        source.append(np.array_equal(expected.log_probs, expected.source_log_probs))
        if held[-1] and not held[index - 1]:
            assert xp.to_numpy(gain.state.sums.step_count) == 0.0
            assert xp.to_numpy(gain.state.shift.independence) == 0.0
            x = raw[-1] - np.mean(raw[-1])
            assert_allclose(xp.to_numpy(gain.state.last.logits), x, rtol=1e-9, atol=1e-12)
        elif index and held[index - 1] and not held[max(index - 2, 0)]:
            assert xp.to_numpy(gain.state.sums.step_count) == 8.0
    trip = held.index(True)
    # 256 frames, from the batch that trips it on.
    assert held == [trip <= index < trip + 32 for index in range(100)]
    assert source[1:] == held[1:]


# --- whatever the library, the dtype and the numbers ---


@pytest.mark.parametrize("update_every", [1, 64])
def test_every_library_revises_as_numpy_does(xp, update_every):
    plain = Gain(HEAD, TRACKED, update_every=update_every)
    gain = Gain(xp.from_numpy(HEAD), TRACKED, update_every=update_every)
    z, largest = np.zeros((16, 3)), 0.0
    for raw in np.split(mixed(320, seed=71, offset=2.0), 20):
        first, expected = one_step(plain, raw)
        result = gain.step(xp.from_numpy(z), xp.from_numpy(raw))
        assert_allclose(xp.to_numpy(result.probs), expected.probs, rtol=0, atol=1e-6)
        largest = max(largest, float(np.max(np.abs(expected.probs - first.probs))))
    assert largest > 0.01
    assert_allclose(xp.to_numpy(gain.state.shift.independence), 1.0, rtol=1e-9)
    wanted = state_to_arrays(plain.state)
    for name, value in state_to_arrays(gain.state).items():
        assert_allclose(xp.to_numpy(value), wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_float32_counts_steps_as_float64_does():
    logits = np.float32(mixed(2000, seed=73))
    found = {}
    for dtype in (np.float64, np.float32):
        gain = Gain(HEAD.astype(dtype), TRACKED)
        learn(gain, logits.astype(dtype))
        found[dtype] = gain.state
    exact, single = found[np.float64], found[np.float32]
    assert single.sums.step_power.dtype == single.last.logits.dtype == np.float32
    assert_allclose(single.sums.step_power, exact.sums.step_power, rtol=1e-5)
    assert_allclose(single.sums.step_count, exact.sums.step_count, rtol=1e-5)
    assert_allclose(single.last.logits, exact.last.logits, rtol=1e-5, atol=1e-6)
    assert_allclose(single.shift.independence, exact.shift.independence, atol=1e-4)
    assert_allclose(single.shift.vector, exact.shift.vector, atol=1e-4)


def finite_logits(rows: int, bound: float) -> st.SearchStrategy[np.ndarray]:
    """Matrices (rows, 5) within +-bound."""
    return npst.arrays(np.float64, (rows, 5), elements=st.floats(-bound, bound, width=32))


@QUICK
@given(logits=finite_logits(24, 30.0), size=st.sampled_from([1, 5, 24]))
def test_independence_and_the_steps_are_in_their_ranges(logits, size):
    gain = Gain(np.eye(5, 6), TRACKED, asymmetry=(-0.9, -0.5))
    for result in stream(gain, logits, batch_size=size):
        assert bool(result.finite)
        assert_allclose(np.sum(result.probs, axis=1), 1.0, rtol=0, atol=1e-12)
        state = gain.state
        assert 0.0 <= state.shift.independence <= 1.0
        assert 0.0 <= state.sums.step_count < state.sums.window_count[-1]
        assert state.sums.step_power >= 0.0


@QUICK
@given(
    logits=finite_logits(20, 10.0),
    scale=st.floats(0.25, 8.0),
    constant=npst.arrays(np.float64, (20, 1), elements=st.floats(-50.0, 50.0, width=32)),
)
def test_neither_scale_nor_what_a_softmax_does_not_see_makes_frames_independent(
    logits, scale, constant
):
    """Nor the direction in which a stream is played."""
    plain, scaled, turned = (Gain(np.eye(5, 6), ENDLESS) for _ in range(3))
    learn(plain, logits, batch_size=5)
    learn(scaled, scale * logits + constant, batch_size=5)
    learn(turned, logits[::-1], batch_size=5)
    expected = plain.state.sums
    power = scale**2 * expected.step_power
    assert_allclose(scaled.state.sums.step_power, power, rtol=1e-6, atol=1e-6)
    assert_allclose(turned.state.sums.step_power, expected.step_power, rtol=1e-6, atol=1e-6)
    iota = plain.state.shift.independence
    # Next to no variance is rounding's.
    if np.sum(np.var(x_of(logits), axis=0)) > 1e-3:
        assert_allclose(scaled.state.shift.independence, iota, rtol=0, atol=1e-4)
        assert_allclose(turned.state.shift.independence, iota, rtol=0, atol=1e-4)
