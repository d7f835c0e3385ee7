"""`CudaGain` on the kernels compiled for the host: against `Gain`, and against the slow oracles.

Blocks have eight real threads that meet at a barrier, so that the reductions run as on a device.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from compared_steps import Tolerance, assert_step_matches
from gain_oracle import Oracle
from gaussian_world import gaussian_world
from numpy.testing import assert_allclose
from shift_oracle import ShiftOracle
from taught_gain import assert_bitwise, assert_sound, every_array, learned, one_batch

from gain_core import (
    PRESETS,
    ArrayError,
    ConfigError,
    Gain,
    GainConfig,
    GaussianState,
    Prediction,
)
from gain_core.statistics import about
from gain_runtime.cuda import CudaGain

CONFIGS = {
    **PRESETS,
    "tracked-no-guard": replace(PRESETS["tracked"], guard=False),
    "tracked-no-mixture-test": replace(PRESETS["tracked"], mixture_test=False),
    "tracked-no-independence-test": replace(PRESETS["tracked"], independence_test=False),
    "tracked-no-class-prior": replace(PRESETS["tracked"], class_prior=False),
    "tracked-shift-alone": replace(PRESETS["tracked"], mixture_test=False, match_scale=False),
    "tracked-floor": replace(PRESETS["tracked"], prob_floor=1e-3),
    "balanced-floor": replace(PRESETS["balanced"], prob_floor=1e-3),
    "paper-no-floor": replace(PRESETS["paper"], prob_floor=0.0),
}
EVERY = [pytest.param(config, id=name) for name, config in CONFIGS.items()]
# float64 leaves rounding alone; float32 runs freely, its rounding feeding back through the sums.
TOLERANCES = {
    np.float64: Tolerance(probs=1e-9, scores=1e-9, sums=1e-9),
    np.float32: Tolerance(probs=1e-4, scores=1e-4, sums=3e-5),
}
DTYPES = [pytest.param(dtype, id=dtype.__name__) for dtype in TOLERANCES]


def assert_predictions_equal(result: Prediction, expected: Prediction, atol: float) -> None:
    """Field by field, the strength apart: where J is flat it may be anything."""
    for name in ("probs", "source_log_probs", "gain"):
        wanted = getattr(expected, name)
        scale = 1.0 + np.max(np.abs(wanted), initial=0.0)
        assert_allclose(getattr(result, name) / scale, wanted / scale, rtol=0, atol=atol)
    assert bool(result.finite) == bool(expected.finite)


def assert_states_equal(result, expected, atol: float) -> None:
    """Every array, by its largest entry; sums are compared about one origin."""
    if isinstance(result, GaussianState):
        moved = about(result.statistics, expected.statistics.origin)
        result = replace(result, statistics=moved)
    mine, theirs = every_array(result), every_array(expected)
    assert mine.keys() == theirs.keys()
    for name, wanted in theirs.items():
        peak = 1.0 + np.max(np.abs(wanted), initial=0.0)
        assert mine[name].shape == wanted.shape, name
        assert mine[name].dtype == wanted.dtype, name
        assert_allclose(mine[name] / peak, wanted / peak, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", EVERY)
def test_stream_matches_the_oracle(host_kernels, config, dtype):
    config = replace(config, num_iters=60 if dtype == np.float64 else 24)
    world = gaussian_world(12, 20, num_batches=15, batch_sizes=(16, 5, 1), domain_every=5, seed=3)
    prototypes = world.prototypes.astype(dtype)
    # On busy cores, threads that wait for each other take most of the time; half of it will do.
    threads = 8 if dtype == np.float32 else 1
    gain = CudaGain(prototypes, config, kernels=host_kernels(threads))
    shift = config.proposal == "shift"
    oracle = ShiftOracle(prototypes, config) if shift else Oracle(prototypes, config)
    inside = 0
    for features, logits, _ in world.batches:
        result = gain.step(features.astype(dtype), logits.astype(dtype))
        expected = oracle.step(logits) if shift else oracle.step(features, logits)
        assert_step_matches(result, expected, TOLERANCES[dtype], prob_floor=config.prob_floor)
        inside += np.sum((result.strength > 0) & (result.strength < 1))
    assert inside > 0
    wanted = oracle.beta if shift else oracle.m
    assert_allclose(learned(gain.state), wanted, rtol=0, atol=30 * TOLERANCES[dtype].sums)


@pytest.mark.parametrize("update_every", [1, 7, 1000])
@pytest.mark.parametrize("config", EVERY)
def test_same_as_gain(host_kernels, config, update_every):
    world = gaussian_world(9, 6, num_batches=12, batch_sizes=(4, 1, 3), domain_every=4, seed=5)
    options = {"update_every": update_every, "warmup_frames": 6}
    gain = CudaGain(world.prototypes, config, kernels=host_kernels(2), **options)
    plain = Gain(world.prototypes, config, **options)
    for features, logits, _ in world.batches:
        result, expected = gain.step(features, logits), plain.step(features, logits)
        assert_predictions_equal(result, expected, 1e-9)
        assert (gain.frames, gain.pending_frames) == (plain.frames, plain.pending_frames)
    gain.flush()
    plain.flush()
    assert gain.frames == plain.frames == 32
    assert_states_equal(gain.state, plain.state, 1e-9)


def one_hot(rng, shape):
    return np.where(np.eye(shape[1])[rng.integers(0, shape[1], shape[0])] > 0, 0.0, -1e4)


def plus_minus(rng, shape):
    return rng.choice([-1e4, 1e4], size=shape)


def uniform(rng, shape):
    return np.full(shape, rng.normal())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("logits", [one_hot, plus_minus, uniform], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("config", EVERY)
def test_extreme_logits(host_kernels, config, logits, dtype):
    rng = np.random.default_rng(6)
    prototypes = rng.normal(size=(5, 3)).astype(dtype)
    config = replace(config, num_iters=60)
    gain, plain = CudaGain(prototypes, config, kernels=host_kernels(4)), Gain(prototypes, config)
    for _ in range(4):
        features = (rng.normal(size=(8, 3)) + 0.5).astype(dtype)
        scores = logits(rng, (8, 5)).astype(dtype)
        result, expected = gain.step(features, scores), plain.step(features, scores)
        assert_sound(result, gain.state)
        if dtype == np.float64:
            assert_predictions_equal(result, expected, 1e-8)
            # Among equal classes the first is the adapted one, whichever threads they are on.
            assert_states_equal(gain.state, plain.state, 1e-8)


@pytest.mark.parametrize("num_classes", [2, 3, 31, 1000, 100_000])
@pytest.mark.parametrize("name", ["tracked", "balanced"])
def test_any_number_of_classes(host_kernels, name, num_classes):
    rng = np.random.default_rng(7)
    config = GainConfig.preset(name)
    # One thread where there are many blocks, since each waits for the others at every barrier; and
    # float64 there, since one thread sums 100,000 terms one after another.
    width, dtype = (8, np.float32) if num_classes <= 1000 else (1, np.float64)
    kernels = host_kernels(width)
    prototypes = rng.normal(size=(num_classes, 2)).astype(dtype)
    gain, plain = CudaGain(prototypes, config, kernels=kernels), Gain(prototypes, config)
    for _ in range(2):
        features = rng.normal(size=(3, 2)).astype(dtype)
        logits = 3.0 * rng.normal(size=(3, num_classes)).astype(dtype)
        result, expected = gain.step(features, logits), plain.step(features, logits)
        assert_predictions_equal(result, expected, 2e-5)
    assert_sound(result, gain.state)


@pytest.mark.parametrize("width", [2, 32])
@pytest.mark.parametrize("config", EVERY)
def test_width_of_a_block_does_not_matter(host_kernels, config, width):
    world = gaussian_world(7, 5, num_batches=4, seed=8)
    narrow, wide = (
        CudaGain(world.prototypes, config, kernels=host_kernels(threads)) for threads in (1, width)
    )
    for features, logits, _ in world.batches:
        result, expected = wide.step(features, logits), narrow.step(features, logits)
        assert_predictions_equal(result, expected, 1e-10)
    assert_states_equal(wide.state, narrow.state, 1e-10)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["features", "logits"])
@pytest.mark.parametrize("taught", [False, True], ids=["fresh", "taught"])
@pytest.mark.parametrize("config", EVERY)
def test_batch_that_is_not_finite_teaches_nothing(host_kernels, config, taught, name, value):
    gain = CudaGain(np.eye(6, 4, dtype=np.float32), config, kernels=host_kernels(2))
    if taught:
        gain.step(*one_batch(seed=9))
    before = every_array(gain.state)
    batch = dict(zip(("features", "logits"), one_batch(), strict=True))
    batch[name][[2, 7], [1, 0]] = value
    batch[name][5] = value
    # Only NumPy's matrix product warns; CuPy's does not.
    with np.errstate(all="ignore"):
        result = gain.step(batch["features"], batch["logits"])
    assert not bool(result.finite)
    after = every_array(gain.state)
    assert all(np.all(np.isfinite(array)) for array in after.values())
    # Sums are multiplied by a decay of one, and zeros are added.
    for key, wanted in before.items():
        # The next frame follows none.
        wanted = np.zeros_like(wanted) if key.startswith("last.") else wanted
        assert_allclose(after[key], wanted, rtol=1e-6, atol=1e-6, err_msg=key)
    assert_sound(gain.step(*one_batch()), gain.state)


def test_squares_that_overflow_are_flagged(host_kernels):
    gain = CudaGain(np.eye(6, 4, dtype=np.float32), PRESETS["balanced"], kernels=host_kernels(2))
    gain.step(*one_batch(seed=9))
    features, logits = one_batch()
    features[1, 1] = 1e25
    with np.errstate(all="ignore"):
        assert not bool(gain.predict(features, logits).finite)


@pytest.mark.parametrize("config", EVERY)
def test_no_history_is_the_source(host_kernels, config):
    features, logits = one_batch()
    gain = CudaGain(np.eye(6, 4, dtype=np.float32), config, kernels=host_kernels(4))
    result = gain.predict(features, logits)
    assert np.all(result.strength == 0)
    assert np.all(result.gain == 0)
    assert_bitwise({"log_probs": result.log_probs}, {"log_probs": result.source_log_probs})


@pytest.mark.parametrize("config", EVERY)
def test_launches_per_step(host_kernels, config):
    kernels = host_kernels(4)
    CudaGain(np.eye(6, 4, dtype=np.float32), config, kernels=kernels).step(*one_batch())
    if config.proposal != "shift":
        wanted = ["predict_gaussian", "all_true", "gaussian_rows", "gaussian_sums"]
        assert kernels.launched == wanted
        return
    learning = ["forget", "project", "gather", "explain", "estimate"]
    step = ["predict_shift", "all_true", "shift_rows", "shift_sums"]
    step += [f"shift_{name}" for name in learning]
    # Where frames are never independent, nothing is revised.
    step += ["revise_shift"] if config.mixture_test and config.independence_test else []
    # The guard's count goes beside the prediction.
    step += ["copy"] if config.guard else []
    assert kernels.launched == ["copy", "copy", *step, "copy"]


@pytest.mark.parametrize("config", EVERY)
def test_freeze_reset_load_and_the_empty_batch(host_kernels, config):
    kernels, head = host_kernels(4), np.eye(6, 4, dtype=np.float32)
    gain, fresh = (CudaGain(head, config, kernels=kernels) for _ in range(2))
    gain.step(*one_batch())
    kept = gain.state
    gain.freeze()
    gain.step(*one_batch(seed=10))
    assert gain.frozen
    assert_bitwise(every_array(gain.state), every_array(kept))
    gain.unfreeze()
    nothing = gain.step(np.zeros((0, 4), np.float32), np.zeros((0, 6), np.float32))
    assert nothing.probs.shape == (0, 6)
    assert gain.frames == 16
    gain.reset()
    assert_bitwise(every_array(gain.state), every_array(fresh.state))
    gain.load_state(kept, frames=16)
    assert_bitwise(every_array(gain.state), every_array(kept))
    for item in fields(kept):
        assert getattr(gain.state, item.name) is not getattr(kept, item.name)
    other = CudaGain(np.eye(7, 4, dtype=np.float32), config, kernels=kernels).state
    with pytest.raises(ArrayError, match=r"^state: expected .* got"):
        gain.load_state(other)


@pytest.mark.parametrize("name", ["tracked", "balanced"])
def test_arrays_that_do_not_fit(host_kernels, name):
    gain = CudaGain(
        np.eye(6, 4, dtype=np.float32), GainConfig.preset(name), kernels=host_kernels(4)
    )
    features, logits = one_batch()
    with pytest.raises(ArrayError, match=r"^logits: expected \(16, 6\)"):
        gain.step(features, logits[:, :5])
    with pytest.raises(ArrayError, match=r"^features:"):
        gain.step(features[0], logits)
    prediction = gain.predict(features, logits)
    with pytest.raises(ArrayError, match=r"^prediction\.probs"):
        gain.update(features[:3], prediction)
    assert (gain.frames, gain.pending_frames) == (0, 0)


@pytest.mark.parametrize("name", ["tracked", "balanced"])
def test_rows_of_another_layout_and_precision(host_kernels, name):
    config = GainConfig.preset(name)
    gain, plain = (
        CudaGain(np.eye(6, 4, dtype=np.float32), config, kernels=host_kernels(4)) for _ in range(2)
    )
    features, logits = one_batch()
    for _ in range(2):
        strided = gain.step(np.asfortranarray(features), np.repeat(logits, 2, axis=1)[:, ::2])
        expected = plain.step(features.astype(np.float64), logits.astype(np.float64))
        assert_predictions_equal(strided, expected, 0.0)


def test_config_of_another_kind():
    with pytest.raises(ConfigError, match=r"^config: expected a GainConfig, got 'balanced'"):
        CudaGain(np.eye(3, dtype=np.float32), "balanced")


def test_frames_below_one():
    with pytest.raises(ConfigError, match=r"^update_every: expected at least 1 frame, got 0"):
        CudaGain(np.eye(3, dtype=np.float32), update_every=0)
