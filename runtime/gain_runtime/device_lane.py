"""A batch on a CUDA device: copy, forward pass and step on one stream, one copy back.

Nothing waits for the device but the result's reader, so that the next batch is decoded,
preprocessed and copied while this one is worked on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_core import Prediction
from gain_core._optional import require
from gain_core.prototypes import Prototypes
from gain_runtime.batch_preprocess import BatchPreprocessor
from gain_runtime.cuda.cuda_gain import CudaGain
from gain_runtime.cuda.cuda_preprocess import CudaPreprocessor
from gain_runtime.cuda_memory import cuda_failures
from gain_runtime.device_buffers import DeviceArray
from gain_runtime.device_slot import DeviceSlot, MadeOnDevice, ReadOnce, make_on_device
from gain_runtime.lane import Awaited, LaneResult
from gain_runtime.preprocess import Region
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
    preprocessor : BatchPreprocessor or CudaPreprocessor
        On the host or on the device; owned.

    Raises
    ------
    EngineError
        If the device has no room, or fails.
    """

    def __init__(
        self,
        session: Session,
        prototypes: Prototypes,
        gain: CudaGain,
        /,
        *,
        preprocessor: BatchPreprocessor | CudaPreprocessor,
    ) -> None:
        self._cupy: Any = require("cupy", extra="cuda12")
        self._session, self._prototypes, self._gain = session, prototypes, gain
        self._stream: Any = session.stream
        self._preprocessor = preprocessor
        with self.queue():
            self._guarded = gain.guard_trips is not None
            self._copies = self._cupy.cuda.Stream(non_blocking=True)
            self._slots = cycle([DeviceSlot(self._cupy) for _ in range(_SLOTS)])

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

    @contextmanager
    def queue(self) -> Iterator[None]:
        """See `Lane`: the session's stream is CuPy's current one.

        Raises
        ------
        EngineError
            If the device fails inside.
        """
        with self._failures(), self._stream:
            yield

    def prepare(
        self,
        images: Sequence[npt.NDArray[np.uint8]],
        /,
        *,
        regions: Sequence[Region | None] | None,
    ) -> Any:
        """See `Lane`; on the device where the preprocessor is."""
        if isinstance(self._preprocessor, BatchPreprocessor):
            return self._preprocessor(images, regions=regions)
        with self.queue():
            return make_on_device(
                self._preprocessor, images, regions=regions, cupy=self._cupy, stream=self._stream
            )

    def submit(self, prepared: Any, /, *, learn: bool) -> Awaited:
        """See `Lane`; pixel values on the device are to be made on the session's stream."""
        kernels: tuple[Any, Any] | None = None
        if isinstance(prepared, MadeOnDevice):
            prepared, kernels = prepared
        if len(prepared) == 0:
            return self._submit_nothing(prepared)
        with self.queue():
            slot = next(self._slots)
            slot.free()
            slot.kernels = kernels
            pixel_values = slot.begin(prepared, copies=self._copies, stream=self._stream)
            features, logits = self._session.infer(pixel_values)
            assert features is not None
            slot.inferred.record(self._stream)
            work = self._gain.step if learn else self._gain.predict
            slot.copy_out(work(features, logits), self._stream)
            slot.adapted.record(self._stream)
        return slot.hand_out(lambda: self._read(slot))

    def close(self) -> None:
        """See `Lane`."""
        if isinstance(self._preprocessor, BatchPreprocessor):
            self._preprocessor.close()

    def _read(self, slot: DeviceSlot) -> LaneResult:
        """Wait for a batch, and copy its result into memory of its own."""
        with self._failures():
            prediction, trips = slot.read()
            return LaneResult(
                prediction=prediction,
                trips=int(trips) if self._guarded else None,
                stage_ns=slot.stage_ns(),
            )

    def _submit_nothing(self, pixel_values: Any) -> Awaited:
        """A batch of no frame: checked as any other, and the device has nothing to do."""
        with self.queue():
            self._session.infer(pixel_values)
            trips: DeviceArray = self._gain.guard_trips

        def read() -> LaneResult:
            with self._failures():
                count = None if trips is None else int(trips.get(stream=self._stream))
            return LaneResult(
                prediction=self._no_rows(),
                trips=count,
                stage_ns={"preprocess": 0, "forward": 0, "adapt": 0},
            )

        return ReadOnce(read)

    def _no_rows(self) -> Prediction:
        """What is predicted of no frame."""
        dtype: Any = self._prototypes.row_squares.dtype
        matrix, column = np.empty((0, self._prototypes.shape[0]), dtype), np.empty(0, dtype)
        return Prediction(
            probs=matrix,
            log_probs=matrix,
            strength=column,
            gain=column,
            source_log_probs=matrix,
            finite=np.array(True),
        )

    def _failures(self) -> AbstractContextManager[None]:
        """CuPy's errors as ours, by the artifact that runs."""
        return cuda_failures(self._cupy, str(self._session.artifact.path))
