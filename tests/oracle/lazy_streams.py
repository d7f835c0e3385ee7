"""CuPy's streams, events and memory, without a device: work is done as late and in as odd an order
as CUDA allows, and takes the time it is said to take.

What a stream has to do waits until the host must have its result; then any stream that is not held
up by an event goes on. Freed memory returns at once to the stream that it was allocated on, and
copies of pinned memory read it when they run: whoever relies on luck reads something else.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

__all__ = [
    "GET_MS",
    "SET_MS",
    "UPLOAD_MS",
    "LazyArray",
    "LazyDevice",
    "LazyStream",
    "OutOfMemoryError",
    "lazy_cupy",
]

# What copies take on the device, in milliseconds.
UPLOAD_MS, SET_MS, GET_MS = 0.5, 5.0, 1.0

ALIGNMENT_BYTES = 512


def _error(name: str, base: type[Exception], module: str) -> type[Exception]:
    """An exception class that comes from where CuPy's comes from."""
    return type(name, (base,), {"__module__": module})


CUDARuntimeError = _error("CUDARuntimeError", RuntimeError, "cupy_backends.cuda.api.runtime")
OutOfMemoryError = _error("OutOfMemoryError", MemoryError, "cupy.cuda.memory")
CompileException = _error("CompileException", Exception, "cupy.cuda.compiler")


class LazyDevice:
    """Its streams, and two clocks: the host's stands still but where it waits for the device.

    Attributes
    ----------
    host_ms : float
        When the host goes on.
    broken : str or None
        CUDA's message from now on, whatever it is asked.
    """

    id = 0

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._rng = np.random.default_rng(seed)
        self.host_ms = 0.0
        self.broken: str | None = None
        self.streams: list[LazyStream] = []
        self.default = LazyStream(self)
        self.current = self.default

    def check(self) -> None:
        if self.broken is not None:
            raise CUDARuntimeError(self.broken)

    def step(self) -> None:
        """Do one thing on a stream that is not waiting."""
        ready = [stream for stream in self.streams if stream.ready()]
        assert ready, "every stream waits for another"
        ready[self._rng.integers(len(ready))].go_on()

    def finish(self) -> None:
        while any(stream.queue for stream in self.streams):
            self.step()

    def __enter__(self) -> LazyDevice:
        self.check()
        return self

    def __exit__(self, *_: object) -> None:
        pass


class LazyStream:
    """Work in its order; entered as CuPy's streams are."""

    def __init__(self, device: LazyDevice) -> None:
        self._device = device
        self._outer: list[LazyStream] = []
        self.queue: deque[tuple[Callable[[], bool], Callable[[], Any], float, float]] = deque()
        self.pool: list[np.ndarray] = []
        self.now_ms = 0.0
        device.streams.append(self)
        self.ptr = len(device.streams)

    def ready(self) -> bool:
        return bool(self.queue) and self.queue[0][0]()

    def go_on(self) -> None:
        """Do what is next; it cannot begin before it was queued."""
        _, work, took_ms, queued_ms = self.queue.popleft()
        self.now_ms = max(self.now_ms, queued_ms) + took_ms
        work()

    def add(
        self,
        work: Callable[[], Any] = lambda: None,
        *,
        when: Callable[[], bool] = lambda: True,
        took_ms: float = 0.0,
    ) -> None:
        self._device.check()
        self.queue.append((when, work, took_ms, self._device.host_ms))

    def wait_event(self, event: LazyEvent) -> None:
        wanted = event.recorded

        def pass_on() -> None:
            self.now_ms = max(self.now_ms, event.at_ms[wanted])

        self.add(pass_on, when=lambda: event.happened >= wanted)

    def record(self, event: LazyEvent) -> None:
        event.record(self)

    def synchronize(self) -> None:
        event = LazyEvent(self._device)
        event.record(self)
        event.synchronize()

    def __enter__(self) -> LazyStream:
        self._outer.append(self._device.current)
        self._device.current = self
        return self

    def __exit__(self, *_: object) -> None:
        self._device.current = self._outer.pop()


class LazyEvent:
    """Happens when the stream it was last recorded on comes there."""

    def __init__(self, device: LazyDevice, *, disable_timing: bool = False) -> None:
        self._device = device
        self.recorded = self.happened = 0
        self.timed = not disable_timing
        # Waiting for one that was never recorded returns at once.
        self.at_ms = {0: 0.0}

    def record(self, stream: LazyStream | None = None) -> None:
        stream = self._device.current if stream is None else stream
        number = self.recorded + 1

        def happen() -> None:
            self.happened, self.at_ms[number] = number, stream.now_ms

        stream.add(happen)
        self.recorded = number

    def synchronize(self) -> None:
        self._device.check()
        while self.happened < self.recorded:
            self._device.step()
        self._device.host_ms = max(self._device.host_ms, self.at_ms[self.recorded])


def elapsed_ms(first: LazyEvent, last: LazyEvent) -> float:
    """Between two events, which must have happened."""
    for event in (first, last):
        assert event.timed
        assert event.happened == event.recorded > 0
    return last.at_ms[last.recorded] - first.at_ms[first.recorded]


class Allocation:
    """Memory of the stream that was current, to which it returns when nobody refers to it."""

    def __init__(self, stream: LazyStream, num_bytes: int) -> None:
        fitting = [memory for memory in stream.pool if memory.size >= num_bytes]
        self.memory = fitting[0] if fitting else _aligned(num_bytes)
        stream.pool = [memory for memory in stream.pool if memory is not self.memory]
        # Looked up when it is freed: the list is another one by then.
        weakref.finalize(self, lambda memory: stream.pool.append(memory), self.memory)


def _aligned(num_bytes: int) -> np.ndarray:
    """New memory that begins where CuPy's does."""
    room = np.zeros(num_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
    start = -room.ctypes.data % ALIGNMENT_BYTES
    return room[start : start + num_bytes]


class Pointer:
    """A place in memory, which keeps that."""

    def __init__(self, allocation: Allocation, offset: int = 0) -> None:
        self.allocation, self.offset = allocation, offset

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.allocation, self.offset + offset)

    @property
    def ptr(self) -> int:
        return self.allocation.memory.ctypes.data + self.offset

    def bytes(self, size: int) -> np.ndarray:
        return self.allocation.memory[self.offset : self.offset + size]

    def copy_from_host_async(self, source: int, size: int, stream: LazyStream) -> None:
        memory = self.bytes(size)

        def copy() -> None:
            memory[:] = np.frombuffer(ctypes.string_at(source, size), np.uint8)

        stream.add(copy, took_ms=UPLOAD_MS)


class LazyArray:
    """An array on the device, as far as CuPy's are used here; `lazy_cupy` makes its class."""

    lazy_device: LazyDevice

    def __init__(self, shape: Any, dtype: Any = np.uint8, memptr: Pointer | None = None) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = np.dtype(dtype)
        self.size = math.prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize
        if memptr is None:
            self.lazy_device.check()
            memptr = Pointer(Allocation(self.lazy_device.current, self.nbytes))
        self.data = memptr

    @property
    def device(self) -> LazyDevice:
        return self.lazy_device

    @property
    def values(self) -> np.ndarray:
        """What work on a stream may read and write, and the host may not."""
        return self.data.bytes(self.nbytes).view(self.dtype).reshape(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> LazyArray:
        count = len(range(*rows.indices(self.shape[0])))
        assert rows.start is None
        assert rows.step is None
        return type(self)((count, *self.shape[1:]), self.dtype, self.data)

    def set(self, host: np.ndarray, stream: LazyStream) -> None:
        assert (host.shape, host.dtype) == (self.shape, self.dtype)
        assert host.flags.c_contiguous
        target = self.values
        source = host if is_pinned(host) else host.copy()
        stream.add(lambda: target.__setitem__(..., source), took_ms=SET_MS)

    def get(
        self, stream: LazyStream, out: np.ndarray | None = None, blocking: bool = True
    ) -> np.ndarray:
        target, source = np.empty(self.shape, self.dtype) if out is None else out, self.values
        assert (target.shape, target.dtype) == (self.shape, self.dtype)
        assert blocking or is_pinned(target)
        stream.add(lambda: target.__setitem__(..., source), took_ms=GET_MS)
        if blocking:
            stream.synchronize()
        return target


class PinnedMemory(bytearray):
    """Memory that the device reads and writes by itself."""


def is_pinned(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array.obj if isinstance(array, memoryview) else array, PinnedMemory)


def lazy_cupy(device: LazyDevice) -> Any:
    """What is used of CuPy, on that device."""
    array_type = type("ndarray", (LazyArray,), {"lazy_device": device})

    def asarray(array: np.ndarray) -> LazyArray:
        kept = array_type(array.shape, array.dtype)
        target, source = kept.values, array.copy()
        device.current.add(lambda: target.__setitem__(..., source))
        return kept

    def pinned(num_bytes: int) -> PinnedMemory:
        device.check()
        return PinnedMemory(num_bytes)

    cuda = SimpleNamespace(
        Device=lambda: device,
        Stream=lambda non_blocking: LazyStream(device),
        Event=lambda disable_timing=False: LazyEvent(device, disable_timing=disable_timing),
        alloc_pinned_memory=pinned,
        compiler=SimpleNamespace(CompileException=CompileException),
        get_current_stream=lambda: device.current,
        get_elapsed_time=elapsed_ms,
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        runtime=SimpleNamespace(CUDARuntimeError=CUDARuntimeError),
    )
    return SimpleNamespace(cuda=cuda, asarray=asarray, empty=array_type, ndarray=array_type)
