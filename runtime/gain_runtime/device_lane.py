"""A batch on a CUDA device: copy, forward pass and step on one stream, one copy back.

Nothing waits for the device but the result's reader, so that the next batch is decoded,
preprocessed and copied while this one is worked on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_core import Prediction
from gain_core._optional import require
from gain_core.prototypes import Prototypes
from gain_runtime.cuda.cuda_gain import CudaGain
from gain_runtime.cuda.cuda_preprocess import CudaPreprocessor
from gain_runtime.cuda.prediction_block import BlockLayout, PredictionBlock, block_of
from gain_runtime.device_buffers import DeviceArray
from gain_runtime.lane import Awaited, LaneResult
from gain_runtime.preprocess import Region, preprocess_batch
from gain_runtime.session import Session

__all__ = ["DeviceLane"]

# Batches that may be under way: one is copied in while the one before it is worked on, and the
# one before that is read.
_SLOTS = 3


class DeviceLane:
    """See `Lane`.

    Parameters
    ----------
    session : Session
        With a stream of its own, and results on its device that last for three calls.
    prototypes : Prototypes
        On the device.
    gain : CudaGain
    preprocessor : CudaPreprocessor, optional
        Without it frames are preprocessed on the host.
    """

    def __init__(
        self,
        session: Session,
        prototypes: Prototypes,
        gain: CudaGain,
        /,
        *,
        preprocessor: CudaPreprocessor | None = None,
    ) -> None:
        self._cupy: Any = require("cupy", extra="cuda12")
        self._session, self._prototypes, self._gain = session, prototypes, gain
        self._stream: Any = session.stream
        self._preprocessor = preprocessor
        self._copies = self._cupy.cuda.Stream(non_blocking=True)
        self._slots = cycle([_Slot(self._cupy) for _ in range(_SLOTS)])

    @property
    def gain(self) -> CudaGain:
        """See `Lane`."""
        return self._gain

    @property
    def prototypes(self) -> Prototypes:
        """See `Lane`."""
        return self._prototypes

    @property
    def ahead(self) -> int:
        """See `Lane`: one batch is prepared while the device works on another."""
        return 1

    def queue(self) -> AbstractContextManager[Any]:
        """See `Lane`: the session's stream is CuPy's current one."""
        stream: AbstractContextManager[Any] = self._stream
        return stream

    def prepare(
        self,
        images: Sequence[npt.NDArray[np.uint8]],
        /,
        *,
        regions: Sequence[Region | None] | None,
    ) -> Any:
        """See `Lane`; on the device where there is a preprocessor."""
        if self._preprocessor is None:
            spec = self._session.artifact.manifest.preprocess
            return preprocess_batch(images, spec, regions=regions)
        with self._stream:
            return self._preprocessor(images, regions=regions)

    def submit(self, pixel_values: Any, /, *, learn: bool) -> Awaited:
        """See `Lane`; `pixel_values` may lie on the device, made on the session's stream."""
        slot = next(self._slots)
        slot.free()
        stream = self._stream
        if isinstance(pixel_values, np.ndarray):
            slot.began.record(self._copies)
            pixel_values = slot.copy_in(pixel_values, self._copies)
            stream.wait_event(slot.copied)
        else:
            slot.began.record(stream)
        with stream:
            features, logits = self._session.infer(pixel_values)
            slot.inferred.record(stream)
            work = self._gain.step if learn else self._gain.predict
            slot.copy_out(work(features, logits), self._gain.guard_trips, stream)
            slot.adapted.record(stream)
        return slot.hand_out()


class _Slot:
    """Events and memory of one batch under way."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self.began, self.copied, self.inferred, self.adapted = (cupy.cuda.Event() for _ in range(4))
        self._pixels: DeviceArray = None
        self._pinned_pixels = self._pinned_result = np.empty(0, np.uint8)
        self._pinned_trips = self._pin(8)
        self._layout: BlockLayout | None = None
        self._trips_dtype: Any = None
        self._unread: _Unread | None = None

    def free(self) -> None:
        """Wait for the batch that was here, and let its result live on without this memory."""
        if self._unread is not None:
            self._unread()
            self._unread = None

    def copy_in(self, pixel_values: np.ndarray[Any, Any], stream: Any) -> DeviceArray:
        """The pixels on the device once `copied` has come."""
        if self._pinned_pixels.nbytes < pixel_values.nbytes:
            self._pinned_pixels = self._pin(pixel_values.nbytes)
        staged = self._pinned_pixels[: pixel_values.nbytes].view(pixel_values.dtype)
        staged = staged.reshape(pixel_values.shape)
        np.copyto(staged, pixel_values)
        if self._pixels is None or self._pixels.shape != pixel_values.shape:
            self._pixels = self._cupy.empty(pixel_values.shape, pixel_values.dtype)
        self._pixels.set(staged, stream=stream)
        self.copied.record(stream)
        return self._pixels

    def copy_out(self, prediction: Prediction, trips: DeviceArray | None, stream: Any) -> None:
        """Enqueue the copies back."""
        block, self._layout = block_of(prediction)
        if self._pinned_result.nbytes < self._layout.nbytes:
            self._pinned_result = self._pin(self._layout.nbytes)
        block.get(stream=stream, out=self._pinned_result[: self._layout.nbytes], blocking=False)
        self._trips_dtype = None if trips is None else trips.dtype
        if trips is not None:
            host = self._pinned_trips[: trips.nbytes].view(trips.dtype)
            trips.reshape(1).get(stream=stream, out=host, blocking=False)

    def hand_out(self) -> Awaited:
        """What reads the result, whenever it is asked to."""
        self._unread = _Unread(self)
        return self._unread

    def read(self) -> LaneResult:
        """Wait, and copy the result into memory of its own."""
        self.adapted.synchronize()
        assert self._layout is not None
        block = self._pinned_result[: self._layout.nbytes].copy()
        trips = None
        if self._trips_dtype is not None:
            size = self._trips_dtype.itemsize
            trips = int(self._pinned_trips[:size].view(self._trips_dtype)[0])
        return LaneResult(
            prediction=PredictionBlock.over(block, self._layout).prediction,
            trips=trips,
            stage_ns={
                "forward": self._nanoseconds(self.began, self.inferred),
                "adapt": self._nanoseconds(self.inferred, self.adapted),
            },
        )

    def _pin(self, num_bytes: int) -> np.ndarray[Any, Any]:
        """Memory that the device reads and writes by itself."""
        memory = self._cupy.cuda.alloc_pinned_memory(num_bytes)
        return np.frombuffer(memory, np.uint8, num_bytes)

    def _nanoseconds(self, first: Any, last: Any) -> int:
        """Between two events."""
        return round(1e6 * float(self._cupy.cuda.get_elapsed_time(first, last)))


class _Unread:
    """A result that is read once, when it is asked for or when its slot is needed."""

    def __init__(self, slot: _Slot) -> None:
        self._slot: _Slot | None = slot
        self._result: LaneResult | None = None

    def __call__(self) -> LaneResult:
        if self._slot is not None:
            self._result, self._slot = self._slot.read(), None
        assert self._result is not None
        return self._result
