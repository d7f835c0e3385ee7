"""Resize weights on the device, made once for each pair of lengths while there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gain_runtime.cuda.resample_weights import axis_weights
from gain_runtime.device_buffers import DeviceArray
from gain_runtime.manifest import Interpolation

__all__ = ["DeviceWeights", "WeightCache"]

# A video needs two entries; regions of every size fill it with some thousand.
_MAX_BYTES = 2**25


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWeights:
    """The input pixels one axis needs, and the weights as the kernels read them.

    Attributes
    ----------
    first, length : int
        See `AxisWeights`.
    table : array, int32, on the device
        Starts, counts and weights, one after another.
    """

    first: int
    length: int
    table: DeviceArray


class WeightCache:
    """Weights by the lengths of an axis; those not used for longest go first.

    Parameters
    ----------
    interpolation : str
    keep : callable
        Copies an array to the device.
    max_bytes : int, optional
        Room for tables on the device; the last one stays whatever its size.
    """

    def __init__(
        self,
        interpolation: Interpolation,
        keep: Callable[[npt.NDArray[np.int32]], DeviceArray],
        /,
        *,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        self._interpolation, self._keep, self._max_bytes = interpolation, keep, max_bytes
        self._entries: OrderedDict[tuple[int, int, int, int], DeviceWeights] = OrderedDict()
        self._num_bytes = 0

    def find(self, in_px: int, out_px: int, /, *, first: int, kept: int) -> DeviceWeights:
        """The weights of output pixels `first` to ``first + kept - 1``, see `axis_weights`."""
        key = (in_px, out_px, first, kept)
        if key not in self._entries:
            self._add(key)
        self._entries.move_to_end(key)
        return self._entries[key]

    def _add(self, key: tuple[int, int, int, int]) -> None:
        """Make an entry, and room."""
        in_px, out_px, first, kept = key
        made = axis_weights(in_px, out_px, self._interpolation, first=first, kept=kept)
        table = np.concatenate([made.starts, made.counts, made.weights.ravel()])
        self._num_bytes += table.nbytes
        self._entries[key] = DeviceWeights(
            first=made.first, length=made.length, table=self._keep(table)
        )
        while self._num_bytes > self._max_bytes and len(self._entries) > 1:
            _, dropped = self._entries.popitem(last=False)
            self._num_bytes -= int(dropped.table.nbytes)
