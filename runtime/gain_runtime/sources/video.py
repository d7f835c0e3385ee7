"""Recordings and live network streams as frame sources."""

from __future__ import annotations

import logging
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from gain_core.errors import StreamError
from gain_runtime.files.paths import LFS_POINTER, read_head, regular_file
from gain_runtime.frames import Closing, Frame, SourceInfo, rate_or_none
from gain_runtime.sources.decoder import NO_DASH, Decoded, Limits, VideoDecoder, reads_dash
from gain_runtime.sources.reader import PipeReader
from gain_runtime.sources.uri import SCHEME, redact

logger = logging.getLogger(__name__)

# A recording counts as cut short when it misses this much of the length its header promises:
# audio tracks and rounding make small differences ordinary.
SHORT_PERIODS, SHORT_RATIO, SHORT_S = 1.5, 0.05, 2.0
DEFAULT_RATE_HZ = 30.0
# Containers write time bases (1000, 90000) where they know no rate; no phone films faster.
MOST_RATE_HZ = 300.0
DASH_TAG = b"<MPD"
URL_LIMITS = Limits(open_s=10.0, read_s=10.0)


class VideoSource(Closing):
    """Every frame of a recording, upright, with square pixels, deinterlaced, in order.

    `location` is a file, the URL of a recording, or a pipe (owned); `hwaccel` as for
    `VideoDecoder`. Data that cannot be decoded is skipped and counted, leaving a gap in `index`. A
    recording that ends before the length its header promises gives the frames before the cut and
    one warning; the missing ones are added to `skipped`. Raises StreamError if it is missing, empty
    or no video, or if not one frame can be decoded.
    """

    def __init__(self, location: str | Path | PipeReader, /, *, hwaccel: str | None = None) -> None:
        self._pipe = location if isinstance(location, PipeReader) else None
        text = location.shown if isinstance(location, PipeReader) else str(location)
        is_url = isinstance(location, str) and SCHEME.match(text) is not None
        self._shown = redact(text) if is_url else text
        self._source_id = self._shown if is_url or self._pipe is not None else Path(text).name
        if self._pipe is None and not is_url:
            _check_file(Path(text))
        try:
            # FFmpeg takes `a:b.mp4` for a protocol; an absolute path is none.
            self._decoder = VideoDecoder(
                self._pipe or (text if is_url else str(Path(text).absolute())),
                shown=self._shown,
                limits=URL_LIMITS if is_url else None,
                hwaccel=hwaccel,
            )
            self._first = self._decoder.read()
            if self._first is None:
                self._decoder.close()
                raise StreamError(
                    f"{self._shown}: expected a video with at least one readable frame, got none "
                    f"(codec {self._decoder.decoder}): empty, damaged or cut short; "
                    "try it with: ffplay FILE"
                )
        except BaseException:
            if self._pipe is not None:
                self._pipe.close()
            raise
        self._index = -1
        self._damaged_before = 0
        self._missing = 0
        self._last_ms = -math.inf
        rate_hz = rate_or_none(self._decoder.rate_hz, most_hz=MOST_RATE_HZ)
        num_frames = self._decoder.num_frames
        if num_frames is None and rate_hz is not None and self._decoder.duration_s is not None:
            num_frames = round(self._decoder.duration_s * rate_hz) or None
        height_px, width_px = self._first.image.shape[:2]
        # What the container says. Without a believable rate, the time stamps tell.
        self.info = SourceInfo(
            source_id=self._source_id,
            width_px=width_px,
            height_px=height_px,
            rate_hz=rate_hz,
            num_frames=num_frames,
            live=False,
            detail=self._decoder.decoder,
        )

    @property
    def skipped(self) -> int:
        """Frames that could not be decoded, or that a cut has taken, so far."""
        return self._decoder.damaged + self._missing

    def __iter__(self) -> Iterator[Frame]:
        decoded, self._first = self._first, None
        while decoded is not None and not self._decoder.closed:
            self._index += 1 + self._decoder.damaged - self._damaged_before
            self._damaged_before = self._decoder.damaged
            yield Frame(
                image=decoded.image,
                index=self._index,
                timestamp_ns=round(self._stamp_ms(decoded) * 1e6),
                source_id=self._source_id,
            )
            decoded = self._decoder.read()
        if not self._decoder.closed and not math.isinf(self._last_ms):
            self._report_end()

    def close(self) -> None:
        """Let go of the file; may be called twice and from another thread."""
        if self._pipe is not None:
            self._pipe.close()
        self._decoder.close()

    def _stamp_ms(self, decoded: Decoded) -> float:
        """Presentation time: the container's while it grows, else one frame period on."""
        position_ms = -1.0 if decoded.position_s is None else 1e3 * decoded.position_s
        if position_ms > self._last_ms and position_ms >= 0.0:
            self._last_ms = position_ms
        elif math.isinf(self._last_ms):
            self._last_ms = 0.0
        else:
            self._last_ms += 1e3 / (self.info.rate_hz or DEFAULT_RATE_HZ)
        return self._last_ms

    def _report_end(self) -> None:
        """Say how much is missing at the end, and count it."""
        length_s, rate_hz = self._decoder.duration_s, self.info.rate_hz
        if length_s is None or self._pipe is not None:
            return
        period_s = 1.0 / (rate_hz or DEFAULT_RATE_HZ)
        missing_s = length_s - (self._last_ms / 1e3 + period_s)
        if missing_s > SHORT_PERIODS * period_s and (
            missing_s > SHORT_RATIO * length_s or missing_s > SHORT_S
        ):
            # Without a rate nobody knows how many frames that was; what came damaged after the
            # last frame has been counted.
            counted = self._decoder.damaged - self._damaged_before
            lost = round(missing_s * rate_hz) if rate_hz is not None else 0
            self._missing = max(lost - counted, 0)
            logger.warning(
                "%s: ended %.1f s early%s: cut short or damaged; what came before is used",
                self._source_id,
                missing_s,
                f" (about {self._missing} of {self.info.num_frames} frames missing)"
                if self._missing
                else "",
            )


def _check_file(path: Path) -> None:
    """Refuse what is certainly no video before FFmpeg guesses (it renders text files)."""
    regular_file(path)
    head = read_head(path, 4096)
    if not head:
        raise StreamError(f"{path}: expected a video, got an empty file")
    if head.startswith(LFS_POINTER):
        raise StreamError(
            f"{path}: expected a video, got the pointer that Git LFS left in its place; "
            "fetch the file with: git lfs pull"
        )
    if not head.startswith((b"#EXTM3U", b"YUV4MPEG2")) and _is_text(head):
        if DASH_TAG not in head:
            raise StreamError(f"{path}: expected a video, got a text file")
        if not reads_dash():
            raise StreamError(f"{path}: expected a video, got {NO_DASH}")
    if head[4:8] == b"ftyp" and not _has_index(path):
        raise StreamError(
            f"{path}: expected a video, but its index is missing: an mp4 whose recording or copy "
            "was interrupted; copy it again, or let untrunc rebuild the index"
        )


def _has_index(path: Path) -> bool:
    """Whether an mp4 has a `moov` box, or is of fragments, which bring their own."""
    with path.open("rb") as stream:
        end = stream.seek(0, os.SEEK_END)
        at = 0
        while at + 8 <= end:
            stream.seek(at)
            size, name = struct.unpack(">I4s", stream.read(8))
            if name in (b"moov", b"moof", b"styp", b"sidx"):
                return True
            if size == 1:
                size = int.from_bytes(stream.read(8), "big")
            if size < 8:
                # To the end of the file.
                return False
            at += size
    return False


def _is_text(head: bytes) -> bool:
    """Whether bytes are printable UTF-8; the last character may be cut in two."""
    if any(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head):
        return False
    try:
        head.decode()
    except UnicodeDecodeError as err:
        return err.start >= len(head) - 3 and err.reason == "unexpected end of data"
    return True


# FFmpeg waits for ever by default; a stalled stream must not look like a hang.
LIMITS = Limits(open_s=10.0, read_s=5.0)
# One lost packet of UDP spoils pictures for seconds; cameras that have only UDP still work.
RTSP_OPTIONS = {"rtsp_flags": "prefer_tcp"}


class NetworkSource(Closing):
    """Frames of a live stream as they come, stamped with the monotonic clock when they came.

    Data that cannot be decoded is counted in `skipped`; `hwaccel` as for `VideoDecoder`. Raises
    StreamError if it cannot be opened or gives no frame; while iterating, if the signal is lost.
    The text after `shown` (else the URL without credentials) says why: refused, 401, 404, no such
    host, no data for N s, no video.
    """

    def __init__(
        self,
        url: str,
        /,
        *,
        shown: str | None = None,
        hwaccel: str | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        self._source_id = redact(url) if shown is None else shown
        self._decoder = VideoDecoder(
            url,
            shown=self._source_id,
            live=True,
            limits=limits,
            options=RTSP_OPTIONS if url.lower().startswith("rtsp") else None,
            hwaccel=hwaccel,
        )
        self._first = self._decoder.read()
        if self._first is None:
            self._decoder.close()
            raise StreamError(
                f"{self._source_id}: cannot be opened: it ended before the first picture"
            )
        self._num_read = 0
        height_px, width_px = self._first.image.shape[:2]
        self.info = SourceInfo(
            source_id=self._source_id,
            width_px=width_px,
            height_px=height_px,
            rate_hz=rate_or_none(self._decoder.rate_hz),
            num_frames=None,
            live=True,
            detail=self._decoder.decoder,
        )

    @property
    def skipped(self) -> int:
        """Pieces of data that could not be decoded so far."""
        return self._decoder.damaged

    def __iter__(self) -> Iterator[Frame]:
        decoded, self._first = self._first, None
        while decoded is not None and not self._decoder.closed:
            self._num_read += 1
            yield Frame(
                image=decoded.image,
                index=self._num_read - 1,
                timestamp_ns=decoded.stamp_ns,
                source_id=self._source_id,
            )
            decoded = self._decoder.read()
        if not self._decoder.closed:
            raise StreamError(
                f"{self._source_id}: signal lost after {self._num_read} frames: the other side "
                "ended the stream"
            )

    def close(self) -> None:
        """Let go of the connection; may be called twice and from another thread."""
        self._decoder.close()
