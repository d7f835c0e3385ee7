"""JPEGs one after another on a pipe as a frame source."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

import cv2
import numpy as np
import numpy.typing as npt

from gain_core.errors import StreamError
from gain_runtime.closing import Closing
from gain_runtime.frame import Frame, SourceInfo
from gain_runtime.image_source import NOMINAL_RATE_HZ
from gain_runtime.opencv_capture import quiet_opencv

__all__ = ["ByteReader", "JpegSplitter", "PipeSource"]

logger = logging.getLogger(__name__)

CHUNK_BYTES = 65_536
# No camera's picture is larger; a pipe of something else must not fill the memory.
MOST_BYTES = 1 << 26
START, SCAN, END = b"\xff\xd8", 0xDA, 0xD9


class ByteReader(Protocol):
    """An unbuffered binary stream: `read` returns what there is, nothing at the end."""

    def read(self, size: int, /) -> bytes | None: ...


class JpegSplitter:
    """Cuts a stream of bytes into JPEGs by their own structure (thumbnails stay inside).

    Parameters
    ----------
    stream : ByteReader
    """

    def __init__(self, stream: ByteReader, /) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._at = 0
        self._lost = 0

    @property
    def lost(self) -> int:
        """Stretches of bytes so far that belong to no whole picture."""
        return self._lost

    def next(self) -> bytes | None:
        """The next whole picture; None at the end of the stream.

        Raises
        ------
        StreamError
            If one would be larger than 64 MiB.
        """
        damaged = False
        while self._find_start(counted=damaged):
            if self._skip_picture():
                picture = bytes(self._buffer[: self._at])
                del self._buffer[: self._at]
                return picture
            self._lost += not damaged
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
                self._lost += not counted and (dropped or len(self._buffer) > 0)
                return False
        self._lost += not counted and (dropped or found > 0)
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
                f"stdin: expected JPEGs one after another, got one of over {MOST_BYTES} bytes; "
                "pipe e.g. ffmpeg -i IN -c:v mjpeg -f image2pipe -"
            )
        chunk = self._stream.read(CHUNK_BYTES)
        self._buffer += chunk or b""
        return bool(chunk)


class PipeSource(Closing):
    """Every picture of a pipe, in order: whoever writes to it waits.

    `timestamp_ns` is nominal, as for photos.

    Parameters
    ----------
    stream : ByteReader
        Not owned.

    Raises
    ------
    StreamError
        If it ends before the first readable picture.
    """

    def __init__(self, stream: ByteReader, /) -> None:
        self._splitter = JpegSplitter(stream)
        self._unreadable = 0
        self._index = -1
        self._closed = False
        self._first = self._next()
        if self._first is None:
            raise StreamError(
                "stdin: expected JPEGs one after another, got none; "
                "pipe e.g. ffmpeg -i IN -c:v mjpeg -f image2pipe -"
            )
        height_px, width_px = self._first.shape[:2]
        self._info = SourceInfo(
            source_id="stdin",
            width_px=width_px,
            height_px=height_px,
            rate_hz=NOMINAL_RATE_HZ,
            num_frames=None,
            live=False,
        )

    @property
    def info(self) -> SourceInfo:
        """Size of the first picture."""
        return self._info

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
                source_id=self._info.source_id,
            )
            image = self._next()

    def close(self) -> None:
        """End the iteration; a read that waits for the pipe ends with it."""
        self._closed = True

    def _next(self) -> npt.NDArray[np.uint8] | None:
        """The next readable picture, EXIF orientation applied; None at the end."""
        while not self._closed and (data := self._splitter.next()) is not None:
            self._index += 1
            with quiet_opencv():
                decoded = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_COLOR)
            if decoded is not None:
                image: npt.NDArray[np.uint8] = cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)
                return image
            self._unreadable += 1
        return None
