"""Choosing and opening the session for a device."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from gain_core.errors import BackendUnavailableError, ConfigError, EngineError
from gain_runtime.artifact import Artifact, load_artifact
from gain_runtime.session import Session

if TYPE_CHECKING:
    from gain_runtime.adaptive_artifact import AdaptiveArtifact
    from gain_runtime.adaptive_session import AdaptiveSession

__all__ = ["Device", "open_adaptive_session", "open_session"]

logger = logging.getLogger(__name__)

Device = Literal["cpu", "cuda", "auto", "tensorrt"]


def open_session(
    artifact: Artifact | str | Path,
    /,
    *,
    device: Device = "cpu",
    num_threads: int | None = None,
) -> Session:
    """Open an artifact on a device.

    Parameters
    ----------
    artifact : Artifact, str or Path
    device : {"cpu", "cuda", "auto", "tensorrt"}, optional
        `auto` takes the GPU (by CUDA) where a forward pass on it succeeds, the CPU otherwise, and
        logs which and why. The others are never replaced. `tensorrt` runs the `.engine` file
        beside the artifact; nothing is built here.
    num_threads : int, optional
        CPU threads within one operator; None lets the library choose.

    Returns
    -------
    Session
        Close it, or use it as a context manager.

    Raises
    ------
    ArtifactError
        If the path is no artifact.
    BackendUnavailableError
        If the device cannot be used.
    ConfigError
        If the device is unknown or `num_threads` is below 1.
    EngineError
        If the graph cannot be loaded, or the engine is missing, stale or foreign.
    """
    _check_device(device)
    if device == "tensorrt":
        from gain_runtime.tensorrt_session import TensorRTSession

        return TensorRTSession(artifact)
    # Imported late, so that command lines can show their help without ONNX Runtime.
    from gain_runtime.onnx_session import CPU_PROVIDER, CUDA_PROVIDER, OnnxSession

    if not isinstance(artifact, Artifact):
        artifact = load_artifact(artifact)
    if device == "auto":
        try:
            session = OnnxSession(artifact, provider=CUDA_PROVIDER, num_threads=num_threads)
            session.warm_up()
        except (BackendUnavailableError, EngineError) as err:
            logger.info("auto: the GPU is not used: %s", err)
        else:
            return session
    provider = CUDA_PROVIDER if device == "cuda" else CPU_PROVIDER
    return OnnxSession(artifact, provider=provider, num_threads=num_threads)


def open_adaptive_session(
    artifact: AdaptiveArtifact, /, *, device: Device = "cpu", num_threads: int | None = None
) -> AdaptiveSession:
    """Open an adaptive file on a device.

    Parameters
    ----------
    artifact : AdaptiveArtifact
    device : {"cpu", "cuda", "auto"}, optional
        As for `open_session`, without `tensorrt`, which runs no adaptive files; `auto` takes the
        GPU where the graph loads on it.
    num_threads : int, optional
        CPU threads within one operator; None lets the library choose.

    Returns
    -------
    AdaptiveSession
        Close it, or use it as a context manager.

    Raises
    ------
    BackendUnavailableError
        If the device cannot be used.
    ConfigError
        If the device is unknown or `num_threads` is below 1.
    EngineError
        If the graph cannot be loaded.
    """
    _check_device(device)
    if device == "tensorrt":
        raise ConfigError(
            "device: tensorrt runs artifacts, not adaptive files; give the artifact, whose "
            "adaptation then runs beside the engine, or the device cuda"
        )
    from gain_runtime.adaptive_session import AdaptiveSession
    from gain_runtime.onnx_session import CPU_PROVIDER, CUDA_PROVIDER

    if device == "auto":
        try:
            return AdaptiveSession(artifact, provider=CUDA_PROVIDER, num_threads=num_threads)
        except (BackendUnavailableError, EngineError) as err:
            logger.info("auto: the GPU is not used: %s", err)
    provider = CUDA_PROVIDER if device == "cuda" else CPU_PROVIDER
    return AdaptiveSession(artifact, provider=provider, num_threads=num_threads)


def _check_device(device: str) -> None:
    """The name is one of `Device`."""
    if device not in get_args(Device):
        raise ConfigError(f"device: expected {', '.join(get_args(Device))}, got {device!r}")
