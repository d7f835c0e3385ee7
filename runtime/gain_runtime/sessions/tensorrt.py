"""An artifact's engine loaded into TensorRT or TensorRT-RTX."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gain_core.errors import ArrayError, BackendUnavailableError, EngineError, one_line
from gain_runtime.files.artifact import Artifact, load_artifact
from gain_runtime.files.engine import Engine, engine_path, read_engine
from gain_runtime.files.paths import write_atomically
from gain_runtime.frames import Closing
from gain_runtime.optional import require
from gain_runtime.sessions.session import (
    Features,
    as_features,
    check_input,
    no_features,
    pixel_shape,
)
from gain_runtime.sessions.tensorrt_library import (
    EXTRAS,
    cache_file,
    create,
    current_gpu,
    expected_header,
    load_library,
    make_log,
)

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]

# What the CUDA runtime says where the driver is missing or too old, or there is no device.
_NO_DRIVER = re.compile(r"cudaError (35|100)\b[^)]*")


class TensorRTSession(Closing):
    """An artifact run by TensorRT, from the engine built of it.

    Parameters
    ----------
    artifact : Artifact, str or Path
        A path is loaded and checked first.
    engine : str or Path, optional
        Defaults to the `.engine` file beside the artifact.
    allow_host_code : bool, optional
        Take version-compatible engines, whose plans hold code that runs on the host. Allow it
        only if nobody else can write the file.

    Raises
    ------
    ArtifactError
        If the path is no artifact.
    BackendUnavailableError
        If the library, CuPy or a usable NVIDIA driver is missing.
    EngineError
        If the engine is missing, damaged, stale, made for another GPU or library version, brings
        host code that is not allowed, or cannot be loaded. Only an engine whose header has this
        artifact's hash is handed to the library.
    """

    def __init__(
        self,
        artifact: Artifact | str | Path,
        /,
        *,
        engine: str | Path | None = None,
        allow_host_code: bool = False,
    ) -> None:
        if not isinstance(artifact, Artifact):
            artifact = load_artifact(artifact)
        self._artifact = artifact
        loaded = read_engine(engine_path(artifact.path) if engine is None else engine)
        self._library = _load_library_of(loaded)
        self._log = make_log(self._library)
        _check_header(loaded, artifact, self._library, allow_host_code=allow_host_code)
        self._profile = loaded.header.profile
        self._runtime, self._engine = _deserialise(self._library, loaded, self._log)
        self._memory = CudaMemory()
        self._check_tensors(loaded.path)
        self._context, self._cache = self._create_context()
        # The input and the outputs, as long as the largest batch.
        self._buffers: list[DeviceArray] | None = self._make_buffers()
        logger.info("%s: running on %s", artifact.path.name, self.provider)

    @property
    def artifact(self) -> Artifact:
        """The loaded artifact."""
        return self._artifact

    @property
    def provider(self) -> str:
        """The library in use, by its module's name."""
        return str(self._library.__name__)

    def infer(self, pixel_values: Floats, /) -> Features:
        """Run the network on one batch.

        Parameters
        ----------
        pixel_values : array, (B, 3, height_px, width_px) float32
            NumPy, C-contiguous; B is 0 or within the engine's profile.

        Returns
        -------
        Features

        Raises
        ------
        ArrayError
            If the array has another type, shape or layout, or B is outside the profile.
        EngineError
            If the session is closed or TensorRT fails.
        """
        if self._buffers is None:
            raise EngineError(
                f"{self._artifact.path}: the session is closed; open it again before use"
            )
        manifest, (least, _, most) = self._artifact.manifest, self._profile
        count = check_input("pixel_values", pixel_values, pixel_shape(manifest.preprocess))
        if count == 0:
            return no_features(manifest)
        if not least <= count <= most:
            raise ArrayError(
                f"pixel_values: expected {least} to {most} images as the engine was built for, got "
                f"{count}; use smaller batches or build with --set max-batch={count}"
            )
        with self._memory.in_use():
            source, *outputs = (buffer[:count] for buffer in self._buffers)
            self._memory.upload(pixel_values, source)
            self._enqueue(source, outputs)
            return as_features(self._memory.download(outputs))

    def warm_up(self, batch_size: int | None = None, /) -> None:
        """Run once on zeros, so that the first frame does not pay for lazy allocations.

        Parameters
        ----------
        batch_size : int, optional
            The B that will be used; None is the smallest of the engine's profile.

        Raises
        ------
        ArrayError, EngineError
            As `infer`.
        """
        size = self._artifact.manifest.preprocess
        count = self._profile[0] if batch_size is None else batch_size
        self.infer(np.zeros((count, 3, size.height_px, size.width_px), dtype=np.float32))

    def close(self) -> None:
        """Release the engine and its buffers, and keep the kernels compiled for it; idempotent."""
        if self._context is None:
            return
        try:
            self._memory.synchronize()
            if self._cache is not None:
                _store(self._cache, cache_file(self._library, current_gpu(), "runtime"))
        finally:
            # The context goes before the engine it belongs to, that before its runtime.
            self._context = self._cache = self._engine = self._runtime = None
            self._buffers = None

    def _enqueue(self, pixel_values: DeviceArray, outputs: list[DeviceArray]) -> None:
        """Put one forward pass on the stream."""
        manifest, context = self._artifact.manifest, self._context
        names = (manifest.input_name, *(name for name, _ in manifest.outputs))
        self._log.errors.clear()
        fine = context.set_input_shape(manifest.input_name, pixel_values.shape)
        for name, array in zip(names, (pixel_values, *outputs), strict=True):
            fine = fine and context.set_tensor_address(name, int(array.data.ptr))
        if not fine or not context.execute_async_v3(self._memory.stream.ptr):
            raise EngineError(
                f"{self._artifact.path}: {self.provider} failed on a batch of "
                f"{len(pixel_values)}: {self._log.first_error()}"
            )

    def _check_tensors(self, path: Path) -> None:
        """The engine has the artifact's input and outputs, and they are float32."""
        manifest, float32 = self._artifact.manifest, self._library.float32
        native = self._engine
        names = {native.get_tensor_name(index) for index in range(native.num_io_tensors)}
        expected = {manifest.input_name, *(name for name, _ in manifest.outputs)}
        if names != expected or any(native.get_tensor_dtype(name) != float32 for name in names):
            raise EngineError(
                f"{path}: expected the float32 tensors {', '.join(sorted(expected))}, got "
                f"{', '.join(sorted(names))}; build it again"
            )

    def _create_context(self) -> tuple[Any, Any]:
        """The execution context and, in TensorRT-RTX, the cache of its compiled kernels."""
        settings: Any = None
        if hasattr(self._engine, "create_runtime_config"):
            settings = self._engine.create_runtime_config()
        if not (
            hasattr(settings, "create_runtime_cache") and hasattr(settings, "set_runtime_cache")
        ):
            return self._made(self._engine.create_execution_context()), None
        cache = settings.create_runtime_cache()
        file = cache_file(self._library, current_gpu(), "runtime")
        if file.is_file() and not (
            hasattr(cache, "deserialize") and cache.deserialize(file.read_bytes())
        ):
            logger.info("%s: does not fit here; the kernels are compiled again", file)
        settings.set_runtime_cache(cache)
        return self._made(self._engine.create_execution_context(settings)), cache

    def _made(self, context: Any) -> Any:
        """The context, unless the library could not make one."""
        if context is None:
            raise EngineError(
                f"{self._artifact.path}: {self.provider} cannot prepare the engine: "
                f"{self._log.first_error()}; free device memory or build with a smaller max-batch"
            )
        return context

    def _make_buffers(self) -> list[DeviceArray]:
        """Device memory for the input and the outputs of the largest batch."""
        manifest, most = self._artifact.manifest, self._profile[-1]
        shapes = [
            pixel_shape(manifest.preprocess)[1:],
            *((width,) for _, width in manifest.outputs),
        ]
        return [self._memory.empty((most, *shape)) for shape in shapes]


def _load_library_of(engine: Engine) -> Any:
    """The library that the engine was built by."""
    if engine.header.library not in EXTRAS:
        raise EngineError(
            f"{engine.path}: does not fit: library: built with {engine.header.library}, expected "
            f"{' or '.join(EXTRAS)}; build it on this device with gain-export --engine"
        )
    return load_library(engine.header.library)


def _check_header(
    engine: Engine, artifact: Artifact, library: Any, *, allow_host_code: bool
) -> None:
    """The engine belongs to this artifact, this library and this GPU, and runs nothing unasked."""
    expected = expected_header(artifact.sha256, library, current_gpu())
    difference = engine.header.difference(expected)
    if difference is not None:
        raise EngineError(
            f"{engine.path}: does not fit: {difference}; build it on this device with: "
            f"gain-export {artifact.path} --engine"
        )
    if engine.header.carries_host_code and not allow_host_code:
        raise EngineError(
            f"{engine.path}: is version-compatible, so its plan brings code that would run on the "
            "host; open it with allow_host_code=True if nobody else can write the file, or build "
            "it without version-compatible"
        )


def _deserialise(library: Any, engine: Engine, log: Any) -> tuple[Any, Any]:
    """The library's runtime and its engine."""
    runtime = create(library.Runtime, log)
    if engine.header.carries_host_code:
        runtime.engine_host_code_allowed = True
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


def _store(cache: Any, file: Path) -> None:
    """Write a cache; a disk that cannot take it costs time at the next start and nothing else."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, bytes(cache.serialize()))


# A CuPy array, with what the array API's standard does not have: its address, copies to the host.
DeviceArray: TypeAlias = Any

# What CuPy raises for CUDA, its compiler and its libraries shares no base class of its own; where
# it comes from tells it from others' exceptions.
_CUPY_PACKAGES = ("cupy", "cupy_backends")


@contextmanager
def cuda_failures(cupy: Any, where: str, /) -> Iterator[None]:
    """CuPy's errors (CUDA's, missing memory, kernels that do not compile) as EngineError.

    `where` begins its message. Other exceptions pass.
    """
    try:
        yield
    except (RuntimeError, MemoryError, cupy.cuda.compiler.CompileException) as err:
        if type(err).__module__.partition(".")[0] not in _CUPY_PACKAGES:
            raise
        reason = one_line(err)
        remedy = "open the session again, in a new process if that fails"
        if isinstance(err, MemoryError):
            remedy = "free device memory or use smaller batches"
        raise EngineError(f"{where}: {reason}; {remedy}") from err


class CudaMemory:
    """Memory of the current CUDA device, and a stream of its own.

    Raises BackendUnavailableError if CuPy is not installed or finds no usable device. Its methods
    raise an EngineError if CUDA reports a failure, which may be an earlier one.
    """

    def __init__(self) -> None:
        self._cupy: Any = require("cupy", extra="cuda12")
        cuda = self._cupy.cuda
        try:
            self._device = cuda.Device()
            self.stream: Any = cuda.Stream(non_blocking=True)
        except cuda.runtime.CUDARuntimeError as err:
            raise BackendUnavailableError(
                f"cupy: no usable NVIDIA driver or GPU here ({err}); install or update the driver, "
                "or use the device cpu"
            ) from err

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The device and the stream are the current ones."""
        with cuda_failures(self._cupy, f"cuda:{self._device.id}"), self._device, self.stream:
            yield

    def empty(self, shape: tuple[int, ...], /) -> DeviceArray:
        """A C-contiguous float32 array of any values, aligned as TensorRT wants it."""
        with self.in_use():
            return self._cupy.empty(shape, np.float32)

    def upload(self, host: Floats, target: DeviceArray, /) -> None:
        """Queue a copy; returns once `host` may be written again."""
        target.set(host, stream=self.stream)

    def download(self, arrays: Sequence[DeviceArray], /) -> list[Floats]:
        """Fresh NumPy arrays of the values; returns when they have arrived."""
        copies = [array.get(stream=self.stream) for array in arrays]
        self.stream.synchronize()
        return copies

    def synchronize(self) -> None:
        """Wait for everything that is queued."""
        with self.in_use():
            self.stream.synchronize()
