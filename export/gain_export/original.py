"""Running ONNX models as they are, and reading values inside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from gain_core.errors import EngineError
from gain_export.native import open_native
from gain_runtime.onnx_native import NATIVE_ERRORS

__all__ = ["Original", "Values", "run_values"]

Floats = npt.NDArray[np.float32]
Values = dict[str, npt.NDArray[np.generic]]
Feed = Callable[[Floats], npt.NDArray[np.generic]]

_CHUNK = 8


class Original:
    """The unchanged file on ONNX Runtime's CPU provider.

    Parameters
    ----------
    path : Path
    feed : callable
        From `pixel_values` (B, 3, H, W) float32 to what the network takes.
    batch : int or None
        The batch size that the graph states.

    Attributes
    ----------
    fixed_batch : int or None
        The only batch size it takes, as stated or as found by trying.

    Raises
    ------
    EngineError
        If ONNX Runtime cannot load it.
    """

    def __init__(self, path: Path, feed: Feed, /, *, batch: int | None) -> None:
        self._path = path
        self._feed = feed
        self.fixed_batch = batch
        try:
            self._session = open_native(str(path))
        except NATIVE_ERRORS as err:
            raise self._failed("load", err) from err
        self._input = self._session.get_inputs()[0].name
        # Lists of dicts, as scikit-learn's converters have them, are no arrays.
        self._outputs = [
            value.name for value in self._session.get_outputs() if value.type.startswith("tensor(")
        ]

    def run(self, pixel_values: Floats, /) -> Values:
        """Its own outputs for any number of images; those without a row per image are left out.

        Parameters
        ----------
        pixel_values : array, (B, 3, H, W) float32

        Returns
        -------
        dict of str to array
            In the graph's order.

        Raises
        ------
        EngineError
            If it cannot be run.
        """
        if self.fixed_batch is None and not self._takes_several(pixel_values):
            self.fixed_batch = 1
        size = self.fixed_batch or _CHUNK
        parts: list[list[npt.NDArray[np.generic]]] = []
        for start in range(0, len(pixel_values), size):
            batch = pixel_values[start : start + size]
            rows = len(batch)
            if self.fixed_batch is not None and rows < size:
                batch = np.concatenate([batch, np.repeat(batch[:1], size - rows, axis=0)])
            try:
                values = self._call(batch)
            except NATIVE_ERRORS as err:
                raise self._failed("run", err) from err
            parts.append([v[:rows] if v.shape[:1] == (len(batch),) else v[:0] for v in values])
        joined = {
            name: np.concatenate(found)
            for name, *found in zip(self._outputs, *parts, strict=True)
            if all(found[0].shape[1:] == other.shape[1:] for other in found)
        }
        return {name: v for name, v in joined.items() if len(v) == len(pixel_values)}

    def _takes_several(self, pixel_values: Floats) -> bool:
        """Whether a graph that leaves its batch axis open works with two images."""
        two = np.concatenate([pixel_values[:1], pixel_values[:1]])
        try:
            return any(value.shape[:1] == (2,) for value in self._call(two))
        except NATIVE_ERRORS:
            return False

    def _call(self, pixel_values: Floats) -> list[npt.NDArray[np.generic]]:
        found = self._session.run(self._outputs, {self._input: self._feed(pixel_values)})
        return [np.asarray(value) for value in found]

    def _failed(self, verb: str, err: Exception) -> EngineError:
        return EngineError(
            f"{self._path}: ONNX Runtime {onnxruntime.__version__} cannot {verb} it as it is "
            f"({' '.join(str(err).split())}); check the file and --img-size"
        )


def run_values(
    model: onnx.ModelProto, names: Sequence[str], pixel_values: npt.NDArray[np.generic], /
) -> Values:
    """Run a model once and read values inside it.

    Parameters
    ----------
    model : onnx.ModelProto
        Copied.
    names : sequence of str
        Values of the graph. One that ONNX Runtime cannot hand out (bfloat16) is left out.
    pixel_values : array
        For its only input.

    Returns
    -------
    dict of str to array

    Raises
    ------
    EngineError
        If ONNX Runtime cannot load or run it.
    """
    if not names:
        return {}
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    declared = {value.name for value in exposed.graph.output}
    for name in names:
        if name not in declared:
            exposed.graph.output.append(onnx.ValueInfoProto(name=name))
    try:
        session = open_native(exposed.SerializeToString())
        wanted = [
            value.name
            for value in session.get_outputs()
            if value.name in set(names) and "bfloat16" not in value.type
        ]
        found = session.run(wanted, {session.get_inputs()[0].name: pixel_values})
    except NATIVE_ERRORS as err:
        reason = " ".join(str(err).split())
        raise EngineError(f"ONNX Runtime cannot run the prepared graph ({reason[:300]})") from err
    return {name: np.asarray(value) for name, value in zip(wanted, found, strict=True)}
