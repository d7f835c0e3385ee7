"""OpenCV's video capture: typed, quiet, and safe to close from another thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeAlias

import cv2
import numpy as np
import numpy.typing as npt

from gain_core.errors import StreamError

__all__ = [
    "Capture",
    "CaptureFactory",
    "Grabbed",
    "GuardedCapture",
    "check_encodable",
    "codec_name",
    "open_capture",
    "quiet_opencv",
]

SILENT = 0


class Capture(Protocol):
    """The part of `cv2.VideoCapture` that is used here."""

    def isOpened(self) -> bool: ...  # noqa: N802

    def grab(self) -> bool: ...

    def retrieve(self) -> tuple[bool, Any]: ...

    def get(self, prop: int, /) -> float: ...

    def set(self, prop: int, value: float, /) -> bool: ...

    def release(self) -> None: ...


CaptureFactory: TypeAlias = Callable[[int | str, int, Sequence[int]], Capture]


class Grabbed(NamedTuple):
    """One decoded frame.

    `image` is (H, W, 3) uint8 RGB, `stamp_ns` the monotonic clock right after the grab returned,
    `position_ms` what the backend reports as the frame's presentation time (not always usable).
    """

    image: npt.NDArray[np.uint8]
    stamp_ns: int
    position_ms: float


@contextmanager
def quiet_opencv() -> Iterator[None]:
    """Keep OpenCV and its FFmpeg from writing to stderr; failures are raised as errors instead.

    FFmpeg's own level can only be given before its first use in the process, so it stays; set
    `OPENCV_FFMPEG_LOGLEVEL` in the environment to see its messages.
    """
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    # OpenCV 4.9 has the function in cv2, later versions in cv2.utils.logging.
    log: Any = cv2 if hasattr(cv2, "setLogLevel") else cv2.utils.logging
    previous = log.getLogLevel()
    log.setLogLevel(SILENT)
    try:
        yield
    finally:
        log.setLogLevel(previous)


def open_capture(target: int | str, backend: int, settings: Sequence[int]) -> Capture:
    """Open `cv2.VideoCapture`; whether that worked is for the caller to ask.

    Parameters
    ----------
    target : int or str
        Device index, path or URL.
    backend : int
        `cv2.CAP_*`.
    settings : sequence of int
        Alternating property and value, applied while opening.

    Raises
    ------
    StreamError
        If `target` is not encodable, see `check_encodable`.
    """
    if isinstance(target, str):
        check_encodable(target)
    with quiet_opencv():
        capture: Capture = cv2.VideoCapture(target, backend, list(settings))
    return capture


def check_encodable(path: str, /) -> None:
    """Refuse a file name that is not UTF-8: OpenCV crashes the process on it.

    Raises
    ------
    StreamError
        If `path` holds undecodable bytes (lone surrogates).
    """
    try:
        path.encode()
    except UnicodeEncodeError as err:
        raise StreamError(f"{path!a}: expected a UTF-8 file name; rename the file") from err


class GuardedCapture:
    """A capture that one thread reads and any thread may close.

    Releasing a capture during a grab crashes the process, and a grab can block for seconds. So
    `close` releases it only if no grab is running; otherwise the reading thread does, as soon as
    its grab returns.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._released = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    def get(self, prop: int, /) -> float:
        """Value of a property, NaN once closed."""
        with self._lock:
            return float("nan") if self._released else float(self._capture.get(prop))

    def read(self) -> Grabbed | None:
        """Next frame; None where there is none, it cannot be decoded, or this is closed."""
        with self._lock:
            grabbed = None if self._released or self.closed else self._read()
        if self.closed:
            self._release_if_idle()
            return None
        return grabbed

    def pause(self, seconds: float) -> None:
        """Wait, but no longer than until `close`."""
        self._closing.wait(seconds)

    def close(self) -> None:
        """Release the capture, now or when the running grab returns; may be called twice."""
        self._closing.set()
        self._release_if_idle()

    def _read(self) -> Grabbed | None:
        if not self._capture.grab():
            return None
        stamp_ns = time.monotonic_ns()
        position_ms = float(self._capture.get(cv2.CAP_PROP_POS_MSEC))
        ok, image = self._capture.retrieve()
        if not ok or image is None or image.size == 0 or image.dtype != np.uint8:
            return None
        return Grabbed(_to_rgb(image), stamp_ns, position_ms)

    def _release_if_idle(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                if not self._released:
                    self._released = True
                    self._capture.release()
            finally:
                self._lock.release()


def codec_name(fourcc: float, /) -> str:
    """A four-character code, as OpenCV reports it, as text."""
    if not 0.0 < fourcc < 2.0**32:
        return "unknown"
    name = int(fourcc).to_bytes(4, "little").decode("ascii", "replace")
    return name if name.isprintable() else "unknown"


def _to_rgb(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """OpenCV's channel order to RGB; the only place where frames from OpenCV are converted."""
    if image.ndim == 2 or image.shape[2] == 1:
        code = cv2.COLOR_GRAY2RGB
    elif image.shape[2] == 4:
        code = cv2.COLOR_BGRA2RGB
    else:
        code = cv2.COLOR_BGR2RGB
    converted: npt.NDArray[np.uint8] = cv2.cvtColor(image, code)
    return converted
