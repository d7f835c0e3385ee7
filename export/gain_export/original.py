"""Running the original ONNX model, its head's values exposed beside its own output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

from gain_core.errors import EngineError
from gain_export.head import Head
from gain_export.verify import Expected
from gain_runtime.manifest import Preprocess

__all__ = ["Original"]

Floats = npt.NDArray[np.float32]

_LOG_FATAL_ONLY = 4
_CHUNK = 8
_PROBED_BATCH = 2

_NATIVE_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    *(
        value
        for value in vars(native).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ),
)


class Original:
    """The unchanged model on ONNX Runtime's CPU provider.

    Parameters
    ----------
    model : onnx.ModelProto
        Copied.
    head : Head
        Whose input and result are to be read.
    spec : Preprocess
        The images' size.
    path : Path
        For messages.

    Attributes
    ----------
    fixed_batch : int or None
        The batch size the graph states; None where it is symbolic.
    probed_batch : int
        The number of images in the run that gave the shapes.
    features_shape, logits_shape : tuple of int
        Shapes of the head's input and result.

    Raises
    ------
    EngineError
        If ONNX Runtime cannot load or run it.
    """

    def __init__(
        self, model: onnx.ModelProto, head: Head, spec: Preprocess, /, *, path: Path
    ) -> None:
        self.spec = spec
        self._path = path
        self._input = model.graph.input[0].name
        self._outputs = [head.features, head.logits]
        if head.output is not None and head.output != head.logits:
            self._outputs.append(head.output)
        batch = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value
        self.fixed_batch: int | None = batch if batch > 0 else None
        self._session = self._open(model)
        self.probed_batch = self.fixed_batch or _PROBED_BATCH
        shape = (self.probed_batch, 3, spec.height_px, spec.width_px)
        features, logits, *_ = self._call(np.zeros(shape, dtype=np.float32))
        self.features_shape: tuple[int, ...] = features.shape
        self.logits_shape: tuple[int, ...] = logits.shape

    def run(self, pixel_values: Floats, /) -> Expected:
        """Features, logits and own output for any number of images.

        Parameters
        ----------
        pixel_values : array, (B, 3, H, W) float32

        Returns
        -------
        Expected
        """
        size = self.fixed_batch or _CHUNK
        parts = []
        for start in range(0, len(pixel_values), size):
            batch = pixel_values[start : start + size]
            rows = len(batch)
            if self.fixed_batch is not None and rows < size:
                batch = np.concatenate([batch, np.repeat(batch[:1], size - rows, axis=0)])
            parts.append([values[:rows].reshape(rows, -1) for values in self._call(batch)])
        joined = [np.concatenate(values) for values in zip(*parts, strict=True)]
        return Expected(
            features=joined[0], logits=joined[1], output=joined[2] if len(joined) > 2 else None
        )

    def _open(self, model: onnx.ModelProto) -> onnxruntime.InferenceSession:
        """A session on a copy that also outputs the head's values."""
        exposed = onnx.ModelProto()
        exposed.CopyFrom(model)
        declared = {value.name for value in exposed.graph.output}
        for name in self._outputs:
            if name not in declared:
                exposed.graph.output.append(onnx.ValueInfoProto(name=name))
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _LOG_FATAL_ONLY
        try:
            return onnxruntime.InferenceSession(
                exposed.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except _NATIVE_ERRORS as err:
            raise self._failed("load", err) from err

    def _call(self, pixel_values: Floats) -> list[Floats]:
        try:
            values: list[Floats] = self._session.run(self._outputs, {self._input: pixel_values})
        except _NATIVE_ERRORS as err:
            raise self._failed("run", err) from err
        return values

    def _failed(self, verb: str, err: Exception) -> EngineError:
        return EngineError(
            f"{self._path}: ONNX Runtime {onnxruntime.__version__} cannot {verb} it as it is "
            f"({' '.join(str(err).split())}); check the file and --img-size"
        )
