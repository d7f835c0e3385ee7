"""A pipe as a frame source: JPEGs one after another, or a video that needs no seeking."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gain_core.errors import StreamError
from gain_runtime.files.images import decode_image
from gain_runtime.files.paths import HEAD_BYTES, content_of
from gain_runtime.frames import Closing, Frame, SourceInfo
from gain_runtime.sources.images import NOMINAL_RATE_HZ
from gain_runtime.sources.reader import PipeReader
from gain_runtime.sources.video import VideoSource

logger = logging.getLogger(__name__)

CHUNK_BYTES = 65_536
# No camera's picture is larger; a pipe of something else must not fill the memory.
MOST_BYTES = 1 << 26
START, SCAN, END = b"\xff\xd8", 0xDA, 0xD9
# MPEG transport packets, the start codes of raw MPEG, H.264 and HEVC, and DV.
RAW_VIDEO = (b"\x47\x40", b"\x47\x5f", b"\0\0\0\1", b"\0\0\1", b"\x1f\x07\0")
HINT = (
    "pipe JPEGs, e.g. ffmpeg -i IN -c:v mjpeg -f image2pipe -, or a video that needs no seeking, "
    "e.g. ffmpeg -i IN -c copy -f mpegts -"
)


class JpegSplitter:
    """Cuts a stream of bytes into JPEGs by their own structure (thumbnails stay inside)."""

    def __init__(self, pipe: PipeReader, /) -> None:
        self._pipe = pipe
        self._buffer = bytearray()
        self._at = 0
        # Stretches of bytes so far that belong to no whole picture.
        self.lost = 0

    def next(self) -> bytes | None:
        """The next whole picture; None at the end. StreamError if one would exceed 64 MiB."""
        damaged = False
        while self._find_start(counted=damaged):
            if self._skip_picture():
                picture = bytes(self._buffer[: self._at])
                del self._buffer[: self._at]
                return picture
            self.lost += not damaged
            damaged = True
            # Look for the next start after this one.
            del self._buffer[: len(START)]
        self._buffer.clear()
        return None

    def _find_start(self, *, counted: bool) -> bool:
        """Drop what lies before the next start of a picture; it may have been counted as lost."""
        dropped = False
        while (found := self._buffer.find(START)) < 0:
            dropped |= len(self._buffer) > 1
            del self._buffer[:-1]
            if not self._fill():
                self.lost += not counted and (dropped or len(self._buffer) > 0)
                return False
        self.lost += not counted and (dropped or found > 0)
        del self._buffer[:found]
        self._at = len(START)
        return True

    def _skip_picture(self) -> bool:
        """Move behind the picture's end; False where its structure breaks off."""
        while self._has(self._at + 2):
            if self._buffer[self._at] != 0xFF:
                return False
            marker = self._buffer[self._at + 1]
            if marker == 0xFF:
                self._at += 1
                continue
            self._at += 2
            if marker == END:
                return True
            if not self._has(self._at + 2):
                return False
            self._at += int.from_bytes(self._buffer[self._at : self._at + 2], "big")
            if marker == SCAN and not self._skip_scan():
                return False
        return False

    def _skip_scan(self) -> bool:
        """Move to the marker that ends the compressed data."""
        while self._has(self._at + 2):
            found = self._buffer.find(b"\xff", self._at, len(self._buffer) - 1)
            if found < 0:
                self._at = len(self._buffer) - 1
                continue
            self._at = found
            follower = self._buffer[found + 1]
            # A stuffed byte or a restart marker belongs to the data.
            if follower != 0 and not 0xD0 <= follower <= 0xD7:
                return True
            self._at += 2
        return False

    def _has(self, count: int) -> bool:
        """Read until there are `count` bytes; False if there never will be."""
        while len(self._buffer) < count:
            if not self._fill():
                return False
        return True

    def _fill(self) -> bool:
        """Read a chunk; False at the end."""
        if len(self._buffer) > MOST_BYTES:
            raise StreamError(
                f"{self._pipe.shown}: expected JPEGs one after another, got one of over "
                f"{MOST_BYTES} bytes; {HINT}"
            )
        chunk = self._pipe.read(CHUNK_BYTES)
        self._buffer += chunk
        return bool(chunk)


class PipeSource(Closing):
    """Every picture of a pipe, in order: whoever writes to it waits. Owns the pipe.

    `timestamp_ns` is nominal, as for photos. Raises StreamError if the pipe ends before the first
    readable picture.
    """

    def __init__(self, pipe: PipeReader, /) -> None:
        self._pipe = pipe
        self._splitter = JpegSplitter(pipe)
        self._unreadable = 0
        self._index = -1
        self._closed = False
        self._first = self._next()
        if self._first is None:
            self.close()
            raise StreamError(f"{pipe.shown}: expected JPEGs one after another, got none; {HINT}")
        height_px, width_px = self._first.shape[:2]
        self.info = SourceInfo(
            source_id=pipe.shown,
            width_px=width_px,
            height_px=height_px,
            rate_hz=NOMINAL_RATE_HZ,
            num_frames=None,
            live=False,
        )

    @property
    def skipped(self) -> int:
        """Pictures that could not be read so far."""
        return self._unreadable + self._splitter.lost

    def __iter__(self) -> Iterator[Frame]:
        image, self._first = self._first, None
        while image is not None and not self._closed:
            yield Frame(
                image=image,
                index=self._index,
                timestamp_ns=round(self._index * 1e9 / NOMINAL_RATE_HZ),
                source_id=self.info.source_id,
            )
            image = self._next()

    def close(self) -> None:
        """End the iteration; a read that waits for the pipe ends with it."""
        self._closed = True
        self._pipe.close()

    def _next(self) -> npt.NDArray[np.uint8] | None:
        """The next readable picture, orientation applied; None at the end."""
        while not self._closed and (data := self._splitter.next()) is not None:
            self._index += 1
            try:
                return decode_image(data, shown=f"{self._pipe.shown}, picture {self._index}")
            except StreamError as err:
                self._unreadable += 1
                if self._unreadable == 1:
                    logger.warning("skipped: %s; further ones are only counted", err)
        return None


def open_pipe(pipe: PipeReader, /, *, hwaccel: str | None = None) -> PipeSource | VideoSource:
    """Open a pipe, and own it, by its first bytes: a video's container, else JPEGs.

    Raises StreamError if neither can be read from it.
    """
    head = pipe.peek(HEAD_BYTES)
    if not head:
        pipe.close()
        raise StreamError(f"{pipe.shown}: expected JPEGs or a video, got nothing; {HINT}")
    if content_of(head) == "video" or head.startswith(RAW_VIDEO):
        return VideoSource(pipe, hwaccel=hwaccel)
    return PipeSource(pipe)
