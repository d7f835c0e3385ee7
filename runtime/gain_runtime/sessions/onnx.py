"""Graphs and artifacts in ONNX Runtime, on the provider that was asked for and on no other."""

from __future__ import annotations

import contextlib
import io
import logging
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gain_core.errors import BackendUnavailableError, ConfigError, EngineError, one_line
from gain_runtime.files.artifact import Artifact, load_artifact
from gain_runtime.frames import Closing
from gain_runtime.optional import install_line
from gain_runtime.sessions.session import (
    Features,
    as_features,
    check_input,
    check_outputs,
    no_features,
    pixel_shape,
)

logger = logging.getLogger(__name__)

try:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as native
except ImportError as err:
    raise BackendUnavailableError(
        f"onnxruntime: cannot be imported ({err}); reinstall it with: pip install "
        "--force-reinstall --no-deps onnxruntime, or onnxruntime-gpu and the CUDA libraries it was "
        "built for; where both are installed uninstall both first, they hold the same files"
    ) from err


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

# Memory may be missing in the middle of a pass, too.
RUN_ERRORS: tuple[type[Exception], ...] = (*NATIVE_ERRORS, MemoryError)

# Without it int8 products overflow on x86 processors that have no VNNI: wrong, and no error.
EXACT_INT8 = ("session.x64quantprecision", "1")

_Native: TypeAlias = "onnxruntime.InferenceSession"


def create_native(path: Path, provider: str, num_threads: int | None, /) -> _Native:
    """Load the graph and make sure the provider in use is the one that was asked for.

    ONNX Runtime lists providers that are compiled in but cannot run here, and replaces one that
    fails by the CPU with a mere warning (microsoft/onnxruntime#27177). Raises ConfigError if
    `num_threads` is below 1, BackendUnavailableError if the provider cannot be used, EngineError if
    the graph cannot be loaded.
    """
    if num_threads is not None and num_threads < 1:
        raise ConfigError(f"num_threads: expected at least 1, got {num_threads}")
    available = onnxruntime.get_available_providers()
    if provider not in available:
        raise _unavailable(provider, f"this ONNX Runtime has {', '.join(available)} only")
    providers: list[Any] = [provider]
    if provider == CUDA_PROVIDER:
        _preload_cuda()
        # Otherwise matrix products of float32 are rounded to ten bits of mantissa.
        providers = [(provider, {"use_tf32": "0"})]
    if provider != CPU_PROVIDER:
        providers.append(CPU_PROVIDER)  # second, for shape arithmetic belongs there
    try:
        session = onnxruntime.InferenceSession(
            path,
            _session_options(num_threads),
            providers=providers,
            enable_fallback=0,
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


def _session_options(num_threads: int | None) -> Any:
    """Quiet, and able to say afterwards where the nodes went."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_ERRORS_ONLY
    if num_threads is not None:
        options.intra_op_num_threads = num_threads
    options.add_session_config_entry(*EXACT_INT8)
    with contextlib.suppress(*NATIVE_ERRORS):  # an entry older versions do not know
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def _unavailable(provider: str, reason: str) -> BackendUnavailableError:
    """The error for a provider that cannot be used, with its remedy."""
    remedy = "choose another provider"
    if provider == CUDA_PROVIDER:
        # The wheel without CUDA holds the same files, and may be the one that was written last.
        remedy = (
            f"install CUDA, and then: {install_line('gpu')}; pip uninstall -y onnxruntime; "
            "pip install --force-reinstall --no-deps onnxruntime-gpu; or use the device cpu"
        )
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


def open_native(
    path: Path, provider: str, num_threads: int | None, /
) -> tuple[_Native, int | None]:
    """As `create_native`, with log lines, and the network's one batch size, or None."""
    session = create_native(path, provider, num_threads)
    logger.info("%s: running on %s", path.name, provider)
    _log_placement(session, provider)
    batch = session.get_inputs()[0].shape[0]
    return session, batch if isinstance(batch, int) else None


def _log_placement(session: _Native, provider: str) -> None:
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


Floats = npt.NDArray[np.float32]


class OnnxSession(Closing):
    """An artifact run by ONNX Runtime, on the given provider and no other; a path is loaded first.

    `num_threads` are those within one operator; None lets ONNX Runtime choose. Raises as
    `load_artifact` and `create_native`.
    """

    def __init__(
        self,
        artifact: Artifact | str | Path,
        /,
        *,
        provider: str = CPU_PROVIDER,
        num_threads: int | None = None,
    ) -> None:
        if not isinstance(artifact, Artifact):
            artifact = load_artifact(artifact)
        self.artifact = artifact
        # The execution provider really in use, as ONNX Runtime names it.
        self.provider = provider
        self._session: Any
        self._session, self._fixed_batch = open_native(artifact.path, provider, num_threads)

    def infer(self, pixel_values: Floats, /) -> Features:
        """See `Session`; B may be 0. For a network of one batch size, batches are split and padded.

        Raises EngineError also where an output is not what the manifest states.
        """
        if self._session is None:
            raise EngineError(
                f"{self.artifact.path}: the session is closed; open it again before use"
            )
        manifest = self.artifact.manifest
        count = check_input("pixel_values", pixel_values, pixel_shape(manifest.preprocess))
        if count == 0:
            return no_features(manifest)
        try:
            outputs = self._outputs(self._session, pixel_values)
        except RUN_ERRORS as err:
            raise EngineError(
                f"{self.artifact.path}: {self.provider} failed on a batch of {count}: "
                f"{one_line(err)}"
            ) from err
        check_outputs(self.artifact.path, outputs, manifest, batch_size=count)
        return as_features(outputs)

    def warm_up(self, batch_size: int | None = None, /) -> None:
        """Run once on zeros, so that the first frame does not pay for lazy allocations.

        B is `batch_size`, by default the network's fixed one, or 1; raises as `infer`.
        """
        size = self.artifact.manifest.preprocess
        count = (self._fixed_batch or 1) if batch_size is None else batch_size
        self.infer(np.zeros((count, 3, size.height_px, size.width_px), dtype=np.float32))

    def close(self) -> None:
        """Release the network; may be called twice."""
        self._session = None

    def _outputs(self, native: Any, pixel_values: Floats) -> list[Floats]:
        """The outputs of a checked batch; one that the network does not take is cut and filled."""
        manifest, count, size = self.artifact.manifest, len(pixel_values), self._fixed_batch
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
