"""Dtypes and layouts that must not matter, and arrays that must be refused by name."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from gaussian_world import gaussian_world
from numpy.testing import assert_allclose, assert_array_equal
from taught_gain import assert_bitwise, every_array, learned, one_batch, taught

from gain_core import (
    ArrayError,
    ConfigError,
    Gain,
    GainConfig,
    NumericsError,
    init_state,
    predict,
    state_from_arrays,
    state_to_arrays,
)

NAMES = ("tracked", "balanced", "paper", "paper-l2")
PRESETS = [pytest.param(GainConfig.preset(name), id=name) for name in NAMES]


# --- dtypes and layouts ---


@pytest.mark.parametrize("config", PRESETS)
def test_float16_inputs_are_computed_at_float32(config):
    gain, wide_gain = taught(config), taught(config)
    features, logits = one_batch(dtype=np.float16)
    result = gain.step(features, logits)
    expected = wide_gain.step(features.astype(np.float32), logits.astype(np.float32))
    for item in fields(result):
        value = getattr(result, item.name)
        assert value.dtype == (bool if item.name == "finite" else np.float32)
        assert_array_equal(value, getattr(expected, item.name), err_msg=item.name)
    assert_bitwise(every_array(gain.state), every_array(wide_gain.state))


@pytest.mark.parametrize("config", PRESETS)
def test_float16_prototypes_give_a_float32_state(config):
    state = init_state(np.eye(3, 4, dtype=np.float16), config)
    assert {value.dtype.name for value in state_to_arrays(state).values()} == {"float32"}


@pytest.mark.parametrize("config", PRESETS)
def test_float64_prototypes_give_a_float64_state_whatever_the_inputs(config):
    gain = taught(config, dtype=np.float64)
    result = gain.step(*one_batch(dtype=np.float32))
    assert result.probs.dtype == result.strength.dtype == np.float64
    assert {value.dtype.name for value in state_to_arrays(gain.state).values()} == {"float64"}


def strided(array: np.ndarray) -> np.ndarray:
    wide_array = np.zeros((2 * array.shape[0], 3 * array.shape[1]), dtype=array.dtype)
    wide_array[::2, ::3] = array
    return wide_array[::2, ::3]


def reversed_twice(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array[::-1, ::-1])[::-1, ::-1]


def read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.setflags(write=False)
    return copy


def big_endian(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder(">"))


@pytest.mark.parametrize(
    "layout", [strided, reversed_twice, read_only, np.asfortranarray, big_endian]
)
@pytest.mark.parametrize("config", PRESETS)
def test_layout_does_not_matter(config, layout):
    world = gaussian_world(6, 4, num_batches=4, seed=67)
    plain, odd = Gain(world.prototypes, config), Gain(layout(world.prototypes), config)
    for features, logits, _ in world.batches:
        z, scores = layout(features), layout(logits)
        before = z.tobytes(), scores.tobytes()
        result, expected = odd.step(z, scores), plain.step(features, logits)
        assert (z.tobytes(), scores.tobytes()) == before
        assert_allclose(result.probs, expected.probs, rtol=0, atol=1e-6)
    assert_allclose(learned(odd.state), learned(plain.state), rtol=0, atol=1e-6)


# --- what does not fit ---


@pytest.mark.parametrize(
    ("features", "logits", "message"),
    [
        pytest.param(np.zeros(4), np.zeros((1, 6)), r"features: .*\(B, .*\(4,\)", id="1-D"),
        pytest.param(np.zeros((1, 2, 4)), np.zeros((2, 6)), r"features: .*\(1, 2, 4\)", id="3-D"),
        pytest.param(np.zeros((2, 4)), np.zeros((2, 7)), r"logits: .*\(2, 6\).*\(2, 7\)", id="K"),
        pytest.param(np.zeros((2, 4)), np.zeros((3, 6)), r"logits: .*\(2, 6\).*\(3, 6\)", id="B"),
        pytest.param(np.zeros((2, 4)), np.zeros(6), r"logits: .*\(6,\)", id="logits-1-D"),
        pytest.param(np.zeros((0, 4)), np.zeros((3, 6)), r"logits: .*\(0, 6\)", id="empty-B"),
        pytest.param(
            np.zeros((2, 4), dtype=np.int64), np.zeros((2, 6)), "features: .*int64", id="integers"
        ),
        pytest.param(
            np.zeros((2, 4), dtype=complex), np.zeros((2, 6)), "features: .*complex", id="complex"
        ),
        pytest.param(
            np.zeros((2, 4)), np.zeros((2, 6), dtype=np.uint8), "logits: .*uint8", id="bytes"
        ),
        pytest.param(
            np.zeros((2, 4)), np.zeros((2, 6), dtype=bool), "logits: .*bool", id="booleans"
        ),
        pytest.param(
            np.zeros((2, 4), dtype=object), np.zeros((2, 6)), "features: .*object", id="objects"
        ),
        pytest.param([[0.0] * 4], np.zeros((1, 6)), "features: .*array.*got list", id="list"),
        pytest.param(np.zeros((1, 4)), None, "logits: .*array.*got None", id="none"),
        pytest.param(3.0, np.zeros((1, 6)), "features: .*array.*got float", id="number"),
    ],
)
@pytest.mark.parametrize("name", ["tracked", "balanced"])
def test_arrays_that_do_not_fit_are_named(name, features, logits, message):
    gain = taught(GainConfig.preset(name))
    before = every_array(gain.state)
    for method in (gain.predict, gain.step):
        with pytest.raises(ArrayError, match=f"^{message}"):
            method(features, logits)
    with pytest.raises(ArrayError, match=f"^{message}"):
        predict(features, logits, gain.state, config=gain.config)
    assert_bitwise(every_array(gain.state), before)


@pytest.mark.parametrize("config", PRESETS[1:])
def test_features_of_another_width_are_named(config):
    """Of Gaussians; a shift takes any."""
    gain = taught(config)
    with pytest.raises(ArrayError, match=r"^features: .*\(B, 4\).*\(2, 5\)"):
        gain.step(np.zeros((2, 5)), np.zeros((2, 6)))


@pytest.mark.parametrize(
    "prototypes",
    [
        pytest.param(np.zeros(4), id="1-D"),
        pytest.param(np.zeros((1, 4)), id="one-class"),
        pytest.param(np.zeros((0, 4)), id="no-class"),
        pytest.param(np.zeros((3, 0)), id="no-dimension"),
        pytest.param(np.zeros((2, 3, 4)), id="3-D"),
        pytest.param(np.zeros((3, 4), dtype=np.int32), id="integers"),
        pytest.param(np.zeros((3, 4), dtype=complex), id="complex"),
        pytest.param([[1.0, 2.0], [3.0, 4.0]], id="list"),
        pytest.param(None, id="none"),
    ],
)
@pytest.mark.parametrize("config", PRESETS)
def test_prototypes_that_are_no_head_are_named(prototypes, config):
    for make in (Gain, init_state):
        with pytest.raises(ArrayError, match=r"^prototypes: expected"):
            make(prototypes, config)


@pytest.mark.parametrize("value", [1e20, 3e38])
def test_prototypes_whose_squares_overflow_are_refused_on_numpy(value):
    prototypes = np.eye(3, 4, dtype=np.float32)
    prototypes[1, 2] = value
    with pytest.raises(NumericsError, match=r"^prototypes: expected rows whose squares are finite"):
        Gain(prototypes)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("config", PRESETS)
def test_prototypes_that_are_not_finite_are_refused_on_numpy(value, config):
    prototypes = np.eye(3, 4)
    prototypes[1, 2] = value
    with pytest.raises(NumericsError, match=r"^prototypes: expected finite"):
        Gain(prototypes, config)


@pytest.mark.parametrize("config", PRESETS)
def test_arrays_of_another_library_are_named(config):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    gain = taught(config)
    features, logits = one_batch()
    with pytest.raises(ArrayError, match=r"^features: .*numpy.*torch"):
        gain.predict(torch.from_numpy(features), torch.from_numpy(logits))
    with pytest.raises(ArrayError, match=r"^logits: .*numpy.*torch"):
        gain.predict(features, torch.from_numpy(logits))
    tensors = Gain(torch.eye(6, 4), config)
    with pytest.raises(ArrayError, match=r"^features: .*torch.*numpy"):
        tensors.step(features, logits)


@pytest.mark.parametrize("config", PRESETS)
def test_arrays_on_another_device_are_named(config):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    gain = Gain(torch.eye(6, 4), config)
    with pytest.raises(ArrayError, match=r"^features: .*on cpu, got .* on meta"):
        gain.predict(torch.zeros((2, 4), device="meta"), torch.zeros((2, 6)))
    with pytest.raises(ArrayError, match=r"^logits: .*on cpu, got .* on meta"):
        gain.predict(torch.zeros((2, 4)), torch.zeros((2, 6), device="meta"))


@pytest.mark.parametrize("name", ["tracked", "balanced"])
def test_a_prediction_of_another_batch_is_refused(name):
    gain = taught(GainConfig.preset(name))
    features, logits = one_batch()
    prediction = gain.predict(features, logits)
    before = every_array(gain.state)
    with pytest.raises(ArrayError, match=r"^prediction\.probs: .*\(3, 6\).*\(16, 6\)"):
        gain.update(features[:3], prediction)
    if name == "balanced":
        with pytest.raises(ArrayError, match=r"^features:"):
            gain.update(features[:, :3], prediction)
    assert_bitwise(every_array(gain.state), before)
    assert gain.pending_frames == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"support": None}, "state: .*missing support", id="missing"),
        pytest.param({"velocity": np.zeros(6)}, "state: .*unknown velocity", id="unknown"),
        pytest.param(
            {"support": np.zeros(7, dtype=np.float32)}, r"state\.support: .*\(6,\).*\(7,\)", id="K"
        ),
        pytest.param(
            {"first_moment": np.zeros((6, 5), dtype=np.float32)},
            r"state\.first_moment: .*\(6, 4\).*\(6, 5\)",
            id="D",
        ),
        pytest.param({"support": np.zeros(6)}, r"state\.support: .*float32.*float64", id="dtype"),
    ],
)
def test_saved_arrays_that_do_not_fit_are_named(change, message):
    gain = taught(GainConfig.preset("balanced"))
    arrays = state_to_arrays(gain.state) | change
    arrays = {name: value for name, value in arrays.items() if value is not None}
    with pytest.raises(ArrayError, match=f"^{message}"):
        state_from_arrays(arrays, prototypes=np.eye(6, 4, dtype=np.float32), config=gain.config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"window_mass": None}, "state: .*missing window_mass", id="missing"),
        pytest.param(
            {"support": np.zeros(6, dtype=np.float32)}, "state: .*unknown support", id="unknown"
        ),
        pytest.param(
            {"window_mass": np.zeros((5, 7), dtype=np.float32)},
            r"state\.window_mass: .*\(5, 6\).*\(5, 7\)",
            id="K",
        ),
        pytest.param(
            {"guard_hold": np.zeros(())}, r"state\.guard_hold: .*float32.*float64", id="dtype"
        ),
    ],
)
def test_saved_arrays_that_are_no_shift_are_named(change, message):
    gain = taught()
    arrays = state_to_arrays(gain.state) | change
    arrays = {name: value for name, value in arrays.items() if value is not None}
    with pytest.raises(ArrayError, match=f"^{message}"):
        state_from_arrays(arrays, prototypes=np.eye(6, 4, dtype=np.float32), config=gain.config)


@pytest.mark.parametrize("bias", [np.zeros(5), np.zeros(6, dtype=np.int64)])
def test_a_bias_that_does_not_fit_the_head_is_named(bias):
    with pytest.raises(ArrayError, match=r"^bias: expected"):
        Gain(np.eye(6, 4), bias=bias)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_of_the_other_kind_is_not_loaded(name):
    gain = taught(GainConfig.preset(name))
    before = every_array(gain.state)
    other = GainConfig.preset("balanced" if name == "tracked" else "tracked")
    with pytest.raises(ArrayError, match=r"^state: expected .*; it was made for another head or"):
        gain.load_state(init_state(np.eye(6, 4, dtype=np.float32), other))
    assert_bitwise(every_array(gain.state), before)


@pytest.mark.parametrize("name", ["tracked", "balanced"])
def test_a_state_of_another_head_is_not_loaded(name):
    gain = taught(GainConfig.preset(name))
    before = every_array(gain.state)
    others = [np.eye(7, 4, dtype=np.float32), np.eye(6, 4)]
    if name == "balanced":  # a shift knows nothing of the features
        others.append(np.eye(6, 5, dtype=np.float32))
    for other in others:
        with pytest.raises(ArrayError, match="state"):
            gain.load_state(init_state(other, gain.config), frames=3)
    assert_bitwise(every_array(gain.state), before)
    assert gain.frames == 80


@pytest.mark.parametrize("update_every", [0, -1])
def test_update_every_below_one_is_refused(update_every):
    with pytest.raises(ConfigError, match=f"^update_every: .*got {update_every}"):
        Gain(np.eye(3, 4), update_every=update_every)
