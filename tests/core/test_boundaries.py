"""Dtypes and layouts that must not matter, and arrays that must be refused by name."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gaussian_world import gaussian_world
from numpy.testing import assert_allclose, assert_array_equal
from taught_gain import assert_bitwise, copies, fields_of, make_gain, one_batch, taught

from gain_core import PRESETS, ArrayError, ConfigError, Gain, NumericsError, make_method
from gain_core.records import arrays_of, record_from_arrays

NAMES = list(PRESETS)
PAPERS = [name for name in NAMES if name != "shift"]

# --- dtypes and layouts ---


@pytest.mark.parametrize("name", NAMES)
def test_statistics_are_float32_or_the_heads_float64(name):
    gain, wide = taught(name), taught(name)
    z, logits = one_batch(dtype=np.float16)
    result = fields_of(gain.step(z, logits))
    expected = fields_of(wide.step(z.astype(np.float32), logits.astype(np.float32)))
    for key, value in result.items():
        assert value.dtype == (bool if key == "finite" else np.float32)
        assert_array_equal(value, expected[key], err_msg=key)
    assert_bitwise(copies(gain.state), copies(wide.state))
    for dtype, wanted in ((np.float16, "float32"), (np.float64, "float64")):
        state = make_method(np.eye(3, 4, dtype=dtype), PRESETS[name]).init_state()
        assert {value.dtype.name for value in arrays_of(state).values()} == {wanted}
    assert taught(name, dtype=np.float64).step(*one_batch()).probs.dtype == np.float64


def strided(array: np.ndarray) -> np.ndarray:
    wide_array = np.zeros((2 * array.shape[0], 3 * array.shape[1]), dtype=array.dtype)
    wide_array[::2, ::3] = array
    return wide_array[::2, ::3]


def reversed_twice(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array[::-1, ::-1])[::-1, ::-1]


def big_endian(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder(">"))


@pytest.mark.parametrize("layout", [strided, reversed_twice, np.asfortranarray, big_endian])
@pytest.mark.parametrize("name", NAMES)
def test_layout_does_not_matter(name, layout):
    world = gaussian_world(10, 8, num_batches=6, seed=61)
    plain, odd = make_gain(world.prototypes, name), make_gain(layout(world.prototypes), name)
    for features, logits, _ in world.batches:
        result, expected = odd.step(layout(features), layout(logits)), plain.step(features, logits)
        assert_allclose(result.probs, expected.probs, rtol=0, atol=1e-5)
    assert np.max(result.strength) > 0.5


# --- what does not fit ---

FEATURES, LOGITS = np.zeros((2, 8)), np.zeros((2, 10))
BAD_FEATURES = {
    "1-D": (np.zeros(8), r"features: .*\(B, 8\).*\(8,\)"),
    "3-D": (np.zeros((1, 2, 8)), r"features: .*\(1, 2, 8\)"),
    "D": (np.zeros((2, 5)), r"features: .*\(B, 8\).*\(2, 5\)"),
    "integers": (np.zeros((2, 8), dtype=np.int64), "features: .*int64"),
    "complex": (np.zeros((2, 8), dtype=complex), "features: .*complex"),
    "objects": (np.zeros((2, 8), dtype=object), "features: .*object"),
    "list": ([[0.0] * 8], "features: .*array.*got list"),
    "none": (None, r"features: expected \(B, 8\), got none; .*or the preset shift"),
}
BAD_LOGITS = {
    "K": (np.zeros((2, 7)), r"logits: .*10.*\(2, 7\)"),
    "1-D": (np.zeros(10), r"logits: .*\(10,\)"),
    "bytes": (np.zeros((2, 10), dtype=np.uint8), "logits: .*uint8"),
    "booleans": (np.zeros((2, 10), dtype=bool), "logits: .*bool"),
    "none": (None, "logits: .*array.*got None"),
    "number": (3.0, "logits: .*array.*got float"),
}


def assert_refused(gain: Gain, features, logits, message: str) -> None:
    """By one line, in every way in, and the state stays as it is."""
    before = copies(gain.state)
    for method in (gain.predict, gain.step):
        with pytest.raises(ArrayError, match=f"^{message}") as error:
            method(features, logits)
        assert "\n" not in str(error.value)
    assert_bitwise(copies(gain.state), before)
    assert gain.pending_frames == 0


@pytest.mark.parametrize(("features", "message"), BAD_FEATURES.values(), ids=BAD_FEATURES)
def test_features_that_do_not_fit_are_named_by_paper_and_not_read_by_the_shift(features, message):
    assert_refused(taught("paper"), features, LOGITS, message)
    gain = taught("shift")
    assert gain.method.feature_dim is None
    expected = gain.predict(FEATURES, LOGITS).probs
    assert_array_equal(gain.step(features, LOGITS).source_log_probs[:, 0], -np.log(np.float32(10)))
    assert_array_equal(taught("shift").predict(features, LOGITS).probs, expected)


@pytest.mark.parametrize(("logits", "message"), BAD_LOGITS.values(), ids=BAD_LOGITS)
@pytest.mark.parametrize("name", NAMES[:2])
def test_logits_that_do_not_fit_are_named(name, logits, message):
    assert_refused(taught(name), FEATURES, logits, message)


def test_as_many_logits_as_features():
    assert_refused(taught("paper"), FEATURES, np.zeros((3, 10)), r"logits: .*\(2, 10\).*\(3, 10\)")


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(np.zeros(4), id="1-D"),
        pytest.param(np.zeros((1, 4)), id="one-class"),
        pytest.param(np.zeros((0, 4)), id="no-class"),
        pytest.param(np.zeros((3, 0)), id="no-dimension"),
        pytest.param(np.zeros((3, 4), dtype=np.int32), id="integers"),
        pytest.param([[1.0, 2.0], [3.0, 4.0]], id="list"),
        pytest.param(None, id="none"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_head_that_is_none_is_named(head, name):
    with pytest.raises(ArrayError, match=r"^head: expected"):
        Gain(head, PRESETS[name])


@pytest.mark.parametrize("number", [1, 0, -3])
def test_fewer_than_two_classes_are_refused(number):
    with pytest.raises(ConfigError, match=f"^num_classes: expected at least 2.*got {number}"):
        make_method(number)


def test_the_paper_needs_the_heads_rows():
    with pytest.raises(ConfigError, match=r"^head: expected .*got the number 5; .*preset shift"):
        Gain(5, PRESETS["paper"])


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e20])
@pytest.mark.parametrize("name", PAPERS)
def test_a_head_that_is_not_finite_or_overflows_is_refused(value, name):
    head = np.eye(3, 4, dtype=np.float32)
    head[1, 2] = value
    with pytest.raises(NumericsError, match=r"^head: expected finite .* in 1 of 3 rows"):
        Gain(head, PRESETS[name])


@pytest.mark.parametrize("name", NAMES)
def test_arrays_of_another_library_or_device_are_named(name):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    z, logits = one_batch()
    with pytest.raises(ArrayError, match=r"^logits: .*numpy.*torch"):
        taught(name).predict(z, torch.from_numpy(logits))
    tensors = Gain(torch.eye(10, 8), PRESETS[name])
    with pytest.raises(ArrayError, match=r"^logits: .*torch.*numpy"):
        tensors.step(torch.from_numpy(z), logits)
    with pytest.raises(ArrayError, match=r"^logits: .*on cpu, got .* on meta"):
        tensors.predict(torch.from_numpy(z), torch.zeros((16, 10), device="meta"))


def test_a_prediction_of_another_batch_is_refused_by_the_paper():
    gain = taught("paper")
    z, logits = one_batch()
    prediction = gain.predict(z, logits)
    with pytest.raises(ArrayError, match=r"^prediction\.probs: .*\(3, 10\).*\(16, 10\)"):
        gain.update(z[:3], prediction)
    assert gain.pending_frames == 0


@pytest.mark.parametrize("name", NAMES)
def test_saved_arrays_that_do_not_fit_are_named(name):
    gain = taught(name)
    arrays, fresh = arrays_of(gain.state), gain.method.init_state()
    field = "memory" if name == "shift" else "first_moment"
    value = arrays[field]
    left = {key: array for key, array in arrays.items() if key != field}
    bad = {
        f"state: .*missing {field}": left,
        "state: .*unknown velocity": arrays | {"velocity": np.zeros(6)},
        rf"state\.{field}: .*{re.escape(str(value.shape))}": arrays | {field: value[..., :-1]},
        rf"state\.{field}: .*float32.*float64": arrays | {field: value.astype(np.float64)},
    }
    for message, changed in bad.items():
        with pytest.raises(ArrayError, match=f"^{message}"):
            record_from_arrays(fresh, changed)


@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_state_is_neither_loaded_nor_merged(name):
    gain = taught(name)
    before, own = copies(gain.state), gain.state
    other = "paper" if name == "shift" else "shift"
    heads = [np.eye(7, 8, dtype=np.float32), np.eye(10, 8)]
    if name != "shift":  # a shift knows nothing of the features
        heads.append(np.eye(10, 5, dtype=np.float32))
    foreign = [make_method(head, PRESETS[name]).init_state() for head in heads]
    foreign.append(make_method(np.eye(10, 8, dtype=np.float32), PRESETS[other]).init_state())
    for state in foreign:
        with pytest.raises(ArrayError, match=r"^state"):
            gain.load_state(state, frames=3)
        with pytest.raises(ArrayError, match=r"^second state"):
            gain.method.merge(own, state)
        with pytest.raises(ArrayError, match=r"^first state"):
            gain.method.merge(state, own)
    assert_bitwise(copies(gain.state), before)
    assert gain.frames == 96


@pytest.mark.parametrize("name", ["update_every", "warmup_frames"])
def test_no_frames_are_refused(name):
    with pytest.raises(ConfigError, match=f"^{name}: expected at least 1 frame, got 0"):
        Gain(3, **{name: 0})
    gain = Gain(3)
    with pytest.raises(ConfigError, match=r"^update_every: .*got -1"):
        gain.update_every = -1
