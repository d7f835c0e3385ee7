"""Memory and a stream on a CUDA device, by CuPy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_core._optional import require
from gain_core.errors import BackendUnavailableError, EngineError
from gain_runtime.device_buffers import DeviceArray

__all__ = ["CudaMemory", "cuda_failures"]

Floats = npt.NDArray[np.float32]

# What CuPy raises for CUDA, its compiler and its libraries shares no base class of its own; where
# it comes from tells it from others' exceptions.
_CUPY_PACKAGES = ("cupy", "cupy_backends")


@contextmanager
def cuda_failures(cupy: Any, where: str, /) -> Iterator[None]:
    """What CuPy raises as ours: CUDA's errors, missing memory, kernels that do not compile.

    Parameters
    ----------
    cupy : module
    where : str
        Begins the message.

    Raises
    ------
    EngineError
        In place of any exception of CuPy's own; others pass.
    """
    try:
        yield
    except (RuntimeError, MemoryError, cupy.cuda.compiler.CompileException) as err:
        if type(err).__module__.partition(".")[0] not in _CUPY_PACKAGES:
            raise
        reason = " ".join(str(err).split())
        remedy = "open the session again, in a new process if that fails"
        if isinstance(err, MemoryError):
            remedy = "free device memory or use smaller batches"
        raise EngineError(f"{where}: {reason}; {remedy}") from err


class CudaMemory:
    """Memory of the current CUDA device, by CuPy, and a stream of its own.

    Raises
    ------
    BackendUnavailableError
        If CuPy is not installed or finds no usable device.
    """

    device_type = "cuda"

    def __init__(self) -> None:
        self._cupy: Any = require("cupy", extra="cuda12")
        cuda = self._cupy.cuda
        try:
            self._device = cuda.Device()
            self.stream: Any = cuda.Stream(non_blocking=True)
            self._before, self._after = (cuda.Event(disable_timing=True) for _ in range(2))
        except cuda.runtime.CUDARuntimeError as err:
            raise BackendUnavailableError(
                f"cupy: no usable NVIDIA driver or GPU here ({err}); install or update the driver, "
                "or use the device cpu"
            ) from err

    @property
    def device_id(self) -> int:
        """The CUDA device's number."""
        return int(self._device.id)

    @contextmanager
    def ordered(self) -> Iterator[None]:
        """See `DeviceMemory`; the host waits for nothing.

        Raises
        ------
        EngineError
            If CUDA reports a failure, which may be an earlier one.
        """
        with self._failures(), self._device:
            outside = self._cupy.cuda.get_current_stream()
            if outside.ptr == self.stream.ptr:
                yield
                return
            outside.record(self._before)
            self.stream.wait_event(self._before)
            try:
                with self.stream:
                    yield
            finally:
                self.stream.record(self._after)
                outside.wait_event(self._after)

    def empty(self, shape: tuple[int, ...], /) -> DeviceArray:
        """See `DeviceMemory`.

        Raises
        ------
        EngineError
            If the device has no room for it.
        """
        with cuda_failures(self._cupy, f"buffers of {shape} float32 on cuda:{self.device_id}"):
            return self._cupy.empty(shape, np.float32)

    def holds(self, array: DeviceArray, /) -> bool:
        """See `DeviceMemory`."""
        return isinstance(array, self._cupy.ndarray) and array.device == self._device

    def address(self, array: DeviceArray, /) -> int:
        """See `DeviceMemory`."""
        return int(array.data.ptr)

    def upload(self, host: Floats, target: DeviceArray, /) -> None:
        """See `DeviceMemory`; returns once pageable memory may be written again."""
        target.set(host, stream=self.stream)

    def download(self, arrays: Sequence[DeviceArray], /) -> list[Floats]:
        """See `DeviceMemory`."""
        copies = [array.get(stream=self.stream) for array in arrays]
        self.stream.synchronize()
        return copies

    def synchronize(self) -> None:
        """Wait for everything that is queued.

        Raises
        ------
        EngineError
            If it failed.
        """
        with self._failures():
            self.stream.synchronize()

    def _failures(self) -> AbstractContextManager[None]:
        """CuPy's errors as ours."""
        return cuda_failures(self._cupy, f"cuda:{self.device_id}")
