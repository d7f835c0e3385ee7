"""Memory and a stream on a CUDA device, by CuPy, for libraries that bring none of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gain_core._optional import require
from gain_core.errors import BackendUnavailableError, EngineError

__all__ = ["CudaMemory", "DeviceArray", "cuda_failures"]

Floats = npt.NDArray[np.float32]
# A CuPy array, with what the array API's standard does not have: its address, copies to the host.
DeviceArray: TypeAlias = Any

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
    """Memory of the current CUDA device, and a stream of its own.

    Raises
    ------
    BackendUnavailableError
        If CuPy is not installed or finds no usable device.
    """

    def __init__(self) -> None:
        self._cupy: Any = require("cupy", extra="cuda12")
        cuda = self._cupy.cuda
        try:
            self._device = cuda.Device()
            self.stream: Any = cuda.Stream(non_blocking=True)
        except cuda.runtime.CUDARuntimeError as err:
            raise BackendUnavailableError(
                f"cupy: no usable NVIDIA driver or GPU here ({err}); install or update the driver, "
                "or use the device cpu"
            ) from err

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The device and the stream are the current ones.

        Raises
        ------
        EngineError
            If CUDA reports a failure, which may be an earlier one.
        """
        with cuda_failures(self._cupy, f"cuda:{self._device.id}"), self._device, self.stream:
            yield

    def empty(self, shape: tuple[int, ...], /) -> DeviceArray:
        """A C-contiguous float32 array of any values, aligned as TensorRT wants it.

        Raises
        ------
        EngineError
            If the device has no room for it.
        """
        with self.in_use():
            return self._cupy.empty(shape, np.float32)

    def address(self, array: DeviceArray, /) -> int:
        """Where it lies on the device."""
        return int(array.data.ptr)

    def upload(self, host: Floats, target: DeviceArray, /) -> None:
        """Queue a copy; returns once `host` may be written again."""
        target.set(host, stream=self.stream)

    def download(self, arrays: Sequence[DeviceArray], /) -> list[Floats]:
        """Fresh NumPy arrays of the values; returns when they have arrived."""
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
        with self.in_use():
            self.stream.synchronize()
