"""ONNX Runtime's CPU provider for models that are no artifacts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from gain_runtime.onnx_native import NATIVE_ERRORS

__all__ = ["evaluate", "open_native"]

_LOG_FATAL_ONLY = 4


def open_native(model: str | bytes, /) -> onnxruntime.InferenceSession:
    """A session on a file, or on a model's bytes, that logs nothing."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_FATAL_ONLY
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def evaluate(model: onnx.ModelProto, /) -> npt.NDArray[np.generic] | None:
    """The output of a model without inputs; None where ONNX Runtime cannot give it."""
    try:
        (value,) = open_native(model.SerializeToString()).run(None, {})
    except NATIVE_ERRORS:
        return None
    array: npt.NDArray[np.generic] = np.asarray(value)
    return array
