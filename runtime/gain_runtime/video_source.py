"""Video files (and recordings behind a URL) as a frame source."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from gain_core.errors import StreamError
from gain_runtime.closing import Closing
from gain_runtime.frame import Frame, SourceInfo
from gain_runtime.opencv_capture import (
    Capture,
    CaptureFactory,
    Grabbed,
    GuardedCapture,
    codec_name,
    open_capture,
    rate_or_none,
)
from gain_runtime.uri import SCHEME, redact

__all__ = ["VideoSource"]

logger = logging.getLogger(__name__)

# OpenCV reports a damaged frame and the end of the file alike; a second of damage at 60 Hz is
# still bridged, and reading past the end this often takes a few milliseconds.
MAX_FAILED_READS = 64
# A recording counts as cut short when it misses this much of the length its header promises:
# audio tracks and rounding make small differences ordinary.
SHORT_PERIODS, SHORT_RATIO, SHORT_S = 1.5, 0.05, 2.0
DEFAULT_RATE_HZ = 30.0
ROTATIONS = {
    90: cv2.ROTATE_90_CLOCKWISE,
    180: cv2.ROTATE_180,
    270: cv2.ROTATE_90_COUNTERCLOCKWISE,
}
NETWORK_SETTINGS = (
    *(cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, 10_000),
    *(cv2.CAP_PROP_READ_TIMEOUT_MSEC, 10_000),
)


class VideoSource(Closing):
    """Every frame of a recording, upright, in order.

    Frames that cannot be decoded are skipped and counted, leaving a gap in `index`. A recording
    that ends before the length its header promises gives the frames before the cut and one
    warning; the missing ones are added to `skipped`.

    Parameters
    ----------
    location : str or Path
        File, or the URL of a recording.
    capture : callable
        Opens the capture; `cv2.VideoCapture` unless replaced.

    Raises
    ------
    StreamError
        If the file is missing, empty or no video, or if not one frame can be decoded.
    """

    def __init__(self, location: str | Path, /, *, capture: CaptureFactory = open_capture) -> None:
        text = str(location)
        is_url = isinstance(location, str) and SCHEME.match(text) is not None
        self._source_id = redact(text) if is_url else Path(text).name
        shown = redact(text) if is_url else text
        if not is_url:
            _check_file(Path(text))
            # FFmpeg takes `a:b.mp4` for a protocol; an absolute path is none.
            text = str(Path(text).absolute())
        self._capture = GuardedCapture(_open(text, capture, shown=shown, is_url=is_url))
        self._skipped = 0
        self._index = -1
        self._last_ms = -math.inf
        self._quarter_turn = self._turn_left_to_us()
        self._rate_hz = rate_or_none(self._capture.get(cv2.CAP_PROP_FPS))
        self._first = self._next()
        if self._first is None:
            codec = codec_name(self._capture.get(cv2.CAP_PROP_FOURCC))
            self.close()
            raise StreamError(
                f"{shown}: expected a video with at least one readable frame, got none "
                f"(codec {codec}): empty, damaged, or a codec this OpenCV cannot decode; "
                "convert it with: ffmpeg -i IN -c:v libx264 OUT.mp4"
            )
        height_px, width_px = self._first.image.shape[:2]
        self._info = SourceInfo(
            source_id=self._source_id,
            width_px=width_px,
            height_px=height_px,
            rate_hz=self._rate_hz,
            num_frames=_count_or_none(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)),
            live=False,
        )

    @property
    def info(self) -> SourceInfo:
        """What the container says; `num_frames` is its promise, not a count."""
        return self._info

    @property
    def skipped(self) -> int:
        """Frames that could not be decoded, or that a cut has taken, so far."""
        return self._skipped

    def __iter__(self) -> Iterator[Frame]:
        grabbed, self._first = self._first, None
        while grabbed is not None and not self._capture.closed:
            yield Frame(
                image=grabbed.image,
                index=self._index,
                timestamp_ns=round(self._stamp_ms(grabbed.position_ms) * 1e6),
                source_id=self._source_id,
            )
            grabbed = self._next()
        if not self._capture.closed:
            self._report_end()

    def close(self) -> None:
        """Release the file; may be called twice and from another thread."""
        self._capture.close()

    def _next(self) -> Grabbed | None:
        """Next decodable frame, counting the unreadable ones before it; None at the end."""
        for failed in range(MAX_FAILED_READS):
            grabbed = self._capture.read()
            if grabbed is not None:
                self._skipped += failed
                self._index += failed + 1
                return grabbed._replace(image=self._upright(grabbed.image))
            if self._capture.closed:
                break
        return None

    def _stamp_ms(self, position_ms: float) -> float:
        """Presentation time: the container's while it grows, else one frame period on."""
        if math.isfinite(position_ms) and position_ms > self._last_ms and position_ms >= 0.0:
            self._last_ms = position_ms
        elif math.isinf(self._last_ms):
            self._last_ms = 0.0
        else:
            self._last_ms += 1e3 / (self._rate_hz or DEFAULT_RATE_HZ)
        return self._last_ms

    def _turn_left_to_us(self) -> int | None:
        """Rotation to apply here, where OpenCV does not apply the container's by itself."""
        if self._capture.get(cv2.CAP_PROP_ORIENTATION_AUTO) == 1.0:
            return None
        turn = self._capture.get(cv2.CAP_PROP_ORIENTATION_META)
        return ROTATIONS.get(int(turn) % 360) if math.isfinite(turn) else None

    def _upright(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        if self._quarter_turn is None:
            return image
        turned: npt.NDArray[np.uint8] = cv2.rotate(image, self._quarter_turn)
        return turned

    def _report_end(self) -> None:
        """Say how many frames are missing at the end, and count them."""
        promised, rate_hz = self._info.num_frames, self._rate_hz
        if promised is None or rate_hz is None:
            return
        period_s = 1.0 / rate_hz
        length_s = promised * period_s
        missing_s = length_s - (self._last_ms / 1e3 + period_s)
        if missing_s > SHORT_PERIODS * period_s and (
            missing_s > SHORT_RATIO * length_s or missing_s > SHORT_S
        ):
            missing = round(missing_s * rate_hz)
            self._skipped += missing
            logger.warning(
                "%s: ended %.1f s early (about %d of %d frames missing): cut short or damaged; "
                "the frames before the cut are used",
                self._source_id,
                missing_s,
                missing,
                promised,
            )


def _open(text: str, factory: CaptureFactory, *, shown: str, is_url: bool) -> Capture:
    """Open with FFmpeg, else with whatever this OpenCV has (JetPack's may have GStreamer only)."""
    backends = [cv2.CAP_FFMPEG] if is_url else [cv2.CAP_FFMPEG, cv2.CAP_ANY]
    for backend in backends:
        capture = factory(text, backend, NETWORK_SETTINGS if is_url else ())
        if capture.isOpened():
            capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 1.0)
            return capture
        capture.release()
    raise StreamError(
        f"{shown}: expected a video, but it cannot be opened as one: it is no video, its index is "
        "missing (an mp4 whose recording was interrupted), or nothing here decodes its format"
    )


def _check_file(path: Path) -> None:
    """Refuse what is certainly no video before FFmpeg guesses (it renders text files)."""
    if not path.exists():
        raise StreamError(f"{path}: no such file or folder")
    if not path.is_file():
        raise StreamError(f"{path}: expected a regular file")
    try:
        with path.open("rb") as stream:
            head = stream.read(4096)
    except OSError as err:
        raise StreamError(f"{path}: cannot be read ({err.strerror})") from err
    if not head:
        raise StreamError(f"{path}: expected a video, got an empty file")
    if not head.startswith((b"#EXTM3U", b"YUV4MPEG2")) and _is_text(head):
        raise StreamError(f"{path}: expected a video, got a text file")


def _is_text(head: bytes) -> bool:
    """Whether bytes are printable UTF-8; the last character may be cut in two."""
    if any(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head):
        return False
    try:
        head.decode()
    except UnicodeDecodeError as err:
        return err.start >= len(head) - 3 and err.reason == "unexpected end of data"
    return True


def _count_or_none(count: float) -> int | None:
    """A frame count, or None where the container has none (negative or absurd)."""
    return int(count) if 0.0 < count < 2.0**31 else None
