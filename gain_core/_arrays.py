"""Array types, checks of arguments, and operations on rows, for every array library.

The checks stand at the public boundary: they read shapes, dtypes and devices, never values. A frame
is one row of few classes, so a call costs more than its arithmetic: through the array API a sum
takes 7 us, of which NumPy, asked directly, needs 3.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import array_api_compat.numpy
import numpy as np
from array_api_compat import array_namespace, device, is_numpy_namespace, is_torch_namespace

from gain_core.errors import ArrayError, ConfigError


@runtime_checkable
class Array(Protocol):
    """What the core needs of an array: NumPy, CuPy, torch and array_api_strict all fit."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def ndim(self) -> int: ...

    def __getitem__(self, key: Any, /) -> Array: ...
    def __neg__(self) -> Array: ...
    def __add__(self, other: Any, /) -> Array: ...
    def __radd__(self, other: Any, /) -> Array: ...
    def __sub__(self, other: Any, /) -> Array: ...
    def __rsub__(self, other: Any, /) -> Array: ...
    def __mul__(self, other: Any, /) -> Array: ...
    def __rmul__(self, other: Any, /) -> Array: ...
    def __truediv__(self, other: Any, /) -> Array: ...
    def __rtruediv__(self, other: Any, /) -> Array: ...
    def __matmul__(self, other: Any, /) -> Array: ...
    def __pow__(self, other: Any, /) -> Array: ...
    def __lt__(self, other: Any, /) -> Array: ...
    def __le__(self, other: Any, /) -> Array: ...
    def __gt__(self, other: Any, /) -> Array: ...
    def __ge__(self, other: Any, /) -> Array: ...
    def __and__(self, other: Any, /) -> Array: ...
    def __or__(self, other: Any, /) -> Array: ...
    def __invert__(self) -> Array: ...


# A namespace is a module-like object whose functions depend on the library behind it.
Namespace: TypeAlias = Any


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


def logsumexp(values: Array, *, xp: Namespace) -> Array:
    """log sum exp over the last axis, kept as a length-one axis."""
    peak = max_of(values, keepdims=True, xp=xp)
    return peak + xp.log(sum_of(xp.exp(values - peak), keepdims=True, xp=xp))


def log_softmax(values: Array, *, xp: Namespace) -> Array:
    """Logarithm of the softmax over the last axis, by one operation where the library has it."""
    if not is_numpy_namespace(xp) and hasattr(xp, "fused_log_softmax"):
        return xp.fused_log_softmax(values)
    shifted = values - max_of(values, keepdims=True, xp=xp)
    return shifted - xp.log(sum_of(xp.exp(shifted), keepdims=True, xp=xp))


def softmax(values: Array, *, xp: Namespace) -> Array:
    """Softmax over the last axis, by one operation where the library has it."""
    if not is_numpy_namespace(xp) and hasattr(xp, "fused_softmax"):
        return xp.fused_softmax(values)
    weights = xp.exp(values - max_of(values, keepdims=True, xp=xp))
    return weights / sum_of(weights, keepdims=True, xp=xp)


def floored(log_probs: Array, *, floor: Array, xp: Namespace) -> Array:
    """Bound probabilities below by exp(floor) and renormalise."""
    bounded = xp.maximum(log_probs, floor)
    return bounded - logsumexp(bounded, xp=xp)


def namespace(array: Any, /) -> Namespace:
    """`array_namespace`, at once where it is NumPy."""
    if type(array) is np.ndarray:
        return array_api_compat.numpy
    return array_namespace(array)


def sum_of(values: Any, *, xp: Namespace, axis: int = -1, keepdims: bool = False) -> Array:
    """The sum over an axis."""
    call: Any = np.add.reduce if is_numpy_namespace(xp) else xp.sum
    return call(values, axis=axis, keepdims=keepdims)


def max_of(values: Any, *, xp: Namespace, keepdims: bool = False) -> Array:
    """The largest of the last axis."""
    call: Any = np.maximum.reduce if is_numpy_namespace(xp) else xp.max
    return call(values, axis=-1, keepdims=keepdims)


def min_of(values: Any, *, xp: Namespace) -> Array:
    """The smallest of the last axis."""
    call: Any = np.minimum.reduce if is_numpy_namespace(xp) else xp.min
    return call(values, axis=-1)


def all_of(flags: Any, *, xp: Namespace) -> Array:
    """Whether all are set, ()."""
    if is_numpy_namespace(xp):
        return np.logical_and.reduce(flags, axis=None)
    return xp.all(flags)


def any_of(flags: Any, *, xp: Namespace) -> Array:
    """Whether any is set, ()."""
    if is_numpy_namespace(xp):
        return np.logical_or.reduce(flags, axis=None)
    return xp.any(flags)


def choose(flag: Array, first: Array, second: Array, *, xp: Namespace) -> Array:
    """`first` where one flag () is set, else `second`, of the same shape; neither is copied."""
    if is_numpy_namespace(xp):
        return first if flag else second
    return xp.where(flag, first, second)
