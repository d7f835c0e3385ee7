"""The copy of a batch to the device, timed by itself."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from gain_apps.benchmarking.stages import percentiles
from gain_core._optional import require
from gain_core.errors import BackendUnavailableError

__all__ = ["copy_times", "device_memory_bytes"]

CUDA_PROVIDER = "CUDAExecutionProvider"
TENSORRT_PROVIDERS = ("tensorrt", "tensorrt_rtx")
IN_PLACE = "none: this provider reads pixel_values where they lie"


def copy_times(
    pixel_values: npt.NDArray[np.float32], provider: str, /, *, rounds: int
) -> dict[str, Any]:
    """What copying one batch to the device costs; a part of `forward`, not added to it.

    Parameters
    ----------
    pixel_values : array, (B, 3, height_px, width_px) float32
    provider : str
        Execution provider in use.
    rounds : int

    Returns
    -------
    dict
        `ms` per frame as percentiles, None where nothing is copied, and a `note`.
    """
    copy = _copier(provider)
    if copy is None:
        return {"ms": None, "note": IN_PLACE}
    copy(pixel_values)
    spent = []
    for _ in range(rounds):
        started = perf_counter_ns()
        copy(pixel_values)
        spent.append((perf_counter_ns() - started) / 1e6 / len(pixel_values))
    return {"ms": percentiles(spent), "note": "timed by itself; it is a part of forward"}


def _copier(provider: str) -> Callable[[npt.NDArray[np.float32]], object] | None:
    """What copies a batch as the provider's session does, and returns when it has arrived."""
    if provider == CUDA_PROVIDER:
        return lambda pixels: onnxruntime.OrtValue.ortvalue_from_numpy(pixels, "cuda", 0)
    if provider not in TENSORRT_PROVIDERS:
        return None
    cupy: Any = require("cupy", extra="cuda12")

    def copy(pixels: npt.NDArray[np.float32]) -> None:
        cupy.asarray(pixels)
        cupy.cuda.get_current_stream().synchronize()

    return copy


def device_memory_bytes(provider: str, /) -> dict[str, Any]:
    """Memory of the CUDA device in use now, by every process.

    The sessions keep what they have allocated, so the value after a run is that run's peak.

    Parameters
    ----------
    provider : str

    Returns
    -------
    dict
        `used`, None where it cannot be read, and a `note` that says why or what it is.
    """
    if provider not in (CUDA_PROVIDER, *TENSORRT_PROVIDERS):
        return {"used": None, "note": "the CPU has no memory of its own"}
    try:
        cupy: Any = require("cupy", extra="cuda12")
    except BackendUnavailableError as err:
        return {"used": None, "note": f"cannot be read: {err}"}
    free, total = cupy.cuda.runtime.memGetInfo()
    return {"used": int(total - free), "note": "after the run, by every process"}
