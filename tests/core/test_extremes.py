"""Inputs at the edge: extreme values and sizes, empty batches, NaN and infinity, long streams."""

from __future__ import annotations

import numpy as np
import pytest
from gaussian_world import gaussian_world
from numpy.testing import assert_allclose
from taught_gain import (
    SKEWNESS,
    assert_bitwise,
    assert_sound,
    copies,
    make_gain,
    one_batch,
    taught,
)

from gain_core import PRESETS, Gain, NumericsError

NAMES = list(PRESETS)
DTYPES = [np.float64, np.float32]


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


def two_of_them(rng: np.random.Generator, rows: int, num_classes: int) -> np.ndarray:
    """Only the first two classes are ever predicted."""
    logits = moderate(rng, rows, num_classes)
    logits[:, 2:] -= 200.0
    return logits


def streamed(name, *, K=10, D=3, B=8, logits=moderate, dtype=np.float64, num_batches=12, z=None):
    """Every prediction and state of a stream is sound."""
    rng = np.random.default_rng(63)
    gain = make_gain(rng.normal(size=(K, D)).astype(dtype), name)
    for _ in range(num_batches):
        features = rng.normal(size=(B, D)) + 0.5 if z is None else z
        result = gain.step(features.astype(dtype), logits(rng, B, K).astype(dtype))
        assert_sound(result, gain.state)
    assert gain.frames == num_batches * B
    return gain


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("logits", [one_hot, uniform, plus_minus, wide, two_of_them, moderate])
@pytest.mark.parametrize("name", NAMES)
def test_extreme_logits(name, logits, dtype):
    gain = streamed(name, logits=logits, dtype=dtype)
    assert_sound(gain.predict(*one_of(gain)), gain.state)


def one_of(gain: Gain):
    """A moderate frame after whatever came."""
    rng = np.random.default_rng(1)
    dtype = gain.state.variance.dtype
    columns = gain.method.feature_dim or 3
    return rng.normal(size=(4, columns)).astype(dtype), moderate(rng, 4, 10).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("K", "D", "B", "num_batches"),
    [
        pytest.param(2, 1, 1, 80, id="smallest"),
        pytest.param(3, 4, 8, 12, id="three-classes"),
        pytest.param(10, 3, 1, 80, id="frame-by-frame"),
        pytest.param(3, 700, 2, 6, id="many-dimensions"),
        pytest.param(3, 2, 512, 2, id="large-batch"),
        pytest.param(20_000, 3, 4, 12, id="twenty-thousand-classes"),
    ],
)
def test_extreme_sizes(name, K, D, B, num_batches, dtype):
    streamed(name, K=K, D=D, B=B, dtype=dtype, num_batches=num_batches)


@pytest.mark.parametrize("value", [0.75, 0.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_features_that_never_move(name, dtype, value):
    streamed(name, dtype=dtype, z=np.full((8, 3), value))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_logits_that_never_move(name, dtype):
    """A still picture: no variance at all, of any class."""
    row = moderate(np.random.default_rng(3), 1, 10)
    gain = streamed(name, dtype=dtype, logits=lambda rng, B, K: np.repeat(row, B, axis=0))
    if name == "shift":
        assert not np.any(gain.state.shift)


@pytest.mark.parametrize("scale", [1e-6, 1e3, 1e6])
@pytest.mark.parametrize("name", NAMES)
def test_float32_features_of_any_scale(name, scale):
    rng = np.random.default_rng(65)
    streamed(name, dtype=np.float32, z=scale * (rng.normal(size=(8, 3)) + 2.0))


def test_float32_and_float64_agree_where_the_logits_lie_far_from_zero():
    """Of logits about a thousand a class, float32 keeps four digits; their variance needs more."""
    world = gaussian_world(10, 8, num_batches=60, batch_sizes=(8,), seed=61)
    level = 1000.0 * np.random.default_rng(5).normal(size=10)
    gains = [
        Gain(10, update_every=1, warmup_frames=1, skewness=SKEWNESS, like=np.zeros((), dtype))
        for dtype in DTYPES
    ]
    for _, logits, _ in world.batches:
        moved = (logits + level).astype(np.float32)
        results = [gain.step(None, moved) for gain in gains]
    shifts = [gain.state.shift for gain in gains]
    assert_allclose(shifts[1], shifts[0], rtol=0, atol=1e-3 * np.max(np.abs(shifts[0]), initial=1))
    assert_allclose(results[1].probs, results[0].probs, rtol=0, atol=0.02)


@pytest.mark.parametrize(
    "name", ["shift", "paper-l2", pytest.param("paper", marks=pytest.mark.slow)]
)
def test_float32_holds_over_a_long_stream(name):
    """Twenty thousand frames, frame by frame of a camera; the sums are as float64 has them."""
    rng = np.random.default_rng(6)
    head = rng.normal(size=(10, 8))
    gains = [make_gain(head.astype(dtype), name) for dtype in DTYPES]
    for _ in range(625):
        z = (0.8 * head[rng.integers(0, 10, 32)] + rng.normal(size=(32, 8)) + 1.0).astype(
            np.float32
        )
        logits = (z @ head.T).astype(np.float32)
        results = [gain.predict(z, logits) for gain in gains]
        for gain in gains:  # both learn from the same predictions
            gain.update(z.astype(gain.state.variance.dtype), results[1])
    assert_allclose(results[1].probs, results[0].probs, rtol=0, atol=2e-3)
    wide, narrow = (copies(gain.state) for gain in gains)
    for key, value in wide.items():
        peak = 1.0 + np.max(np.abs(value))
        assert_allclose(narrow[key] / peak, value / peak, rtol=0, atol=1e-3, err_msg=key)


# --- the empty batch ---


@pytest.mark.parametrize("history", [False, True], ids=["fresh", "taught"])
@pytest.mark.parametrize("name", NAMES)
def test_an_empty_batch_predicts_nothing_and_teaches_nothing(xp, name, history):
    gain = make_gain(xp.from_numpy(np.eye(10, 8, dtype=np.float32)), name)
    for seed in range(8 if history else 0):
        gain.step(*(xp.from_numpy(array) for array in one_batch(seed=seed)))
    batch = [xp.from_numpy(array) for array in one_batch()]
    expected, frames = xp.to_numpy(gain.predict(*batch).probs), gain.frames
    nothing = np.zeros((0, 8), dtype=np.float32), np.zeros((0, 10), dtype=np.float32)
    result = gain.step(*(xp.from_numpy(array) for array in nothing))
    gain.flush()
    assert tuple(result.probs.shape) == tuple(result.source_log_probs.shape) == (0, 10)
    assert tuple(result.strength.shape) == tuple(result.gain.shape) == (0,)
    assert xp.to_numpy(result.finite)
    assert gain.frames == frames
    assert_allclose(xp.to_numpy(gain.predict(*batch).probs), expected, rtol=0, atol=1e-6)


# --- NaN and infinity ---


@pytest.mark.parametrize("update_every", [1, 1000], ids=["at-once", "pending"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
@pytest.mark.parametrize("field", ["features", "logits"])
@pytest.mark.parametrize("name", NAMES)
def test_values_that_are_not_finite_are_rejected(name, field, value, update_every):
    if (name, field) == ("shift", "features"):
        field = "logits"  # features are not read
    gain = taught(name)
    gain.update_every = update_every
    gain.step(*one_batch(seed=3))
    before, frames, pending = copies(gain.state), gain.frames, gain.pending_frames
    batch = dict(zip(("features", "logits"), one_batch(dtype=np.float64), strict=True))
    batch[field][[2, 7], [1, 0]] = value
    for method in (gain.predict, gain.step):
        # 1e39 is finite until it is cast to the state's float32.
        with pytest.raises(NumericsError, match=rf"^({field}: .* 2 of 16 rows|logits, features:)"):
            method(batch["features"], batch["logits"])
    assert_bitwise(copies(gain.state), before)
    assert (gain.frames, gain.pending_frames) == (frames, pending)
    result = gain.step(*one_batch())
    gain.flush()
    assert_sound(result, gain.state)


@pytest.mark.parametrize("name", ["paper"])
def test_a_squares_overflow_does_not_poison_the_state(name):
    """Nothing reads the features of a first batch but the sums."""
    gain = make_gain(np.eye(10, 8, dtype=np.float32), name)
    z, logits = one_batch()
    z[1, 1] = 1e25
    for _ in range(2):
        try:
            gain.step(z, logits)
        except NumericsError:
            assert gain.frames == 0
    assert_sound(gain.step(*one_batch()), gain.state)
