"""`CudaGain` on a card: the graphs that are replayed there, against `Gain` on NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gaussian_world import gaussian_world
from numpy.testing import assert_allclose, assert_array_equal
from scaled_world import scaled_world
from tailed_world import ASYMMETRY, tailed_world
from taught_gain import every_array

from gain_core import PRESETS, Gain, GaussianState, Prediction
from gain_core.statistics import about
from gain_runtime.cuda import CudaGain
from gain_runtime.cuda.prediction_block import host_part, read_host_part

pytestmark = pytest.mark.gpu

CONFIGS = {
    **PRESETS,
    "tracked-floor": replace(PRESETS["tracked"], prob_floor=1e-3),
    "tracked-no-mixture-test": replace(PRESETS["tracked"], mixture_test=False),
    "tracked-no-class-prior": replace(PRESETS["tracked"], class_prior=False),
    "tracked-shift-alone": replace(PRESETS["tracked"], mixture_test=False, match_scale=False),
}
EVERY = [pytest.param(config, id=name) for name, config in CONFIGS.items()]


def on_host(record):
    """Every array of a state, as NumPy."""
    return {name: np.asarray(array.get()) for name, array in every_array(record).items()}


@pytest.mark.parametrize("update_every", [1, 7, 1000])
@pytest.mark.parametrize("config", EVERY)
def test_stream_matches_gain(cupy, config, update_every):
    world = gaussian_world(40, 24, num_batches=30, batch_sizes=(16, 1, 16, 5), seed=3)
    options = {"update_every": update_every, "warmup_frames": 6}
    prototypes = world.prototypes.astype(np.float64)
    gain = CudaGain(cupy.asarray(prototypes), config, **options)
    plain = Gain(prototypes, config, **options)
    kept: list[tuple[Prediction, np.ndarray]] = []
    for features, logits, _ in world.batches:
        result = gain.step(cupy.asarray(features), cupy.asarray(logits))
        expected = plain.step(features, logits)
        for name in ("probs", "source_log_probs", "gain"):
            wanted = getattr(expected, name)
            assert_allclose(getattr(result, name).get(), wanted, rtol=1e-8, atol=1e-9)
        assert bool(result.finite)
        assert (gain.frames, gain.pending_frames) == (plain.frames, plain.pending_frames)
        kept.append((result, expected.probs))
    # Replays write into memory of their own, so that no later step changes an earlier result.
    for result, wanted in kept:
        assert_allclose(result.probs.get(), wanted, rtol=1e-8, atol=1e-9)
    gain.flush()
    plain.flush()
    state, plain_state = gain.state, plain.state
    if isinstance(state, GaussianState):
        origin = cupy.asarray(plain_state.statistics.origin)
        state = replace(state, statistics=about(state.statistics, origin))
    mine, theirs = on_host(state), every_array(plain_state)
    assert mine.keys() == theirs.keys()
    for name, wanted in theirs.items():
        peak = 1.0 + np.max(np.abs(wanted), initial=0.0)
        assert_allclose(mine[name] / peak, wanted / peak, rtol=0, atol=1e-8, err_msg=name)


def test_float32_stays_close_over_a_long_stream(cupy):
    world = gaussian_world(100, 32, num_batches=200, batch_sizes=(8,), domain_every=50, seed=4)
    prototypes = world.prototypes.astype(np.float32)
    gain, plain = CudaGain(cupy.asarray(prototypes)), Gain(prototypes.astype(np.float64))
    for features, logits, _ in world.batches:
        arrays = (cupy.asarray(array.astype(np.float32)) for array in (features, logits))
        result, expected = gain.step(*arrays), plain.step(features, logits)
        assert_allclose(result.probs.get(), expected.probs, rtol=0, atol=2e-4)


@pytest.mark.parametrize("num_classes", [10, 1000])
def test_deviations_are_matched(cupy, num_classes):
    head, batches = scaled_world(num_classes, 128, num_batches=40, batch_sizes=(16, 1, 16))
    options = {"asymmetry": (0.0, 0.2)}
    gain = CudaGain(cupy.asarray(head.astype(np.float32)), **options)
    plain = Gain(head, **options)
    for features, logits in batches:
        arrays = (cupy.asarray(array.astype(np.float32)) for array in (features, logits))
        result, expected = gain.step(*arrays), plain.step(features, logits)
        assert_allclose(result.probs.get(), expected.probs, rtol=0, atol=2e-4)
    assert np.std(np.log(plain.state.shift.stretch)) > 0.2
    assert_allclose(gain.state.shift.stretch.get(), plain.state.shift.stretch, rtol=0, atol=1e-3)


@pytest.mark.parametrize("held", [1, 8], ids=["independent", "video"])
def test_batch_is_revised_as_far_as_frames_are_independent(cupy, held):
    head, batches = scaled_world(40, 32, num_batches=40, batch_sizes=(16,))
    options = {"asymmetry": (0.0, 0.2)}
    gain, plain = CudaGain(cupy.asarray(head), **options), Gain(head, **options)
    for index, batch in enumerate(batches):
        features, logits = (array[::held].repeat(held, axis=0) for array in batch)
        arrays = cupy.asarray(features), cupy.asarray(logits)
        first, result = gain.predict(*arrays), gain.step(*arrays)
        assert_allclose(result.probs.get(), plain.step(features, logits).probs, rtol=0, atol=1e-8)
        if index < 4:
            continue
        assert float(gain.state.shift.independence) == (held == 1)
        moved = float(cupy.max(cupy.abs(result.probs - first.probs)))
        assert moved == 0.0 if held > 1 else moved > 0.0
    assert_allclose(gain.state.last.logits.get(), plain.state.last.logits, rtol=0, atol=1e-8)


@pytest.mark.parametrize("update_every", [1, 40])
@pytest.mark.parametrize(("dtype", "atol"), [(np.float64, 1e-8), (np.float32, 1e-3)])
def test_classes_that_come_often_are_expected(cupy, dtype, atol, update_every):
    world = tailed_world(num_batches=90, seed=5)
    options = {"asymmetry": ASYMMETRY, "update_every": update_every}
    head = world.prototypes.astype(np.float32).astype(np.float64)
    gain, plain = CudaGain(cupy.asarray(head.astype(dtype)), **options), Gain(head, **options)
    for features, logits, _ in world.batches:
        rounded = [array.astype(np.float32).astype(np.float64) for array in (features, logits)]
        result = gain.step(*(cupy.asarray(array.astype(dtype)) for array in rounded))
        assert_allclose(result.probs.get(), plain.step(*rounded).probs, rtol=0, atol=atol)
    assert np.max(np.abs(plain.state.shift.log_prior)) > 0.5
    mine, theirs = gain.state, plain.state
    assert_allclose(mine.shift.log_prior.get(), theirs.shift.log_prior, rtol=0, atol=10 * atol)
    assert_allclose(mine.sums.share_mass.get(), theirs.sums.share_mass, rtol=atol, atol=atol)


def test_one_class_stays_at_the_source(cupy):
    head, batches = scaled_world(30, 16, num_batches=30, only_class=0, deviation=0.0)
    gain = CudaGain(cupy.asarray(head.astype(np.float32)))
    for features, logits in batches:
        arrays = (cupy.asarray(array.astype(np.float32)) for array in (features, logits))
        assert_array_equal(gain.step(*arrays).strength.get(), 0.0)
    shift = on_host(gain.state)
    assert_array_equal(shift["shift.vector"], 0.0)
    assert_array_equal(shift["shift.stretch"], 1.0)


def test_stretch_that_is_loaded_corrects(cupy):
    gain = CudaGain(cupy.eye(6, 4, dtype=cupy.float32))
    features, logits = cupy.ones((3, 4), cupy.float32), 3.0 * cupy.eye(3, 6, dtype=cupy.float32)
    state = gain.state
    stretch = cupy.linspace(0.5, 1.5, 6, dtype=cupy.float32)
    gain.load_state(replace(state, shift=replace(state.shift, stretch=stretch)), frames=1)
    assert bool(cupy.any(gain.predict(features, logits).strength > 0.0))
    gain.reset()
    assert not bool(cupy.any(gain.predict(features, logits).strength > 0.0))


def test_rejected_batch_state_and_snapshots(cupy):
    head = np.eye(6, 4, dtype=np.float32)
    rng = np.random.default_rng(5)
    gain = CudaGain(cupy.asarray(head))

    def batch(fault=None):
        features = rng.normal(size=(8, 4)).astype(np.float32)
        logits = rng.normal(size=(8, 6)).astype(np.float32) + np.arange(6, dtype=np.float32)
        if fault is not None:
            logits[3, 2] = fault
        return cupy.asarray(features), cupy.asarray(logits)

    for _ in range(3):
        assert bool(gain.step(*batch()).finite)
    before = on_host(gain.state)
    assert not bool(gain.step(*batch(np.nan)).finite)
    for name, array in on_host(gain.state).items():
        # The next frame follows none.
        wanted = np.zeros_like(array) if name.startswith("last.") else before[name]
        assert_allclose(array, wanted, rtol=1e-6, atol=1e-6, err_msg=name)
    other = CudaGain(cupy.asarray(head))
    other.load_state(gain.state, frames=24)
    features, logits = batch()
    mine, theirs = gain.step(features, logits), other.step(features, logits)
    assert_allclose(mine.probs.get(), theirs.probs.get(), rtol=0, atol=0)
    gain.freeze()
    frozen = on_host(gain.state)
    gain.step(features, logits)
    for name, wanted in frozen.items():
        assert_allclose(on_host(gain.state)[name], wanted, rtol=0, atol=0)
    gain.reset()
    assert float(gain.state.shift.trust) == 0.0


def test_block_comes_back_in_one_copy(cupy):
    gain = CudaGain(cupy.eye(6, 4, dtype=cupy.float32))
    features, logits = cupy.ones((3, 4), cupy.float32), cupy.eye(3, 6, dtype=cupy.float32)
    result = gain.step(features, logits)
    part, layout = host_part(result)
    assert part.shape == (2 * 3 * 6 * 4 + 2 * 3 * 4 + 4 + 3 + 1,)
    host, trips = read_host_part(part.get(), layout)
    for name in Prediction.__dataclass_fields__:
        # The exponential is another one on the host.
        rtol = 1e-6 if name == "probs" else 0
        assert_allclose(getattr(host, name), getattr(result, name).get(), rtol=rtol, err_msg=name)
    assert int(trips) == int(gain.guard_trips) == 0
