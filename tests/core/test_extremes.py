"""Inputs at the edge: extreme values and sizes, empty batches, NaN and infinity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gain_oracle import Oracle
from gaussian_world import gaussian_world
from numpy.testing import assert_allclose, assert_array_equal
from shift_oracle import ShiftOracle
from taught_gain import assert_bitwise, assert_sound, every_array, learned, one_batch, taught

from gain_core import (
    Gain,
    GainConfig,
    NumericsError,
    init_state,
    predict,
    state_to_arrays,
    update,
)
from gain_core.departure import BESIDE_DIMS

NAMES = ("tracked", "balanced", "paper", "paper-l2")
PRESETS = [pytest.param(GainConfig.preset(name), id=name) for name in NAMES]
GAUSSIANS = PRESETS[1:]
DTYPES = [pytest.param(np.float64, id="float64"), pytest.param(np.float32, id="float32")]


# --- extreme logits, sizes and streams: sound everywhere, and the oracle's answer at float64 ---


def one_hot(rng: np.random.Generator, rows: int, num_classes: int) -> np.ndarray:
    return np.where(np.eye(num_classes)[rng.integers(0, num_classes, rows)] > 0, 0.0, -1e4)


def uniform(rng: np.random.Generator, rows: int, num_classes: int) -> np.ndarray:
    return np.full((rows, num_classes), rng.normal())


def plus_minus(rng: np.random.Generator, rows: int, num_classes: int) -> np.ndarray:
    return rng.choice([-1e4, 1e4], size=(rows, num_classes))


def wide(rng: np.random.Generator, rows: int, num_classes: int) -> np.ndarray:
    return rng.uniform(-1e4, 1e4, size=(rows, num_classes))


def moderate(rng: np.random.Generator, rows: int, num_classes: int) -> np.ndarray:
    return 3.0 * rng.normal(size=(rows, num_classes))


def skewed(rng: np.random.Generator, rows: int, num_classes: int) -> np.ndarray:
    """Only the first two classes are ever predicted."""
    logits = moderate(rng, rows, num_classes)
    logits[:, 2:] -= 200.0
    return logits


def stream_both(
    config, *, K, D, B, logits, dtype, num_batches=6, features=None, check=True, atol=1e-8
):
    """Stream through the code and, at float64, through the oracle; both must agree."""
    rng = np.random.default_rng(63)
    prototypes = rng.normal(size=(K, D)).astype(dtype)
    gain = Gain(prototypes, config)
    shift = config.proposal == "shift"
    oracle = ShiftOracle(prototypes, config) if shift else Oracle(prototypes, config)
    for _ in range(num_batches):
        z = (features or (lambda: rng.normal(size=(B, D)) + 0.5))().astype(dtype)
        scores = logits(rng, B, K).astype(dtype)
        result = gain.step(z, scores)
        assert_sound(result, gain.state)
        if dtype == np.float64 and check:
            expected = oracle.step(scores) if shift else oracle.step(z, scores)
            assert_allclose(result.probs, expected.probs, rtol=0, atol=atol)
            assert_allclose(result.gain, expected.gain, rtol=10 * atol, atol=10 * atol)
            wanted = oracle.beta if shift else oracle.m
            assert_allclose(learned(gain.state), wanted, rtol=10 * atol, atol=10 * atol)
            state = gain.state
            variance = state.shift.variance if shift else state.geometry.variance
            assert_allclose(variance, oracle.v, rtol=10 * atol, atol=1e-300)
    return gain


LOGITS = [
    pytest.param(kind, id=kind.__name__)
    for kind in (one_hot, uniform, plus_minus, wide, skewed, moderate)
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize("config", PRESETS)
def test_extreme_logits(config, logits, dtype):
    stream_both(replace(config, num_iters=60), K=5, D=3, B=8, logits=logits, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", PRESETS)
@pytest.mark.parametrize(
    ("K", "D", "B", "num_batches"),
    [
        pytest.param(2, 4, 8, 6, id="two-classes"),
        pytest.param(5, 1, 8, 6, id="one-dimension"),
        pytest.param(2, 1, 1, 60, id="smallest"),
        pytest.param(5, 3, 1, 60, id="frame-by-frame"),
        pytest.param(3, 700, 2, 6, id="many-dimensions"),
        pytest.param(3, 2, 512, 2, id="large-batch"),
    ],
)
def test_extreme_sizes(config, K, D, B, num_batches, dtype):
    config = replace(config, num_iters=60)
    stream_both(config, K=K, D=D, B=B, logits=moderate, dtype=dtype, num_batches=num_batches)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", PRESETS)
def test_twenty_thousand_classes(config, dtype):
    """Thousands of classes hold less than 1e-9 of a sample, where a class mean is a guarded 0/0."""
    config = replace(config, num_iters=60)
    stream_both(config, K=20_000, D=3, B=2, logits=moderate, dtype=dtype, num_batches=2, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["paper", "balanced"])
def test_classes_never_predicted_keep_their_anchor(name, dtype):
    config = GainConfig.preset(name)
    anchors = (6.0 * np.eye(6, 4) + np.eye(6, 4, k=-2)).astype(dtype)
    rng = np.random.default_rng(68)
    gain = Gain(anchors, config)
    for _ in range(6):
        features = (anchors[rng.integers(0, 2, 16)] + 0.1 * rng.normal(size=(16, 4))).astype(dtype)
        assert_sound(gain.step(features, features @ anchors.T), gain.state)
    state = gain.state
    assert np.all(state.statistics.support[2:] < 1e-6)
    assert np.all(state.statistics.support[:2] > 1.0)
    shifts = (state.centers - state.geometry.scale * anchors)[2:]
    assert_allclose(shifts, shifts[:1].repeat(4, axis=0), rtol=0, atol=1e-5)
    if config.anchor == "prototype":
        assert_allclose(shifts, 0.0, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", GAUSSIANS)
def test_nothing_has_support_when_the_source_never_gives_the_adapted_class_a_chance(config, dtype):
    """The mean of an empty regression: the shift falls back to the features' plain mean."""
    prototypes = np.array([[4.0, 0.0], [-4.0, 0.0], [0.0, 4.0]], dtype=dtype)
    state, oracle = init_state(prototypes, config), Oracle(prototypes, config)
    rng = np.random.default_rng(64)
    # zeta = s[argmax p*] underflows to 0 here for every row.
    log_probs = np.array([[0.0, -1e4, -1e4]]).repeat(8, axis=0)
    source = np.array([[-1e4, 0.0, -1e4]]).repeat(8, axis=0)
    forced = {"probs": np.exp(log_probs), "log_probs": log_probs, "source_log_probs": source}
    for shift in (3.0, 5.0):
        features = (rng.normal(size=(8, 2)) + shift).astype(dtype)
        logits = np.zeros((8, 3), dtype=dtype)
        result = replace(
            predict(features, logits, state, config=config),
            **{name: value.astype(dtype) for name, value in forced.items()},
        )
        state = update(features, result, state, prototypes=prototypes, config=config)
        oracle.update(features, replace(oracle.predict(features, logits), **forced))
    assert_array_equal(state.statistics.support, 0.0)
    assert oracle.a_denominator == 0.0
    for name, value in every_array(state).items():
        assert np.all(np.isfinite(value)), name
    assert_allclose(state.centers, oracle.m, rtol=0, atol=1e-5)
    assert_allclose(state.geometry.variance, oracle.v, rtol=1e-5)
    assert_allclose(state.geometry.temper, oracle.tau, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", PRESETS)
def test_features_that_never_move(config, dtype):
    """Zero variance: the floors hold."""
    stream_both(
        replace(config, num_iters=60),
        K=4,
        D=3,
        B=5,
        logits=moderate,
        dtype=dtype,
        features=lambda: np.full((5, 3), 0.75),
        atol=1e-6,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", PRESETS)
def test_features_that_are_all_zero(config, dtype):
    stream_both(
        config,
        K=4,
        D=3,
        B=5,
        logits=moderate,
        dtype=dtype,
        features=lambda: np.zeros((5, 3)),
        # There is no direction to normalise; everywhere else d is a distance over a floor.
        check=not config.normalise,
        atol=1e-6,
    )


@pytest.mark.parametrize("scale", [1e-6, 1e3, 1e6])
@pytest.mark.parametrize("config", PRESETS)
def test_float32_features_of_any_scale(config, scale):
    rng = np.random.default_rng(65)
    prototypes = rng.normal(size=(5, 4)).astype(np.float32)
    gain = Gain(prototypes, config)
    for _ in range(8):
        features = (scale * (rng.normal(size=(16, 4)) + 2.0)).astype(np.float32)
        result = gain.step(features, rng.normal(size=(16, 5)).astype(np.float32))
        assert_sound(result, gain.state)


@pytest.mark.parametrize("config", GAUSSIANS)
def test_state_memory_is_little_more_than_two_matrices(config):
    K, D = 500, 256
    rng = np.random.default_rng(60)
    gain = Gain(rng.normal(size=(K, D)).astype(np.float32), config)
    gain.step(rng.normal(size=(4, D)).astype(np.float32), np.zeros((4, K), dtype=np.float32))
    assert gain.state.nbytes == sum(value.nbytes for value in every_array(gain.state).values())
    assert gain.state.nbytes < 2.2 * K * D * 4


def test_a_shifts_memory_does_not_depend_on_the_features():
    K = 500
    for D in (8, 256):
        gain = Gain(np.eye(K, D, dtype=np.float32))
        gain.step(np.zeros((4, D), dtype=np.float32), np.zeros((4, K), dtype=np.float32))
        assert gain.state.nbytes == sum(value.nbytes for value in every_array(gain.state).values())
        # Logits, powers and mass in five memories, the classes' shares, the newest labels, the last
        # frame, the shift, the stretch and the prior; and projections in five memories.
        assert gain.state.nbytes < (21.2 * K + 5 * (BESIDE_DIMS + 1)) * 4


# --- the empty batch ---


@pytest.mark.parametrize("history", [False, True], ids=["fresh", "taught"])
@pytest.mark.parametrize("config", PRESETS)
def test_an_empty_batch_predicts_nothing_and_teaches_nothing(xp, config, history):
    world = gaussian_world(6, 4, num_batches=3, seed=66)
    gain = Gain(xp.from_numpy(world.prototypes.astype(np.float32)), config)
    for features, logits, _ in world.batches if history else ():
        gain.step(
            xp.from_numpy(features.astype(np.float32)), xp.from_numpy(logits.astype(np.float32))
        )
    names = state_to_arrays(gain.state)
    before = {name: xp.to_numpy(value).copy() for name, value in names.items()}
    kept, frames = xp.to_numpy(learned(gain.state)), gain.frames
    nothing = np.zeros((0, 4), dtype=np.float32), np.zeros((0, 6), dtype=np.float32)
    result = gain.step(*(xp.from_numpy(array) for array in nothing))
    gain.flush()
    assert tuple(result.probs.shape) == tuple(result.log_probs.shape) == (0, 6)
    assert tuple(result.strength.shape) == tuple(result.gain.shape) == (0,)
    assert tuple(result.source_log_probs.shape) == (0, 6)
    assert xp.to_numpy(result.finite)
    assert gain.frames == frames
    for name, value in state_to_arrays(gain.state).items():
        assert_array_equal(xp.to_numpy(value), before[name], err_msg=name)
    assert_array_equal(xp.to_numpy(learned(gain.state)), kept)


# --- NaN and infinity ---


@pytest.mark.parametrize("update_every", [1, 1000], ids=["at-once", "pending"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["features", "logits"])
@pytest.mark.parametrize("config", PRESETS)
def test_values_that_are_not_finite_are_rejected(config, name, value, update_every):
    gain = taught(config, update_every=update_every)
    before, frames, pending = every_array(gain.state), gain.frames, gain.pending_frames
    batch = dict(zip(("features", "logits"), one_batch(), strict=True))
    batch[name][[2, 7], [1, 0]] = value
    for method in (gain.predict, gain.step):
        with pytest.raises(NumericsError, match=rf"^{name}: expected finite .* in 2 of 16 rows"):
            method(batch["features"], batch["logits"])
    assert_bitwise(every_array(gain.state), before)
    assert (gain.frames, gain.pending_frames) == (frames, pending)
    result = gain.step(*one_batch())
    gain.flush()
    assert_sound(result, gain.state)


@pytest.mark.parametrize("config", PRESETS)
def test_first_batch_that_is_not_finite_is_rejected(config):
    gain = Gain(np.eye(6, 4, dtype=np.float32), config)
    before = every_array(gain.state)
    features, logits = one_batch()
    features[0, 0] = np.nan
    with pytest.raises(NumericsError, match=r"^features:"):
        gain.step(features, logits)
    assert_bitwise(every_array(gain.state), before)
    assert gain.frames == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [1e25, -1e38])
def test_values_whose_squares_overflow_are_rejected(value, dtype):
    gain = taught(GainConfig.preset("balanced"))
    before = every_array(gain.state)
    features, logits = one_batch(dtype=dtype)
    features[1, 1] = value
    with pytest.raises(NumericsError, match=r"^features:"):
        gain.step(features, logits)
    assert_bitwise(every_array(gain.state), before)


@pytest.mark.parametrize("config", PRESETS)
def test_float64_values_beyond_float32_are_rejected(config):
    gain = taught(config)
    features, logits = one_batch(dtype=np.float64)
    features[1, 1] = 1e300
    with pytest.raises(NumericsError, match=r"^features:"):
        gain.step(features, logits)


@pytest.mark.parametrize("config", PRESETS)
def test_a_squares_overflow_in_the_first_batch_does_not_poison_the_state(config):
    """Nothing reads the features of a first batch but the sums."""
    gain = Gain(np.eye(6, 4, dtype=np.float32), config)
    features, logits = one_batch()
    features[1, 1] = 1e30
    try:
        gain.step(features, logits)
    except NumericsError:
        assert gain.frames == 0
    result = gain.step(*one_batch())
    assert_sound(result, gain.state)
