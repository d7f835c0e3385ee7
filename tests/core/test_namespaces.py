"""One source for every array library: the same answers, and nothing read on the host."""

from __future__ import annotations

import numpy as np
import pytest
from gaussian_world import gaussian_world
from numpy.testing import assert_allclose, assert_array_equal
from taught_gain import SKEWNESS, copies, fields_of, make_gain

from gain_core import PRESETS, Gain, make_method
from gain_core.records import arrays_of, record_from_arrays

NAMES = list(PRESETS)
# The libraries sum in different orders; at float32 that feeds back through the statistics.
TOLERANCE = {np.float64: 1e-6, np.float32: 1e-3}


def stream(dtype: type, *, num_batches: int = 14):
    """A head and batches as NumPy arrays of one dtype, some of which are empty."""
    world = gaussian_world(10, 8, num_batches=num_batches, batch_sizes=(16, 1, 0, 20), seed=61)
    batches = [(z.astype(dtype), logits.astype(dtype)) for z, logits, _ in world.batches]
    return world.prototypes.astype(dtype), batches


@pytest.mark.parametrize(("update_every", "dtype"), [(1, np.float64), (16, np.float32)])
@pytest.mark.parametrize("name", NAMES)
def test_every_library_gives_numpys_answer(xp, name, dtype, update_every):
    head, batches = stream(dtype)
    plain = make_gain(head, name, update_every=update_every)
    gain = make_gain(xp.from_numpy(head), name, update_every=update_every)
    for features, logits in batches:
        wanted = fields_of(plain.step(features, logits))
        result = fields_of(gain.step(xp.from_numpy(features), xp.from_numpy(logits)))
        del wanted["strength"], result["strength"]  # nothing where J is flat
        for key, expected in wanted.items():
            value = xp.to_numpy(result[key])
            assert (value.dtype, value.shape) == (expected.dtype, expected.shape), key
            peak = 1.0 + np.max(np.abs(expected), initial=0.0)
            if key == "log_probs" and dtype == np.float32:
                continue
            assert_allclose(value / peak, expected / peak, rtol=0, atol=TOLERANCE[dtype])
    expected = copies(plain.state)
    for key, array in arrays_of(gain.state).items():
        peak = 1.0 + np.max(np.abs(expected[key]))
        value = xp.to_numpy(array) / peak
        assert_allclose(value, expected[key] / peak, rtol=0, atol=TOLERANCE[dtype], err_msg=key)
    assert gain.frames == plain.frames


@pytest.mark.parametrize("name", NAMES)
def test_every_function_runs_on_every_library(xp, name):
    head, batches = stream(np.float32, num_batches=6)
    method = make_method(xp.from_numpy(head), PRESETS[name], skewness=SKEWNESS)
    state = method.init_state()
    for features, logits in batches:
        z, scores = xp.from_numpy(features), xp.from_numpy(logits)
        result = method.predict(z, scores, state)
        evidence = method.hold(method.collect(z, result, state, method.no_evidence(20)), 20)
        assert xp.to_numpy(method.count(evidence)) == len(features)
        state = method.update(evidence, state)
    found = method.posteriors(z, scores, state)
    for log_probs in (found.log_proposal, found.log_evaluator):
        assert_allclose(np.sum(np.exp(xp.to_numpy(log_probs)), axis=1), 1.0, rtol=0, atol=1e-5)
    merged = method.merge(state, state)
    again = record_from_arrays(method.init_state(), arrays_of(merged))
    one, two = (method.predict(z, scores, s).probs for s in (merged, again))
    assert_array_equal(xp.to_numpy(one), xp.to_numpy(two))
    for value in method.summary(state).values():
        assert np.isfinite(xp.to_numpy(value))


@pytest.mark.parametrize("name", NAMES)
def test_every_method_of_gain_runs_on_every_library(xp, name):
    head, batches = stream(np.float32)
    gain = make_gain(xp.from_numpy(head), name, update_every=10)
    first = xp.from_numpy(batches[0][0]), xp.from_numpy(batches[0][1])

    def numbers(state):
        return {key: np.array(xp.to_numpy(value)) for key, value in arrays_of(state).items()}

    fresh = numbers(gain.state)
    for features, logits in batches:
        gain.step(xp.from_numpy(features), xp.from_numpy(logits))
    gain.flush()
    snapshot, frames = gain.state, gain.frames
    kept = numbers(snapshot)
    gain.freeze()
    gain.step(*first)
    gain.unfreeze()
    gain.reset()
    for key, value in numbers(gain.state).items():
        assert_array_equal(value, fresh[key], err_msg=key)
    gain.load_state(snapshot, frames=frames)
    assert gain.frames == frames == sum(len(z) for z, _ in batches)
    gain.step(*first)
    gain.flush()
    for key, value in numbers(snapshot).items():
        assert_array_equal(value, kept[key], err_msg=key)


@pytest.mark.parametrize("history", [0, 4])
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_that_is_not_finite_teaches_nothing_without_a_host_read(xp, name, history):
    head, batches = stream(np.float32, num_batches=history + 1)
    method = make_method(xp.from_numpy(head), PRESETS[name], skewness=SKEWNESS)
    state = method.init_state()
    for features, logits in batches[:history]:
        z = xp.from_numpy(features)
        result = method.predict(z, xp.from_numpy(logits), state)
        state = method.update(method.collect(z, result, state), state)
    good_z, good_logits = batches[0]
    good = xp.from_numpy(good_z), xp.from_numpy(good_logits)
    wanted = xp.to_numpy(method.predict(*good, state).probs)
    for bad_value in (np.nan, np.inf, -np.inf):
        bad_z, bad_logits = good_z.copy(), good_logits.copy()
        bad_z[3, 2] = bad_logits[5, 1] = bad_value
        for z, logits in ((bad_z, good_logits), (good_z, bad_logits)):
            if name == "shift" and logits is good_logits:
                continue  # features are not read
            rows = xp.from_numpy(z)
            with np.errstate(all="ignore"):
                result = method.predict(rows, xp.from_numpy(logits), state)
                evidence = method.collect(rows, result, state)
                after = method.update(evidence, state)
            assert not xp.to_numpy(result.finite)
            assert xp.to_numpy(method.count(evidence)) == 0
            if history:
                for key, value in arrays_of(after).items():
                    mine = xp.to_numpy(getattr(state, key))
                    assert_allclose(xp.to_numpy(value), mine, rtol=1e-5, atol=1e-6, err_msg=key)
            again = method.predict(*good, after)
            assert xp.to_numpy(again.finite)
            assert_allclose(xp.to_numpy(again.probs), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda array: float(array[0]), id="float"),
        pytest.param(lambda array: int(array[0]), id="int"),
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
    assert_array_equal(strict.to_numpy(array + array), [2.0, -4.0])


@pytest.mark.parametrize("name", NAMES)
def test_torch_keeps_no_graph(name):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    head, batches = stream(np.float32, num_batches=2)
    parameter = torch.nn.Parameter(torch.from_numpy(head))
    gain = Gain(parameter, PRESETS[name], update_every=1, warmup_frames=1)
    for features, logits in batches:
        z = torch.from_numpy(features).requires_grad_()
        result = gain.step(z, torch.from_numpy(logits).requires_grad_())
        assert not result.probs.requires_grad
    assert not any(value.requires_grad for value in arrays_of(gain.state).values())


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_torch_half_precision_is_computed_at_float32(name, kind):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    half = getattr(torch, kind)
    head, batches = stream(np.float32, num_batches=5)
    narrow, wide = (
        make_gain(torch.from_numpy(head).to(half).to(t), name) for t in (half, torch.float32)
    )
    for features, logits in batches:
        z, scores = (torch.from_numpy(array).to(half) for array in (features, logits))
        result, expected = narrow.step(z, scores), wide.step(z.float(), scores.float())
        assert result.probs.dtype == torch.float32
        torch.testing.assert_close(result.probs, expected.probs, rtol=0, atol=1e-5)
