"""An artifact's engine loaded into TensorRT or TensorRT-RTX."""

from __future__ import annotations

import contextlib
import logging
import re
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_core._optional import require
from gain_core.errors import ArrayError, BackendUnavailableError, EngineError
from gain_runtime.artifact import Artifact, load_artifact
from gain_runtime.atomic_file import write_atomically
from gain_runtime.engine_file import Engine, engine_path, read_engine
from gain_runtime.session import Features
from gain_runtime.tensorrt_library import (
    cache_file,
    create,
    current_gpu,
    expected_header,
    load_library,
    make_log,
)

__all__ = ["TensorRTSession"]

logger = logging.getLogger(__name__)

# What the CUDA runtime says where the driver is missing or too old, or there is no device.
_NO_DRIVER = re.compile(r"cudaError (35|100)\b[^)]*")


class TensorRTSession:
    """An artifact executed by TensorRT, from the engine that was built of it.

    Parameters
    ----------
    artifact : Artifact, str or Path
        A path is loaded and checked first.
    engine : str or Path, optional
        Defaults to the `.engine` file beside the artifact.

    Raises
    ------
    ArtifactError
        If the path is no artifact.
    BackendUnavailableError
        If the library, CuPy or a usable NVIDIA driver is missing.
    EngineError
        If the engine is missing, damaged, stale, made for another GPU or library version, or
        cannot be loaded. Only an engine whose header has this artifact's hash is handed to the
        library.
    """

    def __init__(
        self, artifact: Artifact | str | Path, /, *, engine: str | Path | None = None
    ) -> None:
        if not isinstance(artifact, Artifact):
            artifact = load_artifact(artifact)
        self._artifact = artifact
        loaded = read_engine(engine_path(artifact.path) if engine is None else engine)
        self._library = load_library(loaded.header.library)
        self._log = make_log(self._library)
        _check_header(loaded, artifact, self._library)
        self._profile = loaded.header.profile
        self._runtime, self._engine = _deserialise(self._library, loaded, self._log)
        self._cupy: Any = require("cupy", extra="cuda12")
        self._check_tensors(loaded.path)
        self._context, self._cache = self._create_context()
        self._stream = self._cupy.cuda.Stream(non_blocking=True)
        self._buffers = self._allocate()
        logger.info("%s: running on %s", artifact.path.name, self.provider)

    @property
    def artifact(self) -> Artifact:
        """The loaded artifact."""
        return self._artifact

    @property
    def provider(self) -> str:
        """The library in use, by its module's name."""
        return str(self._library.__name__)

    def infer(self, pixel_values: npt.NDArray[np.float32], /) -> Features:
        """Run the network on one batch.

        Parameters
        ----------
        pixel_values : array, (B, 3, height_px, width_px) float32
            C-contiguous, in host memory; B may be 0, or lie within the engine's profile.

        Returns
        -------
        Features
            `features` (B, D) float32 and `logits` (B, K) float32, fresh NumPy arrays.

        Raises
        ------
        ArrayError
            If the array has another type, shape or layout, or B is outside the profile.
        EngineError
            If the session is closed or TensorRT fails.
        """
        if self._context is None:
            raise EngineError(
                f"{self._artifact.path}: the session is closed; open it again before use"
            )
        manifest = self._artifact.manifest
        _check_input(pixel_values, self._artifact, self._profile)
        batch_size = len(pixel_values)
        widths = (manifest.feature_dim, manifest.num_classes)
        if batch_size == 0:
            return Features(*(np.empty((0, width), dtype=np.float32) for width in widths))
        with self._stream:
            self._buffers[manifest.input_name][:batch_size].set(pixel_values, stream=self._stream)
            self._enqueue(pixel_values.shape)
            names = (manifest.features_name, manifest.logits_name)
            outputs = [self._buffers[name][:batch_size].get(stream=self._stream) for name in names]
        self._stream.synchronize()
        return Features(*outputs)

    def warm_up(self, batch_size: int = 1, /) -> None:
        """Run once on zeros, so that the first frame does not pay for lazy allocations.

        Parameters
        ----------
        batch_size : int, optional
            The B that will be used.

        Raises
        ------
        ArrayError, EngineError
            As `infer`.
        """
        size = self._artifact.manifest.preprocess
        self.infer(np.zeros((batch_size, 3, size.height_px, size.width_px), dtype=np.float32))

    def close(self) -> None:
        """Release the engine and its buffers, and keep the kernels compiled for it; idempotent."""
        if self._context is None:
            return
        self._stream.synchronize()
        if self._cache is not None:
            _store(self._cache, cache_file(self._library, current_gpu(), "runtime"))
        # The context goes before the engine it belongs to, that before its runtime.
        self._context = self._cache = self._engine = self._runtime = None
        self._buffers = {}

    def __enter__(self) -> TensorRTSession:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _enqueue(self, shape: tuple[int, ...]) -> None:
        """Put one forward pass on the stream."""
        self._log.errors.clear()
        fine = self._context.set_input_shape(self._artifact.manifest.input_name, shape)
        if not fine or not self._context.execute_async_v3(self._stream.ptr):
            raise EngineError(
                f"{self._artifact.path}: {self.provider} failed on a batch of {shape[0]}: "
                f"{self._log.first_error()}"
            )

    def _check_tensors(self, path: Path) -> None:
        """The engine has the artifact's input and outputs, and they are float32."""
        manifest, float32 = self._artifact.manifest, self._library.float32
        engine = self._engine
        names = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
        expected = {manifest.input_name, manifest.features_name, manifest.logits_name}
        if names != expected or any(engine.get_tensor_dtype(name) != float32 for name in names):
            raise EngineError(
                f"{path}: expected the float32 tensors {', '.join(sorted(expected))}, got "
                f"{', '.join(sorted(names))}; build it again"
            )

    def _create_context(self) -> tuple[Any, Any]:
        """The execution context and, in TensorRT-RTX, the cache of its compiled kernels."""
        settings: Any = None
        if hasattr(self._engine, "create_runtime_config"):
            settings = self._engine.create_runtime_config()
        if not hasattr(settings, "create_runtime_cache"):
            return self._made(self._engine.create_execution_context()), None
        cache = settings.create_runtime_cache()
        file = cache_file(self._library, current_gpu(), "runtime")
        if file.is_file() and not cache.deserialize(file.read_bytes()):
            logger.info("%s: does not fit here; the kernels are compiled again", file)
        settings.set_runtime_cache(cache)
        return self._made(self._engine.create_execution_context(settings)), cache

    def _made(self, context: Any) -> Any:
        """The context, unless the library could not make one."""
        if context is None:
            raise EngineError(
                f"{self._artifact.path}: {self.provider} cannot prepare the engine: "
                f"{self._log.first_error()}; free device memory or build with a smaller --max-batch"
            )
        return context

    def _allocate(self) -> dict[str, Any]:
        """One device buffer per tensor, as long as the largest batch; their addresses are set."""
        manifest, most = self._artifact.manifest, self._profile[-1]
        size = manifest.preprocess
        shapes = {
            manifest.input_name: (most, 3, size.height_px, size.width_px),
            manifest.features_name: (most, manifest.feature_dim),
            manifest.logits_name: (most, manifest.num_classes),
        }
        buffers = {name: self._cupy.empty(shape, np.float32) for name, shape in shapes.items()}
        for name, buffer in buffers.items():
            self._context.set_tensor_address(name, buffer.data.ptr)
        return buffers


def _check_header(engine: Engine, artifact: Artifact, library: Any) -> None:
    """The engine belongs to this artifact, this library and this GPU."""
    expected = expected_header(artifact.sha256, library, current_gpu())
    difference = engine.header.difference(expected)
    if difference is not None:
        raise EngineError(
            f"{engine.path}: does not fit: {difference}; build it on this device with: "
            f"gain-export {artifact.path} --engine"
        )


def _deserialise(library: Any, engine: Engine, log: Any) -> tuple[Any, Any]:
    """The library's runtime and its engine."""
    runtime = create(library.Runtime, log)
    loaded = runtime.deserialize_cuda_engine(engine.plan)
    if loaded is not None:
        return runtime, loaded
    reason = log.first_error()
    driver = _NO_DRIVER.search(reason)
    if driver is not None:
        raise BackendUnavailableError(
            f"{library.__name__}: no usable NVIDIA driver or GPU here ({driver[0]}); install or "
            "update the driver, or use the device cpu"
        )
    raise EngineError(
        f"{engine.path}: {library.__name__} {engine.header.version} cannot load it: {reason}; "
        "build it again on this device"
    )


def _check_input(
    pixel_values: npt.NDArray[np.float32], artifact: Artifact, profile: tuple[int, ...]
) -> None:
    """The array is what the engine takes."""
    size, (least, _, most) = artifact.manifest.preprocess, profile
    expected = f"(B, 3, {size.height_px}, {size.width_px}) float32, C-contiguous NumPy"
    if not isinstance(pixel_values, np.ndarray):
        raise ArrayError(
            f"pixel_values: expected {expected}, got {type(pixel_values).__name__}; "
            "use preprocess_batch's result"
        )
    shape, dtype = pixel_values.shape, pixel_values.dtype
    fits = shape[1:] == (3, size.height_px, size.width_px) and dtype == np.float32
    if not fits or not pixel_values.flags.c_contiguous:
        raise ArrayError(
            f"pixel_values: expected {expected}, got {shape} {dtype}; "
            "use preprocess_batch with the artifact's own settings"
        )
    if shape[0] and not least <= shape[0] <= most:
        raise ArrayError(
            f"pixel_values: expected {least} to {most} images as the engine was built for, got "
            f"{shape[0]}; use smaller batches or build with --max-batch {shape[0]}"
        )


def _store(cache: Any, file: Path) -> None:
    """Write a cache; a disk that cannot take it costs time at the next start and nothing else."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, bytes(cache.serialize()))
