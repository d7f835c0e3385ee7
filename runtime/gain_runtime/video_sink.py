"""Annotated video files, checked to be playable."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from gain_core.errors import ArrayError, StreamError
from gain_runtime.av_writer import AV_CODEC, AvWriter
from gain_runtime.closing import Closing
from gain_runtime.opencv_capture import (
    check_encodable,
    open_capture,
    quiet_opencv,
    rate_or_none,
)
from gain_runtime.result import FrameResult

__all__ = ["Render", "VideoSink"]

logger = logging.getLogger(__name__)

Render = Callable[[FrameResult], npt.NDArray[np.uint8]]

DEFAULT_RATE_HZ = 30.0
# H.264 plays everywhere, but OpenCV's wheels from PyPI have no encoder for it: PyAV has (extra:
# video). MPEG-4 part 2 is always there. VP9 would play in browsers and takes 40 times as long.
CODECS = {
    ".mp4": (AV_CODEC, "avc1", "mp4v"),
    ".m4v": (AV_CODEC, "avc1", "mp4v"),
    ".mov": (AV_CODEC, "avc1", "mp4v"),
    ".mkv": (AV_CODEC, "H264", "mp4v"),
    ".avi": ("XVID", "MJPG"),
}
PROBE_SIZE = (320, 240)
PROBE_FRAMES = 8


class VideoSink(Closing):
    """Writes what `render` draws for each result into a video file.

    The codec is chosen by writing and reading back a short clip while opening, so that an
    unwritable folder, an unknown suffix or an absent codec is an error before the first frame.
    The first frame fixes the size (rounded up to even numbers); later ones are scaled to fit and
    centred on black.

    The file is written beside its final name as `NAME.partial-XXXX.SUFFIX` and renamed by `close`
    once it was read back, so an earlier file of that name survives a failure. After Ctrl-C `close`
    finishes the file as usual; a process that is killed leaves the partial file.

    Parameters
    ----------
    path : str or Path
        Ends in .mp4, .m4v, .mov, .mkv or .avi.
    render : callable
        FrameResult to (H, W, 3) uint8 RGB.
    rate_hz : float or None
        Constant frame rate; 30 where it is None or cannot be one.
    codecs : sequence of str or None
        Four-character codes to try in order; None means a list by suffix.

    Raises
    ------
    StreamError
        See above; from `write` and `close`, if the file cannot be written or read back.
    """

    def __init__(
        self,
        path: str | Path,
        /,
        *,
        render: Render,
        rate_hz: float | None = None,
        codecs: Sequence[str] | None = None,
    ) -> None:
        self._path = Path(path)
        suffix = self._path.suffix.lower()
        if suffix not in CODECS:
            raise StreamError(
                f"{path}: expected a video file name ending in {', '.join(CODECS)}, "
                f"got {suffix or 'no suffix'}"
            )
        # FFmpeg takes `a:b.mp4` for a protocol; an absolute path is none.
        self._partial = self._path.absolute().with_name(
            f"{self._path.stem}.partial-{secrets.token_hex(4)}{suffix}"
        )
        check_encodable(str(path))
        _check_writable(self._path, self._partial)
        self._render = render
        self._rate_hz = rate_or_none(rate_hz or 0.0) or DEFAULT_RATE_HZ
        self._codecs = _usable(codecs or CODECS[suffix], self._partial, rate_hz=self._rate_hz)
        if not self._codecs:
            raise StreamError(
                f"{path}: none of the codecs {', '.join(codecs or CODECS[suffix])} is available "
                f"in this OpenCV ({cv2.__version__}); try another suffix: {', '.join(CODECS)}"
            )
        self._writer: Any = None
        self._size = (0, 0)
        self._num_frames = 0
        self._broken = False
        self._closed = False

    def write(self, result: FrameResult, /) -> None:
        """Render and append one frame."""
        if self._closed:
            raise StreamError(f"{self._path}: already closed")
        image = self._render(result)
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise ArrayError(
                f"render: expected (H, W, 3) uint8 RGB, got {image.shape} {image.dtype}"
            )
        if self._writer is None:
            self._open(image)
        frame = cv2.cvtColor(_letterbox(image, self._size), cv2.COLOR_RGB2BGR)
        with quiet_opencv():
            # OpenCV 5 returns a bool, OpenCV 4 nothing.
            self._broken = self._writer.write(frame) is False
        if self._broken:
            raise StreamError(
                f"{self._path}: frame {self._num_frames} cannot be written, disk full?"
            )
        self._num_frames += 1

    def close(self) -> None:
        """Finish, read back and rename the file; may be called twice.

        After a failed `write` the partial file is only removed: the error was raised there.
        """
        if self._closed:
            return
        self._closed = True
        if self._writer is None:
            logger.warning("%s: no frame was given, so no file was written", self._path)
            return
        try:
            with quiet_opencv():
                self._writer.release()
            if not self._broken:
                self._verify()
                _sync(self._partial)
                self._partial.replace(self._path)
        except (OSError, cv2.error) as err:
            if isinstance(err, StreamError):
                raise
            reason = getattr(err, "strerror", None) or " ".join(str(err).split())
            raise StreamError(f"{self._path}: cannot be finished ({reason})") from err
        finally:
            self._remove_partial()

    def _remove_partial(self) -> None:
        """Delete what is left of the file; a failure must not hide why it is left."""
        try:
            self._partial.unlink(missing_ok=True)
        except OSError as err:
            logger.warning("%s: cannot be removed (%s); delete it", self._partial, err.strerror)

    def _open(self, image: npt.NDArray[np.uint8]) -> None:
        """Open the writer at the first frame's size with the first codec that takes it."""
        height, width = image.shape[:2]
        self._size = (width + width % 2, height + height % 2)
        for codec in self._codecs:
            writer = _open_writer(self._partial, codec, rate_hz=self._rate_hz, size=self._size)
            if writer.isOpened():
                self._writer = writer
                logger.info(
                    "%s: %d x %d px at %g Hz, codec %s",
                    self._path,
                    *self._size,
                    self._rate_hz,
                    codec,
                )
                return
            writer.release()
            self._partial.unlink(missing_ok=True)
        raise StreamError(
            f"{self._path}: no codec of {', '.join(self._codecs)} takes frames of "
            f"{self._size[0]} x {self._size[1]} px"
        )

    def _verify(self) -> None:
        """Raise unless the finished file plays and promises the frames it was given.

        A full disk leaves a file whose header was never completed.
        """
        size = self._partial.stat().st_size if self._partial.exists() else 0
        readable, promised = _read_back(self._partial) if size else (False, 0.0)
        # Containers that store a duration round it.
        if not readable or promised < 0.99 * self._num_frames - 1.0:
            raise StreamError(
                f"{self._path}: the finished video does not play back ({size} bytes, "
                f"{max(promised, 0.0):.0f} of {self._num_frames} frames), disk full?"
            )


def _check_writable(path: Path, partial: Path) -> None:
    """Raise unless the folder takes a new file and the name is free or a file's."""
    if path.is_dir():
        raise StreamError(f"{path}: expected a file name, got a folder")
    try:
        partial.touch(exist_ok=False)
        partial.unlink()
    except OSError as err:
        raise StreamError(
            f"{path}: cannot be created ({err.strerror}); name a file in an existing, "
            "writable folder"
        ) from err


def _usable(codecs: Sequence[str], probe: Path, *, rate_hz: float) -> tuple[str, ...]:
    """The codecs from the first one that works on; the later ones are its substitutes."""
    frame = np.zeros((PROBE_SIZE[1], PROBE_SIZE[0], 3), dtype=np.uint8)
    for at, codec in enumerate(codecs):
        try:
            writer = _open_writer(probe, codec, rate_hz=rate_hz, size=PROBE_SIZE)
            try:
                opened = writer.isOpened()
                for shade in range(PROBE_FRAMES if opened else 0):
                    writer.write(frame + np.uint8(shade * 8))
            finally:
                writer.release()
            if opened and _read_back(probe)[0]:
                return tuple(codecs[at:])
        finally:
            with suppress(FileNotFoundError):
                probe.unlink()
    return ()


def _open_writer(path: Path, codec: str, *, rate_hz: float, size: tuple[int, int]) -> Any:
    """Open `cv2.VideoWriter`, with FFmpeg where this OpenCV has it, or PyAV for its codec."""
    if codec == AV_CODEC:
        return AvWriter(path, rate_hz=rate_hz, size=size)
    has_ffmpeg = cv2.videoio_registry.hasBackend(cv2.CAP_FFMPEG)
    backend = cv2.CAP_FFMPEG if has_ffmpeg else cv2.CAP_ANY
    with quiet_opencv():
        return cv2.VideoWriter(str(path), backend, cv2.VideoWriter.fourcc(*codec), rate_hz, size)


def _read_back(path: Path) -> tuple[bool, float]:
    """Whether the first frame decodes, and the number of frames the header promises."""
    capture = open_capture(str(path), cv2.CAP_ANY, ())
    try:
        readable = capture.isOpened() and capture.grab() and capture.retrieve()[0]
        return readable, float(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    finally:
        capture.release()


def _letterbox(image: npt.NDArray[np.uint8], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Scale into `size` (width, height) keeping the aspect ratio, centred on black."""
    width, height = size
    if image.shape[:2] == (height, width):
        return image
    scale = min(width / image.shape[1], height / image.shape[0])
    inner_w = min(max(round(image.shape[1] * scale), 1), width)
    inner_h = min(max(round(image.shape[0] * scale), 1), height)
    canvas = np.zeros((height, width, 3), dtype=np.uint8)
    top, left = (height - inner_h) // 2, (width - inner_w) // 2
    shrink = inner_w < image.shape[1]
    canvas[top : top + inner_h, left : left + inner_w] = cv2.resize(
        image, (inner_w, inner_h), interpolation=cv2.INTER_AREA if shrink else cv2.INTER_LINEAR
    )
    return canvas


def _sync(path: Path) -> None:
    """Have the file's content on the disk before it takes its final name."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
