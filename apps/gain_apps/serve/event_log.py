"""What happened, and when: events and curves of all streams, in one SQLite file."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from gain_apps.serve.history import Point
from gain_core.errors import ConfigError
from gain_runtime.closing import Closing

__all__ = ["Event", "EventKind", "EventLog"]

logger = logging.getLogger(__name__)

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

    Attributes
    ----------
    id : int
        Grows with every event, also over restarts where there is a file.
    utc_s : float
        Seconds since 1970.
    stream : str
        Empty for what concerns the whole process.
    kind : str
    text : str
    who : str
        Who caused it; empty where nobody did.
    """

    id: int
    utc_s: float
    stream: str
    kind: EventKind
    text: str
    who: str


class EventLog(Closing):
    """Events and curves; any thread may write and read, and none is ever stopped by the disk.

    Parameters
    ----------
    path : str or Path, optional
        SQLite file, created if it is missing; None keeps everything in memory.
    on_event : callable, optional
        Receives every event, in the thread that caused it.

    Raises
    ------
    ConfigError
        If the file cannot be opened or is no such database.
    """

    def __init__(
        self, path: str | Path | None = None, /, *, on_event: Callable[[Event], None] | None = None
    ) -> None:
        self._shown = "memory" if path is None else str(path)
        self._on_event = on_event
        self._lock = threading.Lock()
        self._last: dict[str, Event] = {}
        self._failing = False
        self._closed = False
        try:
            self._base = sqlite3.connect(
                ":memory:" if path is None else path,
                timeout=BUSY_S,
                check_same_thread=False,
                isolation_level=None,
            )
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
                f"--events {path}: expected a SQLite file of events in a writable folder ({err}); "
                "name another file"
            ) from err
        for event in map(_event, newest):
            self._last[event.stream] = event
        self._next_id = 1 + max((event.id for event in self._last.values()), default=0)

    def add(self, stream: str, kind: EventKind, text: str, /, *, who: str = "") -> Event:
        """Note an event.

        Parameters
        ----------
        stream : str
            Empty for what concerns the whole process.
        kind : str
        text : str
            Without credentials.
        who : str, optional

        Returns
        -------
        Event
        """
        with self._lock:
            event = Event(
                id=self._next_id, utc_s=time.time(), stream=stream, kind=kind, text=text, who=who
            )
            self._next_id += 1
            self._last[stream] = event
            with self._writing() as base:
                base.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", _row(event))
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
        """Events, newest first.

        Parameters
        ----------
        stream : str, optional
            Of this stream only.
        kind : str, optional
            Of this kind only.
        before : int, optional
            With lower numbers only, to read on.
        limit : int, optional

        Returns
        -------
        list of Event
        """
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
        return [_event(row) for row in rows]

    def keep(self, stream: str, point: Point, /) -> None:
        """Keep a point of a stream's curves over a restart.

        Parameters
        ----------
        stream : str
        point : Point
        """
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


def _event(row: tuple[int, float, str, EventKind, str, str]) -> Event:
    """A row of the table."""
    number, utc_s, stream, kind, text, who = row
    return Event(id=number, utc_s=utc_s, stream=stream, kind=kind, text=text, who=who)


def _row(event: Event) -> tuple[int, float, str, str, str, str]:
    """The values of a row; SQLite takes no lone surrogates."""
    text = event.text.encode("utf-8", "backslashreplace").decode()
    return (event.id, event.utc_s, event.stream, event.kind, text, event.who)
