"""The frames of a batch preprocessed side by side on the host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from gain_core.errors import ConfigError
from gain_runtime.closing import Closing
from gain_runtime.manifest import Preprocess
from gain_runtime.preprocess import Region, preprocess_batch

__all__ = ["BatchPreprocessor", "usable_cores"]


class BatchPreprocessor(Closing):
    """`preprocess_batch` in a few threads; Pillow and NumPy let go of the interpreter's lock.

    Parameters
    ----------
    spec : Preprocess
        As the artifact's manifest states it.
    threads : int or None, optional
        At most so many, each begun when there is a frame for it; 1 works in the caller's thread,
        None is one for each core that this process may use.
    exact : bool, optional
        As for `preprocess`.

    Raises
    ------
    ConfigError
        If `threads` is below 1.
    """

    def __init__(self, spec: Preprocess, /, *, threads: int | None = 1, exact: bool = True) -> None:
        if threads is None:
            threads = usable_cores()
        if threads < 1:
            raise ConfigError(f"preprocess_threads: expected at least 1, got {threads}")
        self._spec = spec
        self._exact = exact
        self._executor: Executor | None = None
        if threads > 1:
            self._executor = ThreadPoolExecutor(threads, thread_name_prefix="preprocess")

    def __call__(
        self,
        images: Sequence[npt.NDArray[np.uint8]],
        /,
        *,
        regions: Sequence[Region | None] | None = None,
    ) -> npt.NDArray[np.float32]:
        """See `preprocess_batch`, to which it is equal to the last bit.

        Raises
        ------
        ArrayError
            As `preprocess_batch`.
        """
        executor = self._executor if len(images) > 1 else None
        return preprocess_batch(
            images, self._spec, regions=regions, executor=executor, exact=self._exact
        )

    def close(self) -> None:
        """End the threads; what comes after is preprocessed in the caller's."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()


def usable_cores() -> int:
    """Cores that this process may use, or all where the system does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
