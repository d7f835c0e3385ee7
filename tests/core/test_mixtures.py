"""What tells frames of many classes from frames of one, and what matches the classes' deviations.

The worlds are of logits alone: a class's frames scatter evenly about their mean.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from gaussian_world import gaussian_world
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.testing import assert_allclose, assert_array_equal
from taught_gain import assert_bitwise, assert_sound, every_array

from gain_core import (
    ConfigError,
    Gain,
    GainConfig,
    init_state,
    merge_states,
    predict,
    prepare_prototypes,
    state_from_arrays,
    state_to_arrays,
    update,
)
from gain_core.prototypes import DEFAULT_ASYMMETRY
from gain_core.shift import ShiftSums, asymmetry_of, empty_sums, estimate_shift

TRACKED = GainConfig()
UNTESTED = replace(TRACKED, mixture_test=False)
UNMATCHED = replace(TRACKED, match_scale=False)
EARLIER = replace(TRACKED, mixture_test=False, match_scale=False)
QUICK = settings(max_examples=60, deadline=None, derandomize=True)


def logits_of(labels, *, seed: int, num_classes: int = 12, signal: float = 4.0) -> np.ndarray:
    """Logits (N, K): `signal` for a frame's own class, and noise of unit variance."""
    noise = np.random.default_rng(seed).normal(size=(len(labels), num_classes))
    return signal * np.eye(num_classes)[labels] + noise


def labels_of(num_frames: int, *, seed: int, num_classes: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, num_classes, num_frames)


def offsets(num_domains: int, *, seed: int, num_classes: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num_domains, num_classes))


def stream(gain: Gain, logits: np.ndarray, *, batch_size: int = 16) -> list:
    """The predictions of a stream without features."""
    return [
        gain.step(np.zeros((len(raw), 3), dtype=raw.dtype), raw)
        for raw in np.split(logits, range(batch_size, len(logits), batch_size))
    ]


def answers(results) -> np.ndarray:
    return np.concatenate([result.probs for result in results]).argmax(axis=1)


def source_answers(results) -> np.ndarray:
    return np.concatenate([result.source_log_probs for result in results]).argmax(axis=1)


# --- frames of one class, and of all ---


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("batch_size", [16, 50])
def test_one_class_over_several_domains_is_the_source_to_the_last_bit(batch_size, dtype):
    """The source is often wrong, so that its answers are of many classes all the same."""
    labels = np.full(5000, 3)
    moved = logits_of(labels, seed=1, num_classes=20, signal=1.5)
    moved += np.repeat(0.5 * offsets(5, seed=2, num_classes=20), 1000, axis=0)
    head = np.eye(20, 24, dtype=dtype)
    results = stream(Gain(head, TRACKED), moved.astype(dtype), batch_size=batch_size)
    for result in results:
        assert_array_equal(result.log_probs, result.source_log_probs)
    earlier = stream(Gain(head, EARLIER), moved.astype(dtype), batch_size=batch_size)
    source = np.mean(source_answers(earlier) == labels)
    assert 0.2 < source < 0.6
    assert np.mean(answers(earlier) == labels) < source - 0.05


def test_a_mixture_is_corrected_as_well_as_without_the_test():
    labels = labels_of(4000, seed=3)
    moved = logits_of(labels, seed=4) + 2.0 * offsets(1, seed=5)
    accuracy = {}
    for name, config in (("tested", TRACKED), ("untested", UNTESTED)):
        results = stream(Gain(np.eye(12, 20), config), moved)
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
        stream(gain, raw)
        found[name] = asymmetry_of(gain.state.sums)
        assert np.all(np.diff(found[name]) >= 0)
    assert np.all(np.abs(found["one"]) < 0.03)
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
        stream(gain, moved)
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
        results = stream(gain, moved)
    assert_array_equal(gain.state.shift.stretch, 1.0)
    assert gain.state.shift.trust > 0.9
    assert np.mean(answers(results) == labels) > np.mean(source_answers(results) == labels) + 0.1


def test_three_classes_are_tested():
    noise = logits_of(np.full(3000, 1), seed=13, num_classes=3, signal=0.7)
    for config, still in ((TRACKED, True), (EARLIER, False)):
        gain = Gain(np.eye(3, 5), config)
        results = stream(gain, noise)
        same = [np.array_equal(result.log_probs, result.source_log_probs) for result in results]
        assert all(same) == still
    labels = labels_of(3000, seed=14, num_classes=3)
    gain = Gain(np.eye(3, 5), TRACKED)
    offset = np.array([2.0, 0.0, -2.0])
    results = stream(gain, logits_of(labels, seed=15, num_classes=3) + offset)
    assert gain.state.shift.trust > 0.9
    assert np.mean(answers(results) == labels) > np.mean(source_answers(results) == labels) + 0.1


# --- the deviations of the classes' logits ---


FACTORS = np.exp(np.linspace(-0.6, 0.6, 12))[np.random.default_rng(16).permutation(12)]


def test_the_stretch_is_the_inverse_of_known_factors():
    """Logits of every class multiplied by a factor of its own: undone up to a common one."""
    labels = labels_of(6000, seed=17)
    plain = logits_of(labels, seed=18)
    gain = Gain(np.eye(12, 20), TRACKED)
    results = stream(gain, FACTORS * (plain - np.mean(plain, axis=0)))
    stretch = gain.state.shift.stretch
    inverse = np.exp(np.mean(np.log(stretch * FACTORS))) / FACTORS
    assert_allclose(stretch, inverse, rtol=0.12)
    late = slice(2000, None)
    source = np.mean(source_answers(results)[late] == labels[late])
    assert np.mean(answers(results)[late] == labels[late]) > source + 0.02


def test_the_mean_square_of_the_logits_is_kept():
    """As the longest memory has it, and as the frames have it."""
    plain = logits_of(labels_of(6000, seed=17), seed=18)
    logits = FACTORS * (plain - np.mean(plain, axis=0))
    gain = Gain(np.eye(12, 20), TRACKED)
    stream(gain, logits)
    sums, shift = gain.state.sums, gain.state.shift
    assert np.max(np.abs(shift.stretch - 1.0)) > 0.3
    mean = sums.window_logits[-1] / sums.window_count[-1]
    power = sums.window_powers[-1] / sums.window_count[-1] - mean**2
    assert_allclose(np.sum(power * shift.stretch**2), np.sum(power), rtol=1e-12)
    x = logits - np.mean(logits, axis=1, keepdims=True)
    y = x[3000:] - np.mean(x[3000:], axis=0)
    assert_allclose(np.sum((y * shift.stretch) ** 2), np.sum(y**2), rtol=0.03)


def test_a_heads_own_rows_explain_its_deviations():
    """Bayes' head on its own domain: longer rows have wider logits, and nothing is to be done."""
    rng = np.random.default_rng(19)
    rows = rng.normal(size=(10, 64)) / 8.0 * np.exp(np.linspace(-0.6, 0.6, 10))[:, None] * 1.5
    labels = rng.integers(0, 10, 6000)
    logits = (rows[labels] + rng.normal(size=(6000, 64))) @ rows.T
    logits = logits - 0.5 * np.sum(rows**2, axis=1)
    mean_logits = np.mean(logits - np.mean(logits, axis=1, keepdims=True), axis=0)
    # Certain that the frames are of all classes, so that nothing but the rows holds it back.
    prepared = prepare_prototypes(rows, TRACKED, mean_logits=mean_logits, asymmetry=(-0.1, 0.0))
    blind = replace(prepared, log_lengths=np.zeros(10))
    off = []
    for prototypes in (prepared, blind):
        gain = Gain(prototypes, TRACKED)
        stream(gain, logits)
        off.append(np.max(np.abs(np.log(gain.state.shift.stretch))))
    assert off[0] < 0.15
    assert off[1] > 0.3


@pytest.mark.parametrize("rows", [np.zeros((12, 20)), np.eye(12, 20)], ids=["zero", "alike"])
def test_rows_of_one_length_explain_nothing(rows):
    """Rows of zeros have no length to take a logarithm of."""
    with np.errstate(all="raise"):
        prepared = prepare_prototypes(rows, TRACKED)
    assert_allclose(prepared.log_lengths, 0.0, atol=1e-12)
    gain = Gain(prepared, TRACKED)
    labels = labels_of(2000, seed=20)
    for result in stream(gain, FACTORS * logits_of(labels, seed=21)):
        assert_sound(result, gain.state)
    assert np.max(np.abs(gain.state.shift.stretch - 1.0)) > 0.2


def test_a_row_of_zeros_among_others_has_a_finite_length():
    rows = np.random.default_rng(22).normal(size=(5, 8))
    rows -= np.mean(rows, axis=0)
    rows[:4] -= np.mean(rows[:4], axis=0)
    rows[4] = 0.0
    prepared = prepare_prototypes(rows, TRACKED)
    assert np.all(np.isfinite(prepared.log_lengths))
    assert np.argmin(prepared.log_lengths) == 4
    assert_allclose(np.sum(prepared.log_lengths), 0.0, atol=1e-12)


# --- switched off ---


def test_without_both_the_predictions_are_the_earlier_ones():
    with np.load(Path(__file__).with_name("earlier_shift.npz")) as record:
        prototypes, logits, expected = (record[name] for name in ("prototypes", "logits", "probs"))
    gain = Gain(prototypes.astype(np.float64), replace(EARLIER, num_iters=60))
    probs = np.stack(
        [result.probs for result in stream(gain, np.concatenate(logits), batch_size=8)]
    )
    assert_allclose(probs, expected, rtol=0, atol=1e-12)
    assert np.max(np.abs(probs - softmax(logits))) > 0.1
    tested = Gain(prototypes.astype(np.float64), replace(UNMATCHED, num_iters=60))
    other = [result.probs for result in stream(tested, np.concatenate(logits), batch_size=8)]
    assert np.max(np.abs(np.stack(other) - expected)) > 1e-3


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - np.max(logits, axis=-1, keepdims=True))
    return weights / np.sum(weights, axis=-1, keepdims=True)


def test_the_sums_do_not_depend_on_the_switches():
    """A saved state serves either setting."""
    logits = np.zeros((64, 12)) + logits_of(labels_of(64, seed=23), seed=24)
    states = []
    for config in (TRACKED, EARLIER):
        gain = Gain(np.eye(12, 20), config, update_every=32)
        stream(gain, logits[:32])
        states.append(gain.state.sums)
    for item in fields(ShiftSums):
        assert_array_equal(getattr(states[0], item.name), getattr(states[1], item.name))


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
        stream(gain, logits, batch_size=1)
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


# --- rows that teach nothing, memories over nothing ---


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_rejected_batch_leaves_the_asymmetry_and_the_stretch(bad):
    gain = Gain(np.eye(12, 20), TRACKED)
    stream(gain, FACTORS * logits_of(labels_of(1600, seed=30), seed=31))
    state = gain.state
    logits = logits_of(labels_of(16, seed=32), seed=33)
    logits[3, 2] = bad
    features = np.zeros((16, 3))
    result = predict(features, logits, state, config=TRACKED)
    after = update(features, result, state, prototypes=np.eye(12, 20), config=TRACKED)
    assert not bool(result.finite)
    assert np.max(np.abs(state.shift.stretch - 1.0)) > 0.1
    assert_bitwise(every_array(after), every_array(state))


def test_empty_memories_stretch_nothing():
    prepared = prepare_prototypes(np.random.default_rng(34).normal(size=(6, 9)), TRACKED)
    with np.errstate(all="raise"):
        shift = estimate_shift(
            empty_sums(6, like=prepared.centered), prototypes=prepared, config=TRACKED
        )
    assert_array_equal(shift.stretch, 1.0)
    assert_array_equal(shift.vector, 0.0)
    assert (shift.variance, shift.trust) == (0.0, 0.0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("value", [0.0, 7.5, -1e4])
def test_constant_logits_stretch_nothing(value, dtype):
    rows = np.random.default_rng(35).normal(size=(6, 9)).astype(dtype)
    gain = Gain(rows, TRACKED)
    for result in stream(gain, np.full((400, 6), value, dtype=dtype)):
        assert_sound(result, gain.state)
        assert_array_equal(result.log_probs, result.source_log_probs)
    assert_array_equal(gain.state.shift.stretch, 1.0)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_one_frame_in_float32_has_no_deviations_to_match(batch_size):
    """What is left of its variance is rounding, of another size in every class."""
    row = 3.0 * np.random.default_rng(36).normal(size=(1, 12)).astype(np.float32)
    gain = Gain(np.random.default_rng(0).normal(size=(12, 20)).astype(np.float32), TRACKED)
    for result in stream(gain, row.repeat(3000, axis=0), batch_size=batch_size):
        assert_array_equal(result.log_probs, result.source_log_probs)
    assert_array_equal(gain.state.shift.stretch, 1.0)
    sums = gain.state.sums
    mean = sums.window_logits / sums.window_count[:, None]
    rounding = sums.window_powers / sums.window_count[:, None] - mean**2
    assert np.max(np.abs(rounding)) > 0.0


# --- saved and united ---


def test_a_stretch_alone_is_a_correction_and_outlives_a_save():
    logits = FACTORS * logits_of(labels_of(3000, seed=37), seed=38)
    config = replace(TRACKED, shrinkage=0.5)
    gain = Gain(np.eye(12, 20), config)
    stream(gain, logits)
    arrays = state_to_arrays(gain.state)
    assert {"window_powers", "window_lean", "window_range"} <= arrays.keys()
    loaded = state_from_arrays(arrays, prototypes=np.eye(12, 20), config=config)
    assert_bitwise(every_array(loaded), every_array(gain.state))
    alone = replace(loaded, shift=replace(loaded.shift, vector=np.zeros(12)))
    result = predict(np.zeros((16, 3)), logits[:16], alone, config=config)
    assert np.max(np.abs(result.log_probs - result.source_log_probs)) > 0.01
    held = replace(alone, guard=replace(alone.guard, hold=np.asarray(9.0)))
    result = predict(np.zeros((16, 3)), logits[:16], held, config=config)
    assert_array_equal(result.log_probs, result.source_log_probs)


def test_united_memories_stretch_by_what_both_saw():
    config = replace(TRACKED, half_life=np.inf)
    logits = FACTORS * logits_of(labels_of(4000, seed=39), seed=40)
    left, right, union = (Gain(np.eye(12, 20), config) for _ in range(3))
    stream(left, logits[:2000])
    stream(right, logits[2000:])
    stream(union, logits)
    merged = merge_states(left.state, right.state, prototypes=np.eye(12, 20), config=config)
    for name in ("window_lean", "window_range"):
        both = getattr(left.state.sums, name) + getattr(right.state.sums, name)
        assert_array_equal(getattr(merged.sums, name), both)
    # The second device's first batch had no mean to be measured from.
    assert merged.sums.window_range[0] < union.state.sums.window_range[0]
    assert_allclose(merged.shift.stretch, union.state.shift.stretch, rtol=1e-3)
    assert np.max(np.abs(merged.shift.stretch - 1.0)) > 0.2


# --- whatever the numbers ---


def matrices(rows: int, columns: int, bound: float) -> st.SearchStrategy[np.ndarray]:
    """Finite float64 matrices within +-bound."""
    return npst.arrays(np.float64, (rows, columns), elements=st.floats(-bound, bound, width=32))


@QUICK
@given(logits=matrices(24, 5, 30.0), size=st.sampled_from([1, 5, 24]))
def test_sums_and_stretch_are_in_their_ranges(logits, size):
    gain = Gain(np.eye(5, 6), replace(TRACKED, shrinkage=0.1), asymmetry=(-0.9, -0.5))
    for result in stream(gain, logits, batch_size=size):
        assert_sound(result, gain.state)
    sums, stretch = gain.state.sums, gain.state.shift.stretch
    assert np.all(np.abs(sums.window_lean) <= sums.window_range * (1.0 + 1e-9) + 1e-9)
    assert np.all(sums.window_powers >= 0.0)
    assert np.all(np.abs(asymmetry_of(sums)) <= 1.0 + 1e-9)
    assert np.all(stretch > 0.0)


@QUICK
@given(logits=matrices(20, 5, 10.0), scale=st.floats(0.25, 8.0))
def test_the_asymmetry_does_not_depend_on_the_logits_scale_and_turns_with_their_sign(logits, scale):
    plain, scaled, turned = (Gain(np.eye(5, 6), TRACKED) for _ in range(3))
    logits = logits - np.mean(logits, axis=1, keepdims=True)
    for gain, factor in ((plain, 1.0), (scaled, scale), (turned, -1.0)):
        stream(gain, factor * logits, batch_size=5)
    expected = plain.state.sums
    for gain, factor in ((scaled, scale), (turned, 1.0)):
        span = factor * expected.window_range
        assert_allclose(gain.state.sums.window_range, span, rtol=1e-6, atol=1e-6)
    lean = scale * expected.window_lean
    assert_allclose(scaled.state.sums.window_lean, lean, rtol=1e-6, atol=1e-6)
    assert_allclose(turned.state.sums.window_lean, -expected.window_lean, rtol=1e-6, atol=1e-6)


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
    ],
)
def test_asymmetries_that_cannot_be_are_refused(pair):
    message = (
        r"^asymmetry: expected two finite numbers, .* the second the larger, got .* and .*; "
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
        assert_array_equal(gain.step(features, raw).probs, result.probs)
    assert state.shift.trust > 0.5
    assert_bitwise(every_array(gain.state), every_array(state))
