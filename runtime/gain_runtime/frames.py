"""Frames, their results, and the protocols of sources and sinks."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Self = TypeVar("Self", bound="Closing")


class Closing(ABC):
    """Context manager that calls `close` at the end."""

    @abstractmethod
    def close(self) -> None:
        """Release resources; may be called twice."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


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
        Nanoseconds. Files: presentation time, if the container has one. Live: monotonic clock,
        read after the grab returned.
    source_id : str
        What the frame came from (file name, device), credentials removed.
    region : (left, top, right, bottom) in px, or None
        The part of the image to classify; None means the whole frame.
    truth : int or None
        Class index, if the source knows it.
    condition : str or None
        Domain of the frame, if the source knows it (`fog`, `night`).
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

    Attributes
    ----------
    source_id : str
        File name or device, credentials removed.
    width_px, height_px : int
        Size of the frames; later ones may differ.
    rate_hz : float or None
        Frames per second; None if unknown.
    num_frames : int or None
        None if unknown.
    live : bool
        Whether frames arrive whether or not anybody reads, so that a reader drops the oldest.
    class_names : tuple of str or None
        Names of the classes that `Frame.truth` indexes, if the source knows them.
    detail : str or None
        How the frames are made (`h264`, `hevc on cuda`).
    timed : bool
        Whether time stamps tell when frames were taken; photos have none.
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
    def info(self) -> SourceInfo:
        """What is known before the first frame."""
        ...

    @property
    def skipped(self) -> int:
        """Number of frames that could not be decoded so far."""
        ...

    def __iter__(self) -> Iterator[Frame]: ...

    def close(self) -> None:
        """Release the source."""
        ...

    def __enter__(self) -> FrameSource: ...

    def __exit__(self, *exc: object) -> None: ...


class WrappingSource(Closing):
    """Another source's frames, changed by the subclass's `__iter__`; owns that source."""

    def __init__(self, source: FrameSource, /) -> None:
        self._source = source

    @property
    def info(self) -> SourceInfo:
        """The inner source's."""
        return self._source.info

    @property
    def skipped(self) -> int:
        """The inner source's."""
        return self._source.skipped

    @property
    def reconnects(self) -> int:
        """Times the inner source's signal came back."""
        return int(getattr(self._source, "reconnects", 0))

    def close(self) -> None:
        """Close the inner source."""
        self._source.close()


def rate_or_none(rate_hz: float | None, /, *, most_hz: float = MAX_RATE_HZ) -> float | None:
    """A claimed rate in Hz, or None if it cannot be one (0, NaN, a time base like 90000)."""
    return rate_hz if rate_hz is not None and 0.0 < rate_hz <= most_hz else None


FrameFault: TypeAlias = Literal["black", "frozen", "corrupt"]

# Of 255: a covered lens has a few levels of noise, a street at night has lamps.
DARK_LEVEL = 20.0
DARK_PERCENTILE = 99.0
# Pixels looked at, in either direction; enough to see what is wrong with a frame.
STRIDE = 4
# A picture cut short is filled with one colour from some row to the bottom.
FILLED_SHARE = 8


class FrameHealth:
    """Checks each frame of one stream in turn."""

    def __init__(self) -> None:
        self._last: npt.NDArray[np.uint8] | None = None

    def check(self, image: npt.NDArray[np.uint8], /) -> FrameFault | None:
        """What is wrong with a frame, (H, W, 3) uint8 RGB; None for nothing.

        `black`: nothing bright in it; `corrupt`: one colour all over, or from some row to the
        bottom under a picture, as decoders leave it when data is missing; `frozen`: the frame
        before, pixel for pixel, which a sensor's noise never gives.
        """
        sample = np.ascontiguousarray(image[::STRIDE, ::STRIDE])
        last, self._last = self._last, sample
        if np.percentile(sample, DARK_PERCENTILE) < DARK_LEVEL:
            return "black"
        if _is_filled(sample):
            return "corrupt"
        return "frozen" if last is not None and np.array_equal(sample, last) else None


def _is_filled(sample: npt.NDArray[np.uint8]) -> bool:
    """One colour all over, or at the bottom only: bars above and below belong to the picture."""
    height = sample.shape[0]
    band = max(height // FILLED_SHARE, 1)
    colour = sample[-1, 0]
    if not (sample[-band:] == colour).all():
        return False
    # A floor in the sun is white all over; what decoders fill in is grey or green.
    saturated = bool(((colour == 0) | (colour == 255)).all())
    whole = bool((sample == colour).all())
    return whole or not (saturated or (sample[0] == sample[0, 0]).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One entry of a top-k list: class index, label and probability in [0, 1]."""

    index: int
    label: str
    prob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameResult:
    """The prediction for one frame, as plain host values.

    Attributes
    ----------
    frame : Frame
        The classified frame.
    source_top, adapted_top : tuple of Ranked
        Most probable classes of the frozen source and of the adapted prediction, best first.
    strength, gain : float
        lambda* in [0, 1] and the expected gain G in nats; both 0 when frozen from the start.
    rate_hz : float
        Frames per second over the recent past.
    stage_ms : mapping
        Milliseconds per stage (`preprocess`, `forward`, `adapt`) for this frame.
    utc_ns : int
        Nanoseconds since 1970 by the system's clock: the capture of a live frame, else the
        classification.
    latency_ms : float or None
        Milliseconds from the capture of a live frame to its prediction; None for other sources.
    """

    frame: Frame
    source_top: tuple[Ranked, ...]
    adapted_top: tuple[Ranked, ...]
    strength: float
    gain: float
    rate_hz: float = 0.0
    stage_ms: Mapping[str, float] = field(default_factory=dict)
    utc_ns: int = field(default_factory=time.time_ns)
    latency_ms: float | None = None

    @property
    def changed(self) -> bool:
        """Whether adaptation changed the predicted class."""
        return self.source_top[0].index != self.adapted_top[0].index


class Sink(Protocol):
    """Receives every result in order; `close` finishes what it writes and may be called twice."""

    def write(self, result: FrameResult, /) -> None:
        """Take the next result.

        Parameters
        ----------
        result : FrameResult
        """
        ...

    def close(self) -> None:
        """Finish what was written."""
        ...
