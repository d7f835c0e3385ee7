"""Sources of scenes: the `test://` ones that are drawn, any at a camera's pace, any corrupted."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gain_core.errors import ArrayError, ConfigError
from gain_runtime.frames import Frame, FrameSource, SourceInfo, WrappingSource
from gain_runtime.sources.opening import SourceFactory
from gain_runtime.sources.pattern import open_pattern
from gain_runtime.sources.uri import record_from_params
from gain_scenes.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt, image_rng
from gain_scenes.corruptions.constants import MAX_SEVERITY
from gain_scenes.roadsigns.sources import drive_source, stills_source

logger = logging.getLogger(__name__)


class LiveSource(WrappingSource):
    """Gives the frames of another source, owned, at that source's rate, stamped with the clock.

    Its reader drops what nobody takes in time, as it does with a camera. Where the other source is
    slower than its own rate, frames come late and none is left out here. A source without a rate is
    a `ConfigError`.
    """

    def __init__(self, source: FrameSource, /) -> None:
        rate_hz = source.info.rate_hz
        if rate_hz is None:
            raise ConfigError(f"{source.info.source_id}: expected a rate to play it at, got none")
        super().__init__(source)
        self._period_s = 1.0 / rate_hz
        self._closed = threading.Event()

    @property
    def info(self) -> SourceInfo:
        """The other source's, live."""
        return replace(self._source.info, live=True)

    def __iter__(self) -> Iterator[Frame]:
        due_s = time.monotonic()
        for frame in self._source:
            if self._closed.wait(max(due_s - time.monotonic(), 0.0)):
                return
            now_ns = time.monotonic_ns()
            yield replace(frame, timestamp_ns=now_ns)
            # A frame that came late moves those after it: a camera does not catch up.
            due_s = max(due_s, 1e-9 * now_ns) + self._period_s

    def close(self) -> None:
        """End the iteration, also one that waits; may be called twice."""
        self._closed.set()
        super().close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _LiveParams:
    """`live`: play a test source at its rate, as a camera would, and not as fast as it is read."""

    live: bool = False


def app_schemes() -> Mapping[str, SourceFactory]:
    """Name after `test://` to the factory that opens it."""
    return {
        "drive": _playable("drive", drive_source),
        "pattern": _playable("pattern", open_pattern),
        "signs": stills_source,
    }


def _playable(name: str, factory: SourceFactory, /) -> SourceFactory:
    """A factory that also takes `live=1`."""

    def opened(params: dict[str, str], seed: int) -> FrameSource:
        others = {key: value for key, value in params.items() if key != "live"}
        asked = {key: value for key, value in params.items() if key == "live"}
        live = record_from_params(_LiveParams, asked, owner=f"test://{name}").live
        source = factory(others, seed)
        return LiveSource(source) if live else source

    return opened


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


class CorruptingSource(WrappingSource):
    """Another source's frames, corrupted; closing it closes that source.

    The stretches are spread evenly over the stream, or over `max_frames` where the run ends before
    it. Seed and index of a frame decide everything random about it. Frames too small for a
    corruption are skipped and counted. A schedule that changes over a stream of unknown length is a
    `ConfigError`.
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
        super().__init__(source)
        self._schedule = schedule
        self._length = min(lengths, default=1)
        self._seed = seed
        self._skipped = 0

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
    """Read `NAME:SEVERITY` or `NAME:FROM-TO`, several separated by commas: `fog:3,frost:1-5`.

    A malformed entry, an unknown name or a severity above 5 is a `ConfigError`.
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
