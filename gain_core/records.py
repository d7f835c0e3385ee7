"""Dataclasses of arrays: copied, counted, checked, and turned into named arrays and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from array_api_compat import array_namespace

from gain_core._arrays import Array, describe
from gain_core.errors import ArrayError

R = TypeVar("R")


def arrays_of(record: Any, /) -> dict[str, Array]:
    """The arrays of a record by field name.

    Parameters
    ----------
    record : dataclass
        Every field is an array.

    Returns
    -------
    dict of str to array
        The arrays themselves, not copies.
    """
    return {item.name: getattr(record, item.name) for item in fields(record)}


def record_from_arrays(fresh: R, arrays: Mapping[str, Array], /) -> R:
    """Rebuild a record from what `arrays_of` gave.

    Parameters
    ----------
    fresh : dataclass
        A record of the same class, shapes and dtypes; read only.
    arrays : mapping of str to array
        Exactly the names, shapes and dtypes of `fresh`; not copied.

    Returns
    -------
    dataclass
        Of the class of `fresh`.

    Raises
    ------
    ArrayError
        If an array is missing, unknown, or of another shape or dtype.
    """
    expected = arrays_of(fresh)
    if set(arrays) != set(expected):
        missing, unknown = set(expected) - set(arrays), set(arrays) - set(expected)
        raise ArrayError(
            f"state: expected the arrays {', '.join(sorted(expected))}; "
            f"missing {', '.join(sorted(missing)) or 'none'}, "
            f"unknown {', '.join(sorted(unknown)) or 'none'}; start from a fresh state"
        )
    for name, like in expected.items():
        array = arrays[name]
        if tuple(array.shape) != tuple(like.shape) or array.dtype != like.dtype:
            raise ArrayError(
                f"state.{name}: expected {describe(like)}, got {describe(array)}; "
                "it was saved for another network or config"
            )
    return type(fresh)(**arrays)


def refuse_foreign(fresh: Any, record: Any, /, *, name: str = "state") -> None:
    """Refuse a record whose class, shapes or dtypes differ from those of `fresh`.

    Parameters
    ----------
    fresh, record : dataclass
        Every field is an array.
    name : str
        What the message calls `record`.

    Raises
    ------
    ArrayError
        If the class differs, or an array has another shape or dtype.
    """
    if type(record) is not type(fresh):
        raise ArrayError(
            f"{name}: expected a {type(fresh).__name__}, got {type(record).__name__}; "
            "it was made by another method"
        )
    for field, like in arrays_of(fresh).items():
        array = getattr(record, field)
        if tuple(array.shape) != tuple(like.shape) or array.dtype != like.dtype:
            raise ArrayError(
                f"{name}.{field}: expected {describe(like)}, got {describe(array)}; "
                "it was made for another network or config"
            )


def copy_record(record: R, /) -> R:
    """Copy a record and its arrays.

    Parameters
    ----------
    record : dataclass
        Every field is an array.

    Returns
    -------
    dataclass
        Of the same class; it shares no memory with `record`.
    """
    arrays = arrays_of(record)
    xp = array_namespace(*arrays.values())
    return type(record)(**{key: xp.asarray(value, copy=True) for key, value in arrays.items()})


def nbytes(record: Any, /) -> int:
    """Size of all arrays of a record.

    Parameters
    ----------
    record : dataclass
        Every field is an array.

    Returns
    -------
    int
        Bytes.
    """
    return sum(_bytes_of(array) for array in arrays_of(record).values())


def _bytes_of(array: Array) -> int:
    """Bytes of one array; the standard has no attribute for it."""
    size = 1
    for length in array.shape:
        size *= length
    xp = array_namespace(array)
    bits = 8 if array.dtype == xp.bool else xp.finfo(array.dtype).bits
    return size * int(bits) // 8
