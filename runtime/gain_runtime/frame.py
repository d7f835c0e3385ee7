"""The record a frame source yields, and the protocols sources and sinks fulfil."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Frame", "FrameSource", "SourceInfo", "rate_or_none"]

MAX_RATE_HZ = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One captured image and what is known about it.

    Attributes
    ----------
    image : array, (H, W, 3) uint8 RGB
        Upright (rotation metadata and EXIF orientation already applied).
    index : int
        Position in the source, counted from 0; dropped or skipped frames leave gaps.
    timestamp_ns : int
        Files: presentation time where the container has one. Live: monotonic clock read after
        the grab returned.
    source_id : str
        What the frame came from (file name, device), credentials removed.
    region : (left, top, right, bottom) in px, or None
        The part of the image to classify; None means the whole frame.
    truth : int or None
        Class index where the source knows it.
    condition : str or None
        Name of the domain the frame belongs to where the source knows it (`fog`, `night`).
    """

    image: npt.NDArray[np.uint8]
    index: int
    timestamp_ns: int
    source_id: str
    region: tuple[int, int, int, int] | None = None
    truth: int | None = None
    condition: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """What is known about a source before its first frame.

    `rate_hz` and `num_frames` are None where the source cannot tell; `live` sources keep
    producing whether or not anybody reads, so their reader drops the oldest frames. `detail` says
    in a word or two how the frames are made (`h264`, `hevc on cuda`). `timed` says whether time
    stamps tell when frames were taken; photos have none, and are shown one after another.
    """

    source_id: str
    width_px: int
    height_px: int
    rate_hz: float | None
    num_frames: int | None
    live: bool
    class_names: tuple[str, ...] | None = None
    detail: str | None = None
    timed: bool = True


class FrameSource(Protocol):
    """An open source of frames: iterate once, close once (a context manager)."""

    @property
    def info(self) -> SourceInfo: ...

    @property
    def skipped(self) -> int:
        """Number of frames that could not be decoded so far."""
        ...

    def __iter__(self) -> Iterator[Frame]: ...

    def close(self) -> None: ...

    def __enter__(self) -> FrameSource: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def rate_or_none(rate_hz: float | None, /, *, most_hz: float = MAX_RATE_HZ) -> float | None:
    """A frame rate as claimed, or None where it cannot be one (0, NaN, a time base like 90000)."""
    return rate_hz if rate_hz is not None and 0.0 < rate_hz <= most_hz else None
