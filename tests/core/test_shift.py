"""The shift against the slow float64 code, over streams as they come and as a camera sees them."""

import numpy as np
import pytest
from gaussian_world import camera_world, gaussian_world
from numpy.testing import assert_allclose
from shift_oracle import ShiftOracle
from taught_gain import SKEWNESS

from gain_core import Gain, ShiftConfig

# Every setting moved to where it matters.
CONFIGS = {
    "default": ShiftConfig(),
    "short-memory": ShiftConfig(half_life=120.0, timescale_ratio=3.0, standard_errors=1.0),
    "small-blocks": ShiftConfig(block=6.0, min_classes=4.0, patience=24.0, standard_errors=1.0),
    "any-skewness": ShiftConfig(min_skewness=0.01, standard_errors=0.1),
    "late": ShiftConfig(recent=12.0),
}
TOLERANCE = {np.float64: (1e-8, 1e-7), np.float32: (2e-4, 2e-3)}


def shuffled(batch_sizes=(16, 5, 11)):
    """Images in no order, a new domain every ten batches."""
    world = gaussian_world(10, 8, num_batches=26, batch_sizes=batch_sizes, seed=61)
    return [logits for _, logits, _ in world.batches]


def video():
    """Objects that stay: all classes in two domains, a few of them, one, then all again."""
    world, rng = camera_world(12, seed=3), np.random.default_rng(4)
    parts = [
        (rng.integers(0, 12, 40), 0),
        (rng.integers(0, 12, 30), 1),
        (rng.integers(0, 3, 10), 1),
        (np.full(10, 5), 2),
        (rng.integers(0, 12, 20), 2),
    ]
    logits = [world.frames(classes, domain=domain, stay=4)[0] for classes, domain in parts]
    return np.split(np.concatenate(logits), range(16, 440, 16))


STREAMS = {"shuffled": shuffled, "video": video}


def assert_close(result, expected, *, atol):
    peak = 1.0 + np.max(np.abs(expected))
    assert_allclose(np.asarray(result) / peak, np.asarray(expected) / peak, rtol=0, atol=atol)


# The default on both streams, every other setting on one of them; the rest are slow.
TYPES = {name: (config, np.float64) for name, config in CONFIGS.items()}
TYPES["float32"] = CONFIGS["default"], np.float32
# What clean frames show in the first three classes, which are alike; half of it in log deviations.
CLEAN_SHIFT = {"late": 0.8, "float32": 0.4}
CELLS = [
    pytest.param(
        config,
        dtype,
        stream,
        CLEAN_SHIFT.get(name),
        id=f"{name}-{of}",
        marks=() if name == "default" or (row + column) % 2 == 0 else pytest.mark.slow,
    )
    for row, (name, (config, dtype)) in enumerate(TYPES.items())
    for column, (of, stream) in enumerate(STREAMS.items())
]


@pytest.mark.parametrize(("config", "dtype", "stream", "alike"), CELLS)
def test_a_stream_is_the_oracles(config, stream, dtype, alike):
    batches = stream()
    num_classes = batches[0].shape[1]
    clean = None
    if alike is not None:
        shift = np.where(np.arange(num_classes) < 3, alike, 0.0)
        clean = np.stack([shift, 0.5 * shift])
    gain = Gain(
        num_classes,
        config,
        update_every=1,
        warmup_frames=1,
        skewness=SKEWNESS,
        clean_moments=clean,
        like=np.zeros((), dtype=dtype),
    )
    oracle = ShiftOracle(num_classes, SKEWNESS, config, (0.0, 0.0) if clean is None else clean)
    of_probs, of_state = TOLERANCE[dtype]
    reached, trusts = 0.0, []
    for logits in batches:
        result, expected = gain.step(None, logits.astype(dtype)), oracle.predict(logits)
        oracle.update(logits)
        assert result.probs.dtype == dtype
        assert_allclose(result.probs, expected.probs, rtol=0, atol=of_probs)
        assert_close(result.gain, expected.gain, atol=of_state)
        state = gain.state
        for name in ("shift", "log_scale", "log_prior", "variance", "trust", "confirmed"):
            assert_close(getattr(state, name), getattr(oracle, name), atol=of_state)
        reached = max(reached, float(np.max(expected.strength)))
        trusts.append(oracle.trust)
    assert reached > 0.5
    assert len(oracle.blocks) > 1
    assert max(trusts) > 0.5


@pytest.mark.parametrize("update_every", [16, 40])
def test_sixteen_frames_one_by_one_are_learned_as_one_batch(update_every):
    logits = np.concatenate(video())
    like = np.zeros((), dtype=np.float64)
    config = ShiftConfig(standard_errors=1.0)
    gain = Gain(
        *(12, config), update_every=update_every, warmup_frames=64, skewness=SKEWNESS, like=like
    )
    oracle, waiting = ShiftOracle(12, SKEWNESS, config), 0
    for row in range(len(logits)):
        frame = logits[row : row + 1]
        result = gain.predict(None, frame)
        gain.update(None, result)
        assert_allclose(result.probs, oracle.predict(frame).probs, rtol=0, atol=1e-8)
        waiting += 1
        if waiting >= (update_every if oracle.seen else 64):
            oracle.update(logits[row + 1 - waiting : row + 1])
            waiting = 0
    assert_close(gain.state.shift, oracle.shift, atol=1e-7)
    assert len(oracle.blocks) > 1
