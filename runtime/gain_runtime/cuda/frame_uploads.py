"""Copies to the device beside the work of the current stream, through reused pinned memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_runtime.device_buffers import DeviceArray

__all__ = ["FrameUploads"]

# Enough for the host to fill one while others are under way; each grows to the largest frame.
_NUM_STAGES = 4
# The copies of a batch begin while the kernels of the one before may still read theirs.
_NUM_ARENAS = 2


class FrameUploads:
    """Uploads of batch after batch on a stream of their own.

    A batch's copies wait neither for the current stream's work nor it for them until `publish`,
    so they run below the forward pass of the batch before. The host waits only where a piece of
    pinned memory is needed again whose copy has not ended.

    Parameters
    ----------
    cupy : module

    Notes
    -----
    All device memory here belongs to the copying stream: CuPy hands memory that was freed out
    again on the stream it came from, without waiting for any other.
    """

    def __init__(self, cupy: Any, /) -> None:
        self._cupy = cupy
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._stages = cycle([_Stage(cupy) for _ in range(_NUM_STAGES)])
        self._arenas = cycle([_Arena(cupy) for _ in range(_NUM_ARENAS)])
        self._arena = next(self._arenas)
        self._published = _new_event(cupy)
        self._finished = _new_event(cupy)

    def begin(self) -> None:
        """Order the current stream behind the last batch, should that have been on another."""
        self._cupy.cuda.get_current_stream().wait_event(self._finished)

    def keep(self, array: npt.NDArray[Any], /) -> DeviceArray:
        """A copy of an array on the device, for as long as it is referred to."""
        with self._stream:
            # The memory may be that of an array which the last batch still reads.
            self._stream.wait_event(self._finished)
            return self._cupy.asarray(array)

    def reserve(self, num_bytes: int, /) -> DeviceArray:
        """Memory for the uploads of one batch, (at least `num_bytes`,) uint8."""
        self._arena = next(self._arenas)
        if self._arena.memory is None or self._arena.memory.size < num_bytes:
            with self._stream:
                self._stream.wait_event(self._finished)
                # Dropped first: both at once may be more than the device has.
                self._arena.memory = None
                self._arena.memory = self._cupy.empty((num_bytes,), dtype=np.uint8)
        self._stream.wait_event(self._arena.read)
        return self._arena.memory

    def upload(self, reserved: DeviceArray, offset: int, source: npt.NDArray[Any], /) -> None:
        """Copy an array of any layout, in C order, behind `offset` reserved bytes."""
        stage = next(self._stages)
        staged = stage.room(source.nbytes)
        np.copyto(staged.view(source.dtype).reshape(source.shape), source)
        target = reserved.data + offset
        target.copy_from_host_async(staged.ctypes.data, source.nbytes, self._stream)
        stage.copied.record(self._stream)

    def publish(self) -> None:
        """Let the current stream's next kernels see what was uploaded and kept."""
        self._published.record(self._stream)
        self._cupy.cuda.get_current_stream().wait_event(self._published)

    def finish(self) -> None:
        """The current stream's kernels so far are the last that read this batch's uploads."""
        stream = self._cupy.cuda.get_current_stream()
        self._arena.read.record(stream)
        self._finished.record(stream)


class _Arena:
    """Device memory for one batch's uploads."""

    def __init__(self, cupy: Any) -> None:
        self.memory: DeviceArray | None = None
        self.read = _new_event(cupy)


class _Stage:
    """Pinned memory for one upload."""

    def __init__(self, cupy: Any) -> None:
        self._allocate: Callable[[int], Any] = cupy.cuda.alloc_pinned_memory
        self._memory: npt.NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
        self.copied = _new_event(cupy)

    def room(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """So many bytes, after the copy out of them has ended."""
        self.copied.synchronize()
        if self._memory.size < num_bytes:
            pinned = self._allocate(num_bytes)
            self._memory = np.frombuffer(pinned, dtype=np.uint8, count=num_bytes)
        return self._memory[:num_bytes]


def _new_event(cupy: Any) -> Any:
    """An event for ordering; waiting for one that was never recorded returns at once."""
    return cupy.cuda.Event(disable_timing=True)
