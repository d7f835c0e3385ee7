"""The newest result and what led up to it: written by the stream's loop, read by the server."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gain_apps.serve.facts import StreamFacts, changes
from gain_apps.serve.history import History, Point
from gain_runtime.result import FrameResult

__all__ = ["Event", "LiveBoard", "LiveView", "StreamIdentity"]

Scale: TypeAlias = Literal["fine", "coarse"]

# Width in seconds and number of the bins: ten minutes by the second, a day by the two minutes.
BINS: dict[Scale, tuple[float, int]] = {"fine": (1.0, 600), "coarse": (120.0, 720)}
AGREEMENT_FRAMES = 256
MOST_EVENTS = 100
# Asking the adapter for its status may read an accelerator; people cannot read faster than this.
PROBE_INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamIdentity:
    """What does not change while a stream runs.

    `artifact` is a file name without its folder, `source_id` is free of credentials.
    """

    source_id: str
    artifact: str
    artifact_sha256: str
    provider: str
    version: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something a person may want to know; `at_s` counts from the stream's beginning."""

    at_s: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """One consistent picture of a board.

    `sequence` grows with every result; `stage_seconds` are sums over all frames; `agreement` is
    over the last 256 frames and None before the first; `age_s` is that of the newest result, or
    of the stream where there is none.
    """

    sequence: int
    result: FrameResult | None
    facts: StreamFacts
    frames: int
    changed: int
    stage_seconds: Mapping[str, float]
    agreement: float | None
    uptime_s: float
    age_s: float
    events: tuple[Event, ...]


class LiveBoard:
    """A sink that keeps the newest result and short histories; it never waits for a reader.

    Parameters
    ----------
    identity : StreamIdentity
    probe : callable
        Returns the `StreamFacts`; called from `write` and `poll`, a few times a second.
    clock : callable, optional
        Monotonic seconds.
    """

    def __init__(
        self,
        identity: StreamIdentity,
        /,
        *,
        probe: Callable[[], StreamFacts],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self._probe = probe
        self._clock = clock
        self._lock = threading.Lock()
        self._started_s = clock()
        self._probed_s = -math.inf
        self._facts = StreamFacts()
        self._result: FrameResult | None = None
        self._result_s = self._started_s
        self._frames = self._changed = 0
        self._stage_seconds: dict[str, float] = {}
        self._agreed: deque[bool] = deque(maxlen=AGREEMENT_FRAMES)
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._histories = {
            scale: History(width_s=width_s, length=length)
            for scale, (width_s, length) in BINS.items()
        }
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the stream has ended."""
        return self._closed

    @property
    def sequence(self) -> int:
        """Results received so far."""
        return self._frames

    def write(self, result: FrameResult, /) -> None:
        """Take the newest result."""
        now = self._clock()
        with self._lock:
            self._result, self._result_s = result, now
            self._frames += 1
            self._changed += result.changed
            self._agreed.append(not result.changed)
            for stage, spent_ms in result.stage_ms.items():
                self._stage_seconds[stage] = self._stage_seconds.get(stage, 0.0) + spent_ms / 1e3
            for history in self._histories.values():
                history.add(result, at_s=now - self._started_s)
        self.poll()

    def poll(self) -> None:
        """Look for changes of state between frames, too."""
        now = self._clock()
        if now - self._probed_s < PROBE_INTERVAL_S:
            return
        facts = self._probe()
        numbers = {
            name: value for name, value in facts.adaptation.items() if isinstance(value, float)
        }
        with self._lock:
            first = self._probed_s == -math.inf
            self._probed_s = now
            before, self._facts = self._facts, facts
            for history in self._histories.values():
                history.tell(numbers)
        if not first:
            for kind, text in changes(before, facts):
                self.note(kind, text)

    def note(self, kind: str, text: str, /) -> None:
        """Add an event; any thread may.

        Parameters
        ----------
        kind : str
            `command`, `state`, `adaptation`, `device` or `stream`.
        text : str
        """
        event = Event(at_s=self._clock() - self._started_s, kind=kind, text=text)
        with self._lock:
            self._events.append(event)

    def close(self) -> None:
        """Mark the stream as ended; may be called twice."""
        self._closed = True

    def view(self) -> LiveView:
        """Everything at one moment; any thread may ask."""
        now = self._clock()
        with self._lock:
            return LiveView(
                sequence=self._frames,
                result=self._result,
                facts=self._facts,
                frames=self._frames,
                changed=self._changed,
                stage_seconds=dict(self._stage_seconds),
                agreement=sum(self._agreed) / len(self._agreed) if self._agreed else None,
                uptime_s=now - self._started_s,
                age_s=now - self._result_s,
                events=tuple(self._events),
            )

    def points(self, scale: Scale = "fine", /, *, since_s: float = 0.0) -> list[Point]:
        """The history from `since_s` on; any thread may ask.

        Parameters
        ----------
        scale : {"fine", "coarse"}
            Bins of a second over ten minutes, or of two minutes over a day.
        since_s : float
            Seconds since the stream began.

        Returns
        -------
        list of Point
        """
        with self._lock:
            return self._histories[scale].points(since_s=since_s)
