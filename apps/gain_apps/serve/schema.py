"""The JSON objects of the API; FastAPI makes the OpenAPI document from these dataclasses."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeAlias, get_args

import numpy as np
from pydantic import Field

from gain_apps.serve.board import DeviceFacts, KeptFacts, LiveView, StreamIdentity
from gain_apps.serve.cameras import WatchedCamera
from gain_apps.serve.event_log import Event, Point
from gain_runtime.frames import FrameResult, Ranked

# A page shall not be able to end an appliance: "quit" is for whoever sits at it.
PageCommand: TypeAlias = Literal["freeze", "unfreeze", "reset", "save", "roll-back"]
CameraAction: TypeAlias = Literal["pause", "resume", "restart"]
CameraCommand: TypeAlias = Literal[PageCommand, CameraAction]
CameraState: TypeAlias = Literal[
    "starting",
    "connecting",
    "live",
    "silent",
    "reconnecting",
    "paused",
    "ended",
    "failed",
]
# A live source without a frame for this long is silent; slow ones get five of their frames.
SILENT_AFTER_S = 3.0
SILENT_FRAMES = 5.0

Share = Annotated[float, Field(ge=0.0, le=1.0)]
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why a request was not carried out."""

    detail: str


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The token, to be exchanged for a cookie."""

    token: Annotated[str, Field(max_length=512)]


@dataclass(frozen=True, kw_only=True)
class NewCamera:
    """A camera to add: its name, its source, and settings that differ from the others'."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    input: Annotated[str, Field(min_length=1, max_length=2048)]
    settings: dict[str, str | int | float | bool] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Done:
    """What came of a command; `done` is false where the loop has not come to it yet."""

    outcome: str
    done: bool


@dataclass(frozen=True, kw_only=True)
class Health:
    """Whether the process is alive, or serves."""

    status: str


@dataclass(frozen=True, kw_only=True)
class CameraRow:
    """A camera in the overview.

    `since_s` and `next_try_s` are seconds since 1970; `reason` says why there is no signal, or why
    the camera failed.
    """

    name: str
    state: CameraState
    since_s: float
    reason: str | None
    attempt: int
    next_try_s: float | None
    source: str
    rate_hz: float
    frames: int
    sequence: int
    age_s: float
    strength: Share | None
    agreement: Share | None
    learning_paused: bool
    source_class: str | None
    adapted_class: str | None
    last_event: Event | None


@dataclass(frozen=True, kw_only=True)
class CameraList:
    """All cameras. `kept_in` is the file that remembers additions; None where none does."""

    version: str
    utc_s: float
    uptime_s: float
    kept_in: str | None
    cameras: list[CameraRow]


@dataclass(frozen=True, kw_only=True)
class Newest:
    """The newest classified frame."""

    index: int
    utc_s: float
    source: list[Ranked]
    adapted: list[Ranked]
    changed: bool
    strength: Share
    gain_nats: float | None
    truth: str | None
    condition: str | None
    stage_ms: dict[str, float]
    latency_ms: float | None


@dataclass(frozen=True, kw_only=True)
class CameraStatus:
    """Everything the page shows of one camera beside the picture and the curves."""

    camera: CameraRow
    summary: str
    artifact: str | None
    artifact_sha256: str | None
    provider: str | None
    uptime_s: float
    changed: int
    dropped: int
    rejected: int
    skipped: int
    reconnects: int
    outputs_lost: int
    not_learned: dict[str, int]
    frames_learned: int
    latency_p50_ms: float | None
    latency_p95_ms: float | None
    newest: Newest | None
    adaptation: dict[str, float | None]
    device: DeviceFacts
    kept: KeptFacts | None
    commands: list[CameraCommand]


@dataclass(frozen=True, kw_only=True)
class FrameReply:
    """Picture and numbers of one frame; `picture` is a JPEG in base64, None before the first."""

    status: CameraStatus
    picture: str | None


@dataclass(frozen=True, kw_only=True)
class HistoryReply:
    """Points, oldest first; the last may still be filling."""

    utc_s: float
    points: list[Point]


@dataclass(frozen=True, kw_only=True)
class EventList:
    """Events, newest first."""

    events: list[Event]


def state_of(view: LiveView, /) -> tuple[CameraState, float, str | None]:
    """What a camera does, since when in seconds since 1970, and why."""
    connection = view.connection
    # Where a stream that failed begins again, its camera may be away.
    if view.state in ("paused", "ended", "failed") and connection.reason is None:
        return view.state, view.since_s, view.why
    if connection.state == "reconnecting":
        return "reconnecting", connection.since_s, connection.reason
    if connection.state == "connecting" and view.state in ("starting", "failed"):
        if connection.reason is None:
            return "starting", view.since_s, view.why
        return "connecting", connection.since_s, connection.reason
    if view.result is None or view.state == "starting":
        return "starting", view.since_s, view.why
    period_s = view.uptime_s / view.frames if view.frames else 0.0
    limit_s = max(SILENT_AFTER_S, SILENT_FRAMES * period_s)
    if view.age_s > limit_s:
        return "silent", time.time() - view.age_s, f"no frame for {view.age_s:.0f} s"
    return "live", connection.since_s, None


def row_of(camera: WatchedCamera, view: LiveView, /) -> CameraRow:
    """The overview's row of a camera at the moment of a view."""
    state, since_s, reason = state_of(view)
    result = view.result
    return CameraRow(
        name=camera.name,
        state=state,
        since_s=since_s,
        reason=reason,
        attempt=view.connection.attempt,
        next_try_s=view.connection.next_try_s,
        source=camera.source,
        rate_hz=view.rate_hz if state not in ("paused", "ended", "failed") else 0.0,
        frames=view.frames,
        sequence=view.sequence,
        age_s=view.age_s,
        strength=None if result is None else _share(result.strength),
        agreement=view.agreement,
        learning_paused=view.facts.frozen,
        source_class=None if result is None else result.source_top[0].label,
        adapted_class=None if result is None else result.adapted_top[0].label,
        last_event=camera.board.last_event(),
    )


def status_of(camera: WatchedCamera, view: LiveView, /) -> CameraStatus:
    """A camera's status at the moment of a view, with the commands that the page may send."""
    row = row_of(camera, view)
    commands: list[CameraCommand] = []
    # Commands are carried out by the loop, which begins once there is a signal.
    if camera.alive and row.state in ("live", "silent", "reconnecting"):
        commands += [name for name in get_args(PageCommand) if name in camera.commands]
    commands += ["restart", "resume"] if row.state == "paused" else ["pause", "restart"]
    result, facts, identity = view.result, view.facts, view.identity
    recent = view.latency_recent_ms
    p50, p95 = np.percentile(recent, [50, 95]) if recent else (None, None)
    return CameraStatus(
        camera=row,
        summary=_summary(view),
        artifact=None if identity is None else identity.artifact,
        artifact_sha256=None if identity is None else identity.artifact_sha256,
        provider=None if identity is None else identity.provider,
        uptime_s=view.uptime_s,
        changed=view.changed,
        dropped=facts.dropped,
        rejected=facts.rejected,
        skipped=facts.skipped,
        reconnects=facts.reconnects,
        outputs_lost=facts.outputs_lost,
        not_learned=dict(facts.not_learned),
        frames_learned=facts.frames_learned,
        latency_p50_ms=None if p50 is None else float(p50),
        latency_p95_ms=None if p95 is None else float(p95),
        newest=None if result is None else _newest(result, identity),
        adaptation={name: _finite(value) for name, value in facts.adaptation.items()},
        device=facts.device,
        kept=facts.kept,
        commands=commands,
    )


def _summary(view: LiveView) -> str:
    """One sentence that says what adaptation does."""
    if view.result is None:
        return "No frame has been classified yet."
    facts = view.facts
    parts = ["Learning is paused" if facts.frozen else "Adaptation is on"]
    shift = facts.adaptation.get("shift_nats")
    if shift is not None and math.isfinite(shift):
        parts.append(
            f"what changed in the scene has moved the logits by {shift:.1f} nats"
            if shift >= 0.05
            else "the logits have hardly moved"
        )
    if view.agreement is not None:
        changed = 100.0 * (1.0 - view.agreement)
        parts.append(f"{changed:.0f} % of the last predictions were changed")
    return "; ".join(parts) + "."


def _newest(result: FrameResult, identity: StreamIdentity | None) -> Newest:
    """The newest frame; a truth the artifact has no name for is shown by its number."""
    truth, labels = result.frame.truth, () if identity is None else identity.labels
    shown = None if truth is None else str(truth)
    if truth is not None and 0 <= truth < len(labels):
        shown = labels[truth]
    return Newest(
        index=result.frame.index,
        utc_s=result.utc_ns / 1e9,
        source=[replace(item, prob=_share(item.prob)) for item in result.source_top],
        adapted=[replace(item, prob=_share(item.prob)) for item in result.adapted_top],
        changed=result.changed,
        strength=_share(result.strength),
        gain_nats=_finite(result.gain),
        truth=shown,
        condition=result.frame.condition,
        stage_ms=dict(result.stage_ms),
        latency_ms=result.latency_ms,
    )


def _share(value: float) -> float:
    """A float32 share may be an ulp above 1."""
    return min(max(value, 0.0), 1.0)


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
