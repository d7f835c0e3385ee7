"""Strength, gain and agreement over time, in bins whose number is bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from gain_runtime.result import FrameResult

__all__ = ["History", "Point"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Means over one bin.

    Attributes
    ----------
    at_s : float
        Start of the bin, in seconds since the stream began.
    frames : int
        At least 1: a bin without frames has no point.
    strength, gain_nats, rate_hz : float
    agreement : float
        Share of frames whose class adaptation left as it was.
    source_accuracy, adapted_accuracy : float or None
        None where the stream does not know the truth.
    adaptation : mapping
        The adaptation's own numbers, as they were last told within the bin; empty if they were
        not.
    """

    at_s: float
    frames: int
    strength: float
    gain_nats: float
    rate_hz: float
    agreement: float
    source_accuracy: float | None
    adapted_accuracy: float | None
    adaptation: Mapping[str, float]


@dataclass(slots=True)
class _Bin:
    """Sums over one bin."""

    number: int
    frames: int = 0
    strength: float = 0.0
    gain: float = 0.0
    rate: float = 0.0
    agreed: int = 0
    with_truth: int = 0
    source_right: int = 0
    adapted_right: int = 0
    adaptation: Mapping[str, float] = field(default_factory=dict)

    def add(self, result: FrameResult) -> None:
        """Count one result."""
        self.frames += 1
        self.strength += result.strength
        self.gain += result.gain
        self.rate += result.rate_hz
        self.agreed += not result.changed
        truth = result.frame.truth
        if truth is not None:
            self.with_truth += 1
            self.source_right += result.source_top[0].index == truth
            self.adapted_right += result.adapted_top[0].index == truth

    def point(self, width_s: float) -> Point:
        """The means."""
        truths = self.with_truth
        return Point(
            at_s=self.number * width_s,
            frames=self.frames,
            strength=self.strength / self.frames,
            gain_nats=self.gain / self.frames,
            rate_hz=self.rate / self.frames,
            agreement=self.agreed / self.frames,
            source_accuracy=self.source_right / truths if truths else None,
            adapted_accuracy=self.adapted_right / truths if truths else None,
            adaptation=self.adaptation,
        )


class History:
    """The most recent bins of a stream; not thread-safe.

    Parameters
    ----------
    width_s : float
        Width of a bin in seconds.
    length : int
        Bins that are kept.
    """

    def __init__(self, *, width_s: float, length: int) -> None:
        self.width_s = width_s
        self._bins: deque[_Bin] = deque(maxlen=length)

    def add(self, result: FrameResult, /, *, at_s: float) -> None:
        """Count a result.

        Parameters
        ----------
        result : FrameResult
        at_s : float
            Seconds since the stream began, on a clock that never goes back.
        """
        number = int(at_s // self.width_s)
        if not self._bins or self._bins[-1].number != number:
            self._bins.append(_Bin(number))
        self._bins[-1].add(result)

    def tell(self, adaptation: Mapping[str, float], /) -> None:
        """Note the adaptation's own numbers in the newest bin, if there is one.

        Parameters
        ----------
        adaptation : mapping
            Kept, not copied.
        """
        if self._bins:
            self._bins[-1].adaptation = adaptation

    def points(self, *, since_s: float = 0.0) -> list[Point]:
        """Points of the bins that begin at `since_s` or later, oldest first.

        The last one may still be filling: whoever asks again with its `at_s` gets it anew.
        """
        return [
            item.point(self.width_s) for item in self._bins if item.number * self.width_s >= since_s
        ]
