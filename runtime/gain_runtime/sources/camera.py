"""Local cameras and GStreamer pipelines as a frame source, through OpenCV's capture."""

from __future__ import annotations

import logging
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from gain_core.errors import ConfigError, StreamError
from gain_runtime.files.paths import file_status
from gain_runtime.frames import Closing, Frame, SourceInfo, rate_or_none
from gain_runtime.sources.decoder import in_thread
from gain_runtime.sources.reader import Guarded

logger = logging.getLogger(__name__)

SILENT = 0


class Grabbed(NamedTuple):
    """One frame, (H, W, 3) uint8 RGB, and the monotonic clock in ns right after its grab."""

    image: npt.NDArray[np.uint8]
    stamp_ns: int


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


def _open_capture(target: str, backend: int) -> cv2.VideoCapture:
    """OpenCV's capture; whether it opened is for the caller to ask."""
    try:
        # OpenCV crashes the process on a name that is not UTF-8.
        target.encode()
    except UnicodeEncodeError as err:
        raise StreamError(f"{target!a}: expected a UTF-8 file name; rename the file") from err
    with quiet_opencv():
        return cv2.VideoCapture(int(target) if target.isdigit() else target, backend)


class GuardedCapture(Guarded):
    """A capture that one thread reads and any thread may close."""

    def __init__(self, capture: cv2.VideoCapture) -> None:
        super().__init__()
        self._capture = capture

    def get(self, prop: int, /) -> float:
        """Value of a property, NaN once closed."""
        with self._lock:
            return float("nan") if self._released else float(self._capture.get(prop))

    def read(self) -> Grabbed | None:
        """Next frame; None where there is none, it cannot be decoded, or this is closed."""
        return self._use(self._read)

    def pause(self, seconds: float) -> None:
        """Wait, but no longer than until `close`."""
        self._closing.wait(seconds)

    def _release(self) -> None:
        self._capture.release()

    def _read(self) -> Grabbed | None:
        if not self._capture.grab():
            return None
        stamp_ns = time.monotonic_ns()
        ok, image = self._capture.retrieve()
        if not ok or image is None or image.size == 0 or image.dtype != np.uint8:
            return None
        return Grabbed(_to_rgb(image), stamp_ns)


def _codec_name(fourcc: float, /) -> str:
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


RETRY_PAUSE_S = 0.05
# Reads that fail by a time-out of several seconds each must not add up to minutes.
PATIENCE_S = 10.0
DEFAULT_WARM_UP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraRequest:
    """What to ask a camera for; it grants what it can, and None leaves the driver's default.

    Size (both or none), rate and pixel format are for local cameras only. The format, a
    four-character code, is asked for before the size: most webcams give their full size and rate in
    MJPG only. `num_warm_up` frames are discarded before the first one is yielded, while exposure
    and white balance settle: dark frames would enter the running statistics. None means 10. After
    `num_tries` failed reads in a row the signal counts as lost; after fewer if they take more than
    10 s together. Raises ConfigError if a value is out of its range.
    """

    width_px: int | None = None
    height_px: int | None = None
    rate_hz: float | None = None
    pixel_format: str | None = "MJPG"
    num_warm_up: int | None = None
    num_tries: int = 20

    def __post_init__(self) -> None:
        if (self.width_px is None) != (self.height_px is None):
            raise ConfigError("camera size: expected width and height, got only one of them")
        for name, value, low in (
            ("width_px", self.width_px, 1),
            ("height_px", self.height_px, 1),
            ("num_warm_up", self.num_warm_up, 0),
            ("num_tries", self.num_tries, 1),
        ):
            if value is not None and value < low:
                raise ConfigError(f"{name}: expected at least {low}, got {value}")
        if self.rate_hz is not None and rate_or_none(self.rate_hz) is None:
            raise ConfigError(f"rate_hz: expected (0, 1000], got {self.rate_hz}")
        if self.pixel_format is not None and len(self.pixel_format) != 4:
            raise ConfigError(f"pixel_format: expected 4 characters, got {self.pixel_format!r}")


class CameraSource(Closing):
    """A live source: frames as they come, stamped with the monotonic clock after each grab.

    `target` is a device index in digits, a device path or, with `is_pipeline`, a GStreamer
    pipeline; messages call it `shown`, without credentials. One frame is read while opening, to
    learn the true size; it is not yielded. A read that fails is tried again after a short pause,
    each failure counted in `skipped`. Raises StreamError if it cannot be opened or gives no frame
    and, while iterating, if the signal is lost.
    """

    def __init__(
        self,
        target: str,
        /,
        *,
        shown: str,
        is_pipeline: bool = False,
        request: CameraRequest | None = None,
    ) -> None:
        self._request = request or CameraRequest()
        self._is_pipeline = is_pipeline
        self._source_id = shown
        # Pipelines may wait for a camera on the network: a signal shall end that wait.
        opened = in_thread(lambda: self._open(target), closed=threading.Event())
        if not is_pipeline:
            self._ask(opened)
        self._capture = GuardedCapture(opened)
        # Failed reads so far.
        self.skipped = 0
        self._num_read = 0
        self.info = self._learn_info()

    def __iter__(self) -> Iterator[Frame]:
        num_warm_up = self._request.num_warm_up
        index = -(DEFAULT_WARM_UP if num_warm_up is None else num_warm_up)
        while (grabbed := self._next()) is not None:
            if index >= 0:
                yield Frame(
                    image=grabbed.image,
                    index=index,
                    timestamp_ns=grabbed.stamp_ns,
                    source_id=self._source_id,
                )
            index += 1

    def close(self) -> None:
        """Release the device; may be called twice and from another thread."""
        self._capture.close()

    def _open(self, target: str) -> cv2.VideoCapture:
        backend = cv2.CAP_V4L2 if sys.platform.startswith("linux") else cv2.CAP_ANY
        opened = _open_capture(target, cv2.CAP_GSTREAMER if self._is_pipeline else backend)
        if opened.isOpened():
            return opened
        opened.release()
        reason = _pipeline_hint() if self._is_pipeline else _device_hint(target)
        raise StreamError(f"{self._source_id}: cannot be opened; {reason}")

    def _ask(self, opened: cv2.VideoCapture) -> None:
        """Request pixel format, then size, then rate: drivers grant the later by the earlier."""
        request = self._request
        if request.pixel_format is not None:
            opened.set(cv2.CAP_PROP_FOURCC, cv2.VideoWriter.fourcc(*request.pixel_format))
        if request.width_px is not None and request.height_px is not None:
            opened.set(cv2.CAP_PROP_FRAME_WIDTH, request.width_px)
            opened.set(cv2.CAP_PROP_FRAME_HEIGHT, request.height_px)
        if request.rate_hz is not None:
            opened.set(cv2.CAP_PROP_FPS, request.rate_hz)

    def _learn_info(self) -> SourceInfo:
        """Read one frame, for its size, and log what was granted."""
        try:
            first = self._next()
        except StreamError:
            self.close()
            raise
        if first is None:
            raise StreamError(f"{self._source_id}: closed while opening")
        height_px, width_px = first.image.shape[:2]
        rate_hz = rate_or_none(self._capture.get(cv2.CAP_PROP_FPS))
        logger.info(
            "%s: granted %d x %d px, %s, pixel format %s",
            self._source_id,
            width_px,
            height_px,
            "rate unknown" if rate_hz is None else f"{rate_hz:g} Hz",
            _codec_name(self._capture.get(cv2.CAP_PROP_FOURCC)),
        )
        wanted = (self._request.width_px, self._request.height_px)
        if not self._is_pipeline and None not in wanted and wanted != (width_px, height_px):
            logger.warning(
                "%s: asked for %d x %d px, the camera gives %d x %d px",
                self._source_id,
                *wanted,
                width_px,
                height_px,
            )
        return SourceInfo(
            source_id=self._source_id,
            width_px=width_px,
            height_px=height_px,
            rate_hz=rate_hz,
            num_frames=None,
            live=True,
        )

    def _next(self) -> Grabbed | None:
        """Next frame; None once closed."""
        started = time.monotonic()
        failed = 0
        while failed < self._request.num_tries and time.monotonic() - started < PATIENCE_S:
            grabbed = self._capture.read()
            if grabbed is not None:
                self._num_read += 1
                return grabbed
            if self._capture.closed:
                return None
            failed += 1
            self.skipped += 1
            self._capture.pause(RETRY_PAUSE_S)
        raise StreamError(
            f"{self._source_id}: signal lost after {self._num_read} frames "
            f"({failed} reads in a row failed); check the cable, the network or "
            "whether another program holds the camera"
        )


def _device_hint(target: str) -> str:
    """Why a local camera may not open, as far as the device nodes tell."""
    path = Path(f"/dev/video{target}" if target.isdigit() else target)
    status = file_status(path, error=StreamError)
    if status is not None and not os.access(path, os.R_OK | os.W_OK):
        return f"no permission for {path}: add the user to the group that owns it (video)"
    if status is not None and stat.S_ISCHR(status.st_mode):
        return f"{path} exists, so another program may hold it, or it is no capture device"
    known = sorted(str(node) for node in Path("/dev").glob("video*"))
    found = f"no device {path}" if status is None else f"{path} is no device"
    return f"{found}; devices here: {', '.join(known) or 'none'}"


def _pipeline_hint() -> str:
    """Why a pipeline may not open."""
    if not cv2.videoio_registry.hasBackend(cv2.CAP_GSTREAMER):
        return (
            f"this OpenCV ({cv2.__version__}) was built without GStreamer, as the wheels from PyPI "
            "are; use the system's (python3-opencv, JetPack's), see docs/how-to/camera.md"
        )
    return "try the same pipeline with gst-launch-1.0, fakesink in place of appsink"
