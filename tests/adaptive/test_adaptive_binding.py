"""The state's two sets of buffers, and inputs that lie on a device (here: the host's memory)."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from gaussian_world import gaussian_world
from numpy.testing import assert_array_equal

from gain_core import PRESETS
from gain_export.adaptive import add_adaptation
from gain_runtime.adaptive_artifact import load_adaptive
from gain_runtime.adaptive_binding import PREDICTED, AdaptiveBinding
from gain_runtime.adaptive_session import AdaptiveSession
from gain_runtime.onnx_native import CPU_PROVIDER, create_native

WORLD = gaussian_world(6, 10, num_batches=12, batch_sizes=(12, 4, 16), seed=4)
WEIGHT = WORLD.prototypes.astype(np.float32)
# Logits that have moved, so that there is something to correct.
MOVED = 0.5 * np.random.default_rng(3).normal(size=6)
BATCHES = [(z.astype(np.float32), (raw + MOVED).astype(np.float32)) for z, raw, _ in WORLD.batches]


class OnDevice(np.ndarray):
    """An array that `HostMemory` takes for its own."""


class HostMemory:
    """`DeviceMemory` in host memory, which counts what is copied to it."""

    device_type, device_id, stream = "cpu", 0, None

    def __init__(self):
        self.inside, self.uploads, self.waits = False, 0, 0

    @contextlib.contextmanager
    def ordered(self):
        self.inside = True
        yield
        self.inside = False

    def empty(self, shape):
        assert self.inside
        # From a large block, so that the address is a multiple of what is asked for.
        block = np.full(2 * 256 + int(np.prod(shape)), np.nan, np.float32)
        start = -block.ctypes.data % 256 // 4
        return block[start : start + int(np.prod(shape))].reshape(shape).view(OnDevice)

    def holds(self, array):
        return isinstance(array, OnDevice)

    def address(self, array):
        return array.ctypes.data

    def upload(self, host, target):
        assert self.inside
        self.uploads += 1
        target[...] = host

    def synchronize(self):
        self.waits += 1

    def placed(self, host):
        """A copy on the device."""
        with self.ordered():
            target = self.empty(host.shape)
        target[...] = host
        return target


@pytest.fixture(params=["shift", "paper-l2"])
def path(request, make_artifact, make_fitness, tmp_path):
    """A features-only file for each kind of state."""
    target = tmp_path / "tiny.adaptive.onnx"
    config = PRESETS[request.param]
    add_adaptation(
        make_artifact(WEIGHT, fitness=make_fitness(6, (-0.5, 0.0))),
        target,
        config=config,
        features_only=True,
        update_every=1,
        warmup_frames=1,
    )
    return target


@pytest.fixture
def batches(path):
    """What the file takes of every batch."""
    width = len(load_adaptive(path).input_names)
    return [batch[-width:] for batch in BATCHES]


@pytest.fixture
def memory():
    return HostMemory()


@pytest.fixture
def binding(path, memory):
    native = create_native(path, CPU_PROVIDER, 1)
    return AdaptiveBinding(native, load_adaptive(path), CPU_PROVIDER, memory=memory)


def state_of(binding, path):
    return {item.field: binding.read(item.field) for item in load_adaptive(path).state}


@pytest.mark.parametrize("place", ["host", "device"])
def test_inputs_are_read_where_they_lie(binding, path, memory, place, batches):
    strengths = []
    with AdaptiveSession(path, num_threads=1) as session:
        for batch in batches:
            given = batch if place == "host" else [memory.placed(array) for array in batch]
            values = binding.run(given, update=True)
            binding.advance()
            expected = session.step(*batch)
            assert set(values) == set(PREDICTED)
            assert_array_equal(values["probs"], expected.probs)
            assert_array_equal(values["strength"], expected.strength)
            strengths.append(expected.strength)
        assert np.mean(np.concatenate(strengths) > 0.0) > 0.3
        for field, array in session.arrays().items():
            assert_array_equal(binding.read(field), array, err_msg=field)
    assert memory.uploads == (sum(map(len, batches)) if place == "host" else 0)


def test_a_call_that_is_not_followed_up_has_changed_nothing(binding, path, batches):
    for batch in batches[:4]:
        binding.run(batch, update=True)
        binding.advance()
    before = state_of(binding, path)
    first = binding.run(batches[4], update=True)
    second = binding.run(batches[4], update=True)
    assert_array_equal(first["probs"], second["probs"])
    for field, array in state_of(binding, path).items():
        assert_array_equal(array, before[field], err_msg=field)
    binding.advance()
    assert binding.read("frames") > before["frames"]


def test_without_an_update_the_other_set_is_not_written(binding, path, batches):
    for batch in batches[:3]:
        binding.run(batch, update=True)
        binding.advance()
    binding.advance()
    behind = state_of(binding, path)
    binding.advance()
    for batch in batches[3:6]:
        binding.run(batch, update=False)
    binding.advance()
    for field, array in state_of(binding, path).items():
        assert_array_equal(array, behind[field], err_msg=field)


def test_replaced_state_is_copied(binding, path):
    arrays = {item.field: item.zeros() for item in load_adaptive(path).state}
    arrays["frames"] = np.array(7)
    binding.replace(arrays)
    arrays["frames"][...] = 9
    assert binding.read("frames") == 7
    read = binding.read("frames")
    read[...] = 3
    assert binding.read("frames") == 7


def test_waiting_is_the_devices(binding, memory):
    binding.synchronize()
    assert memory.waits == 1
