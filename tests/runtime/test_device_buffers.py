"""Arrays bound where they lie: the ring, the input buffer, and ONNX Runtime on both.

The device is host memory of a kind of its own, which ONNX Runtime's CPU provider binds by address
as its CUDA provider binds a CUDA device's; streams have no counterpart here.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from gain_core.errors import BackendUnavailableError, ConfigError
from gain_runtime.device_buffers import ALIGNMENT_BYTES, InputBuffer, OutputRing
from gain_runtime.onnx_cuda import BoundNetwork, cuda_memory
from gain_runtime.onnx_native import CPU_PROVIDER, NATIVE_ERRORS, create_native


class OnDevice(np.ndarray):
    """An array that counts as lying on the device."""


class HostMemory:
    """`DeviceMemory` in host memory; what was asked of it is written down."""

    device_type, device_id, stream = "cpu", 0, None

    def __init__(self) -> None:
        self.inside = False
        self.shapes: list[tuple[int, ...]] = []
        self.copies: list[str] = []

    @contextlib.contextmanager
    def ordered(self) -> Iterator[None]:
        self.inside = True
        yield
        self.inside = False

    def empty(self, shape: tuple[int, ...], /) -> OnDevice:
        assert self.inside
        self.shapes.append(shape)
        spare = np.full(int(np.prod(shape)) + ALIGNMENT_BYTES, np.nan, np.float32)
        start = -spare.ctypes.data % ALIGNMENT_BYTES // 4
        return spare[start : start + int(np.prod(shape))].reshape(shape).view(OnDevice)

    def holds(self, array: np.ndarray, /) -> bool:
        return isinstance(array, OnDevice)

    def address(self, array: np.ndarray, /) -> int:
        assert isinstance(array, OnDevice)
        assert array.flags.c_contiguous
        return array.ctypes.data

    def upload(self, host: np.ndarray, target: OnDevice, /) -> None:
        assert self.inside
        self.copies.append("up")
        target[...] = host

    def download(self, arrays: Sequence[OnDevice], /) -> list[np.ndarray]:
        assert self.inside
        self.copies.append("down")
        return [np.array(array) for array in arrays]

    def synchronize(self) -> None:
        pass


@pytest.fixture
def memory():
    return HostMemory()


def on_device(memory: HostMemory, values: np.ndarray, *, offset: int = 0) -> OnDevice:
    """The values in the device's memory, `offset` floats behind an aligned address."""
    with memory.ordered():
        room = memory.empty((values.size + offset,))
    array = room[offset:].reshape(values.shape)
    array[...] = values
    return array


def batch_of(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(size, 3, 16, 16)).astype(np.float32)


def test_ring_gives_the_same_arrays_again_after_its_length_and_not_before(memory):
    ring = OutputRing(memory, (7, 5), length=3, rows=4)
    with memory.ordered():
        turns = [ring.next(4) for _ in range(7)]
    first = [memory.address(features) for features, _ in turns]
    assert len(set(first)) == 3
    assert first[:4] == first[3:]
    assert memory.shapes == [(4, 7), (4, 5)] * 3
    assert [array.shape for array in turns[0]] == [(4, 7), (4, 5)]


def test_smaller_batches_use_the_same_memory_and_are_contiguous(memory):
    ring = OutputRing(memory, (7,), length=1, rows=4)
    with memory.ordered():
        (whole,), (part,) = ring.next(4), ring.next(2)
    assert part.shape == (2, 7)
    assert memory.address(part) == memory.address(whole)


def test_larger_batch_makes_room_once_and_leaves_what_was_handed_out(memory):
    ring = OutputRing(memory, (7,), length=2)
    with memory.ordered():
        (small,) = ring.next(1)
        small[...] = 1.0
        for count in (3, 3, 1, 2, 3):
            ring.next(count)[0][...] = 2.0
    assert memory.shapes == [(1, 7), (3, 7), (3, 7)]
    np.testing.assert_array_equal(small, np.ones((1, 7)))


def test_empty_batch_takes_no_turn(memory):
    ring = OutputRing(memory, (7, 5), length=2, rows=1)
    with memory.ordered():
        (before, _), empty, _, (after, _) = ring.next(1), ring.next(0), ring.next(1), ring.next(1)
    assert [array.shape for array in empty] == [(0, 7), (0, 5)]
    assert memory.address(before) == memory.address(after)


def test_ring_without_sets_is_refused(memory):
    with pytest.raises(ConfigError, match="ring: expected at least 1"):
        OutputRing(memory, (7,), length=0)


def test_array_on_the_device_is_read_where_it_lies(memory):
    buffer = InputBuffer(memory, (3, 16, 16))
    pixel_values = on_device(memory, batch_of(2))
    with memory.ordered():
        assert buffer.hold(pixel_values) is pixel_values
    assert memory.copies == []


def test_array_at_an_odd_address_is_copied_on_the_device(memory):
    buffer = InputBuffer(memory, (3, 16, 16))
    pixel_values = on_device(memory, batch_of(2), offset=1)
    with memory.ordered():
        held = buffer.hold(pixel_values)
    assert memory.address(held) % ALIGNMENT_BYTES == 0
    np.testing.assert_array_equal(held, pixel_values)
    assert memory.copies == []


def test_host_arrays_share_one_buffer_that_grows(memory):
    buffer = InputBuffer(memory, (3, 16, 16), rows=2)
    with memory.ordered():
        for size in (2, 1, 5, 3):
            np.testing.assert_array_equal(buffer.hold(batch_of(size)), batch_of(size))
    assert memory.shapes == [(2, 3, 16, 16), (5, 3, 16, 16)]
    assert memory.copies == ["up"] * 4


@pytest.fixture
def make_network(tiny_artifact, tiny_model, memory):
    native = create_native(tiny_artifact, CPU_PROVIDER, 1)
    return lambda **settings: BoundNetwork(native, tiny_model.manifest, memory, **settings)


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("ring", [None, 2])
def test_network_computes_the_same_wherever_its_arrays_lie(
    make_network, tiny_model, memory, place, ring
):
    network = make_network(ring=ring)
    for seed, size in enumerate((3, 1, 17, 2)):
        values = batch_of(size, seed)
        pixel_values = values if place == "host" else on_device(memory, values)
        features, logits = network.infer(pixel_values)
        assert isinstance(features, OnDevice) == (ring is not None)
        expected_features, expected_logits = tiny_model.forward(values)
        np.testing.assert_allclose(features, expected_features, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(logits, expected_logits, rtol=1e-5, atol=1e-4)
    ups, downs = 4 * (place == "host"), 4 * (ring is None)
    assert sorted(memory.copies) == ["down"] * downs + ["up"] * ups


def test_outputs_last_for_as_many_calls_as_the_ring_says(make_network):
    network = make_network(ring=2)
    kept = network.infer(batch_of(1))[1]
    values = np.array(kept)
    network.infer(batch_of(1, seed=1))
    np.testing.assert_array_equal(kept, values)
    newest = network.infer(batch_of(1, seed=2))[1]
    np.testing.assert_array_equal(kept, newest)
    assert np.max(np.abs(kept - values)) > 0.01


def test_copies_in_host_memory_are_never_overwritten(make_network):
    network = make_network(ring=None)
    kept = network.infer(batch_of(1))[1]
    values = kept.copy()
    network.infer(batch_of(1, seed=1))
    np.testing.assert_array_equal(kept, values)


def test_empty_batch_runs_nothing(make_network, memory):
    features, logits = make_network(ring=3).infer(batch_of(0))
    assert (features.shape, logits.shape) == ((0, 7), (0, 5))
    assert memory.copies == []


def test_graph_of_another_width_than_its_outputs_is_an_error_of_the_library(
    make_model, tmp_path, memory
):
    model = make_model()
    narrow = model.relabel(feature_dim=6).manifest
    native = create_native(model.write(tmp_path / "a.onnx"), CPU_PROVIDER, 1)
    network = BoundNetwork(native, narrow, memory, ring=1)
    with pytest.raises(NATIVE_ERRORS, match="features"):
        network.infer(batch_of(2))


def test_missing_cupy_is_an_error_only_where_it_is_needed(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendUnavailableError, match=r"cupy: .*gain-edge\[cuda12\]"):
        cuda_memory(needed=True)
    with caplog.at_level(logging.INFO, logger="gain_runtime"):
        assert cuda_memory(needed=False) is None
    assert "arrays are copied by ONNX Runtime: cupy: " in caplog.text
