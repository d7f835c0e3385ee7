"""The arrays that a session keeps on a device: its input, and a ring of its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gain_core.errors import ConfigError

__all__ = ["DeviceArray", "DeviceMemory", "InputBuffer", "OutputRing"]

# A CuPy array, with what the array API's standard does not have: its address, copies to the host.
DeviceArray: TypeAlias = Any

Floats = npt.NDArray[np.float32]

# TensorRT takes no address that is not a multiple of this; CuPy's own allocations are.
ALIGNMENT_BYTES = 256


class DeviceMemory(Protocol):
    """Memory of one device, and the stream on which its owner's work is queued."""

    @property
    def device_type(self) -> str:
        """As ONNX Runtime names it."""
        ...

    @property
    def device_id(self) -> int: ...

    @property
    def stream(self) -> Any: ...

    def ordered(self) -> AbstractContextManager[None]:
        """Queue on the stream, after what the caller has queued and before what it will queue."""
        ...

    def empty(self, shape: tuple[int, ...], /) -> DeviceArray:
        """A C-contiguous float32 array of any values."""
        ...

    def holds(self, array: DeviceArray, /) -> bool:
        """Whether the array lies on this device."""
        ...

    def address(self, array: DeviceArray, /) -> int: ...

    def upload(self, host: Floats, target: DeviceArray, /) -> None: ...

    def download(self, arrays: Sequence[DeviceArray], /) -> list[Floats]:
        """Fresh NumPy arrays of the values; returns when they have arrived."""
        ...

    def synchronize(self) -> None: ...


class InputBuffer:
    """What a network reads a batch from: the caller's array where it lies, else a copy.

    Parameters
    ----------
    memory : DeviceMemory
    row_shape : tuple of int
        Of one image.
    rows : int, optional
        Images to make room for at the first copy; more are made room for when they come.
    """

    def __init__(
        self, memory: DeviceMemory, row_shape: tuple[int, ...], /, *, rows: int = 1
    ) -> None:
        self._memory = memory
        self._row_shape = row_shape
        self._rows = rows
        self._buffer: DeviceArray = None

    def hold(self, pixel_values: Floats | DeviceArray, /) -> DeviceArray:
        """The batch on the device, within `DeviceMemory.ordered`.

        Parameters
        ----------
        pixel_values : array, (B, *row_shape) float32
            C-contiguous, on the host or the device.

        Returns
        -------
        array
            `pixel_values` itself if it lies on the device at an aligned address; otherwise a
            copy that is overwritten by the next one.
        """
        on_device = self._memory.holds(pixel_values)
        if on_device and self._memory.address(pixel_values) % ALIGNMENT_BYTES == 0:
            return pixel_values
        count = len(pixel_values)
        if self._buffer is None or count > self._rows:
            self._rows = max(self._rows, count)
            self._buffer = self._memory.empty((self._rows, *self._row_shape))
        target = self._buffer[:count]
        if on_device:
            target[...] = pixel_values
        else:
            self._memory.upload(pixel_values, target)
        return target


class OutputRing:
    """Sets of output arrays that are handed out in turn, each again `length` turns later.

    Parameters
    ----------
    memory : DeviceMemory
    widths : sequence of int
        Of the arrays of one set.
    length : int
        Sets in the ring.
    rows : int, optional
        Rows to make room for; a larger batch gets new arrays, and so do those after it.

    Raises
    ------
    ConfigError
        If `length` is below 1.
    """

    def __init__(
        self, memory: DeviceMemory, widths: Sequence[int], /, *, length: int, rows: int = 1
    ) -> None:
        if length < 1:
            raise ConfigError(f"ring: expected at least 1 set of outputs, got {length}")
        self._memory = memory
        self._widths = tuple(widths)
        self._rows = rows
        self._sets: list[tuple[DeviceArray, ...] | None] = [None] * length
        self._turn = 0

    def next(self, count: int, /) -> tuple[DeviceArray, ...]:
        """The arrays of the next set, within `DeviceMemory.ordered`.

        Parameters
        ----------
        count : int
            Rows of the batch; 0 takes no turn, there is nothing to overwrite.

        Returns
        -------
        tuple of array, (count, width) float32
            C-contiguous, of any values.
        """
        if count == 0:
            return tuple(self._memory.empty((0, width)) for width in self._widths)
        slot = self._turn
        self._turn = (slot + 1) % len(self._sets)
        self._rows = max(self._rows, count)
        arrays = self._sets[slot]
        if arrays is None or len(arrays[0]) < count:
            arrays = tuple(self._memory.empty((self._rows, width)) for width in self._widths)
            self._sets[slot] = arrays
        return tuple(array[:count] for array in arrays)
