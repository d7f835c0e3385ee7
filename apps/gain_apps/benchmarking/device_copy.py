"""The copy of a batch to the device, timed by itself."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from gain_runtime.device_slot import DeviceSlot

from gain_apps.benchmarking.stages import percentiles
from gain_core._optional import require
from gain_runtime.cuda_memory import cuda_failures
from gain_runtime.onnx_native import CUDA_PROVIDER
from gain_runtime.session import Session

__all__ = ["copy_times"]

Floats = npt.NDArray[np.float32]

IN_PLACE = "none: this provider reads pixel_values where they lie"
FRAMES = "none of pixel_values, which are made on the device; the frames' copy is in preprocess"
STAGED = (
    "timed by itself, into pinned memory and from there into a buffer that is kept, as both "
    "variants copy; it is a part of forward"
)
PAGEABLE = (
    "timed by itself, from pageable memory into a buffer that is kept, by ONNX Runtime, which "
    "copies so where results are in host memory; it is a part of forward"
)


def copy_times(
    pixel_values: Floats, session: Session, /, *, rounds: int, device_preprocess: bool
) -> dict[str, Any]:
    """What copying one batch to the device costs; a part of `forward`, not added to it.

    Parameters
    ----------
    pixel_values : array, (B, 3, height_px, width_px) float32
        In host memory.
    session : Session
        Open; tells how its batches get to the device.
    rounds : int
        At least 1.
    device_preprocess : bool
        Whether the frames were preprocessed on the device.

    Returns
    -------
    dict
        `ms` per frame as percentiles, None where no pixel values are copied, and a `note` that says
        what was timed.

    Raises
    ------
    EngineError
        If the device has no room, or fails.
    """
    if session.stream is not None:
        if device_preprocess:
            return {"ms": None, "note": FRAMES}
        return {"ms": _timed(_staged_copy(session), pixel_values, rounds), "note": STAGED}
    if session.provider == CUDA_PROVIDER:
        return {"ms": _timed(_native_copy(pixel_values), pixel_values, rounds), "note": PAGEABLE}
    return {"ms": None, "note": IN_PLACE}


def _timed(copy: Callable[[Floats], object], pixel_values: Floats, rounds: int) -> dict[str, float]:
    """Milliseconds per frame; the first copy, which makes the buffers, is not counted."""
    copy(pixel_values)
    spent = []
    for _ in range(rounds):
        started = perf_counter_ns()
        copy(pixel_values)
        spent.append((perf_counter_ns() - started) / 1e6 / len(pixel_values))
    return percentiles(spent)


def _staged_copy(session: Session) -> Callable[[Floats], None]:
    """The variants' copy, which returns when the batch has arrived."""
    cupy: Any = require("cupy", extra="cuda12")
    where = str(session.artifact.path)
    with cuda_failures(cupy, where):
        stream, slot = cupy.cuda.Stream(non_blocking=True), DeviceSlot(cupy)

    def copy(pixel_values: Floats) -> None:
        with cuda_failures(cupy, where):
            slot.copy_in(pixel_values, stream)
            slot.copied.synchronize()

    return copy


def _native_copy(pixel_values: Floats) -> Callable[[Floats], object]:
    """ONNX Runtime's own copy, into device memory that is allocated here."""
    buffer = onnxruntime.OrtValue.ortvalue_from_numpy(pixel_values, "cuda", 0)
    return lambda pixels: buffer.update_inplace(pixels)
