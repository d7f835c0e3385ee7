"""What an adaptive session takes: checked before anything is bound or run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from array_api_compat import is_cupy_array

from gain_core.errors import ArrayError
from gain_runtime.adaptive_artifact import AdaptiveArtifact

__all__ = ["check_inputs"]


def check_inputs(
    inputs: Sequence[Any],
    artifact: AdaptiveArtifact,
    /,
    *,
    fixed_batch: int | None = None,
    device_id: int | None = None,
) -> int:
    """Refuse a batch that the graph cannot read.

    Parameters
    ----------
    inputs : sequence of objects
        What was given; expected is one C-contiguous float32 array for each of the artifact's
        inputs, all of one batch size.
    artifact : AdaptiveArtifact
    fixed_batch : int, optional
        The only batch size the network takes.
    device_id : int, optional
        The CUDA device whose CuPy arrays are taken besides NumPy's; None takes NumPy's only.

    Returns
    -------
    int
        The batch size.

    Raises
    ------
    ArrayError
        If the number of arrays, or an array's library, device, shape, dtype or layout is another.
    """
    names = artifact.input_names
    if len(inputs) != len(names):
        raise ArrayError(
            f"{artifact.path}: expected {len(names)} arrays ({', '.join(names)}), got {len(inputs)}"
        )
    batch_size = fixed_batch
    for name, array, shape in zip(names, inputs, artifact.input_shapes, strict=True):
        batch_size = _check(name, array, (batch_size, *shape), device_id=device_id)
    assert batch_size is not None
    return batch_size


def _check(
    name: str, array: Any, shape: tuple[int | None, ...], /, *, device_id: int | None
) -> int:
    """One array; None in `shape` is any batch size. Returns its own."""
    sizes = ", ".join("B" if size is None else str(size) for size in shape)
    place = "NumPy" if device_id is None else f"NumPy or cuda:{device_id} CuPy"
    expected = f"a C-contiguous {place} array ({sizes}) float32"
    on_device = device_id is not None and is_cupy_array(array)
    if not (on_device or isinstance(array, np.ndarray)):
        raise ArrayError(f"{name}: expected {expected}, got {type(array).__name__}")
    if on_device and array.device.id != device_id:
        raise ArrayError(
            f"{name}: expected {expected}, got one on cuda:{array.device.id}; copy it to the "
            "session's device"
        )
    fits = array.ndim == len(shape) and all(
        size in (None, actual) for size, actual in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype != np.float32:
        raise ArrayError(
            f"{name}: expected {expected}, got {array.shape} {array.dtype}; "
            "prepare it as the artifact says"
        )
    if not array.flags.c_contiguous:
        library = "cupy" if on_device else "numpy"
        raise ArrayError(
            f"{name}: expected {expected}, got strides {array.strides}; "
            f"use {library}.ascontiguousarray"
        )
    return int(array.shape[0])
