"""The most memory that was in use on a CUDA device while something ran."""

from __future__ import annotations

from typing import Any

from gain_core._optional import require
from gain_core.errors import BackendUnavailableError
from gain_runtime.cuda_memory import cuda_failures
from gain_runtime.onnx_native import CPU_PROVIDER

__all__ = ["DevicePeak"]

NOTE = (
    "largest of the readings after each batch, warm-up included; total less free memory of the "
    "device, so what other processes hold there is counted too"
)


class DevicePeak:
    """The largest of several readings of a device's memory.

    What is allocated and freed between two readings is not seen. Sessions and CuPy keep what they
    have allocated, so a reading after a batch shows what the batch needed.

    Parameters
    ----------
    provider : str
        Execution provider in use. On the CPU, and without CuPy, nothing is read.
    """

    def __init__(self, provider: str, /) -> None:
        self._peak: int | None = None
        self._cupy: Any = None
        self._why = "the CPU has no memory of its own"
        if provider != CPU_PROVIDER:
            try:
                self._cupy = require("cupy", extra="cuda12")
            except BackendUnavailableError as err:
                self._why = f"cannot be read: {err}"

    def read(self) -> None:
        """Read once, in some microseconds; for between two batches.

        Raises
        ------
        EngineError
            If the device fails, be it over an earlier batch.
        """
        if self._cupy is not None:
            with cuda_failures(self._cupy, "device memory"):
                free, total = self._cupy.cuda.runtime.memGetInfo()
            self._peak = max(self._peak or 0, int(total - free))

    def to_dict(self) -> dict[str, Any]:
        """`peak_used` in bytes, None where it was not read, and a `note`: what it counts or why."""
        return {"peak_used": self._peak, "note": self._why if self._peak is None else NOTE}
