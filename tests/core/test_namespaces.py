"""One source for every array library: the same answers, and nothing read on the host."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from gaussian_world import gaussian_world
from numpy.testing import assert_allclose
from taught_gain import learned

from gain_core import (
    Gain,
    GainConfig,
    Prediction,
    init_state,
    merge_states,
    posteriors,
    predict,
    state_from_arrays,
    state_to_arrays,
    update,
)

NAMES = ("tracked", "balanced", "paper", "paper-l2")
PRESETS = [pytest.param(GainConfig.preset(name), id=name) for name in NAMES]
DTYPES = [pytest.param(np.float64, id="float64"), pytest.param(np.float32, id="float32")]
# The libraries sum in different orders; at float32 that feeds back through the statistics.
TOLERANCE = {np.float64: 1e-6, np.float32: 1e-4}


def stream(dtype: type, *, num_batches: int = 12, seed: int = 51):
    """Prototypes and batches as NumPy arrays of one dtype."""
    world = gaussian_world(7, 5, num_batches=num_batches, batch_sizes=(16, 1, 4), seed=seed)
    batches = [(z.astype(dtype), logits.astype(dtype)) for z, logits, _ in world.batches]
    return world.prototypes.astype(dtype), batches


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", PRESETS)
@pytest.mark.parametrize("update_every", [1, 8])
def test_every_library_gives_numpys_answer(xp, config, dtype, update_every):
    prototypes, batches = stream(dtype)
    plain = Gain(prototypes, config, update_every=update_every)
    gain = Gain(xp.from_numpy(prototypes), config, update_every=update_every)
    tolerance = TOLERANCE[dtype]
    for features, logits in batches:
        expected = plain.step(features, logits)
        result = gain.step(xp.from_numpy(features), xp.from_numpy(logits))
        for item in fields(Prediction):
            value = xp.to_numpy(getattr(result, item.name))
            wanted = getattr(expected, item.name)
            assert value.dtype == wanted.dtype, item.name
            assert value.shape == wanted.shape, item.name
            scale = 1.0 + np.max(np.abs(wanted))
            assert_allclose(value / scale, wanted / scale, rtol=0, atol=tolerance)
    arrays = state_to_arrays(gain.state)
    for name, wanted in state_to_arrays(plain.state).items():
        scale = 1.0 + np.max(np.abs(wanted))
        value = xp.to_numpy(arrays[name]) / scale
        assert_allclose(value, wanted / scale, rtol=0, atol=tolerance, err_msg=name)
    if config.proposal == "shift":
        stretch = xp.to_numpy(gain.state.shift.stretch)
        assert_allclose(stretch, plain.state.shift.stretch, rtol=0, atol=tolerance)
    assert gain.frames == plain.frames


@pytest.mark.parametrize("config", PRESETS)
def test_every_public_function_runs_on_every_library(xp, config):
    prototypes, batches = stream(np.float32, num_batches=4)
    head = xp.from_numpy(prototypes)
    state, half = init_state(head, config), None
    for features, logits in batches:
        z, scores = xp.from_numpy(features), xp.from_numpy(logits)
        result = predict(z, scores, state, config=config)
        state = update(z, result, state, prototypes=head, config=config)
        half = half or state
    log_proposal, log_evaluator = posteriors(z, scores, state, config=config)
    for log_probs in (log_proposal, log_evaluator):
        assert_allclose(np.sum(np.exp(xp.to_numpy(log_probs)), axis=1), 1.0, rtol=0, atol=1e-5)
    merged = merge_states(half, state, prototypes=head, config=config)
    name = "window_mass" if config.proposal == "shift" else "support"
    one, two, both = (xp.to_numpy(state_to_arrays(s)[name]) for s in (half, state, merged))
    assert_allclose(both, one + two, rtol=1e-5)
    again = state_from_arrays(state_to_arrays(state), prototypes=head, config=config)
    assert_allclose(xp.to_numpy(learned(again)), xp.to_numpy(learned(state)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("config", PRESETS)
def test_every_method_of_gain_runs_on_every_library(xp, config):
    prototypes, batches = stream(np.float32, num_batches=6)
    gain = Gain(xp.from_numpy(prototypes), config, update_every=10)
    first = xp.from_numpy(batches[0][0]), xp.from_numpy(batches[0][1])
    fresh = {name: np.array(xp.to_numpy(a)) for name, a in state_to_arrays(gain.state).items()}
    for features, logits in batches:
        gain.step(xp.from_numpy(features), xp.from_numpy(logits))
    gain.flush()
    snapshot, frames = gain.state, gain.frames
    kept = {name: np.array(xp.to_numpy(a)) for name, a in state_to_arrays(snapshot).items()}
    gain.freeze()
    gain.step(*first)
    gain.unfreeze()
    gain.reset()
    assert gain.frames == 0
    for name, array in state_to_arrays(gain.state).items():
        np.testing.assert_array_equal(xp.to_numpy(array), fresh[name], err_msg=name)
    gain.load_state(snapshot, frames=frames)
    assert gain.frames == frames == 42
    gain.step(*first)
    gain.flush()
    for name, array in state_to_arrays(snapshot).items():
        np.testing.assert_array_equal(xp.to_numpy(array), kept[name], err_msg=name)


@pytest.mark.parametrize("config", PRESETS)
def test_a_batch_that_is_not_finite_teaches_nothing_without_a_host_read(xp, config):
    prototypes, batches = stream(np.float32, num_batches=4)
    head = xp.from_numpy(prototypes)
    for history in (0, 3):
        state = init_state(head, config)
        for features, logits in batches[:history]:
            z = xp.from_numpy(features)
            result = predict(z, xp.from_numpy(logits), state, config=config)
            state = update(z, result, state, prototypes=head, config=config)
        before = {name: xp.to_numpy(value) for name, value in state_to_arrays(state).items()}
        kept = xp.to_numpy(learned(state))
        good_z, good_logits = batches[0]
        for bad_value in (np.nan, np.inf, -np.inf):
            bad_z, bad_logits = good_z.copy(), good_logits.copy()
            bad_z[3, 2] = bad_logits[5, 1] = bad_value
            for z, logits in ((bad_z, good_logits), (good_z, bad_logits)):
                rows = xp.from_numpy(z)
                with np.errstate(all="ignore"):
                    result = predict(rows, xp.from_numpy(logits), state, config=config)
                    after = update(rows, result, state, prototypes=head, config=config)
                assert not xp.to_numpy(result.finite)
                for name, value in state_to_arrays(after).items():
                    # Of a rejected frame only that none follows it is known.
                    wanted = 0.0 if name.startswith("last_") else before[name]
                    np.testing.assert_array_equal(xp.to_numpy(value), wanted, err_msg=name)
                np.testing.assert_array_equal(xp.to_numpy(learned(after)), kept)
                again = predict(
                    xp.from_numpy(good_z), xp.from_numpy(good_logits), after, config=config
                )
                assert xp.to_numpy(again.finite)


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda array: float(array[0]), id="float"),
        pytest.param(lambda array: int(array[0]), id="int"),
        pytest.param(lambda array: bool(array[0] > 0), id="bool"),
        pytest.param(lambda array: 1 if array[0] > 0 else 0, id="if"),
        pytest.param(list, id="iteration"),
        pytest.param(np.asarray, id="asarray"),
        pytest.param(np.from_dlpack, id="dlpack"),
        pytest.param(lambda array: array[array > 0], id="boolean-mask"),
    ],
)
def test_the_guard_catches_a_host_read(strict, read):
    array = strict.from_numpy(np.array([1.0, -2.0]))
    with pytest.raises(RuntimeError):
        read(array)
    np.testing.assert_array_equal(strict.to_numpy(array + array), [2.0, -4.0])


@pytest.mark.parametrize("config", PRESETS)
def test_torch_keeps_no_graph_and_is_not_slowed_by_gradients(config):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    prototypes, batches = stream(np.float32, num_batches=2)
    head = torch.nn.Parameter(torch.from_numpy(prototypes))
    gain = Gain(head, config)
    for features, logits in batches:
        z = torch.from_numpy(features).requires_grad_()
        result = gain.step(z, torch.from_numpy(logits).requires_grad_())
        assert not result.probs.requires_grad
    assert not any(value.requires_grad for value in state_to_arrays(gain.state).values())
    assert not learned(gain.state).requires_grad


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("config", PRESETS)
def test_torch_half_precision_inputs_are_computed_at_float32(kind, config):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    half = getattr(torch, kind)
    prototypes, batches = stream(np.float32)
    narrow, wide = (
        Gain(torch.from_numpy(prototypes).to(half).to(t), config) for t in (half, torch.float32)
    )
    for features, logits in batches:
        z, scores = (torch.from_numpy(array).to(half) for array in (features, logits))
        result, expected = narrow.step(z, scores), wide.step(z.float(), scores.float())
        assert result.probs.dtype == torch.float32
        torch.testing.assert_close(result.probs, expected.probs, rtol=0, atol=0)
