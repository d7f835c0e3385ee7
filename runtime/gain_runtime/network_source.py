"""Live network streams (RTSP, HTTP, HLS, RTMP, UDP...) as a frame source."""

from __future__ import annotations

from collections.abc import Iterator

from gain_core.errors import StreamError
from gain_runtime.closing import Closing
from gain_runtime.frame import Frame, SourceInfo, rate_or_none
from gain_runtime.uri import redact
from gain_runtime.video_decoder import Limits, VideoDecoder

__all__ = ["NetworkSource"]

# FFmpeg waits for ever by default; a stalled stream must not look like a hang.
LIMITS = Limits(open_s=10.0, read_s=5.0)
# One lost packet of UDP spoils pictures for seconds; cameras that have only UDP still work.
RTSP_OPTIONS = {"rtsp_flags": "prefer_tcp"}


class NetworkSource(Closing):
    """Frames of a live stream as they come, stamped with the monotonic clock when they came.

    Data that cannot be decoded is counted in `skipped`.

    Parameters
    ----------
    url : str
    shown : str or None
        What messages call it; None makes it from the URL, without credentials.
    num_warm_up : int
        Frames discarded before the first one is yielded.
    hwaccel : str or None
        See `VideoDecoder`.
    limits : Limits

    Raises
    ------
    StreamError
        If it cannot be opened or gives no frame; while iterating, if the signal is lost. The text
        after `shown` says why: refused, 401, 404, no such host, no data for N s, no video.
    """

    def __init__(
        self,
        url: str,
        /,
        *,
        shown: str | None = None,
        num_warm_up: int = 0,
        hwaccel: str | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        self._source_id = redact(url) if shown is None else shown
        self._num_warm_up = num_warm_up
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
        self._info = SourceInfo(
            source_id=self._source_id,
            width_px=width_px,
            height_px=height_px,
            rate_hz=rate_or_none(self._decoder.rate_hz),
            num_frames=None,
            live=True,
            detail=self._decoder.decoder,
        )

    @property
    def info(self) -> SourceInfo:
        """Size of the first frame and the rate that the stream claims."""
        return self._info

    @property
    def skipped(self) -> int:
        """Pieces of data that could not be decoded so far."""
        return self._decoder.damaged

    def __iter__(self) -> Iterator[Frame]:
        decoded, self._first = self._first, None
        while decoded is not None and not self._decoder.closed:
            index = self._num_read - self._num_warm_up
            self._num_read += 1
            if index >= 0:
                yield Frame(
                    image=decoded.image,
                    index=index,
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
