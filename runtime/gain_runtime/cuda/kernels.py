"""The step's kernels: their source, and how CuPy compiles and launches them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from gain_core._optional import require

__all__ = ["MAX_THREADS", "CupyKernels", "Kernels", "kernel_source"]

# As in the source, where the shared arrays have this length.
MAX_THREADS = 512
# One warp; narrower blocks leave lanes idle for nothing.
MIN_THREADS = 32


class Kernels(Protocol):
    """Something that runs a kernel of `step_kernels.cuh` by name."""

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
            Grid and block width; where a block takes a row, a power of two.
        dtype : dtype
            float32 or float64, what `real` is.
        """
        ...


class CupyKernels:
    """The kernels compiled by NVRTC at first use, one module per dtype; CuPy caches them on disk.

    Launches go to CuPy's current stream.

    Raises
    ------
    BackendUnavailableError
        If CuPy is not installed.
    """

    def __init__(self) -> None:
        self._cupy: Any = require("cupy", extra="cuda12")
        self._modules: dict[str, Any] = {}

    def launch(
        self, name: str, arguments: Sequence[Any], /, *, blocks: int, threads: int, dtype: Any
    ) -> None:
        """See `Kernels`."""
        function = self._module(str(dtype)).get_function(name)
        function((blocks,), (threads,), tuple(arguments))

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
    return Path(__file__).with_name("step_kernels.cuh").read_text(encoding="utf-8")


def row_threads(num_classes: int, /) -> int:
    """Width of a block that works on one row: a power of two that K keeps busy."""
    threads = MIN_THREADS
    while threads < min(num_classes, MAX_THREADS):
        threads *= 2
    return threads
