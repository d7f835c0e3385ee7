"""What has happened: values of the last minutes, and events in SQLite that outlast a restart."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from gain_core.errors import ConfigError
from gain_runtime.frames import Closing, FrameResult

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Means over one bin, which has a frame at least: a bin without frames has no point.

    `at_s` is the start of the bin in seconds since 1970. `gain_nats` is None where it was not
    finite. `agreement` is the share of frames whose class adaptation left as it was. The accuracies
    are None where the stream does not know the truth. `condition` is the weather at the end of the
    bin, where the source knows it. `adaptation` has the adaptation's own numbers, as they were last
    told within the bin; empty if they were not.
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

    Bins are `width_s` wide, and `length` of them are kept, with the one that is filling; `earlier`
    is what an earlier run kept, oldest first.
    """

    def __init__(self, *, width_s: float, length: int, earlier: Iterable[Point] = ()) -> None:
        self.width_s = width_s
        self._points: deque[Point] = deque(earlier, maxlen=length - 1)
        self._bin: _Bin | None = None
        self._now_s = 0.0

    def add(self, result: FrameResult, /, *, at_s: float) -> Point | None:
        """Count a result at so many seconds since 1970; a bin that is complete since then, or None.

        Where the clock was set back, the bins after it are dropped.
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
        """Note the adaptation's own numbers in the newest bin, if there is one, without a copy."""
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


# Files of earlier versions hold events of the kind "adaptation".
EventKind = Literal["signal", "command", "adaptation", "state", "device", "stream", "login"]
# Some years of an ordinary service, and 20 MB.
MOST_EVENTS = 100_000
MOST_POINTS = 1_000
TRIM_EVERY = 500
# Another process that looks into the file shall not cost an event.
BUSY_S = 2.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, utc_s REAL NOT NULL, stream TEXT NOT NULL, kind TEXT NOT NULL,
    text TEXT NOT NULL, who TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_by_stream ON events (stream, id);
CREATE TABLE IF NOT EXISTS history (
    stream TEXT NOT NULL, at_s REAL NOT NULL, point TEXT NOT NULL,
    PRIMARY KEY (stream, at_s)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something a person may want to know.

    `id` grows with every event, also over restarts where there is a file; `utc_s` is in seconds
    since 1970; `stream` is empty for what concerns the whole process, `who` where nobody caused it.
    """

    id: int
    utc_s: float
    stream: str
    kind: EventKind
    text: str
    who: str


class EventLog(Closing):
    """Events and curves; any thread may write and read, and none is ever stopped by the disk.

    They are kept in a SQLite file, created if it is missing, without `path` in memory. `on_event`
    receives every event, in the thread that caused it. ConfigError if the file cannot be opened or
    is no such database.
    """

    def __init__(
        self, path: str | Path | None = None, /, *, on_event: Callable[[Event], None] | None = None
    ) -> None:
        self._shown = "memory" if path is None else str(path)
        self._on_event = on_event
        self._lock = threading.Lock()
        self._failing = False
        self._closed = False
        try:
            self._base = sqlite3.connect(
                ":memory:" if path is None else path,
                timeout=BUSY_S,
                check_same_thread=False,
                isolation_level=None,
            )
            self._base.row_factory = sqlite3.Row
            # One writer that syncs at check points: a power cut costs the last events at most.
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=NORMAL")
            self._base.executescript(SCHEMA)
            newest = self._base.execute(
                "SELECT id, utc_s, stream, kind, text, who FROM events WHERE id IN "
                "(SELECT max(id) FROM events GROUP BY stream)"
            ).fetchall()
        except sqlite3.Error as err:
            raise ConfigError(
                f"--set events={path}: expected a SQLite file of events in a writable folder "
                f"({err}); name another file"
            ) from err
        self._last = {row["stream"]: Event(**row) for row in newest}
        self._next_id = 1 + max((event.id for event in self._last.values()), default=0)

    def add(self, stream: str, kind: EventKind, text: str, /, *, who: str = "") -> Event:
        """Note an event; the text is without credentials, no stream means the whole process."""
        with self._lock:
            event = Event(
                id=self._next_id, utc_s=time.time(), stream=stream, kind=kind, text=text, who=who
            )
            self._next_id += 1
            self._last[stream] = event
            with self._writing() as base:
                # SQLite takes no lone surrogates.
                plain = text.encode("utf-8", "backslashreplace").decode()
                base.execute(
                    "INSERT INTO events VALUES (:id, :utc_s, :stream, :kind, :text, :who)",
                    {**asdict(event), "text": plain},
                )
                if event.id % TRIM_EVERY == 0:
                    base.execute("DELETE FROM events WHERE id <= ?", (event.id - MOST_EVENTS,))
        if self._on_event is not None:
            self._on_event(event)
        return event

    def last(self, stream: str, /) -> Event | None:
        """The newest event of a stream."""
        return self._last.get(stream)

    def events(
        self,
        *,
        stream: str | None = None,
        kind: EventKind | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[Event]:
        """Events of a stream and of a kind, newest first; `before` an id, to read on."""
        wanted = {"stream = ?": stream, "kind = ?": kind, "id < ?": before}
        given = {term: value for term, value in wanted.items() if value is not None}
        where = f"WHERE {' AND '.join(given)}" if given else ""
        with self._lock:
            if self._closed:
                return []
            try:
                rows = self._base.execute(
                    f"SELECT id, utc_s, stream, kind, text, who FROM events {where} "
                    "ORDER BY id DESC LIMIT ?",
                    (*given.values(), limit),
                ).fetchall()
            except sqlite3.Error as err:
                logger.warning("%s: events cannot be read (%s)", self._shown, err)
                return []
        return [Event(**row) for row in rows]

    def keep(self, stream: str, point: Point, /) -> None:
        """Keep a point of a stream's curves over a restart."""
        with self._lock, self._writing() as base:
            base.execute(
                "INSERT OR REPLACE INTO history VALUES (?, ?, ?)",
                (stream, point.at_s, json.dumps(asdict(point))),
            )
            base.execute(
                "DELETE FROM history WHERE stream = ? AND at_s <= ?",
                (stream, point.at_s - MOST_POINTS * point.width_s),
            )

    def kept(self, stream: str, /, *, since_s: float) -> list[Point]:
        """Points of a stream's curves from `since_s` on, oldest first."""
        with self._lock:
            try:
                rows = self._base.execute(
                    "SELECT point FROM history WHERE stream = ? AND at_s >= ? ORDER BY at_s",
                    (stream, since_s),
                ).fetchall()
                return [Point(**json.loads(text)) for (text,) in rows]
            except (sqlite3.Error, ValueError, TypeError) as err:
                logger.warning("%s: curves of an earlier run cannot be read (%s)", self._shown, err)
                return []

    def close(self) -> None:
        """Close the file; may be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._base.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """The database for a change that may fail: said once, and the stream goes on."""
        try:
            if self._closed:
                raise sqlite3.ProgrammingError("closed")
            yield self._base
        except sqlite3.Error as err:
            if not self._failing:
                logger.error("%s: events cannot be written (%s)", self._shown, err)
            self._failing = True
            return
        if self._failing:
            logger.warning("%s: events can be written again", self._shown)
        self._failing = False
