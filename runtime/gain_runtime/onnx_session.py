"""An artifact loaded into ONNX Runtime."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace

from gain_core.errors import ConfigError, EngineError
from gain_runtime.artifact import Artifact, load_artifact
from gain_runtime.closing import Closing
from gain_runtime.device_buffers import DeviceArray
from gain_runtime.onnx_cuda import BoundNetwork, cuda_memory
from gain_runtime.onnx_native import (
    CPU_PROVIDER,
    CUDA_PROVIDER,
    NATIVE_ERRORS,
    check_provider,
    create_native,
    cuda_options,
    log_placement,
    one_line,
)
from gain_runtime.pixel_values import check_pixel_values
from gain_runtime.session import Features, as_features

__all__ = ["OnnxSession"]

logger = logging.getLogger(__name__)

_FAILURES: tuple[type[Exception], ...] = (*NATIVE_ERRORS, MemoryError)


class OnnxSession(Closing):
    """An artifact executed by ONNX Runtime on the provider that was asked for, and on no other.

    Parameters
    ----------
    artifact : Artifact, str or Path
        A path is loaded and checked first.
    provider : str, optional
        ONNX Runtime's name of the execution provider.
    num_threads : int, optional
        Threads within one operator; None lets ONNX Runtime choose.
    device_outputs : bool, optional
        On CUDA: leave the outputs on the device, as CuPy arrays on the session's `stream`. No
        array crosses to the host then, and nothing is waited for.
    ring : int, optional
        With `device_outputs`: sets of output arrays. What a call returned is overwritten `ring`
        calls later.
    tf32 : bool, optional
        On CUDA: let matrix products of float32 be rounded to ten bits of mantissa.

    Raises
    ------
    ArtifactError
        If the path is no artifact.
    BackendUnavailableError
        If the provider is not in this build of ONNX Runtime or cannot be used on this machine, or
        `device_outputs` needs CuPy and it is missing.
    ConfigError
        If `num_threads` or `ring` is below 1, or `device_outputs` is set without CUDA.
    EngineError
        If ONNX Runtime cannot load the graph.
    """

    def __init__(
        self,
        artifact: Artifact | str | Path,
        /,
        *,
        provider: str = CPU_PROVIDER,
        num_threads: int | None = None,
        device_outputs: bool = False,
        ring: int = 3,
        tf32: bool = False,
    ) -> None:
        _check_settings(provider, num_threads, device_outputs=device_outputs, ring=ring)
        if not isinstance(artifact, Artifact):
            artifact = load_artifact(artifact)
        self._artifact = artifact
        check_provider(provider)
        on_cuda = provider == CUDA_PROVIDER
        memory = cuda_memory(needed=device_outputs) if on_cuda else None
        options = cuda_options(memory, tf32=tf32) if on_cuda else None
        native = create_native(artifact.path, provider, num_threads, options=options)
        self._session: Any = native
        self._provider = provider
        batch = native.get_inputs()[0].shape[0]
        self._fixed_batch: int | None = batch if isinstance(batch, int) else None
        self._memory = memory
        self._stream: Any = memory.stream if memory is not None and device_outputs else None
        self._bound: BoundNetwork | None = None
        if memory is not None:
            self._bound = BoundNetwork(
                native,
                artifact.manifest,
                memory,
                ring=ring if device_outputs else None,
                rows=self._fixed_batch or 1,
            )
        logger.info("%s: running on %s", artifact.path.name, provider)
        log_placement(native, provider)

    @property
    def artifact(self) -> Artifact:
        """The loaded artifact."""
        return self._artifact

    @property
    def provider(self) -> str:
        """The execution provider really in use, as ONNX Runtime names it."""
        return self._provider

    @property
    def stream(self) -> Any | None:
        """The session's CuPy stream where its outputs stay on the device, else None; `Session`."""
        return self._stream

    def infer(self, pixel_values: npt.NDArray[np.float32] | DeviceArray, /) -> Features:
        """Run the network on one batch.

        Parameters
        ----------
        pixel_values : array, (B, 3, height_px, width_px) float32
            C-contiguous, of NumPy or, on CUDA with CuPy, of CuPy on the session's device; B may
            be 0. Where the network takes one batch size only, batches are cut and filled up.

        Returns
        -------
        Features
            `features` (B, D) float32, or None where the artifact has logits only, and `logits`
            (B, K) float32: fresh NumPy arrays, or with
            `device_outputs` CuPy arrays on `stream` that are overwritten `ring` calls later.

        Raises
        ------
        ArrayError
            If the array has another type, device, shape or layout.
        EngineError
            If the session is closed or ONNX Runtime fails. With `device_outputs` what fails on
            the device later is raised where it is waited for, by CuPy.
        """
        if self._session is None:
            raise EngineError(
                f"{self._artifact.path}: the session is closed; open it again before use"
            )
        self._check_input(pixel_values)
        try:
            outputs = self._outputs(self._session, pixel_values)
        except _FAILURES as err:
            raise EngineError(
                f"{self._artifact.path}: {self._provider} failed on a batch of "
                f"{len(pixel_values)}: {one_line(err)}"
            ) from err
        self._check_outputs(outputs, len(pixel_values))
        return as_features(outputs)

    def warm_up(self, batch_size: int | None = None, /) -> None:
        """Run once on zeros, so that the first frame does not pay for lazy allocations.

        Parameters
        ----------
        batch_size : int, optional
            The B that will be used; None is the network's fixed one, or 1.

        Raises
        ------
        EngineError
            As `infer`.
        """
        size = self._artifact.manifest.preprocess
        count = (self._fixed_batch or 1) if batch_size is None else batch_size
        self.infer(np.zeros((count, 3, size.height_px, size.width_px), dtype=np.float32))
        if self._memory is not None:
            self._memory.synchronize()

    def close(self) -> None:
        """Release the network and its buffers; may be called twice."""
        try:
            if self._memory is not None:
                self._memory.synchronize()
        finally:
            self._bound = self._memory = self._session = None

    def _outputs(
        self, native: Any, pixel_values: npt.NDArray[np.float32] | DeviceArray
    ) -> list[DeviceArray]:
        """The outputs of a checked batch; one that the network does not take is cut and filled."""
        count, size = len(pixel_values), self._fixed_batch
        if size is None or count in (0, size):
            return self._run(native, pixel_values)
        xp = array_namespace(pixel_values)
        with contextlib.nullcontext() if self._memory is None else self._memory.ordered():
            # Copies of the last image, whose outputs are dropped.
            filling = xp.repeat(pixel_values[-1:], -count % size, axis=0)
            filled = xp.concat([pixel_values, filling])
            parts = [
                # Outputs on a device are those of a ring and overwritten by later passes.
                [array_namespace(output).asarray(output, copy=True) for output in outputs]
                for outputs in (
                    self._run(native, filled[start : start + size])
                    for start in range(0, len(filled), size)
                )
            ]
            return [
                array_namespace(arrays[0]).concat(arrays)[:count]
                for arrays in zip(*parts, strict=True)
            ]

    def _run(
        self, native: Any, pixel_values: npt.NDArray[np.float32] | DeviceArray
    ) -> list[DeviceArray]:
        """The outputs of a batch that the network takes."""
        if self._bound is not None:
            return self._bound.infer(pixel_values)
        manifest = self._artifact.manifest
        if len(pixel_values) == 0:
            return [np.empty((0, width), dtype=np.float32) for _, width in manifest.outputs]
        names = [name for name, _ in manifest.outputs]
        return list(native.run(names, {manifest.input_name: pixel_values}))

    def _check_input(self, pixel_values: npt.NDArray[np.float32] | DeviceArray) -> None:
        """The array is what the network takes, in any number of rows."""
        device_id = None if self._memory is None else self._memory.device_id
        check_pixel_values(pixel_values, self._artifact.manifest.preprocess, device_id=device_id)

    def _check_outputs(self, outputs: list[DeviceArray], batch_size: int) -> None:
        """The graph computes what its manifest promises, even where its shapes are symbolic."""
        promised = self._artifact.manifest.outputs
        for (name, width), output in zip(promised, outputs, strict=True):
            if output.shape != (batch_size, width) or output.dtype != np.float32:
                raise EngineError(
                    f"{self._artifact.path}: {name}: expected {(batch_size, width)} float32, "
                    f"got {output.shape} {output.dtype}; export the model again"
                )


def _check_settings(
    provider: str, num_threads: int | None, *, device_outputs: bool, ring: int
) -> None:
    """The settings are in range and fit each other."""
    if num_threads is not None and num_threads < 1:
        raise ConfigError(f"num_threads: expected at least 1, got {num_threads}")
    if ring < 1:
        raise ConfigError(f"ring: expected at least 1 set of outputs, got {ring}")
    if device_outputs and provider != CUDA_PROVIDER:
        raise ConfigError(
            f"device_outputs: expected the provider {CUDA_PROVIDER}, got {provider}; leave it out, "
            "outputs are in host memory there"
        )
