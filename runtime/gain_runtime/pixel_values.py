"""What sessions take: the type, shape, layout and place of a batch, checked before it is run."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import is_cupy_array

from gain_core.errors import ArrayError
from gain_runtime.manifest import Preprocess

__all__ = ["check_pixel_values"]


def check_pixel_values(
    pixel_values: Any, size: Preprocess, /, *, batch: str = "B", device_id: int | None = None
) -> None:
    """Refuse a batch that a network cannot read.

    Parameters
    ----------
    pixel_values : object
        What was given; expected is a C-contiguous (B, 3, height_px, width_px) float32 array.
    size : Preprocess
        The artifact's input size.
    batch : str, optional
        B as the message shall name it.
    device_id : int, optional
        The CUDA device whose CuPy arrays are taken besides NumPy's; None takes NumPy's only.

    Raises
    ------
    ArrayError
        If the library, device, shape, dtype or layout is another.
    """
    expected = f"({batch}, 3, {size.height_px}, {size.width_px}) float32"
    on_device = device_id is not None and is_cupy_array(pixel_values)
    if not (on_device or isinstance(pixel_values, np.ndarray)):
        place = "NumPy array" if device_id is None else f"NumPy or cuda:{device_id} CuPy array"
        kind = type(pixel_values)
        raise ArrayError(
            f"pixel_values: expected a {place} {expected}, got {kind.__module__}."
            f"{kind.__qualname__}; use preprocess_batch's result"
        )
    shape, dtype = pixel_values.shape, pixel_values.dtype
    if on_device and pixel_values.device.id != device_id:
        raise ArrayError(
            f"pixel_values: expected {expected} on cuda:{device_id}, got {shape} {dtype} on "
            f"cuda:{pixel_values.device.id}; copy it to the session's device"
        )
    if dtype != np.float32 or len(shape) != 4 or shape[1:] != (3, size.height_px, size.width_px):
        raise ArrayError(
            f"pixel_values: expected {expected}, got {shape} {dtype}; "
            "use preprocess_batch with the artifact's own settings"
        )
    if not pixel_values.flags.c_contiguous:
        library = "cupy" if on_device else "numpy"
        raise ArrayError(
            f"pixel_values: expected a C-contiguous array, got strides {pixel_values.strides}; "
            f"use {library}.ascontiguousarray"
        )
