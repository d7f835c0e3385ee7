"""What a stream's page is told: written by the stream's loop, read by the server."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gain_apps.serve.event_log import Event, EventKind, EventLog, History, Point
from gain_runtime.frames import FrameResult
from gain_runtime.sources.reconnecting import Connection

Load: TypeAlias = Literal["keeping-up", "updating-less", "skipping"]


def step_words(update_every: int, stride: int, /) -> str:
    """What is done, for logs and pages."""
    if stride > 1:
        return f"one frame in {stride} is classified, the others are skipped"
    return f"an update every {update_every} frames" if update_every > 1 else "an update every frame"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Whether the device keeps up with the stream, and how the work was reduced if not.

    Attributes
    ----------
    load : {"keeping-up", "updating-less", "skipping"}
    level : int
        Number of steps by which the work was reduced.
    update_every : int
        Frames between two updates now.
    stride : int
        One in `stride` frames is classified.
    left_out : int
        Frames that `stride` has skipped so far.
    throttled : bool
        Whether the device runs slower than its full speed.
    celsius : float or None
        Temperature of the hottest zone in degrees Celsius; None if it cannot be read.
    """

    load: Load = "keeping-up"
    level: int = 0
    update_every: int = 1
    stride: int = 1
    left_out: int = 0
    throttled: bool = False
    celsius: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFacts:
    """What the snapshots of a stream hold.

    Attributes
    ----------
    written : int
        Snapshots written so far.
    failing : bool
        Whether the last one failed.
    frames_not_kept : int
        Learned frames that are in no snapshot.
    last_utc_s : float or None
        When the last one was written, in seconds since 1970.
    """

    written: int = 0
    failing: bool = False
    frames_not_kept: int = 0
    last_utc_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """The counts and states of a stream, beside its newest result.

    Attributes
    ----------
    frozen : bool
        Whether learning is stopped.
    frames_learned : int
        Frames that the state has learned from.
    dropped, rejected, skipped : int
        Frames left out because the network was busy; that could not be classified; that could
        not be read.
    reconnects : int
        Times that a lost source returned.
    outputs_lost : int
        Outputs that failed; the stream goes on without them.
    not_learned : mapping of str to int
        Frames that were predicted but not learned from, by fault.
    adaptation : mapping of str to float
        Numbers of the adapter's status.
    device : DeviceFacts
    kept : KeptFacts or None
        None if no snapshots are taken.
    """

    frozen: bool = False
    frames_learned: int = 0
    dropped: int = 0
    rejected: int = 0
    skipped: int = 0
    reconnects: int = 0
    outputs_lost: int = 0
    not_learned: Mapping[str, int] = field(default_factory=dict)
    adaptation: Mapping[str, float] = field(default_factory=dict)
    device: DeviceFacts = field(default_factory=DeviceFacts)
    kept: KeptFacts | None = None


def changes(before: StreamFacts, after: StreamFacts, /) -> list[tuple[EventKind, str]]:
    """Kind and text of the events that tell how two states of a stream differ.

    Numbers that change with every frame give none.
    """
    found: list[tuple[EventKind, str]] = []
    if after.frames_learned < before.frames_learned:
        found.append(
            ("state", f"from {before.frames_learned} learned frames to {after.frames_learned}")
        )
    if after.outputs_lost > before.outputs_lost:
        found.append(("stream", "an output failed; the stream continues without it"))
    for fault in after.not_learned:
        if fault not in before.not_learned:
            found.append(("stream", f"broken frame ({fault}); such frames are not learned from"))
    was, now = before.device, after.device
    if was.throttled != now.throttled:
        speeds = ("the device runs at full speed again", "the device slows itself down")
        found.append(("device", speeds[now.throttled]))
    if was.level != now.level:
        found.append(("device", f"{now.load}: {step_words(now.update_every, now.stride)}"))
    failed = before.kept is not None and before.kept.failing
    fails = after.kept is not None and after.kept.failing
    if failed != fails:
        words = ("snapshots can be written again", "no snapshot can be written")
        found.append(("state", words[fails]))
    return found


Scale: TypeAlias = Literal["fine", "coarse"]
RunState: TypeAlias = Literal["starting", "running", "paused", "ended", "failed"]

# Width in seconds and number of the bins: ten minutes by the second, a day by the two minutes.
BINS: dict[Scale, tuple[float, int]] = {"fine": (1.0, 600), "coarse": (120.0, 720)}
RECENT_FRAMES = 256
RATE_WINDOW_S = 5.0
# Asking the adapter for its status may read an accelerator; people cannot read faster than this.
PROBE_INTERVAL_S = 0.25
# Upper ends of the buckets of the latency's histogram.
LATENCY_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamIdentity:
    """What does not change while a stream runs.

    Attributes
    ----------
    source_id : str
        File name or device, credentials removed.
    artifact : str
        File name without its folder.
    artifact_sha256 : str
        SHA-256 of the artifact, hexadecimal.
    provider : str
        The execution provider in use.
    version : str
        Version of gain-edge.
    labels : tuple of str
        K class names.
    """

    source_id: str
    artifact: str
    artifact_sha256: str
    provider: str
    version: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """Everything a board holds, read at one moment.

    `sequence` grows with every result; `stage_seconds` are sums over all frames; `agreement` is
    over the last 256 frames and None before the first; `age_s` is the age of the newest result, or
    of the stream if there is none; `rate_hz` is over the last five seconds. The latency is the time
    from capture to prediction: frames in each bucket of `LATENCY_BOUNDS_S` and above the last, the
    sum over all frames, and that of the newest.
    """

    sequence: int
    state: RunState
    why: str | None
    since_s: float
    connection: Connection
    identity: StreamIdentity | None
    result: FrameResult | None
    facts: StreamFacts
    frames: int
    changed: int
    rate_hz: float
    stage_seconds: Mapping[str, float]
    latency_counts: Sequence[int]
    latency_sum_s: float
    latency_recent_ms: Sequence[float]
    agreement: float | None
    uptime_s: float
    age_s: float


class LiveBoard:
    """A sink that keeps the newest result and short histories; it never waits for a reader.

    One board serves all runs of its stream, so that curves and counts go on when a camera restarts.

    Parameters
    ----------
    name : str
        Name of the stream.
    events : EventLog
        Not owned.
    on_connection : callable, optional
        Called with the first connection, and with each whose state differs from the one before.
    clock : callable, optional
        Monotonic seconds.
    wall_clock : callable, optional
        Seconds since 1970.
    """

    def __init__(
        self,
        name: str,
        events: EventLog,
        /,
        *,
        on_connection: Callable[[Connection], None] = lambda connection: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self._events = events
        self._on_connection = on_connection
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._state: RunState = "starting"
        self._why: str | None = None
        self._since_s = wall_clock()
        self._connection = Connection(since_s=self._since_s)
        self._identity: StreamIdentity | None = None
        self._probe: Callable[[], StreamFacts] = StreamFacts
        self._started_s = clock()
        self._probed_s = -math.inf
        self._facts = StreamFacts()
        self._result: FrameResult | None = None
        self._result_s = self._started_s
        self._frames = self._changed = 0
        self._times_s: deque[float] = deque(maxlen=RECENT_FRAMES)
        self._stage_seconds: dict[str, float] = {}
        self._latency_counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self._latency_sum_s = 0.0
        self._latency_ms: deque[float] = deque(maxlen=RECENT_FRAMES)
        self._agreed: deque[bool] = deque(maxlen=RECENT_FRAMES)
        width_s, length = BINS["coarse"]
        earlier = events.kept(name, since_s=self._since_s - width_s * length)
        self._histories = {
            "fine": History(width_s=BINS["fine"][0], length=BINS["fine"][1]),
            "coarse": History(width_s=width_s, length=length, earlier=earlier),
        }
        on_connection(self._connection)

    @property
    def sequence(self) -> int:
        """Results received so far."""
        return self._frames

    def attach(self, identity: StreamIdentity, /, *, probe: Callable[[], StreamFacts]) -> None:
        """Begin a run of the stream.

        Parameters
        ----------
        identity : StreamIdentity
            Of this run.
        probe : callable
            Returns the `StreamFacts`; called from `write` and `poll`, a few times a second.
        """
        with self._lock:
            self._identity, self._probe = identity, probe
            self._probed_s = -math.inf

    def enter(
        self,
        state: RunState,
        why: str | None = None,
        /,
        *,
        attempt: int = 0,
        next_try_s: float | None = None,
    ) -> None:
        """Set the state of the stream; any thread may call it.

        Parameters
        ----------
        state : {"starting", "running", "paused", "ended", "failed"}
        why : str, optional
            The reason, for the page.
        attempt : int, optional
            Number of the current or next attempt to restart a failed stream.
        next_try_s : float, optional
            When the next attempt begins, in seconds since 1970.
        """
        with self._lock:
            if state != self._state:
                self._state, self._since_s = state, self._wall_clock()
            self._why = why
        if state in ("paused", "ended", "failed"):
            self.connect(Connection(state="closed", attempt=attempt, next_try_s=next_try_s))

    def connect(self, connection: Connection, /) -> None:
        """Set the state of the connection to the source; any thread may call it.

        Parameters
        ----------
        connection : Connection
        """
        with self._lock:
            before, self._connection = self._connection, connection
        if before.state != connection.state:
            self._on_connection(connection)
        for text in _signal_changes(before, connection):
            self.note("signal", text)

    def write(self, result: FrameResult, /) -> None:
        """Take the newest result."""
        now = self._clock()
        with self._lock:
            self._state = "running"
            self._result, self._result_s = result, now
            self._frames += 1
            self._times_s.append(now)
            self._changed += result.changed
            self._agreed.append(not result.changed)
            for stage, spent_ms in result.stage_ms.items():
                self._stage_seconds[stage] = self._stage_seconds.get(stage, 0.0) + spent_ms / 1e3
            if result.latency_ms is not None:
                self._latency_ms.append(result.latency_ms)
                self._latency_sum_s += result.latency_ms / 1e3
                self._latency_counts[bisect_left(LATENCY_BOUNDS_S, result.latency_ms / 1e3)] += 1
            utc_s = self._wall_clock()
            self._histories["fine"].add(result, at_s=utc_s)
            done = self._histories["coarse"].add(result, at_s=utc_s)
        if done is not None:
            self._events.keep(self.name, done)
        self.poll()

    def poll(self) -> None:
        """Look for changes between frames: add an event for each."""
        now = self._clock()
        if now - self._probed_s < PROBE_INTERVAL_S:
            return
        facts = self._probe()
        numbers = {k: value for k, value in facts.adaptation.items() if math.isfinite(value)}
        with self._lock:
            first = self._probed_s == -math.inf
            self._probed_s = now
            before, self._facts = self._facts, facts
            for history in self._histories.values():
                history.tell(numbers)
        if not first:
            for kind, text in changes(before, facts):
                self.note(kind, text)

    def note(self, kind: EventKind, text: str, /, *, who: str = "") -> None:
        """Add an event; any thread may call it.

        Parameters
        ----------
        kind : EventKind
        text : str
            Without credentials.
        who : str, optional
            Who caused it.
        """
        self._events.add(self.name, kind, text, who=who)

    def last_event(self) -> Event | None:
        """The newest event of this stream, or None."""
        return self._events.last(self.name)

    def close(self) -> None:
        """Keep the curves of this run; may be called twice."""
        with self._lock:
            newest = self._histories["coarse"].newest()
        if newest is not None:
            self._events.keep(self.name, newest)

    def view(self) -> LiveView:
        """Everything the board holds at this moment; any thread may call it.

        Returns
        -------
        LiveView
        """
        now = self._clock()
        with self._lock:
            return LiveView(
                sequence=self._frames,
                state=self._state,
                why=self._why,
                since_s=self._since_s,
                connection=self._connection,
                identity=self._identity,
                result=self._result,
                facts=self._facts,
                frames=self._frames,
                changed=self._changed,
                rate_hz=_rate(self._times_s, now),
                stage_seconds=dict(self._stage_seconds),
                latency_counts=tuple(self._latency_counts),
                latency_sum_s=self._latency_sum_s,
                latency_recent_ms=tuple(self._latency_ms),
                agreement=sum(self._agreed) / len(self._agreed) if self._agreed else None,
                uptime_s=now - self._started_s,
                age_s=now - self._result_s,
            )

    def points(self, scale: Scale = "fine", /, *, since_s: float = 0.0) -> list[Point]:
        """The history from `since_s` on; any thread may call it.

        Parameters
        ----------
        scale : {"fine", "coarse"}
            Bins of one second over ten minutes, or of two minutes over a day. The time before this
            process began is in bins of two minutes in both.
        since_s : float
            Seconds since 1970.

        Returns
        -------
        list of Point
            Oldest first.
        """
        with self._lock:
            points = self._histories[scale].points(since_s=since_s)
            if scale == "coarse":
                return points
            first_s = points[0].at_s if points else math.inf
            since_s = max(since_s, self._wall_clock() - math.prod(BINS["fine"]))
            before = self._histories["coarse"].points(since_s=since_s)
            return [point for point in before if point.at_s + point.width_s <= first_s] + points


def _rate(times_s: deque[float], now: float) -> float:
    """Frames a second over the recent past; it falls to zero when none comes any more."""
    recent = [at_s for at_s in times_s if now - at_s <= RATE_WINDOW_S]
    if not recent:
        return 0.0
    # A fast stream fills the window's room before its time is over.
    whole = len(recent) == times_s.maxlen or recent[0] == times_s[0]
    return len(recent) / max(now - recent[0] if whole else RATE_WINDOW_S, 1.0)


def _signal_changes(before: Connection, after: Connection) -> list[str]:
    """What is worth telling when a connection changes."""
    if before.state != "reconnecting" and after.state == "reconnecting":
        # As sources say it: "signal lost after 12 frames: no data for 10 s".
        return [f"signal lost: {(after.reason or '').removeprefix('signal lost ')}"]
    if before.state == "reconnecting" and after.state == "connected":
        return [f"signal is back after {after.since_s - before.since_s:.0f} s"]
    if after.state == "connecting" and after.reason is not None and before.reason is None:
        return [f"no signal: {after.reason}"]
    if before.state == "connecting" and after.state == "connected" and before.reason is not None:
        return ["signal is there"]
    return []
