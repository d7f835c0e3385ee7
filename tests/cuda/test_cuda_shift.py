"""The tracked shift's kernels on the host: what tells mixtures apart, and matched deviations.

The reference is `Gain` on the same stream, in float64.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scaled_world import scaled_world
from taught_gain import assert_bitwise, assert_states_close, every_array, one_batch

from gain_core import PRESETS, ConfigError, Gain, GainConfig, predict
from gain_core.errors import NumericsError
from gain_core.shift import (
    MOVED_FROM_WINDOW,
    NEWEST_WINDOW,
    NUM_SCALE_WINDOWS,
    NUM_WINDOWS,
    REFERENCE_WINDOW,
    asymmetry_of,
)
from gain_runtime.cuda import CudaGain, kernel_source
from gain_runtime.cuda.prediction_block import PredictionBlock, layout_of

TRACKED = PRESETS["tracked"]
BOTH_OFF = replace(TRACKED, mixture_test=False, match_scale=False)
# A mixture of many classes in few dimensions is less lopsided than a network's features.
FLAT = (0.0, 0.2)


def run_both(gain: CudaGain, plain: Gain, batches, *, atol: float, dtype=np.float64) -> int:
    """Step through the stream; how many batches were corrected."""
    corrected = 0
    for features, logits in batches:
        result = gain.step(features.astype(dtype), logits.astype(dtype))
        expected = plain.step(features, logits)
        assert_allclose(result.probs, expected.probs, rtol=0, atol=atol)
        assert bool(result.finite)
        assert (gain.frames, gain.pending_frames) == (plain.frames, plain.pending_frames)
        corrected += bool(np.any(expected.strength > 0))
    gain.flush()
    plain.flush()
    return corrected


@pytest.mark.parametrize("update_every", [1, 40])
@pytest.mark.parametrize(
    ("num_classes", "feature_dim", "num_batches", "only_class"),
    [
        pytest.param(2, 4, 200, 0, id="2-classes"),
        pytest.param(10, 20, 200, None, id="10-classes"),
        pytest.param(1000, 128, 24, None, id="1000-classes"),
    ],
)
def test_float32_stays_close_over_a_long_stream(
    host_kernels, num_classes, feature_dim, num_batches, only_class, update_every
):
    sizes = (8,) if num_classes < 1000 else (16,)
    stream = {"num_batches": num_batches, "batch_sizes": sizes, "only_class": only_class}
    head, batches = scaled_world(num_classes, feature_dim, **stream)
    options = {"update_every": update_every, "asymmetry": FLAT}
    gain = CudaGain(head.astype(np.float32), kernels=host_kernels(2), **options)
    plain = Gain(head, **options)
    assert run_both(gain, plain, batches, atol=1e-4, dtype=np.float32) > num_batches // 2
    stretch = plain.state.shift.stretch
    # Of two classes the deviations are always alike.
    assert (np.std(np.log(stretch)) > 0.2) == (num_classes > 2)
    assert_states_close(gain.state, plain.state, 1e-4)


def test_batches_with_a_row_that_is_not_finite_are_passed_over(host_kernels):
    head, batches = scaled_world(10, 20, num_batches=40)
    gain = CudaGain(head.astype(np.float32), kernels=host_kernels(4))
    plain = Gain(head)
    for index, (features, logits) in enumerate(batches):
        if index % 5 == 4:
            logits = logits.copy()
            logits[3, index % 10] = np.nan
            with pytest.raises(NumericsError):
                plain.step(features, logits)
            # The step refuses it; an update passes it over, and no frame follows it.
            plain.update(features, predict(features, logits, plain.state, config=TRACKED))
            broken = gain.step(features.astype(np.float32), logits.astype(np.float32))
            assert not bool(broken.finite)
            continue
        result = gain.step(features.astype(np.float32), logits.astype(np.float32))
        assert_allclose(result.probs, plain.step(features, logits).probs, rtol=0, atol=1e-4)
    assert np.std(np.log(plain.state.shift.stretch)) > 0.2
    assert_states_close(gain.state, plain.state, 1e-4)


def test_a_camera_that_stops_matches_nothing_to_its_noise(host_kernels):
    """Frames that hardly differ raise the noise of the deviations, in every memory."""
    head, batches = scaled_world(10, 20, num_batches=60)
    rng = np.random.default_rng(5)
    features, logits = (array[:1].repeat(8, axis=0) for array in batches[-1])
    still = [(features, logits + 1e-3 * rng.normal(size=logits.shape)) for _ in range(40)]
    options = {"asymmetry": FLAT}
    gain = CudaGain(head, kernels=host_kernels(2), **options)
    plain = Gain(head, **options)
    run_both(gain, plain, batches, atol=1e-8)
    before = np.std(np.log(plain.state.shift.stretch))
    run_both(gain, plain, still, atol=1e-8)
    assert before > 0.2 > np.std(np.log(plain.state.shift.stretch))
    assert_states_close(gain.state, plain.state, 1e-8)


@pytest.mark.parametrize("update_every", [1, 24])
def test_one_class_stays_at_the_source(host_kernels, update_every):
    head, batches = scaled_world(30, 16, num_batches=30, only_class=0, deviation=0.0)
    options = {"update_every": update_every}
    gain = CudaGain(head, kernels=host_kernels(2), **options)
    plain = Gain(head, **options)
    assert run_both(gain, plain, batches, atol=1e-9) == 0
    assert_states_close(gain.state, plain.state, 1e-9)
    assert_array_equal(gain.state.shift.vector, 0.0)
    assert_array_equal(gain.state.shift.stretch, 1.0)
    assert np.all(np.abs(asymmetry_of(gain.state.sums)) < 0.05)
    # Without the test it would have moved: the stream is not one that teaches nothing anyway.
    config = replace(TRACKED, mixture_test=False)
    untested = CudaGain(head, config, kernels=host_kernels(2), **options)
    assert run_both(untested, Gain(head, config, **options), batches, atol=1e-9) > 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_deviations_are_matched(host_kernels, dtype):
    head, batches = scaled_world(10, 20, num_batches=40)
    atol = 1e-4 if dtype == np.float32 else 1e-9
    gain, plain = CudaGain(head.astype(dtype), kernels=host_kernels(4)), Gain(head)
    assert run_both(gain, plain, batches, atol=atol, dtype=dtype) > 30
    assert_states_close(gain.state, plain.state, atol)
    logits = np.concatenate([logits for _, logits in batches])
    deviations = np.std(logits - np.mean(logits, axis=1, keepdims=True), axis=0)
    stretch = gain.state.shift.stretch
    assert np.std(np.log(deviations * stretch)) < 0.7 * np.std(np.log(deviations))
    matched = deviations * stretch
    assert_allclose(np.sum(matched**2), np.sum(deviations**2), rtol=0.05)
    # The same stream without the switch is corrected by a shift alone.
    config = replace(TRACKED, match_scale=False)
    shifted, plain = CudaGain(head, config, kernels=host_kernels(4)), Gain(head, config)
    assert run_both(shifted, plain, batches, atol=1e-9) > 30
    assert_array_equal(shifted.state.shift.stretch, 1.0)


@pytest.mark.parametrize("update_every", [1, 24])
@pytest.mark.parametrize("only_class", [None, 0], ids=["mixture", "one-class"])
def test_both_parts_off(host_kernels, only_class, update_every):
    head, batches = scaled_world(30, 16, num_batches=30, only_class=only_class)
    options = {"update_every": update_every}
    gain = CudaGain(head, BOTH_OFF, kernels=host_kernels(2), **options)
    plain = Gain(head, BOTH_OFF, **options)
    assert run_both(gain, plain, batches, atol=1e-9) > 3
    assert_states_close(gain.state, plain.state, 1e-9)
    assert_array_equal(gain.state.shift.stretch, 1.0)
    assert np.any(gain.state.shift.vector != 0.0)


@pytest.mark.parametrize("given", ["bias", "asymmetry", "nothing"])
def test_constants_of_the_head(host_kernels, given):
    head, batches = scaled_world(12, 20, num_batches=12)
    bias = -0.5 * np.sum((head - np.mean(head, axis=0)) ** 2, axis=1)
    batches = [(features, logits + bias) for features, logits in batches]
    known = {
        "bias": {"bias": bias},
        # The stream's is in the middle of it.
        "asymmetry": {"asymmetry": (0.2, 0.6)},
        "nothing": {},
    }
    gain = CudaGain(head, kernels=host_kernels(4), **known[given])
    run_both(gain, Gain(head, **known[given]), batches, atol=1e-9)
    other = Gain(head, **known["bias" if given == "nothing" else "nothing"])
    for features, logits in batches:
        other.step(features, logits)
    assert np.max(np.abs(gain.state.shift.vector - other.state.shift.vector)) > 1e-3


def test_asymmetry_the_wrong_way_round(host_kernels):
    with pytest.raises(ConfigError, match=r"^asymmetry: expected two finite numbers"):
        CudaGain(np.eye(3), kernels=host_kernels(1), asymmetry=(0.4, 0.1))


@pytest.mark.parametrize("mixture_first", [False, True], ids=["one-class-first", "mixture-first"])
def test_one_class_and_then_many_and_the_other_way_round(host_kernels, mixture_first):
    head, mixture = scaled_world(30, 16, num_batches=16, seed=1)
    _, single = scaled_world(30, 16, num_batches=16, only_class=0, seed=1)
    batches = (*mixture, *single) if mixture_first else (*single, *mixture)
    # The shortest memory soon sees another asymmetry than the longest; the least of them counts.
    config = GainConfig(half_life=256.0)
    gain, plain = CudaGain(head, config, kernels=host_kernels(2)), Gain(head, config)
    apart = 0.0
    for features, logits in batches:
        run_both(gain, plain, [(features, logits)], atol=1e-9)
        sums = plain.state.sums
        quotient = sums.window_lean / np.maximum(sums.window_range, 1e-9)
        apart = max(apart, float(np.max(quotient - asymmetry_of(sums))))
    assert mixture_first or apart > 0.05
    assert_states_close(gain.state, plain.state, 1e-9)


def test_class_whose_logit_does_not_vary(host_kernels):
    head, batches = scaled_world(10, 20, num_batches=20)
    flat = []
    for features, logits in batches:
        logits = logits.copy()
        logits[:, 3] = np.mean(np.delete(logits, 3, axis=1), axis=1) - 4.0
        flat.append((features, logits))
    gain, plain = CudaGain(head, kernels=host_kernels(4)), Gain(head)
    assert run_both(gain, plain, flat, atol=1e-9) > 10
    assert_states_close(gain.state, plain.state, 1e-9)
    stretch = gain.state.shift.stretch
    assert stretch[3] == np.max(stretch) > 20.0


def test_rows_of_equal_length_explain_no_deviation(host_kernels):
    _, batches = scaled_world(6, 8, num_batches=12)
    head = np.eye(6, 8)
    gain, plain = CudaGain(head, kernels=host_kernels(2)), Gain(head)
    run_both(gain, plain, batches, atol=1e-9)
    assert_states_close(gain.state, plain.state, 1e-9)


def test_stretch_alone_corrects_and_a_reset_ends_it(host_kernels):
    head, _ = scaled_world(6, 4, num_batches=0)
    features, logits = one_batch(dtype=np.float64)
    gain, plain = CudaGain(head, kernels=host_kernels(4)), Gain(head)
    state = gain.state
    shift = replace(
        state.shift,
        stretch=np.linspace(0.5, 1.5, 6),
        variance=np.asarray(0.5),
        trust=np.asarray(0.0),
    )
    for each in (gain, plain):
        each.load_state(replace(state, shift=shift), frames=9)
    result, expected = gain.predict(features, logits), plain.predict(features, logits)
    assert np.any(expected.strength > 0)
    assert_allclose(result.probs, expected.probs, rtol=0, atol=1e-12)
    assert_allclose(result.gain, expected.gain, rtol=0, atol=1e-12)
    held = replace(state, shift=shift, guard=replace(state.guard, hold=np.asarray(5.0)))
    gain.load_state(held, frames=9)
    assert_array_equal(gain.predict(features, logits).strength, 0.0)
    gain.load_state(replace(state, shift=shift), frames=9)
    gain.reset()
    assert_array_equal(gain.predict(features, logits).strength, 0.0)
    assert_bitwise(every_array(gain.state), every_array(state))


def test_guard_that_trips_drops_the_stretch_too(host_kernels):
    head, batches = scaled_world(10, 20, num_batches=14)
    gain, plain = CudaGain(head, kernels=host_kernels(4)), Gain(head)
    run_both(gain, plain, batches[:10], atol=1e-9)
    assert np.std(gain.state.shift.stretch) > 0.05
    numbers = {"count": 300.0, "agreement": 1.0, "confidence": 290.0}
    about_to_trip = {name: np.asarray(value) for name, value in numbers.items()}
    for each in (gain, plain):
        guard = replace(each.state.guard, **about_to_trip)
        each.load_state(replace(each.state, guard=guard), frames=each.frames)
    assert trips_beside(gain.predict(*batches[10])) == 0.0
    run_both(gain, plain, batches[10:11], atol=1e-9)
    assert float(gain.state.guard.trips) == 1.0
    assert trips_beside(gain.predict(*batches[10])) == 1.0
    assert_array_equal(gain.state.shift.stretch, 1.0)
    assert_array_equal(gain.state.sums.window_powers, 0.0)
    assert_states_close(gain.state, plain.state, 1e-9)
    run_both(gain, plain, batches[11:], atol=1e-9)
    assert_states_close(gain.state, plain.state, 1e-9)


def test_guards_count_comes_with_the_prediction_of_the_batch_that_tripped_it(host_kernels):
    head, batches = scaled_world(10, 20, num_batches=12)
    gain = CudaGain(head, kernels=host_kernels(4))
    for batch in batches[:10]:
        assert trips_beside(gain.step(*batch)) == 0.0
    numbers = {"count": 300.0, "agreement": 1.0, "confidence": 290.0}
    tripping = {name: np.asarray(value) for name, value in numbers.items()}
    gain.load_state(replace(gain.state, guard=replace(gain.state.guard, **tripping)), frames=9)
    # Of one size: the second is replayed.
    assert [trips_beside(gain.step(*batch)) for batch in batches[10:12]] == [1.0, 1.0]
    gain.reset()
    assert trips_beside(gain.step(*batches[0])) == 0.0


def trips_beside(prediction) -> float:
    """The guard's count in the memory that a prediction lies in."""
    layout = layout_of(*prediction.probs.shape, prediction.probs.dtype)
    return float(PredictionBlock.over(prediction.probs.base, layout).trips)


@pytest.mark.parametrize(("width", "num_classes"), [(64, 40), (128, 100)])
def test_blocks_of_more_than_one_warp(host_kernels, width, num_classes):
    # Some hundred threads at a barrier take a while on two cores, hence one step of few iterations.
    head, batches = scaled_world(num_classes, 64, num_batches=4, batch_sizes=(40, 40, 40, 2))
    config = GainConfig(num_iters=6)
    narrow, wide = (
        CudaGain(head, config, kernels=host_kernels(threads), asymmetry=FLAT)
        for threads in (1, width)
    )
    for features, logits in batches[:-1]:
        narrow.step(features, logits)
    wide.load_state(narrow.state, frames=narrow.frames)
    result, expected = wide.step(*batches[-1]), narrow.step(*batches[-1])
    assert np.any(expected.strength > 0)
    assert_allclose(result.probs, expected.probs, rtol=0, atol=1e-12)
    assert np.std(np.log(narrow.state.shift.stretch)) > 0.1
    assert_states_close(wide.state, narrow.state, 1e-12)


def test_numbers_of_windows_are_the_rules():
    written = dict(re.findall(r"#define (\w*WINDOWS?) (\d+)", kernel_source()))
    assert written == {
        "WINDOWS": str(NUM_WINDOWS),
        "SCALE_WINDOWS": str(NUM_SCALE_WINDOWS),
        "NEWEST_WINDOW": str(NEWEST_WINDOW),
        "REFERENCE_WINDOW": str(REFERENCE_WINDOW),
        "MOVED_FROM_WINDOW": str(MOVED_FROM_WINDOW),
    }
