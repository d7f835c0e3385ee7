"""Calibration: how large a network's inner values grow on images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from gain_core.errors import ConfigError, EngineError
from gain_runtime.onnx_native import CPU_PROVIDER, NATIVE_ERRORS, create_native, one_line

__all__ = ["METHODS", "PERCENTILE", "CalibrationMethod", "measure_ranges"]

CalibrationMethod = Literal["percentile", "minmax"]
METHODS: tuple[CalibrationMethod, ...] = get_args(CalibrationMethod)

PERCENTILE = 99.99
# Bins of |x| between zero and its largest value: a sixteenth of an int8 step each.
_NUM_BINS = 2048

Floats = npt.NDArray[np.float32]


def measure_ranges(
    model: onnx.ModelProto,
    names: Sequence[str],
    pixel_values: Floats,
    /,
    *,
    method: CalibrationMethod,
    folder: Path,
) -> dict[str, float]:
    """The magnitude that 127 is to stand for, for each named value.

    Parameters
    ----------
    model : onnx.ModelProto
        The float32 network; not changed.
    names : sequence of str
        Float32 values of the graph, its input included.
    pixel_values : array, (N, 3, H, W) float32
        Run one by one, twice for `percentile`.
    method : str
        `minmax`: the largest |x| seen. `percentile`: the |x| that 99.99 % of the values stay
        below, so that a single outlier does not take the resolution from all others.
    folder : Path
        Where the instrumented network may lie meanwhile.

    Returns
    -------
    dict
        From name to magnitude, at least zero.

    Raises
    ------
    ConfigError
        If the method is unknown.
    EngineError
        If ONNX Runtime cannot run the network, or a value is NaN or infinite.
    """
    if method not in METHODS:
        raise ConfigError(f"calibration: expected one of {', '.join(METHODS)}, got {method}")
    session = _instrumented(model, names, folder)
    largest = dict.fromkeys(names, 0.0)
    for name, values in _observed(session, names, pixel_values):
        peak = float(np.abs(values).max(initial=0.0))
        if not np.isfinite(peak):
            raise EngineError(
                f"{name}: expected finite values to calibrate on, got NaN or infinity"
            )
        largest[name] = max(largest[name], peak)
    if method == "minmax":
        return largest
    counts = {name: np.zeros(_NUM_BINS, dtype=np.int64) for name in names}
    for name, values in _observed(session, names, pixel_values):
        if largest[name] > 0.0:
            limits = (0.0, largest[name])
            counts[name] += np.histogram(np.abs(values), bins=_NUM_BINS, range=limits)[0]
    return {name: _percentile(counts[name], largest[name]) for name in names}


def _percentile(counts: npt.NDArray[np.int64], largest: float) -> float:
    """Upper edge of the bin up to which `PERCENTILE` of the values lie."""
    wanted = np.ceil(PERCENTILE / 100.0 * counts.sum())
    position = int(np.searchsorted(np.cumsum(counts), wanted))
    return largest * (position + 1) / _NUM_BINS if largest > 0.0 else 0.0


def _instrumented(
    model: onnx.ModelProto, names: Sequence[str], folder: Path
) -> onnxruntime.InferenceSession:
    """The network with the named values among its outputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    inputs = {value.name for value in copy.graph.input}
    known = {value.name for value in copy.graph.output} | inputs
    # ONNX Runtime infers the types of outputs that are declared without one.
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    path = folder / "calibration.onnx"
    path.write_bytes(copy.SerializeToString())
    return create_native(path, CPU_PROVIDER, None)


def _observed(
    session: onnxruntime.InferenceSession, names: Sequence[str], pixel_values: Floats
) -> Iterator[tuple[str, Floats]]:
    """Every named value on every image."""
    feed = session.get_inputs()[0].name
    wanted = [name for name in names if name != feed]
    for position in range(len(pixel_values)):
        batch = pixel_values[position : position + 1]
        try:
            outputs = session.run(wanted, {feed: batch}) if wanted else []
        except NATIVE_ERRORS as err:
            raise EngineError(f"calibration: the network cannot be run: {one_line(err)}") from err
        yield from zip(wanted, outputs, strict=True)
        if feed in names:
            yield feed, batch
