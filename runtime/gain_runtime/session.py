"""What every loaded network offers, whichever library executes it, and what it checks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gain_core.errors import ArrayError, EngineError
from gain_runtime.artifact import Artifact
from gain_runtime.manifest import Manifest, Preprocess

__all__ = ["Features", "Session", "as_features", "check_input", "check_outputs", "no_features"]
__all__ += ["pixel_shape"]

Floats = npt.NDArray[np.float32]


class Features(NamedTuple):
    """One forward pass: `features` (B, D) float32 and `logits` (B, K) float32, fresh arrays.

    `features` is None where the artifact has logits only.
    """

    features: Floats | None
    logits: Floats


class Session(Protocol):
    """A loaded, callable network that owns its resources (a context manager)."""

    @property
    def artifact(self) -> Artifact: ...

    @property
    def provider(self) -> str:
        """The execution provider really in use, as the library names it."""
        ...

    def infer(self, pixel_values: Floats, /) -> Features:
        """Run one batch, (B, 3, height_px, width_px) float32, C-contiguous."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Session: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def pixel_shape(size: Preprocess, /) -> tuple[None, int, int, int]:
    """The shape of `pixel_values`, None being any number of images."""
    return (None, 3, size.height_px, size.width_px)


def check_input(name: str, array: Any, shape: tuple[int | None, ...], /) -> int:
    """Refuse an array that a network cannot read.

    Parameters
    ----------
    name : str
        Of the network's input.
    array : object
        What was given; expected is a C-contiguous float32 array of NumPy's.
    shape : tuple of int or None
        None is any size; the first is the batch.

    Returns
    -------
    int
        The batch size.

    Raises
    ------
    ArrayError
        If the library, shape, dtype or layout is another.
    """
    sizes = ", ".join("B" if size is None else str(size) for size in shape)
    expected = f"a C-contiguous NumPy array ({sizes}) float32"
    if not isinstance(array, np.ndarray):
        kind = type(array)
        raise ArrayError(
            f"{name}: expected {expected}, got {kind.__module__}.{kind.__qualname__}; "
            "use preprocess_batch's result, or copy it to the host"
        )
    fits = array.ndim == len(shape) and all(
        size in (None, actual) for size, actual in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype != np.float32:
        raise ArrayError(
            f"{name}: expected {expected}, got {array.shape} {array.dtype}; "
            "use preprocess_batch with the artifact's own settings"
        )
    if not array.flags.c_contiguous:
        raise ArrayError(
            f"{name}: expected {expected}, got strides {array.strides}; use numpy.ascontiguousarray"
        )
    return len(array)


def check_outputs(
    path: Path, outputs: Sequence[Floats], manifest: Manifest, /, *, batch_size: int
) -> None:
    """A network computes what its manifest promises, even where its shapes are symbolic.

    Raises
    ------
    EngineError
        If an output has another shape or dtype.
    """
    for (name, width), output in zip(manifest.outputs, outputs, strict=True):
        if output.shape != (batch_size, width) or output.dtype != np.float32:
            raise EngineError(
                f"{path}: {name}: expected {(batch_size, width)} float32, "
                f"got {output.shape} {output.dtype}; export the model again"
            )


def as_features(outputs: Sequence[Floats], /) -> Features:
    """The outputs of a network in the order of `Manifest.outputs`."""
    return Features(outputs[0] if len(outputs) > 1 else None, outputs[-1])


def no_features(manifest: Manifest, /) -> Features:
    """What a network says of no image."""
    return as_features([np.empty((0, width), dtype=np.float32) for _, width in manifest.outputs])
