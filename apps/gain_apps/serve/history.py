"""Strength, gain and agreement over time, in bins whose number is bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gain_runtime.result import FrameResult

__all__ = ["History", "Point"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Means over one bin.

    Attributes
    ----------
    at_s : float
        Start of the bin, in seconds since 1970.
    width_s : float
        Width of the bin in seconds.
    frames : int
        At least 1: a bin without frames has no point.
    strength, gain_nats, rate_hz : float
        `gain_nats` is None where it was not finite.
    agreement : float
        Share of frames whose class adaptation left as it was.
    source_accuracy, adapted_accuracy : float or None
        None where the stream does not know the truth.
    condition : str or None
        The weather at the end of the bin, where the source knows it.
    adaptation : mapping
        The adaptation's own numbers, as they were last told within the bin; empty if they were
        not.
    """

    at_s: float
    width_s: float
    frames: int
    strength: float
    gain_nats: float | None
    rate_hz: float
    agreement: float
    source_accuracy: float | None = None
    adapted_accuracy: float | None = None
    condition: str | None = None
    adaptation: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Bin:
    """Sums over one bin."""

    number: int
    frames: int = 0
    strength: float = 0.0
    gain: float = 0.0
    agreed: int = 0
    with_truth: int = 0
    source_right: int = 0
    adapted_right: int = 0
    condition: str | None = None
    adaptation: Mapping[str, float] = field(default_factory=dict)

    def add(self, result: FrameResult) -> None:
        """Count one result."""
        self.frames += 1
        # A float32 share may be an ulp above 1.
        self.strength += min(max(result.strength, 0.0), 1.0)
        self.gain += result.gain
        self.agreed += not result.changed
        self.condition = result.frame.condition
        truth = result.frame.truth
        if truth is not None:
            self.with_truth += 1
            self.source_right += result.source_top[0].index == truth
            self.adapted_right += result.adapted_top[0].index == truth

    def point(self, width_s: float, seconds: float) -> Point:
        """The means, over a bin that has lasted so many seconds."""
        truths = self.with_truth
        gain = self.gain / self.frames
        return Point(
            at_s=self.number * width_s,
            width_s=width_s,
            frames=self.frames,
            strength=self.strength / self.frames,
            # JSON has no infinity and no NaN.
            gain_nats=gain if abs(gain) < float("inf") else None,
            rate_hz=self.frames / min(max(seconds, 1.0), width_s),
            agreement=self.agreed / self.frames,
            source_accuracy=self.source_right / truths if truths else None,
            adapted_accuracy=self.adapted_right / truths if truths else None,
            condition=self.condition,
            adaptation=self.adaptation,
        )


class History:
    """The most recent bins of a stream, those of earlier runs before them; not thread-safe.

    Parameters
    ----------
    width_s : float
        Width of a bin in seconds.
    length : int
        Bins that are kept, with the one that is filling.
    earlier : iterable of Point, optional
        What an earlier run kept, oldest first.
    """

    def __init__(self, *, width_s: float, length: int, earlier: Iterable[Point] = ()) -> None:
        self.width_s = width_s
        self._points: deque[Point] = deque(earlier, maxlen=length - 1)
        self._bin: _Bin | None = None
        self._now_s = 0.0

    def add(self, result: FrameResult, /, *, at_s: float) -> Point | None:
        """Count a result.

        Parameters
        ----------
        result : FrameResult
        at_s : float
            Seconds since 1970. Where the clock was set back, the bins after it are dropped.

        Returns
        -------
        Point or None
            A bin that is complete since this result.
        """
        number = int(at_s // self.width_s)
        done = None
        if self._bin is not None and self._bin.number != number:
            done = self._bin.point(self.width_s, self.width_s)
            self._points.append(done)
            self._bin = None
        if self._bin is None:
            while self._points and self._points[-1].at_s >= number * self.width_s:
                self._points.pop()
            self._bin = _Bin(number)
        self._now_s = at_s
        self._bin.add(result)
        return done

    def tell(self, adaptation: Mapping[str, float], /) -> None:
        """Note the adaptation's own numbers in the newest bin, if there is one.

        Parameters
        ----------
        adaptation : mapping
            Kept, not copied.
        """
        if self._bin is not None:
            self._bin.adaptation = adaptation

    def newest(self) -> Point | None:
        """The bin that is still filling."""
        if self._bin is None:
            return None
        return self._bin.point(self.width_s, self._now_s - self._bin.number * self.width_s)

    def points(self, *, since_s: float = 0.0) -> list[Point]:
        """Points of the bins that begin at `since_s` or later, oldest first.

        The last one may still be filling: whoever asks again with its `at_s` gets it anew.
        """
        newest = self.newest()
        every = [*self._points, *([] if newest is None else [newest])]
        return [item for item in every if item.at_s >= since_s]
