"""A source whose frames are corrupted by a schedule: fog that rolls in, weather that changes."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gain_core.errors import ArrayError, ConfigError
from gain_runtime.frames import Closing, Frame, FrameSource, SourceInfo
from gain_scenes.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt, image_rng
from gain_scenes.corruptions.constants import MAX_SEVERITY

__all__ = [
    "CorruptingSource",
    "Stretch",
    "parse_schedule",
]

logger = logging.getLogger(__name__)

ENTRY = re.compile(r"^(?P<name>[a-z_]+):(?P<first>\d+(?:\.\d+)?)(?:-(?P<last>\d+(?:\.\d+)?))?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One corruption over a run of frames, its severity going from `first` to `last`."""

    name: str
    first: float
    last: float

    def severity(self, share: float, /) -> float:
        """Severity after `share` in [0, 1] of the stretch."""
        return self.first + (self.last - self.first) * share

    def condition(self, share: float, /) -> str:
        """Name of the domain there: `fog:3`; a ramp is told apart in whole steps."""
        if self.first == self.last:
            return f"{self.name}:{self.first:g}"
        return f"{self.name}:{round(self.severity(share))}"


class CorruptingSource(Closing):
    """Another source's frames, corrupted.

    Frames too small for a corruption are skipped and counted.

    Parameters
    ----------
    source : FrameSource
        Owned: closing this closes it.
    schedule : tuple of Stretch
        Spread evenly over the stream, one after another.
    max_frames : int or None
        Where the run ends, if before the source does.
    seed : int
        With the frame's index, decides everything random about a frame.

    Raises
    ------
    ConfigError
        If the schedule changes over the stream and the stream's length is unknown.
    """

    def __init__(
        self,
        source: FrameSource,
        schedule: tuple[Stretch, ...],
        /,
        *,
        max_frames: int | None = None,
        seed: int = 0,
    ) -> None:
        lengths = [n for n in (source.info.num_frames, max_frames) if n is not None]
        constant = len(schedule) == 1 and schedule[0].first == schedule[0].last
        if not lengths and not constant:
            raise ConfigError(
                f"--corrupt: {source.info.source_id} does not tell its length, which a severity "
                "that changes is spread over; add --max-frames N or use one constant severity"
            )
        self._source = source
        self._schedule = schedule
        self._length = min(lengths, default=1)
        self._seed = seed
        self._skipped = 0

    @property
    def info(self) -> SourceInfo:
        """The inner source's."""
        return self._source.info

    @property
    def skipped(self) -> int:
        """Frames that could not be decoded or corrupted so far."""
        return self._source.skipped + self._skipped

    def __iter__(self) -> Iterator[Frame]:
        for frame in self._source:
            stretch, share = self._place(frame.index)
            rng = image_rng(self._seed, frame.index, stretch.name)
            try:
                image = corrupt(frame.image, stretch.name, stretch.severity(share), rng=rng)
            except ArrayError as err:
                self._skipped += 1
                logger.warning("skipped: %s: %s", frame.source_id, err)
                continue
            condition = stretch.condition(share)
            if frame.condition is not None:
                condition = f"{frame.condition}+{condition}"
            yield replace(frame, image=image, condition=condition)

    def close(self) -> None:
        """Close the inner source."""
        self._source.close()

    def _place(self, index: int) -> tuple[Stretch, float]:
        """The stretch a frame lies in, and how far along it."""
        count = len(self._schedule)
        # Containers promise lengths they do not keep: what lies beyond stays at the end.
        position = min(index, self._length - 1)
        number = position * count // self._length
        start = -(-number * self._length // count)
        end = -(-(number + 1) * self._length // count)
        share = (position - start) / (end - 1 - start) if end - 1 > start else 0.0
        return self._schedule[number], share


def parse_schedule(text: str, /) -> tuple[Stretch, ...]:
    """Read a corruption schedule.

    Parameters
    ----------
    text : str
        `NAME:SEVERITY` or `NAME:FROM-TO`, several separated by commas: `fog:0-5`,
        `fog:3,frost:1-5`.

    Returns
    -------
    tuple of Stretch

    Raises
    ------
    ConfigError
        If an entry is malformed, its name unknown or its severity above 5.
    """
    return tuple(_parse_entry(entry.strip()) for entry in text.split(","))


def _parse_entry(entry: str) -> Stretch:
    """One `NAME:SEVERITY` or `NAME:FROM-TO`."""
    match = ENTRY.match(entry)
    if match is None:
        raise ConfigError(
            f"--corrupt: expected NAME:SEVERITY or NAME:FROM-TO (fog:3, fog:0-5), got {entry!r}"
        )
    name = match["name"]
    known = CORRUPTIONS + EXTRA_CORRUPTIONS
    if name not in known:
        raise ConfigError(f"--corrupt: expected one of {', '.join(known)}, got {name!r}")
    first = float(match["first"])
    last = first if match["last"] is None else float(match["last"])
    if max(first, last) > MAX_SEVERITY:
        raise ConfigError(
            f"--corrupt: {name}: expected severities in [0, {MAX_SEVERITY}], got {entry!r}"
        )
    return Stretch(name=name, first=first, last=last)
