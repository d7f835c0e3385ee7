"""What every loaded network offers, whichever library executes it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gain_core._typing import Array
from gain_runtime.artifact import Artifact
from gain_runtime.device_buffers import DeviceArray

__all__ = ["Features", "Session", "as_features"]


class Features(NamedTuple):
    """One forward pass: `features` (B, D) float32 and `logits` (B, K) float32, one device.

    `features` is None where the artifact has logits only.
    Where a session keeps its outputs on the device they are arrays of a ring, and are overwritten
    `ring` calls later.
    """

    features: Array | None
    logits: Array


def as_features(outputs: Sequence[Array], /) -> Features:
    """The outputs of a network in the order of `Manifest.outputs`."""
    return Features(outputs[0] if len(outputs) > 1 else None, outputs[-1])


class Session(Protocol):
    """A loaded, callable network that owns its resources (a context manager)."""

    @property
    def artifact(self) -> Artifact: ...

    @property
    def provider(self) -> str:
        """The execution provider really in use, as the library names it."""
        ...

    @property
    def stream(self) -> Any | None:
        """The CuPy stream that `infer` returns device arrays on; None where it returns NumPy's.

        The network runs on it after what the caller's current stream has queued, and what the
        caller queues there afterwards runs after the network: nothing need be waited for. Under
        `with session.stream:` both are one.
        """
        ...

    def infer(self, pixel_values: npt.NDArray[np.float32] | DeviceArray, /) -> Features:
        """Run one batch, (B, 3, height_px, width_px) float32, C-contiguous.

        A session on a CUDA device takes a CuPy array on that device, too.
        """
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Session: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
