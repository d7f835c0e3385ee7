"""Encoding frames into a video file through PyAV, each at its own time."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Colorspace

from gain_core.errors import StreamError
from gain_runtime.closing import Closing

__all__ = ["AvWriter"]

# One thread and a fast preset: the cores belong to the network.
OPTIONS = {
    # Without B-frames a file is as long as its frames say, whatever the gaps between them.
    "libx264": {"preset": "veryfast", "crf": "25", "threads": "1", "bf": "0"},
    "libopenh264": {"threads": "1"},
    "mpeg4": {"qscale:v": "4", "threads": "1"},
    "mjpeg": {"qscale:v": "4", "threads": "1"},
}
# Noise costs as many bits as there are; so much must do: 2.8 Mbit/s for 720p at 30 Hz.
MOST_BITS_PER_PX = 0.1
BUFFER_S = 2.0
# Exact for 24000/1001 and its relatives; MPEG-4 part 2 can count no finer than to 65535.
UNIT, MPEG4_UNIT = Fraction(1, 120_000), Fraction(1, 60_000)
MOST_DENOMINATOR = 1001
PIXEL_FORMATS = {"mjpeg": "yuvj420p", "ffv1": "bgr0"}
# Of FFmpeg's enumerations: BT.709 for matrix, primaries and transfer, which browsers expect of
# files that say nothing.
BT709 = 1
# So that a browser can play while it still loads.
INDEX_FIRST = {"movflags": "+faststart"}


class AvWriter(Closing):
    """Encodes RGB frames of one size.

    Parameters
    ----------
    path : Path
        Absolute; its suffix chooses the container.
    encoder : str
        FFmpeg's name of it.
    rate_hz : float
        Usual frame rate. AVI knows no other: there, times are rounded to it, gaps stay gaps, and
        of two frames in one period the first is kept.
    size : (int, int)
        Width and height in px, both even.

    Raises
    ------
    StreamError
        If the encoder is not there or refuses.
    """

    def __init__(
        self, path: Path, /, *, encoder: str, rate_hz: float, size: tuple[int, int]
    ) -> None:
        self._path = path
        self._last = -1
        self._container: Any = None
        rate = Fraction(rate_hz).limit_denominator(MOST_DENOMINATOR)
        self._unit = MPEG4_UNIT if encoder == "mpeg4" else UNIT
        if path.suffix.lower() == ".avi":
            self._unit = 1 / rate
        self._pixel_format = PIXEL_FORMATS.get(encoder, "yuv420p")
        is_mp4 = path.suffix.lower() in (".mp4", ".m4v", ".mov")
        try:
            self._container = av.open(
                str(path), "w", container_options=INDEX_FIRST if is_mp4 else None
            )
            options = dict(OPTIONS.get(encoder, {}))
            if encoder == "libx264":
                most = round(MOST_BITS_PER_PX * size[0] * size[1] * rate_hz)
                options |= {"maxrate": str(most), "bufsize": str(round(BUFFER_S * most))}
            stream = self._container.add_stream(encoder, rate=rate, options=options)
            stream.width, stream.height = size
            stream.pix_fmt = self._pixel_format
            context = stream.codec_context
            context.time_base = stream.time_base = self._unit
            # Only H.264 keeps in every container which matrix its colours were made with; players
            # take the one of BT.601 for others.
            self._is_bt709 = "264" in encoder
            if self._is_bt709:
                context.colorspace = context.color_primaries = context.color_trc = BT709
                context.color_range = ColorRange.MPEG
            self._stream = stream
            # An encoder that refuses shall do so now, while another can be taken.
            self._container.start_encoding()
        except (av.error.FFmpegError, OSError, ValueError) as err:
            self._let_go()
            raise StreamError(
                f"{path.name}: the encoder {encoder} cannot be used ({_reason(err)})"
            ) from err

    def write(self, image: npt.NDArray[np.uint8], position_s: float, /) -> bool:
        """Append one frame.

        Parameters
        ----------
        image : array, (H, W, 3) uint8 RGB
        position_s : float
            When it is shown, from the start of the video.

        Returns
        -------
        bool
            False where its period was taken already (AVI).

        Raises
        ------
        StreamError
            If it cannot be encoded or written.
        """
        at = round(Fraction(position_s).limit_denominator(1_000_000) / self._unit)
        if at <= self._last and self._path.suffix.lower() == ".avi":
            return False
        self._last = max(at, self._last + 1)
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        frame = frame.reformat(
            format=self._pixel_format,
            dst_colorspace=Colorspace.ITU709 if self._is_bt709 else None,
            interpolation="BICUBIC",
        )
        frame.pts, frame.time_base = self._last, self._unit
        self._mux(frame)
        return True

    def close(self) -> None:
        """Write what the encoder still holds and close; may be called twice.

        Raises
        ------
        StreamError
            If that fails; the file is closed all the same.
        """
        if self._container is None:
            return
        try:
            self._mux(None)
            self._container.close()
            self._container = None
        except (av.error.FFmpegError, OSError) as err:
            raise StreamError(f"cannot be finished ({_reason(err)})") from err
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Close without finishing; whoever reads the file back finds it incomplete."""
        container, self._container = self._container, None
        if container is not None:
            with suppress(av.error.FFmpegError, OSError):
                container.close()

    def _mux(self, frame: Any) -> None:
        """Encode a frame, or None for what is left, and write the packets."""
        try:
            for packet in self._stream.encode(frame):
                self._container.mux(packet)
        except (av.error.FFmpegError, OSError) as err:
            if isinstance(err, StreamError):
                raise
            raise StreamError(f"cannot be written ({_reason(err)})") from err


def _reason(err: BaseException) -> str:
    """One clause."""
    return str(getattr(err, "strerror", None) or " ".join(str(err).split()))
