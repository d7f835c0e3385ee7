"""H.264 through PyAV, behind the three methods of `cv2.VideoWriter` that are used here."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_core._optional import require
from gain_core.errors import BackendUnavailableError

__all__ = ["AV_CODEC", "AvWriter"]

AV_CODEC = "libx264"
# One thread and a fast preset: the cores belong to the network.
OPTIONS = {"preset": "veryfast", "threads": "1"}
# Exact for 24000/1001 and its relatives.
MOST_DENOMINATOR = 1001


class AvWriter:
    """Encodes BGR frames of one size; never open where the extra `video` is not installed.

    Parameters
    ----------
    path : Path
        Its suffix chooses the container.
    rate_hz : float
    size : (int, int)
        Width and height in px, both even.
    """

    def __init__(self, path: Path, /, *, rate_hz: float, size: tuple[int, int]) -> None:
        self._container: Any = None
        try:
            self._av: Any = require("av", extra="video")
        except BackendUnavailableError:
            return
        try:
            container = self._av.open(str(path), "w")
            rate = Fraction(rate_hz).limit_denominator(MOST_DENOMINATOR)
            self._stream = container.add_stream(AV_CODEC, rate=rate, options=dict(OPTIONS))
            self._stream.width, self._stream.height = size
            self._stream.pix_fmt = "yuv420p"
            # An encoder that refuses shall do so now, while another can be taken.
            container.start_encoding()
        except (self._av.error.FFmpegError, OSError, ValueError):
            return
        self._container = container

    def isOpened(self) -> bool:  # noqa: N802 - OpenCV's name
        """Whether frames can be written."""
        return self._container is not None

    def write(self, image: npt.NDArray[np.uint8], /) -> bool:
        """Append one frame, (H, W, 3) uint8 BGR; whether that worked."""
        frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="bgr24")
        return self._mux(frame)

    def release(self) -> None:
        """Write what the encoder still holds and close; may be called twice."""
        container, self._container = self._container, None
        if container is None:
            return
        try:
            self._mux(None, container)
        finally:
            # Whoever reads the file back finds it incomplete.
            with suppress(self._av.error.FFmpegError, OSError):
                container.close()

    def _mux(self, frame: Any, container: Any = None) -> bool:
        """Encode a frame, or None for what is left, and write the packets."""
        try:
            for packet in self._stream.encode(frame):
                (container or self._container).mux(packet)
        except (self._av.error.FFmpegError, OSError):
            return False
        return True
