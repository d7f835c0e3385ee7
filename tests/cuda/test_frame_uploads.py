"""Uploads in flight, on streams that do their work as late and in as odd an order as allowed."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gain_runtime.cuda.frame_uploads import FrameUploads


class LazyDevice:
    """Streams whose work waits until the host must have it; then any stream goes on."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._rng = np.random.default_rng(seed)
        self.streams: list[LazyStream] = []
        self.default = LazyStream(self)
        self.current = self.default

    def step(self) -> None:
        """Do one thing on a stream that is not waiting."""
        ready = [stream for stream in self.streams if stream.ready()]
        assert ready, "every stream waits for another"
        ready[self._rng.integers(len(ready))].queue.popleft()[1]()

    def finish(self) -> None:
        while any(stream.queue for stream in self.streams):
            self.step()


class LazyStream:
    """Work in its order; entered as CuPy's streams are. Freed memory returns to its own pool."""

    def __init__(self, device: LazyDevice) -> None:
        self._device = device
        self._outer: list[LazyStream] = []
        self.queue: deque[tuple[Callable[[], bool], Callable[[], Any]]] = deque()
        self.pool: list[np.ndarray] = []
        device.streams.append(self)

    def ready(self) -> bool:
        return bool(self.queue) and self.queue[0][0]()

    def add(self, work: Callable[[], Any], *, when: Callable[[], bool] = lambda: True) -> None:
        self.queue.append((when, work))

    def wait_event(self, event: LazyEvent) -> None:
        wanted = event.recorded
        self.add(lambda: None, when=lambda: event.happened >= wanted)

    def __enter__(self) -> LazyStream:
        self._outer.append(self._device.current)
        self._device.current = self
        return self

    def __exit__(self, *_: object) -> None:
        self._device.current = self._outer.pop()


class LazyEvent:
    """Happens when the stream it was last recorded on comes there."""

    def __init__(self, device: LazyDevice) -> None:
        self._device = device
        self.recorded = self.happened = 0

    def record(self, stream: LazyStream) -> None:
        self.recorded += 1
        number = self.recorded
        stream.add(lambda: setattr(self, "happened", number))

    def synchronize(self) -> None:
        while self.happened < self.recorded:
            self._device.step()


class Pointer:
    """Where an upload goes."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self._memory[offset:])

    def copy_from_host_async(self, source: int, size: int, stream: LazyStream) -> None:
        memory = self._memory[:size]
        stream.add(
            lambda: memory.__setitem__(slice(None), np.frombuffer(_read(source, size), "u1"))
        )


class LazyArray:
    """Memory of the stream that was current, to which it returns when nobody refers to it."""

    def __init__(self, stream: LazyStream, num_bytes: int) -> None:
        fitting = [memory for memory in stream.pool if memory.size >= num_bytes]
        self.memory = fitting[0] if fitting else np.zeros(num_bytes, dtype=np.uint8)
        stream.pool = [memory for memory in stream.pool if memory is not self.memory]
        self.size = num_bytes
        weakref.finalize(self, stream.pool.append, self.memory)

    @property
    def data(self) -> Pointer:
        return Pointer(self.memory)


def _read(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def lazy_cupy(device: LazyDevice) -> Any:
    """What `FrameUploads` uses of CuPy."""

    def asarray(array: np.ndarray) -> LazyArray:
        kept = LazyArray(device.current, array.nbytes)
        memory, source = kept.memory[: array.nbytes], array.copy()
        device.current.add(lambda: memory.__setitem__(slice(None), source.view(np.uint8)))
        return kept

    cuda = SimpleNamespace(
        Stream=lambda non_blocking: LazyStream(device),
        Event=lambda disable_timing: LazyEvent(device),
        get_current_stream=lambda: device.current,
        alloc_pinned_memory=bytearray,
    )
    empty = lambda shape, dtype: LazyArray(device.current, shape[0])  # noqa: E731
    return SimpleNamespace(cuda=cuda, asarray=asarray, empty=empty)


def _compare(compared: list[tuple[bytes, bytes]], views: list[np.ndarray], expected: bytes) -> None:
    compared.append((b"".join(view.tobytes() for view in views), expected))


def run_batches(device: LazyDevice, *, num_batches: int) -> list[tuple[bytes, bytes]]:
    """What each batch's kernel read, beside what it should have."""
    uploads = FrameUploads(lazy_cupy(device))
    rng = np.random.default_rng(device.seed)
    users = [LazyStream(device), device.default]
    compared: list[tuple[bytes, bytes]] = []
    tables: list[tuple[LazyArray, np.ndarray]] = []
    for batch in range(num_batches):
        with users[rng.integers(2)]:
            uploads.begin()
            for _ in range(3 if rng.random() < 0.3 else 0):
                numbers = rng.integers(0, 256, rng.integers(1, 900), dtype=np.uint8)
                tables.append((uploads.keep(numbers), numbers))
            sizes = rng.integers(1, 10 + 4 * batch, rng.integers(1, 7)).tolist()
            frames = [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]
            reserved = uploads.reserve(sum(sizes))
            offset = 0
            for pixels in frames:
                uploads.upload(reserved, offset, pixels)
                offset += pixels.size
            uploads.publish()
            views = [reserved.memory[:offset]]
            views += [table.memory[: numbers.size] for table, numbers in tables]
            expected = np.concatenate([*frames, *(numbers for _, numbers in tables)]).tobytes()
            device.current.add(partial(_compare, compared, views, expected))
            uploads.finish()
            for pixels in frames:
                pixels[:] = 0
            del tables[: rng.integers(len(tables) + 1)]  # As a cache does that is full.
    device.finish()
    return compared


@pytest.mark.parametrize("seed", range(30))
def test_every_batch_reads_its_own_bytes(seed):
    compared = run_batches(LazyDevice(seed), num_batches=40)
    assert len(compared) == 40
    for result, expected in compared:
        assert result == expected


def test_host_is_held_up_only_by_its_own_copies():
    device = LazyDevice(0)
    uploads = FrameUploads(lazy_cupy(device))
    device.default.add(lambda: None, when=lambda: False)  # Never ends.
    for _ in range(2):
        uploads.begin()
        uploads.upload(uploads.reserve(100), 0, np.zeros(100, dtype=np.uint8))
        uploads.publish()
        uploads.finish()
    assert len(device.default.queue) > 1
