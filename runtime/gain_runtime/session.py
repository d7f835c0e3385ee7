"""What every loaded network offers, whichever library executes it."""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gain_core._typing import Array
from gain_runtime.artifact import Artifact

__all__ = ["Features", "Session"]


class Features(NamedTuple):
    """One forward pass: `features` (B, D) float32 and `logits` (B, K) float32, one device."""

    features: Array
    logits: Array


class Session(Protocol):
    """A loaded, callable network that owns its resources (a context manager)."""

    @property
    def artifact(self) -> Artifact: ...

    @property
    def provider(self) -> str:
        """The execution provider really in use, as the library names it."""
        ...

    def infer(self, pixel_values: npt.NDArray[np.float32], /) -> Features: ...

    def close(self) -> None: ...

    def __enter__(self) -> Session: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
