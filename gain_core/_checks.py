"""Checks at the public boundary: they read shapes, dtypes and devices, never values."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_numpy_namespace, is_torch_namespace

from gain_core._rows import namespace
from gain_core._typing import Array, Namespace
from gain_core.errors import ArrayError, ConfigError


def namespace_of(name: str, array: Any, /) -> Namespace:
    """The array library behind an argument."""
    try:
        return namespace(array)
    except TypeError as err:
        raise ArrayError(
            f"{name}: expected an array of NumPy, CuPy, torch or another array-API library, "
            f"got {type(array).__name__}"
        ) from err


def describe(array: Array, /) -> str:
    """`(4, 384) float32 on cpu`, as messages quote it."""
    dtype = str(array.dtype).removeprefix("torch.").removeprefix("array_api_strict.")
    return f"{tuple(array.shape)} {dtype} on {device(array)}"


def is_real_floating(array: Array, *, xp: Namespace) -> bool:
    """Whether the dtype is a real floating one, half precision and bfloat16 included."""
    if is_numpy_namespace(xp):
        return bool(array.dtype.kind == "f")
    if hasattr(xp, "bfloat16") and array.dtype == xp.bfloat16:
        return True
    # The standard has no float16, the libraries do.
    if str(array.dtype).endswith("float16"):
        return True
    return bool(xp.isdtype(array.dtype, "real floating"))


def statistics_dtype(array: Array, *, xp: Namespace) -> Any:
    """float32 for anything narrower, else the array's own dtype (style: float32 statistics)."""
    return array.dtype if array.dtype == xp.float64 else xp.float32


def matrix_like(
    name: str, array: Any, *, num_columns: int, like: Array, num_rows: int | None = None
) -> Array:
    """Check a (B, num_columns) floating array against a reference and cast it to its dtype."""
    xp = namespace_of(name, array)
    if xp is not namespace(like):
        raise ArrayError(
            f"{name}: expected an array of {array_namespace(like).__name__}, as the state is, "
            f"got one of {xp.__name__}; convert it by DLPack"
        )
    fits = array.ndim == 2 and array.shape[1] == num_columns
    if not fits or (num_rows is not None and array.shape[0] != num_rows):
        rows = "B" if num_rows is None else num_rows
        raise ArrayError(
            f"{name}: expected ({rows}, {num_columns}) on {device(like)}, got {describe(array)}; "
            "use the session's output or re-export"
        )
    if not is_real_floating(array, xp=xp):
        raise ArrayError(f"{name}: expected a floating dtype, got {describe(array)}")
    if device(array) != device(like):
        raise ArrayError(
            f"{name}: expected it on {device(like)}, got {describe(array)}; move it to the "
            "state's device"
        )
    return array if array.dtype == like.dtype else xp.astype(array, like.dtype)


def refuse_below_one(name: str, frames: int, /) -> None:
    """Nothing can be learned every 0 frames."""
    if frames < 1:
        raise ConfigError(f"{name}: expected at least 1 frame, got {frames}")


def refuse_below_two(name: str, number: int, /) -> None:
    """One class leaves nothing to tell."""
    if number < 2:
        raise ConfigError(f"{name}: expected at least 2 classes, got {number}")


def float_like(head_or_num_classes: Any, like: Array | None, /) -> tuple[int, Array]:
    """K, and an array whose library, device and precision the state is to have."""
    if isinstance(head_or_num_classes, int):
        like = np.zeros((), dtype=np.float32) if like is None else like
        return head_or_num_classes, like
    head = head_or_num_classes
    xp = namespace_of("head", head)
    fits = head.ndim == 2 and head.shape[0] >= 2 and head.shape[1] >= 1
    if not fits or not is_real_floating(head, xp=xp):
        raise ArrayError(
            "head: expected (K, D) floating with K >= 2 and D >= 1, "
            f"got {describe(head)}; pass the head's weight, or the number of classes"
        )
    return head.shape[0], xp.astype(detached(head, xp=xp), statistics_dtype(head, xp=xp))


def detached(array: Array, *, xp: Namespace) -> Array:
    """Cut a torch tensor from autograd: statistics must not keep a graph alive."""
    if is_torch_namespace(xp):
        return array.detach()  # type: ignore[attr-defined]
    return array


def scalar(value: float, *, like: Array, xp: Namespace) -> Array:
    """A zero-dimensional array beside `like`."""
    return xp.asarray(value, dtype=like.dtype, device=device(like))


__all__ = [
    "describe",
    "detached",
    "float_like",
    "is_real_floating",
    "matrix_like",
    "namespace_of",
    "refuse_below_one",
    "refuse_below_two",
    "scalar",
    "statistics_dtype",
]
