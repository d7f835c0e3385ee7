"""The state's two sets of buffers, which change places."""

import numpy as np
import pytest
from gaussian_world import gaussian_world
from numpy.testing import assert_array_equal

from gain_core import PRESETS
from gain_export.adaptive import add_adaptation
from gain_runtime.files.adaptive import load_adaptive
from gain_runtime.sessions.adaptive import AdaptiveBinding
from gain_runtime.sessions.onnx import CPU_PROVIDER, create_native

WORLD = gaussian_world(6, 10, num_batches=12, batch_sizes=(12, 4, 16), seed=4)
WEIGHT = WORLD.prototypes.astype(np.float32)
# Logits that have moved, so that there is something to correct.
MOVED = 0.5 * np.random.default_rng(3).normal(size=6)
BATCHES = [(z.astype(np.float32), (raw + MOVED).astype(np.float32)) for z, raw, _ in WORLD.batches]


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
def binding(path):
    native = create_native(path, CPU_PROVIDER, 1)
    return AdaptiveBinding(native, load_adaptive(path), CPU_PROVIDER)


def state_of(binding, path):
    return {item.field: binding.read(item.field) for item in load_adaptive(path).state}


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
