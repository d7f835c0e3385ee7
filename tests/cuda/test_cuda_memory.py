"""A session's memory and stream: what is ordered, and what becomes of CUDA's errors."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import pytest
from lazy_streams import LazyDevice, OutOfMemoryError, lazy_cupy
from numpy.testing import assert_array_equal

from gain_core.errors import ArrayError, EngineError
from gain_runtime.cuda_memory import CudaMemory
from gain_runtime.device_buffers import InputBuffer, OutputRing


@pytest.fixture
def make_memory(monkeypatch):
    def make(seed=0):
        device = LazyDevice(seed)
        monkeypatch.setitem(sys.modules, "cupy", lazy_cupy(device))
        return device, CudaMemory()

    return make


def double(source, target):
    target[...] = 2.0 * source


@pytest.mark.parametrize("seed", range(20))
def test_network_runs_after_what_the_caller_queued_and_before_what_follows(make_memory, seed):
    device, memory = make_memory(seed)
    cupy = sys.modules["cupy"]
    inputs = InputBuffer(memory, (3,), rows=2)
    ring = OutputRing(memory, (3,), length=2, rows=2)
    outside = cupy.cuda.Stream(non_blocking=True)
    seen = []
    for turn in range(12):
        with [outside, device.default, memory.stream][turn % 3]:
            given = cupy.empty((2, 3), np.float32)
            device.current.add(partial(given.values.fill, float(turn)))
            host = np.full((2, 3), 10.0 + turn, np.float32)
            for source, value in ((given, turn), (host, 10.0 + turn)):
                with memory.ordered():
                    (output,) = ring.next(2)
                    held = inputs.hold(source)
                    device.current.add(partial(double, held.values, output.values))
                device.current.add(
                    lambda output=output.values, value=value: seen.append((output.copy(), value))
                )
            # Pageable memory may be written again.
            host[:] = -1.0
            device.current.synchronize()
    assert len(seen) == 24
    for output, value in seen:
        assert_array_equal(output, np.full((2, 3), 2.0 * value))


def test_results_are_there_when_they_are_returned(make_memory):
    _, memory = make_memory()
    with memory.ordered():
        array = memory.empty((2, 3))
        memory.stream.add(partial(array.values.fill, 3.0))
        (copy,) = memory.download([array])
    assert_array_equal(copy, np.full((2, 3), 3.0, np.float32))


BROKEN = "cudaErrorLaunchFailure: unspecified launch failure"


@pytest.mark.parametrize("own", [True, False])
def test_failures_are_engine_errors_wherever_they_are_noticed(make_memory, own):
    device, memory = make_memory()
    memory.stream.add()
    array = memory.empty((2, 3))
    stream = memory.stream if own else device.default

    def pass_through():
        with stream, memory.ordered():
            pass

    def fetch():
        with stream, memory.ordered():
            device.broken = BROKEN
            memory.download([array])

    for action in (fetch, memory.synchronize, pass_through, lambda: memory.empty((2, 3))):
        with pytest.raises(EngineError, match=rf"cuda:0: {BROKEN}; open the session again"):
            action()


def test_buffers_without_room_are_named(make_memory, monkeypatch):
    _, memory = make_memory()

    def refuse(shape, dtype):
        raise OutOfMemoryError("Out of memory allocating 24 bytes")

    monkeypatch.setattr(sys.modules["cupy"], "empty", refuse)
    with pytest.raises(EngineError) as raised:
        memory.empty((2, 3))
    assert str(raised.value) == (
        "buffers of (2, 3) float32 on cuda:0: Out of memory allocating 24 bytes; free device "
        "memory or use smaller batches"
    )


def test_own_errors_pass(make_memory):
    _, memory = make_memory()
    with pytest.raises(ArrayError, match="mine"), memory.ordered():
        raise ArrayError("mine")
