"""The preprocessing kernels and the memory they work on: what CuPy gives, behind a protocol."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from gain_core._optional import require
from gain_runtime.cuda.frame_uploads import FrameUploads
from gain_runtime.cuda.resample_weights import FRACTION_BITS
from gain_runtime.device_buffers import DeviceArray

__all__ = [
    "KERNELS",
    "CupyPreprocessKernels",
    "PreprocessKernels",
    "Uploads",
    "preprocess_source",
]

KERNELS = ("resample_places", "resample_lines")


class Uploads(Protocol):
    """Memory on the device that the host writes, batch after batch.

    A batch is `begin`, then any number of `keep`, at most one `reserve` with its `upload`, then
    `publish`, the launches that read it, and `finish`.
    """

    def begin(self) -> None:
        """Order this batch behind the one before it."""
        ...

    def keep(self, array: npt.NDArray[Any], /) -> DeviceArray:
        """A copy of an array, for as long as it is referred to."""
        ...

    def reserve(self, num_bytes: int, /) -> DeviceArray:
        """Memory for uploads until `finish`, (at least `num_bytes`,) uint8."""
        ...

    def upload(self, reserved: DeviceArray, offset: int, source: npt.NDArray[Any], /) -> None:
        """Copy an array of any layout, in C order, behind `offset` reserved bytes.

        The source may change as soon as this returns.
        """
        ...

    def publish(self) -> None:
        """Let kernels launched from now on see what was uploaded and kept."""
        ...

    def finish(self) -> None:
        """All kernels of this batch are launched: what was reserved may be written again."""
        ...


class PreprocessKernels(Protocol):
    """Something that runs the kernels of `preprocess_kernels.cuh` by name.

    Attributes
    ----------
    array_type : type
        The type of its arrays.
    uploads : Uploads
    """

    @property
    def array_type(self) -> type[Any]:
        """See above."""
        ...

    @property
    def uploads(self) -> Uploads:
        """See above."""
        ...

    def address(self, array: DeviceArray, /) -> int:
        """Where a contiguous array begins."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any, /) -> DeviceArray:
        """Memory for the current stream."""
        ...

    def launch(self, name: str, arguments: Sequence[Any], /, *, blocks: int, threads: int) -> None:
        """Enqueue one kernel; arguments are contiguous arrays and NumPy scalars, in its order."""
        ...


class CupyPreprocessKernels:
    """The kernels compiled by NVRTC at first use; launches go to CuPy's current stream.

    Raises
    ------
    BackendUnavailableError
        If CuPy is not installed.
    """

    def __init__(self) -> None:
        self._cupy: Any = require("cupy", extra="cuda12")
        self._functions: dict[str, Any] = {}
        self.array_type: type[Any] = self._cupy.ndarray
        self.uploads: Uploads = FrameUploads(self._cupy)

    def address(self, array: DeviceArray, /) -> int:
        """See `PreprocessKernels`."""
        pointer: int = array.data.ptr
        return pointer

    def empty(self, shape: tuple[int, ...], dtype: Any, /) -> DeviceArray:
        """See `PreprocessKernels`."""
        return self._cupy.empty(shape, dtype=dtype)

    def launch(self, name: str, arguments: Sequence[Any], /, *, blocks: int, threads: int) -> None:
        """See `PreprocessKernels`."""
        if not self._functions:
            module = self._cupy.RawModule(code=preprocess_source(), options=("--std=c++17",))
            self._functions = {kernel: module.get_function(kernel) for kernel in KERNELS}
        self._functions[name]((blocks,), (threads,), tuple(arguments))


@cache
def preprocess_source() -> str:
    """The kernels' source, complete."""
    path = Path(__file__).with_name("preprocess_kernels.cuh")
    return f"#define FRACTION_BITS {FRACTION_BITS}\n{path.read_text(encoding='utf-8')}"
