"""An artifact loaded into ONNX Runtime."""

from __future__ import annotations

import contextlib
import io
import logging
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gain_core.errors import ArrayError, BackendUnavailableError, ConfigError, EngineError
from gain_runtime.artifact import Artifact, load_artifact
from gain_runtime.session import Features

try:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as native
except ImportError as err:
    raise BackendUnavailableError(
        f"onnxruntime: cannot be imported ({err}); reinstall it, and beside onnxruntime-gpu "
        "install the CUDA libraries it was built for"
    ) from err

__all__ = [
    "CPU_PROVIDER",
    "CUDA_PROVIDER",
    "NATIVE_ERRORS",
    "OnnxSession",
    "create_native",
    "log_placement",
    "one_line",
]

logger = logging.getLogger(__name__)

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"

_LOG_ERRORS_ONLY = 3

# ONNX Runtime's exceptions share no base class of their own.
NATIVE_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    *(
        value
        for value in vars(native).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ),
)

_Native: TypeAlias = "onnxruntime.InferenceSession"


class OnnxSession:
    """An artifact executed by ONNX Runtime on the provider that was asked for, and on no other.

    Parameters
    ----------
    artifact : Artifact, str or Path
        A path is loaded and checked first.
    provider : str, optional
        ONNX Runtime's name of the execution provider.
    num_threads : int, optional
        Threads within one operator; None lets ONNX Runtime choose.

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
    ) -> None:
        if num_threads is not None and num_threads < 1:
            raise ConfigError(f"num_threads: expected at least 1, got {num_threads}")
        if not isinstance(artifact, Artifact):
            artifact = load_artifact(artifact)
        self._artifact = artifact
        self._session: _Native | None = create_native(artifact.path, provider, num_threads)
        self._provider = provider
        batch = self._session.get_inputs()[0].shape[0]
        self._fixed_batch: int | None = batch if isinstance(batch, int) else None
        logger.info("%s: running on %s", artifact.path.name, provider)
        log_placement(self._session, provider)

    @property
    def artifact(self) -> Artifact:
        """The loaded artifact."""
        return self._artifact

    @property
    def provider(self) -> str:
        """The execution provider really in use, as ONNX Runtime names it."""
        return self._provider

    def infer(self, pixel_values: npt.NDArray[np.float32], /) -> Features:
        """Run the network on one batch.

        Parameters
        ----------
        pixel_values : array, (B, 3, height_px, width_px) float32
            C-contiguous, in host memory; B may be 0.

        Returns
        -------
        Features
            `features` (B, D) float32 and `logits` (B, K) float32, fresh NumPy arrays.

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
        self._check_input(pixel_values)
        batch_size = pixel_values.shape[0]
        widths = (manifest.feature_dim, manifest.num_classes)
        if batch_size == 0:
            return Features(*(np.empty((0, width), dtype=np.float32) for width in widths))
        try:
            outputs = self._session.run(
                [manifest.features_name, manifest.logits_name],
                {manifest.input_name: pixel_values},
            )
        except NATIVE_ERRORS as err:
            raise EngineError(
                f"{self._artifact.path}: {self._provider} failed on a batch of {batch_size}: "
                f"{one_line(err)}"
            ) from err
        self._check_outputs(outputs, [(batch_size, width) for width in widths])
        return Features(*outputs)

    def warm_up(self, batch_size: int = 1, /) -> None:
        """Run once on zeros, so that the first frame does not pay for lazy allocations.

        Parameters
        ----------
        batch_size : int, optional
            The B that will be used.

        Raises
        ------
        EngineError
            As `infer`.
        """
        size = self._artifact.manifest.preprocess
        self.infer(np.zeros((batch_size, 3, size.height_px, size.width_px), dtype=np.float32))

    def close(self) -> None:
        """Release the network; may be called twice."""
        self._session = None

    def __enter__(self) -> OnnxSession:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check_input(self, pixel_values: npt.NDArray[np.float32]) -> None:
        """The array is what the network takes."""
        size = self._artifact.manifest.preprocess
        batch = "B" if self._fixed_batch is None else str(self._fixed_batch)
        expected = f"({batch}, 3, {size.height_px}, {size.width_px}) float32"
        if not isinstance(pixel_values, np.ndarray):
            raise ArrayError(
                f"pixel_values: expected a NumPy array {expected}, got "
                f"{type(pixel_values).__name__}; use preprocess_batch's result"
            )
        shape, dtype = pixel_values.shape, pixel_values.dtype
        if dtype != np.float32 or shape[1:] != (3, size.height_px, size.width_px):
            raise ArrayError(
                f"pixel_values: expected {expected}, got {shape} {dtype}; "
                "use preprocess_batch with the artifact's own settings"
            )
        if self._fixed_batch not in (None, shape[0]) and shape[0] != 0:
            raise ArrayError(
                f"pixel_values: expected {expected}, got {shape}; use that batch size or export "
                "the model with a dynamic batch axis"
            )
        if not pixel_values.flags.c_contiguous:
            raise ArrayError(
                f"pixel_values: expected a C-contiguous array, got strides "
                f"{pixel_values.strides}; use numpy.ascontiguousarray"
            )

    def _check_outputs(
        self, outputs: list[npt.NDArray[np.float32]], shapes: list[tuple[int, int]]
    ) -> None:
        """The graph computes what its manifest promises, even where its shapes are symbolic."""
        for name, output, shape in zip(("features", "logits"), outputs, shapes, strict=True):
            if output.shape != shape or output.dtype != np.float32:
                raise EngineError(
                    f"{self._artifact.path}: {name}: expected {shape} float32, "
                    f"got {output.shape} {output.dtype}; export the model again"
                )


def create_native(path: Path, provider: str, num_threads: int | None) -> _Native:
    """Load the graph and make sure the provider in use is the one that was asked for.

    ONNX Runtime lists providers that are compiled in but cannot run here, and replaces one that
    fails by the CPU with a mere warning (microsoft/onnxruntime#27177).
    """
    available = onnxruntime.get_available_providers()
    if provider not in available:
        raise _unavailable(provider, f"this ONNX Runtime has {', '.join(available)} only")
    if provider == CUDA_PROVIDER:
        _preload_cuda()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_ERRORS_ONLY
    if num_threads is not None:
        options.intra_op_num_threads = num_threads
    with contextlib.suppress(*NATIVE_ERRORS):  # an entry older versions do not know
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    # The CPU stays second in the list: shape arithmetic belongs there on every provider.
    providers = [provider] if provider == CPU_PROVIDER else [provider, CPU_PROVIDER]
    try:
        session = onnxruntime.InferenceSession(
            path, options, providers=providers, enable_fallback=0
        )
    except NATIVE_ERRORS as err:
        if provider != CPU_PROVIDER:
            raise _unavailable(provider, one_line(err)) from err
        raise EngineError(
            f"{path}: ONNX Runtime {onnxruntime.__version__} cannot load it: {one_line(err)}; "
            "export the model again or update onnxruntime"
        ) from err
    session.disable_fallback()
    in_use = session.get_providers()[0]
    if in_use != provider:
        raise _unavailable(provider, f"ONNX Runtime put {in_use} in its place")
    return session


def _unavailable(provider: str, reason: str) -> BackendUnavailableError:
    """The error for a provider that cannot be used, with its remedy."""
    remedy = "choose another provider"
    if provider == CUDA_PROVIDER:
        remedy = "install it with: pip install 'gain-edge[gpu]' and CUDA, or use the device cpu"
    return BackendUnavailableError(f"{provider}: cannot be used here ({reason}); {remedy}")


def _preload_cuda() -> None:
    """Load CUDA's libraries from their wheels where this ONNX Runtime knows how to."""
    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is None:
        return
    said = io.StringIO()
    with contextlib.redirect_stdout(said):  # it prints what it did not find
        preload()
    if said.getvalue():
        logger.debug("preload_dlls: %s", said.getvalue().strip())


def log_placement(session: _Native, provider: str) -> None:
    """Say how many nodes run on the provider, where ONNX Runtime can tell (1.24 on)."""
    assignment = getattr(session, "get_provider_graph_assignment_info", None)
    if assignment is None:
        return
    nodes = [(part.ep_name, node.op_type) for part in assignment() for node in part.get_nodes()]
    elsewhere = sorted({op_type for name, op_type in nodes if name != provider})
    logger.info(
        "%s executes %d of %d nodes%s",
        provider,
        sum(name == provider for name, _ in nodes),
        len(nodes),
        f"; elsewhere: {', '.join(elsewhere)}" if elsewhere else "",
    )


def one_line(err: Exception) -> str:
    """ONNX Runtime's messages span lines; ours do not."""
    return " ".join(str(err).split())
