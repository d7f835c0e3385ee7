"""The events and the memory of one batch that is under way on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gain_core import Prediction
from gain_runtime.cuda.prediction_block import BlockLayout, host_part, read_host_part
from gain_runtime.device_buffers import DeviceArray
from gain_runtime.lane import Awaited, LaneResult
from gain_runtime.preprocess import Region

__all__ = ["DeviceSlot", "MadeOnDevice", "ReadOnce", "make_on_device", "pinned_bytes"]


class MadeOnDevice(NamedTuple):
    """Pixel values, and the events around the kernels that made them."""

    pixel_values: DeviceArray
    kernels: tuple[Any, Any]


def make_on_device(
    preprocessor: Callable[..., DeviceArray],
    images: Sequence[npt.NDArray[np.uint8]],
    /,
    *,
    regions: Sequence[Region | None] | None,
    cupy: Any,
    stream: Any,
) -> MadeOnDevice:
    """Queue the preprocessing of a batch.

    Parameters
    ----------
    preprocessor : callable
        A `CudaPreprocessor`.
    images, regions : sequence
        As it takes them.
    cupy : module
    stream : cupy.cuda.Stream
        The current one.
    """
    began, ended = (cupy.cuda.Event() for _ in range(2))
    pixel_values = preprocessor(images, regions=regions, began=began)
    ended.record(stream)
    return MadeOnDevice(pixel_values, (began, ended))


def pinned_bytes(cupy: Any, num_bytes: int, /) -> npt.NDArray[np.uint8]:
    """Memory of the host, (num_bytes,) uint8, that the device reads and writes by itself."""
    return np.frombuffer(cupy.cuda.alloc_pinned_memory(num_bytes), np.uint8, num_bytes)


class ReadOnce:
    """A result that is read once, whenever it is asked for first.

    Parameters
    ----------
    read : callable
        Waits for it; tried again if it raises.
    """

    def __init__(self, read: Callable[[], LaneResult], /) -> None:
        self._read: Callable[[], LaneResult] | None = read
        self._result: LaneResult | None = None

    def __call__(self) -> LaneResult:
        if self._read is not None:
            self._result, self._read = self._read(), None
        assert self._result is not None
        return self._result


class DeviceSlot:
    """Room for one batch under way, used for one after another.

    Parameters
    ----------
    cupy : module

    Attributes
    ----------
    started, inferred, adapted : cupy.cuda.Event
        To be recorded around the forward pass, and behind the copy of the prediction.
    copied : cupy.cuda.Event
        Happens when the pixel values have arrived.
    kernels : pair of cupy.cuda.Event or None
        Around the preprocessing of this batch, where that was on the device.
    """

    def __init__(self, cupy: Any, /) -> None:
        self._cupy = cupy
        self._copying, self.copied, self.started, self.inferred, self.adapted = (
            cupy.cuda.Event() for _ in range(5)
        )
        self.kernels: tuple[Any, Any] | None = None
        self._was_copied = False
        self._pixels: DeviceArray = None
        self._pinned_pixels = self._pinned_part = np.empty(0, np.uint8)
        self._layout: BlockLayout | None = None
        self._unread: Awaited | None = None

    def free(self) -> None:
        """Wait for the batch that was here, and let its result live on without this memory."""
        if self._unread is not None:
            self._unread()
            self._unread = None
        # A batch that failed half-way has no result that was waited for.
        self.copied.synchronize()
        self.inferred.synchronize()
        self._was_copied = False

    def begin(
        self, pixel_values: DeviceArray | np.ndarray[Any, Any], /, *, copies: Any, stream: Any
    ) -> DeviceArray:
        """Queue the copy of a batch that is on the host, and mark where its forward pass begins.

        Parameters
        ----------
        pixel_values : array, (B, 3, height_px, width_px) float32
            Anywhere; on the device they are made on `stream`.
        copies, stream : cupy.cuda.Stream
            Of the copy, and of the forward pass.

        Returns
        -------
        array
            The pixel values as `stream` may use them.
        """
        if isinstance(pixel_values, np.ndarray):
            pixel_values = self.copy_in(pixel_values, copies)
            stream.wait_event(self.copied)
        # Not before: it would happen while the batches ahead are still worked on.
        self.started.record(stream)
        return pixel_values

    def copy_in(self, pixel_values: np.ndarray[Any, Any], stream: Any, /) -> DeviceArray:
        """Queue the copy of a batch to the device.

        Parameters
        ----------
        pixel_values : array, (B, 3, height_px, width_px) float32
            On the host; may change as soon as this returns.
        stream : cupy.cuda.Stream
            The copy's own.

        Returns
        -------
        array
            The pixel values once `copied` has happened.
        """
        if self._pinned_pixels.nbytes < pixel_values.nbytes:
            self._pinned_pixels = pinned_bytes(self._cupy, pixel_values.nbytes)
        staged = self._pinned_pixels[: pixel_values.nbytes].view(pixel_values.dtype)
        staged = staged.reshape(pixel_values.shape)
        np.copyto(staged, pixel_values)
        if self._pixels is None or self._pixels.shape != pixel_values.shape:
            # On the stream that writes it: what another stream has freed, that may still write.
            with stream:
                self._pixels = None
                self._pixels = self._cupy.empty(pixel_values.shape, pixel_values.dtype)
        self._copying.record(stream)
        self._pixels.set(staged, stream=stream)
        self.copied.record(stream)
        self._was_copied = True
        return self._pixels

    def copy_out(self, prediction: Prediction, stream: Any, /) -> None:
        """Queue the copy of a prediction, made in a block, to the host."""
        part, self._layout = host_part(prediction)
        if self._pinned_part.nbytes < self._layout.host_nbytes:
            self._pinned_part = pinned_bytes(self._cupy, self._layout.host_nbytes)
        host = self._pinned_part[: self._layout.host_nbytes]
        part.get(stream=stream, out=host, blocking=False)

    def hand_out(self, read: Callable[[], LaneResult], /) -> Awaited:
        """What reads the result when it is asked to, or when the slot is needed."""
        self._unread = ReadOnce(read)
        return self._unread

    def read(self) -> tuple[Prediction, npt.NDArray[Any]]:
        """Wait for the batch.

        Returns
        -------
        prediction : Prediction
            NumPy arrays of their own memory.
        trips : array, ()
            How often the guard has tripped; of any value without a guard.
        """
        self.adapted.synchronize()
        assert self._layout is not None
        host = self._pinned_part[: self._layout.host_nbytes].copy()
        return read_host_part(host, self._layout)

    def stage_ns(self) -> dict[str, int]:
        """See `LaneResult`; of a batch that was read."""
        preprocess = self._nanoseconds(*self.kernels) if self.kernels is not None else 0
        copy = self._nanoseconds(self._copying, self.copied) if self._was_copied else 0
        return {
            "preprocess": preprocess,
            "forward": copy + self._nanoseconds(self.started, self.inferred),
            "adapt": self._nanoseconds(self.inferred, self.adapted),
        }

    def _nanoseconds(self, first: Any, last: Any) -> int:
        """Between two events."""
        return round(1e6 * float(self._cupy.cuda.get_elapsed_time(first, last)))
