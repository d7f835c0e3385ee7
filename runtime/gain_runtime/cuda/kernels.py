"""The step's kernels: their source, and how CuPy compiles, launches and replays them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from gain_core._optional import require
from gain_runtime.device_buffers import DeviceArray

__all__ = [
    "MAX_THREADS",
    "CupyKernels",
    "Kernels",
    "column_blocks",
    "kernel_source",
    "row_threads",
]

# As in the source, where the shared arrays have room for so many threads.
MAX_THREADS = 512
# One warp; narrower blocks leave lanes idle for nothing.
MIN_THREADS = 32
# Blocks of kernels that take one column per thread: enough of them to fill a device.
COLUMN_THREADS = 128
# In this order: each uses what stands before it.
SOURCES = (
    "block_sums",
    "predict_row",
    "gaussian_kernels",
    "shift_layout",
    "shift_kernels",
    "shift_estimate",
)


class Kernels(Protocol):
    """Something that runs the kernels by name."""

    def launch(
        self, name: str, arguments: Sequence[Any], /, *, blocks: int, threads: int, dtype: Any
    ) -> None:
        """Enqueue one kernel.

        Parameters
        ----------
        name : str
        arguments : sequence
            Contiguous arrays and NumPy scalars, in the kernel's order.
        blocks, threads : int
            Grid and block width; the width is a power of two.
        dtype : dtype
            float32 or float64, what `real` is.
        """
        ...

    def copy(self, source: DeviceArray, target: DeviceArray, /) -> None:
        """Enqueue a copy between contiguous arrays of one size and dtype."""
        ...

    def record(self, enqueue: Callable[[], None], /) -> Callable[[], None]:
        """Note what `enqueue` launches and copies, without running it.

        Parameters
        ----------
        enqueue : callable
            Allocates nothing, and was called before, so that its kernels are loaded.

        Returns
        -------
        callable
            Enqueues the same on the same memory.
        """
        ...


class CupyKernels:
    """The kernels compiled by NVRTC at first use, one module per dtype; CuPy caches them on disk.

    Launches, copies and replays go to CuPy's current stream.

    Raises
    ------
    BackendUnavailableError
        If CuPy is not installed.
    """

    def __init__(self) -> None:
        self._cupy: Any = require("cupy", extra="cuda12")
        self._functions: dict[tuple[str, str], Any] = {}
        self._modules: dict[str, Any] = {}

    def launch(
        self, name: str, arguments: Sequence[Any], /, *, blocks: int, threads: int, dtype: Any
    ) -> None:
        """See `Kernels`."""
        key = (name, dtype.char)
        if key not in self._functions:
            self._functions[key] = self._module(str(dtype)).get_function(name)
        self._functions[key]((blocks,), (threads,), tuple(arguments))

    def copy(self, source: DeviceArray, target: DeviceArray, /) -> None:
        """See `Kernels`."""
        target.data.copy_from_device_async(source.data, target.nbytes)

    def record(self, enqueue: Callable[[], None], /) -> Callable[[], None]:
        """See `Kernels`; the replay is one launch of a CUDA graph."""
        stream = self._cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            try:
                enqueue()
            finally:
                graph = stream.end_capture()
        replay: Callable[[], None] = graph.launch
        return replay

    def _module(self, dtype: str) -> Any:
        """The module for a dtype."""
        if dtype not in self._modules:
            real = "double" if dtype == "float64" else "float"
            self._modules[dtype] = self._cupy.RawModule(
                code=kernel_source(), options=("--std=c++17", f"-DREAL={real}")
            )
        return self._modules[dtype]


@cache
def kernel_source() -> str:
    """The source of all kernels; REAL is left to be defined."""
    here = Path(__file__)
    parts = (here.with_name(f"{name}.cuh").read_text(encoding="utf-8") for name in SOURCES)
    return "\n".join(parts)


def row_threads(num_classes: int, /) -> int:
    """Width of a block that works on one row: a power of two that K keeps busy."""
    threads = MIN_THREADS
    while threads < min(num_classes, MAX_THREADS):
        threads *= 2
    return threads


def column_blocks(columns: int, /) -> dict[str, int]:
    """Grid and width for a kernel that takes one column per thread."""
    return {"blocks": -(-columns // COLUMN_THREADS), "threads": COLUMN_THREADS}
