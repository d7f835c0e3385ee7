"""The protocol of a loaded network, its checks, and opening one on a device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from gain_core.errors import (
    ArrayError,
    BackendUnavailableError,
    ConfigError,
    EngineError,
    GainError,
)
from gain_runtime.files.artifact import Artifact, load_artifact
from gain_runtime.files.manifest import Manifest, Preprocess

if TYPE_CHECKING:
    from gain_runtime.files.adaptive import AdaptiveArtifact
    from gain_runtime.sessions.adaptive import AdaptiveSession
    from gain_runtime.sessions.onnx import OnnxSession
    from gain_runtime.sessions.tensorrt import TensorRTSession

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]


class Features(NamedTuple):
    """The outputs of one pass: features (B, D), None where there are only logits, and logits (B,
    K)."""

    features: Floats | None
    logits: Floats


class Session(Protocol):
    """A loaded, callable network that owns its resources (a context manager)."""

    @property
    def artifact(self) -> Artifact:
        """The loaded artifact."""
        ...

    @property
    def provider(self) -> str:
        """The execution provider really in use, as the library names it."""
        ...

    def infer(self, pixel_values: Floats, /) -> Features:
        """Run one batch.

        Parameters
        ----------
        pixel_values : array, (B, 3, height_px, width_px) float32
            NumPy, C-contiguous.

        Returns
        -------
        Features

        Raises
        ------
        ArrayError
            If the array has another type, shape or layout, or the network takes no batch of B.
        EngineError
            If the session is closed or the forward pass fails.
        """
        ...

    def close(self) -> None:
        """Release the network; may be called twice."""
        ...

    def __enter__(self) -> Session: ...

    def __exit__(self, *exc: object) -> None: ...


def pixel_shape(size: Preprocess, /) -> tuple[None, int, int, int]:
    """The shape of `pixel_values`, None being any number of images."""
    return (None, 3, size.height_px, size.width_px)


def check_input(name: str, array: Any, shape: tuple[int | None, ...], /) -> int:
    """The batch size of an array; raises ArrayError if a network cannot read it.

    It must be a C-contiguous float32 array of NumPy of this shape, B first, where None is any size.
    """
    sizes = ", ".join("B" if size is None else str(size) for size in shape)
    expected = f"a C-contiguous NumPy array ({sizes}) float32"
    if not isinstance(array, np.ndarray):
        kind = type(array)
        raise ArrayError(
            f"{name}: expected {expected}, got {kind.__module__}.{kind.__qualname__}; "
            "use preprocess_batch's result, or copy it to the host"
        )
    fits = array.ndim == len(shape) and all(
        size in (None, actual) for size, actual in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype != np.float32:
        raise ArrayError(
            f"{name}: expected {expected}, got {array.shape} {array.dtype}; "
            "use preprocess_batch with the artifact's own settings"
        )
    if not array.flags.c_contiguous:
        raise ArrayError(
            f"{name}: expected {expected}, got strides {array.strides}; use numpy.ascontiguousarray"
        )
    return len(array)


def check_outputs(
    path: Path, outputs: Sequence[Floats], manifest: Manifest, /, *, batch_size: int
) -> None:
    """Raises EngineError unless all are float32 of the sizes and order of `Manifest.outputs`."""
    for (name, width), output in zip(manifest.outputs, outputs, strict=True):
        if output.shape != (batch_size, width) or output.dtype != np.float32:
            raise EngineError(
                f"{path}: {name}: expected {(batch_size, width)} float32, "
                f"got {output.shape} {output.dtype}; export the model again"
            )


def as_features(outputs: Sequence[Floats], /) -> Features:
    """The outputs of a network in the order of `Manifest.outputs`."""
    return Features(outputs[0] if len(outputs) > 1 else None, outputs[-1])


def no_features(manifest: Manifest, /) -> Features:
    """The outputs for a batch of 0 images."""
    return as_features([np.empty((0, width), dtype=np.float32) for _, width in manifest.outputs])


Device = Literal["cpu", "cuda", "auto", "tensorrt"]

Opened = TypeVar("Opened")


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
        `tensorrt` runs the `.engine` file beside the artifact, and builds none. `auto` takes the
        first of `tensorrt`, `cuda` and `cpu` on which a forward pass succeeds, and logs the choice
        and why the others failed. A device that is named is never replaced by another.
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
    open_on = partial(_open, artifact, num_threads=num_threads, allow_host_code=allow_host_code)
    if device != "auto":
        return open_on(device)
    names = ("tensorrt", "cuda", "cpu")
    return first_that_opens({name: partial(open_on, name, warm=name != "cpu") for name in names})


def open_adaptive_session(
    artifact: AdaptiveArtifact, /, *, device: Device = "cpu", num_threads: int | None = None
) -> AdaptiveSession:
    """Open an adaptive file, as `open_session` an artifact; `auto` goes by whether the graph loads.

    Raises ConfigError for `tensorrt`, too, which runs no adaptive files.
    """
    _check_device(device)
    if device == "tensorrt":
        raise ConfigError(
            "device: tensorrt runs artifacts, not adaptive files; give the artifact, whose "
            "adaptation then runs beside the engine, or the device cuda"
        )
    from gain_runtime.sessions.adaptive import AdaptiveSession
    from gain_runtime.sessions.onnx import CPU_PROVIDER, CUDA_PROVIDER

    providers = {"cuda": CUDA_PROVIDER, "cpu": CPU_PROVIDER}
    openers = {
        name: partial(AdaptiveSession, artifact, provider=provider, num_threads=num_threads)
        for name, provider in providers.items()
    }
    return openers[device]() if device != "auto" else first_that_opens(openers)


def first_that_opens(openers: Mapping[str, Callable[[], Opened]], /) -> Opened:
    """Open the first, by device name and best first, that works; log the choice and why.

    The last one's errors are raised; those before it may raise `BackendUnavailableError` or
    `EngineError`.
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


def _open(
    artifact: Artifact,
    device: str,
    /,
    *,
    num_threads: int | None,
    allow_host_code: bool,
    warm: bool = False,
) -> Session:
    """A session on a device, after one forward pass where `warm`; closed where that fails."""
    # Imported late, so that command lines can show their help without ONNX Runtime.
    session: OnnxSession | TensorRTSession
    if device == "tensorrt":
        from gain_runtime.sessions.tensorrt import TensorRTSession

        session = TensorRTSession(artifact, allow_host_code=allow_host_code)
    else:
        from gain_runtime.sessions.onnx import CPU_PROVIDER, CUDA_PROVIDER, OnnxSession

        provider = CUDA_PROVIDER if device == "cuda" else CPU_PROVIDER
        session = OnnxSession(artifact, provider=provider, num_threads=num_threads)
    try:
        if warm:
            session.warm_up()
    except GainError:
        session.close()
        raise
    return session


def _check_device(device: str) -> None:
    """The name is one of `Device`."""
    if device not in get_args(Device):
        raise ConfigError(f"device: expected {', '.join(get_args(Device))}, got {device!r}")
