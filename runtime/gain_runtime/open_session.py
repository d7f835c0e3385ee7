"""Choosing and opening the session for a device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from gain_core.errors import BackendUnavailableError, ConfigError, EngineError, GainError
from gain_runtime.artifact import Artifact, load_artifact
from gain_runtime.session import Session

if TYPE_CHECKING:
    from gain_runtime.adaptive_artifact import AdaptiveArtifact
    from gain_runtime.adaptive_session import AdaptiveSession
    from gain_runtime.onnx_session import OnnxSession
    from gain_runtime.tensorrt_session import TensorRTSession

__all__ = ["Device", "first_that_opens", "open_adaptive_session", "open_session"]

logger = logging.getLogger(__name__)

Device = Literal["cpu", "cuda", "auto", "tensorrt"]

Opened = TypeVar("Opened")
Warmed = TypeVar("Warmed", "OnnxSession", "TensorRTSession")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """How a session is opened, on whichever device."""

    num_threads: int | None
    allow_host_code: bool


def open_session(
    artifact: Artifact | str | Path,
    /,
    *,
    device: Device = "cpu",
    num_threads: int | None = None,
    allow_host_code: bool = False,
) -> Session:
    """Open an artifact on a device.

    Parameters
    ----------
    artifact : Artifact, str or Path
    device : {"cpu", "cuda", "auto", "tensorrt"}, optional
        `tensorrt` runs the `.engine` file beside the artifact; nothing is built here. `auto`
        takes the first of `tensorrt`, `cuda` and `cpu` on which a forward pass succeeds, and logs
        which, and why not those before it. The others are never replaced.
    num_threads : int, optional
        CPU threads within one operator; None lets the library choose.
    allow_host_code : bool, optional
        Take version-compatible engines: see `TensorRTSession`.

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
    if not isinstance(artifact, Artifact):
        artifact = load_artifact(artifact)
    options = _Options(num_threads=num_threads, allow_host_code=allow_host_code)
    if device == "tensorrt":
        return _open_tensorrt(artifact, options)
    if device != "auto":
        return _open_onnx(artifact, device, options)
    openers: dict[str, Callable[[], Session]] = {
        "tensorrt": lambda: _tried(_open_tensorrt(artifact, options)),
        "cuda": lambda: _tried(_open_onnx(artifact, "cuda", options)),
        "cpu": lambda: _open_onnx(artifact, "cpu", options),
    }
    return first_that_opens(openers)


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
    from gain_runtime.onnx_native import CPU_PROVIDER, CUDA_PROVIDER

    def opener(provider: str) -> Callable[[], AdaptiveSession]:
        return lambda: AdaptiveSession(artifact, provider=provider, num_threads=num_threads)

    openers = {"cuda": opener(CUDA_PROVIDER), "cpu": opener(CPU_PROVIDER)}
    return openers[device]() if device != "auto" else first_that_opens(openers)


def first_that_opens(openers: Mapping[str, Callable[[], Opened]], /) -> Opened:
    """Open on the first device that can, and log the choice and why not those before it.

    Parameters
    ----------
    openers : mapping
        From the devices' names, best first, to what opens a session there; the last one's errors
        are the caller's.

    Returns
    -------
    session
        Of the first opener that raises neither `BackendUnavailableError` nor `EngineError`.
    """
    *better, last = openers
    for name in better:
        try:
            session = openers[name]()
        except (BackendUnavailableError, EngineError) as err:
            logger.info("auto: %s is passed over: %s", name, err)
        else:
            logger.info("auto: %s is used", name)
            return session
    session = openers[last]()
    logger.info("auto: %s is used", last)
    return session


def _open_tensorrt(artifact: Artifact, options: _Options) -> TensorRTSession:
    """A session on the engine beside the artifact."""
    from gain_runtime.tensorrt_session import TensorRTSession

    return TensorRTSession(artifact, allow_host_code=options.allow_host_code)


def _open_onnx(artifact: Artifact, device: str, options: _Options) -> OnnxSession:
    """A session of ONNX Runtime."""
    # Imported late, so that command lines can show their help without ONNX Runtime.
    from gain_runtime.onnx_native import CPU_PROVIDER, CUDA_PROVIDER
    from gain_runtime.onnx_session import OnnxSession

    return OnnxSession(
        artifact,
        provider=CUDA_PROVIDER if device == "cuda" else CPU_PROVIDER,
        num_threads=options.num_threads,
    )


def _tried(session: Warmed) -> Warmed:
    """The session after one forward pass; closed where that fails."""
    try:
        session.warm_up()
    except GainError:
        session.close()
        raise
    return session


def _check_device(device: str) -> None:
    """The name is one of `Device`."""
    if device not in get_args(Device):
        raise ConfigError(f"device: expected {', '.join(get_args(Device))}, got {device!r}")
