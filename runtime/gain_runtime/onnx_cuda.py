"""ONNX Runtime reading and writing arrays where they lie on a device."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_core.errors import BackendUnavailableError
from gain_runtime.cuda_memory import CudaMemory
from gain_runtime.device_buffers import DeviceArray, DeviceMemory, InputBuffer, OutputRing
from gain_runtime.manifest import Manifest
from gain_runtime.onnx_native import run_without_waiting

__all__ = ["BoundNetwork", "cuda_memory"]

logger = logging.getLogger(__name__)


def cuda_memory(*, needed: bool) -> CudaMemory | None:
    """The current CUDA device's memory and a stream on it.

    Parameters
    ----------
    needed : bool
        Whether to insist.

    Returns
    -------
    CudaMemory or None
        None only where it is not needed and CuPy or a device is missing, which is logged.

    Raises
    ------
    BackendUnavailableError
        If it is needed, and CuPy or a device is missing.
    """
    try:
        return CudaMemory()
    except BackendUnavailableError as err:
        if needed:
            raise
        logger.info("arrays are copied by ONNX Runtime: %s", err)
        return None


class BoundNetwork:
    """A loaded network that reads and writes arrays where they lie.

    Parameters
    ----------
    native : onnxruntime.InferenceSession
        It runs on the stream of `memory`.
    manifest : Manifest
    memory : DeviceMemory
    ring : int, optional
        Sets of outputs that stay on the device and are handed out in turn; None returns copies
        in host memory.
    rows : int, optional
        Batch size to make room for.
    """

    def __init__(
        self,
        native: Any,
        manifest: Manifest,
        memory: DeviceMemory,
        /,
        *,
        ring: int | None = None,
        rows: int = 1,
    ) -> None:
        size = manifest.preprocess
        self._native = native
        self._on_host = ring is None
        self._input_name = manifest.input_name
        self._output_names = tuple(name for name, _ in manifest.outputs)
        self._binding = native.io_binding()
        self._run_options = run_without_waiting()
        # Last, so that the stream goes after the network that runs on it.
        self._memory = memory
        self._input = InputBuffer(memory, (3, size.height_px, size.width_px), rows=rows)
        widths = tuple(width for _, width in manifest.outputs)
        # A copy has left the ring before the next call.
        self._ring = OutputRing(memory, widths, length=ring or 1, rows=rows)

    def infer(self, pixel_values: npt.NDArray[np.float32] | DeviceArray, /) -> list[DeviceArray]:
        """Queue one forward pass.

        Parameters
        ----------
        pixel_values : array, (B, 3, height_px, width_px) float32
            Checked; on the host or the device.

        Returns
        -------
        list of array
            Those of `Manifest.outputs`, (B, width) float32.
        """
        with self._memory.ordered():
            outputs = self._ring.next(len(pixel_values))
            if len(pixel_values):
                self._bind(self._input.hold(pixel_values), outputs)
                self._native.run_with_iobinding(self._binding, self._run_options)
            return self._memory.download(outputs) if self._on_host else list(outputs)

    def _bind(self, pixel_values: DeviceArray, outputs: tuple[DeviceArray, ...]) -> None:
        """Tell ONNX Runtime where the arrays of this pass lie."""
        device = (self._memory.device_type, self._memory.device_id, np.float32)
        self._binding.bind_input(
            self._input_name, *device, pixel_values.shape, self._memory.address(pixel_values)
        )
        for name, output in zip(self._output_names, outputs, strict=True):
            self._binding.bind_output(name, *device, output.shape, self._memory.address(output))
