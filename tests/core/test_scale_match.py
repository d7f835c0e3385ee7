"""What brings the deviations of the classes' logits back to the ratios of the source's domain."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from logit_streams import answers, labels_of, learn, logits_of, source_answers, stream
from numpy.testing import assert_allclose, assert_array_equal
from taught_gain import assert_bitwise, assert_sound, every_array

from gain_core import (
    Gain,
    GainConfig,
    merge_states,
    predict,
    prepare_prototypes,
    state_from_arrays,
    state_to_arrays,
    update,
)
from gain_core.shift import ShiftSums, asymmetry_of, empty_sums, estimate_shift

TRACKED = GainConfig()
UNMATCHED = replace(TRACKED, match_scale=False)
EARLIER = replace(TRACKED, mixture_test=False, match_scale=False)
QUICK = settings(max_examples=60, deadline=None, derandomize=True)
# A factor on each class's logits, for the stretch to find.
FACTORS = np.exp(np.linspace(-0.6, 0.6, 12))[np.random.default_rng(16).permutation(12)]


def test_the_stretch_is_the_inverse_of_known_factors():
    """Logits of every class multiplied by a factor of its own: undone up to a common one."""
    labels = labels_of(6000, seed=17)
    plain = logits_of(labels, seed=18)
    gain = Gain(np.eye(12, 20), TRACKED)
    results = list(stream(gain, FACTORS * (plain - np.mean(plain, axis=0))))
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
    learn(gain, logits)
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
    # Certain that the frames are of all classes, so that nothing but the rows holds it back.
    prepared = prepare_prototypes(rows, TRACKED, asymmetry=(-0.1, 0.0))
    blind = replace(prepared, log_lengths=np.zeros(10))
    off = []
    for prototypes in (prepared, blind):
        gain = Gain(prototypes, TRACKED)
        learn(gain, logits)
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


def test_without_both_the_predictions_are_the_recorded_ones():
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
    logits = logits_of(labels_of(64, seed=23), seed=24)
    states = []
    for config in (TRACKED, EARLIER):
        gain = Gain(np.eye(12, 20), config, update_every=32)
        learn(gain, logits[:32])
        states.append(gain.state.sums)
    for item in fields(ShiftSums):
        assert_array_equal(getattr(states[0], item.name), getattr(states[1], item.name))


# --- rows that teach nothing, memories over nothing ---


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_rejected_batch_leaves_the_asymmetry_and_the_stretch(bad):
    gain = Gain(np.eye(12, 20), TRACKED)
    learn(gain, FACTORS * logits_of(labels_of(1600, seed=30), seed=31))
    state = gain.state
    logits = logits_of(labels_of(16, seed=32), seed=33)
    logits[3, 2] = bad
    features = np.zeros((16, 3))
    result = predict(features, logits, state, config=TRACKED)
    after = update(features, result, state, prototypes=np.eye(12, 20), config=TRACKED)
    assert not bool(result.finite)
    assert np.max(np.abs(state.shift.stretch - 1.0)) > 0.1
    # No frame follows one that was rejected.
    assert after.last.known == 0.0
    assert_bitwise(every_array(replace(after, last=state.last)), every_array(state))


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
    learn(gain, logits)
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
    learn(left, logits[:2000])
    learn(right, logits[2000:])
    learn(union, logits)
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
        learn(gain, factor * logits, batch_size=5)
    expected = plain.state.sums
    for gain, factor in ((scaled, scale), (turned, 1.0)):
        span = factor * expected.window_range
        assert_allclose(gain.state.sums.window_range, span, rtol=1e-6, atol=1e-6)
    lean = scale * expected.window_lean
    assert_allclose(scaled.state.sums.window_lean, lean, rtol=1e-6, atol=1e-6)
    assert_allclose(turned.state.sums.window_lean, -expected.window_lean, rtol=1e-6, atol=1e-6)
