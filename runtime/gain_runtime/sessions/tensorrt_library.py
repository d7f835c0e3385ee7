"""The two TensorRT libraries behind one set of names: which one, its log, and the GPU it sees."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from gain_core.errors import BackendUnavailableError, ConfigError
from gain_runtime.optional import install_line, require

logger = logging.getLogger(__name__)

EXTRAS = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}
_LOG_TAIL_LINES = 20
_LOUD = ("WARNING", "ERROR", "INTERNAL_ERROR")


class Gpu(NamedTuple):
    """The GPU at hand: its name, its compute capability as 86 for 8.6, and its free memory."""

    name: str
    compute_capability: int
    free_bytes: int


def installed_library() -> str:
    """The name of the TensorRT library that is installed here; `tensorrt` goes first.

    Raises BackendUnavailableError if there is none.
    """
    for name in EXTRAS:
        if importlib.util.find_spec(name) is not None:
            return name
    raise BackendUnavailableError(
        "tensorrt: neither tensorrt nor tensorrt_rtx is installed; on a Jetson use the vendor's "
        f"image, elsewhere {install_line('tensorrt', 'tensorrt-rtx')}, the second for an RTX card"
    )


def load_library(name: str, /) -> Any:
    """Import `tensorrt` or `tensorrt_rtx`; raises ConfigError or BackendUnavailableError."""
    if name not in EXTRAS:
        raise ConfigError(f"library: expected {' or '.join(EXTRAS)}, got {name!r}")
    return require(name, extra=EXTRAS[name])


def library_version(library: Any, /) -> str:
    """The version a TensorRT module states, as `10.3.0`."""
    return str(library.__version__)


def make_log(library: Any, /) -> Any:
    """A logger for the library, an ILogger of its own: its lines go to `logging`.

    `tail` is a deque of the last warnings and errors, one line each; `first_error()` is a text.
    """

    class Log(library.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            library.ILogger.__init__(self)
            self.tail: deque[str] = deque(maxlen=_LOG_TAIL_LINES)
            self.errors: deque[str] = deque(maxlen=_LOG_TAIL_LINES)

        def log(self, severity: Any, message: str) -> None:
            line = " ".join(message.split())
            if severity.name in _LOUD:
                self.tail.append(line)
                if severity.name != "WARNING":
                    self.errors.append(line)
            logger.debug("%s %s: %s", library.__name__, severity.name, line)

        def first_error(self) -> str:
            return self.errors[0] if self.errors else "no reason was given"

    return Log()


def create(kind: Callable[[Any], Any], log: Any, /) -> Any:
    """Make one of the library's first objects, a builder or a runtime, with the log of `make_log`.

    Raises BackendUnavailableError if the library cannot, as TensorRT cannot without a driver.
    """
    try:
        return kind(log)
    except TypeError as err:  # what its bindings turn a null pointer into
        raise BackendUnavailableError(
            f"{kind.__module__.split('.')[-1]}: cannot start here: {log.first_error()}; install or "
            "update the NVIDIA driver, or use the device cpu"
        ) from err


def current_gpu() -> Gpu | None:
    """The current CUDA device, asked through CuPy; None without CuPy, a driver or a device."""
    try:
        cupy: Any = require("cupy", extra="cuda12")
    except BackendUnavailableError:
        return None
    runtime = cupy.cuda.runtime
    try:
        properties = runtime.getDeviceProperties(runtime.getDevice())
        free_bytes = int(runtime.memGetInfo()[0])
    except runtime.CUDARuntimeError as err:
        logger.debug("no CUDA device: %s", err)
        return None
    capability = 10 * int(properties["major"]) + int(properties["minor"])
    return Gpu(properties["name"].decode(), capability, free_bytes)


def expected_header(artifact_sha256: str, library: Any, gpu: Gpu | None, /) -> dict[str, object]:
    """What a usable engine's header says, for `EngineHeader.difference`; without a GPU, for any."""
    expected: dict[str, object] = {
        "artifact_sha256": artifact_sha256,
        "library": library.__name__,
        "version": library_version(library),
    }
    if gpu is not None:
        expected["compute_capability"] = gpu.compute_capability
        # A plan of TensorRT is tuned to one model of GPU; one of TensorRT-RTX finishes its
        # compilation on the GPU it meets.
        if library.__name__ == "tensorrt":
            expected["gpu"] = gpu.name
    return expected


def cache_folder() -> Path:
    """`gain-edge/tensorrt` in the user's cache folder (XDG_CACHE_HOME); may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gain-edge/tensorrt"


def cache_file(library: Any, gpu: Gpu | None, kind: str, /) -> Path:
    """The cache of one library, version and GPU, by its suffix without a dot; may not exist yet."""
    name = "no-gpu" if gpu is None else "".join(c if c.isalnum() else "-" for c in gpu.name)
    return cache_folder() / f"{library.__name__}-{library_version(library)}-{name}.{kind}"
