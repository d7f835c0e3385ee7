"""An artifact loaded into ONNX Runtime."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_core.errors import ConfigError, EngineError
from gain_runtime.artifact import Artifact, load_artifact
from gain_runtime.closing import Closing
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
from gain_runtime.session import (
    Features,
    as_features,
    check_input,
    check_outputs,
    no_features,
    pixel_shape,
)

__all__ = ["OnnxSession"]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]

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
    tf32 : bool, optional
        On CUDA: let matrix products of float32 be rounded to ten bits of mantissa.

    Raises
    ------
    ArtifactError
        If the path is no artifact.
    BackendUnavailableError
        If the provider is not in this build of ONNX Runtime or cannot be used on this machine.
    ConfigError
        If `num_threads` is below 1.
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
        tf32: bool = False,
    ) -> None:
        if num_threads is not None and num_threads < 1:
            raise ConfigError(f"num_threads: expected at least 1, got {num_threads}")
        if not isinstance(artifact, Artifact):
            artifact = load_artifact(artifact)
        self._artifact = artifact
        check_provider(provider)
        options = cuda_options(tf32=tf32) if provider == CUDA_PROVIDER else None
        native = create_native(artifact.path, provider, num_threads, options=options)
        self._session: Any = native
        self._provider = provider
        batch = native.get_inputs()[0].shape[0]
        self._fixed_batch: int | None = batch if isinstance(batch, int) else None
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

    def infer(self, pixel_values: Floats, /) -> Features:
        """Run the network on one batch.

        Parameters
        ----------
        pixel_values : array, (B, 3, height_px, width_px) float32
            C-contiguous, of NumPy's; B may be 0. Where the network takes one batch size only,
            batches are cut and filled up.

        Returns
        -------
        Features

        Raises
        ------
        ArrayError
            If the array has another type, shape or layout.
        EngineError
            If the session is closed or ONNX Runtime fails.
        """
        if self._session is None:
            raise EngineError(
                f"{self._artifact.path}: the session is closed; open it again before use"
            )
        manifest = self._artifact.manifest
        count = check_input("pixel_values", pixel_values, pixel_shape(manifest.preprocess))
        if count == 0:
            return no_features(manifest)
        try:
            outputs = self._outputs(self._session, pixel_values)
        except _FAILURES as err:
            raise EngineError(
                f"{self._artifact.path}: {self._provider} failed on a batch of {count}: "
                f"{one_line(err)}"
            ) from err
        check_outputs(self._artifact.path, outputs, manifest, batch_size=count)
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

    def close(self) -> None:
        """Release the network; may be called twice."""
        self._session = None

    def _outputs(self, native: Any, pixel_values: Floats) -> list[Floats]:
        """The outputs of a checked batch; one that the network does not take is cut and filled."""
        manifest, count, size = self._artifact.manifest, len(pixel_values), self._fixed_batch
        names = [name for name, _ in manifest.outputs]
        if size is None or count == size:
            return list(native.run(names, {manifest.input_name: pixel_values}))
        # Copies of the last image, whose outputs are dropped.
        filled = np.concatenate([pixel_values, pixel_values[-1:].repeat(-count % size, axis=0)])
        parts = [
            native.run(names, {manifest.input_name: filled[start : start + size]})
            for start in range(0, len(filled), size)
        ]
        return [np.concatenate(arrays)[:count] for arrays in zip(*parts, strict=True)]
