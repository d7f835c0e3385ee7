"""Local cameras and GStreamer pipelines as a frame source, through OpenCV."""

from __future__ import annotations

import logging
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2

from gain_core.errors import ConfigError, StreamError
from gain_runtime.closing import Closing
from gain_runtime.file_kind import file_status
from gain_runtime.frame import Frame, SourceInfo, rate_or_none
from gain_runtime.opencv_capture import (
    Capture,
    CaptureFactory,
    Grabbed,
    GuardedCapture,
    codec_name,
    open_capture,
)
from gain_runtime.uri import redact
from gain_runtime.video_decoder import in_thread

__all__ = ["CameraRequest", "CameraSource"]

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 0.05
# Reads that fail by a time-out of several seconds each must not add up to minutes.
PATIENCE_S = 10.0
DEFAULT_WARM_UP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraRequest:
    """What to ask a camera for; it grants what it can.

    Attributes
    ----------
    width_px, height_px : int or None
        Given together; None leaves the driver's default. Local cameras only, as are the next two.
    rate_hz : float or None
        None leaves the driver's default.
    pixel_format : str or None
        Four-character code, asked for before the size: most webcams give their full size and
        rate in MJPG only.
    num_warm_up : int or None
        Frames discarded before the first one is yielded, while exposure and white balance
        settle; dark frames would enter the running statistics. None means 10 for cameras and
        pipelines and 0 for network streams.
    num_tries : int
        Failed reads in a row after which the signal counts as lost; fewer where they take more
        than 10 s together.
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

    One frame is read while opening, to learn the true size; it is not yielded. A read that fails
    is tried again after a short pause, each failure counted in `skipped`.

    Parameters
    ----------
    target : str
        Device index in digits, device path or GStreamer pipeline.
    shown : str or None
        What messages call it; None makes it from the target, without credentials.
    is_pipeline : bool
        Whether `target` is a GStreamer pipeline.
    request : CameraRequest
    capture : callable
        Opens the capture; `cv2.VideoCapture` unless replaced.

    Raises
    ------
    StreamError
        If it cannot be opened or gives no frame; while iterating, if the signal is lost.
    """

    def __init__(
        self,
        target: str,
        /,
        *,
        shown: str | None = None,
        is_pipeline: bool = False,
        request: CameraRequest | None = None,
        capture: CaptureFactory = open_capture,
    ) -> None:
        self._request = request or CameraRequest()
        self._is_pipeline = is_pipeline
        name = redact(target) if not target.isdigit() else f"camera {target}"
        self._source_id = name if shown is None else shown
        # Pipelines may wait for a camera on the network: a signal shall end that wait.
        opened = in_thread(lambda: self._open(target, capture), closed=threading.Event())
        if not is_pipeline:
            self._ask(opened)
        self._capture = GuardedCapture(opened)
        self._skipped = 0
        self._num_read = 0
        self._info = self._learn_info()

    @property
    def info(self) -> SourceInfo:
        """Size of the first frame and the rate the driver claims."""
        return self._info

    @property
    def skipped(self) -> int:
        """Failed reads so far."""
        return self._skipped

    def __iter__(self) -> Iterator[Frame]:
        num_warm_up = self._request.num_warm_up
        if num_warm_up is None:
            num_warm_up = DEFAULT_WARM_UP
        index = -num_warm_up
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

    def _open(self, target: str, factory: CaptureFactory) -> Capture:
        if self._is_pipeline:
            opened = factory(target, cv2.CAP_GSTREAMER, ())
        else:
            backend = cv2.CAP_V4L2 if sys.platform.startswith("linux") else cv2.CAP_ANY
            opened = factory(int(target) if target.isdigit() else target, backend, ())
        if opened.isOpened():
            return opened
        opened.release()
        reason = _pipeline_hint() if self._is_pipeline else _device_hint(target)
        raise StreamError(f"{self._source_id}: cannot be opened; {reason}")

    def _ask(self, opened: Capture) -> None:
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
        """Read one frame and log what was granted."""
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
            codec_name(self._capture.get(cv2.CAP_PROP_FOURCC)),
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
            self._skipped += 1
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
            "are; use the system's (python3-opencv, JetPack's), see docs/opencv.md"
        )
    return "try the same pipeline with gst-launch-1.0, fakesink in place of appsink"
