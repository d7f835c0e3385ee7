"""The JSON objects of the API; FastAPI makes the OpenAPI document from them."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gain_apps.backpressure import Load
from gain_apps.serve.board import Event, LiveBoard, LiveView, StreamIdentity
from gain_apps.serve.facts import DeviceFacts, KeptFacts, Scalar
from gain_apps.serve.history import Point
from gain_runtime.result import FrameResult, Ranked

__all__ = [
    "Accepted",
    "Credentials",
    "Health",
    "HistoryReply",
    "PageCommand",
    "Problem",
    "Status",
    "health_of",
    "history_of",
    "status_of",
]

# A page shall not be able to end an appliance: "quit" is for whoever sits at it.
PageCommand = Literal["freeze", "unfreeze", "reset", "save", "roll-back"]
# Without a first frame or a later one for this long, a person or a supervisor should look.
STALLED_AFTER_S = 30.0

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Problem(BaseModel):
    """Why a request was not carried out."""

    detail: str


class Credentials(BaseModel):
    """The token, to be exchanged for a cookie."""

    model_config = ConfigDict(extra="forbid", strict=True)

    token: Annotated[str, Field(max_length=512)]


class Accepted(BaseModel):
    """A command that waits for the loop."""

    command: PageCommand


class Health(BaseModel):
    """Whether frames are being classified."""

    status: Literal["ok", "stalled", "ended"]


class RankedClass(BaseModel):
    """One entry of a top-k list."""

    index: int
    label: str
    prob: Share


class Identity(BaseModel):
    """What does not change while the stream runs."""

    source_id: str
    artifact: str
    artifact_sha256: str
    provider: str
    version: str


class Newest(BaseModel):
    """The newest classified frame."""

    index: int
    age_s: float
    source: list[RankedClass]
    adapted: list[RankedClass]
    changed: bool
    strength: Share
    gain_nats: float | None
    truth: str | None
    condition: str | None
    stage_ms: dict[str, float]


class Device(BaseModel):
    """Whether the device keeps up, and what gives way where it does not."""

    load: Load
    update_every: int
    stride: int
    left_out: int
    throttled: bool
    celsius: float | None


class Kept(BaseModel):
    """Snapshots of the state."""

    written: int
    failing: bool
    frames_not_kept: int


class Happened(BaseModel):
    """One event."""

    at_s: float
    kind: str
    text: str


class Status(BaseModel):
    """Everything the page shows beside the picture and the curves."""

    stream: Identity
    uptime_s: float
    health: Literal["ok", "stalled", "ended"]
    rate_hz: float
    frames: int
    changed: int
    dropped: int
    rejected: int
    skipped: int
    reconnects: int
    outputs_lost: int
    not_learned: dict[str, int]
    frames_learned: int
    frozen: bool
    agreement: Share | None
    newest: Newest | None
    adaptation: dict[str, bool | int | float | str | None]
    device: Device
    kept: Kept | None
    commands: list[PageCommand]
    events: list[Happened]


class HistoryPoint(BaseModel):
    """Means over one bin that begins `at_s` seconds after the stream did."""

    at_s: float
    frames: int
    strength: Share
    gain_nats: float | None
    rate_hz: float
    agreement: Share
    source_accuracy: Share | None
    adapted_accuracy: Share | None
    adaptation: dict[str, float | None]


class HistoryReply(BaseModel):
    """Points, oldest first; the last may still be filling."""

    width_s: float
    uptime_s: float
    points: list[HistoryPoint]


def health_of(board: LiveBoard, view: LiveView) -> Literal["ok", "stalled", "ended"]:
    """One word on whether frames are being classified."""
    if board.closed:
        return "ended"
    return "stalled" if view.age_s > STALLED_AFTER_S else "ok"


def status_of(board: LiveBoard, /, *, commands: tuple[PageCommand, ...]) -> Status:
    """What a board says at this moment.

    Parameters
    ----------
    board : LiveBoard
    commands : tuple of str
        Those the page may send.

    Returns
    -------
    Status
    """
    view = board.view()
    result, facts = view.result, view.facts
    return Status(
        stream=_identity(board.identity),
        uptime_s=view.uptime_s,
        health=health_of(board, view),
        rate_hz=0.0 if result is None else result.rate_hz,
        frames=view.frames,
        changed=view.changed,
        dropped=facts.dropped,
        rejected=facts.rejected,
        skipped=facts.skipped,
        reconnects=facts.reconnects,
        outputs_lost=facts.outputs_lost,
        not_learned=dict(facts.not_learned),
        frames_learned=facts.frames_learned,
        frozen=facts.frozen,
        agreement=view.agreement,
        newest=None if result is None else _newest(result, board.identity, age_s=view.age_s),
        adaptation={name: _plain(value) for name, value in facts.adaptation.items()},
        device=_device(facts.device),
        kept=None if facts.kept is None else _kept(facts.kept),
        commands=list(commands),
        events=[_happened(event) for event in view.events],
    )


def history_of(points: list[Point], /, *, width_s: float, uptime_s: float) -> HistoryReply:
    """The reply for a list of points."""
    return HistoryReply(
        width_s=width_s,
        uptime_s=uptime_s,
        points=[
            HistoryPoint(
                at_s=point.at_s,
                frames=point.frames,
                strength=_share(point.strength),
                gain_nats=_finite(point.gain_nats),
                rate_hz=point.rate_hz,
                agreement=point.agreement,
                source_accuracy=point.source_accuracy,
                adapted_accuracy=point.adapted_accuracy,
                adaptation={name: _finite(value) for name, value in point.adaptation.items()},
            )
            for point in points
        ],
    )


def _identity(identity: StreamIdentity) -> Identity:
    return Identity(
        source_id=identity.source_id,
        artifact=identity.artifact,
        artifact_sha256=identity.artifact_sha256,
        provider=identity.provider,
        version=identity.version,
    )


def _newest(result: FrameResult, identity: StreamIdentity, *, age_s: float) -> Newest:
    """The newest frame; a truth the artifact has no name for is shown by its number."""
    truth = result.frame.truth
    known = truth is not None and 0 <= truth < len(identity.labels)
    return Newest(
        index=result.frame.index,
        age_s=age_s,
        source=[_ranked(item) for item in result.source_top],
        adapted=[_ranked(item) for item in result.adapted_top],
        changed=result.changed,
        strength=_share(result.strength),
        gain_nats=_finite(result.gain),
        truth=identity.labels[truth] if truth is not None and known else _number(truth),
        condition=result.frame.condition,
        stage_ms=dict(result.stage_ms),
    )


def _device(facts: DeviceFacts) -> Device:
    return Device(
        load=facts.load,
        update_every=facts.update_every,
        stride=facts.stride,
        left_out=facts.left_out,
        throttled=facts.throttled,
        celsius=facts.celsius,
    )


def _kept(facts: KeptFacts) -> Kept:
    return Kept(written=facts.written, failing=facts.failing, frames_not_kept=facts.frames_not_kept)


def _ranked(item: Ranked) -> RankedClass:
    return RankedClass(index=item.index, label=item.label, prob=_share(item.prob))


def _happened(event: Event) -> Happened:
    return Happened(at_s=event.at_s, kind=event.kind, text=event.text)


def _number(truth: int | None) -> str | None:
    return None if truth is None else str(truth)


def _share(value: float) -> float:
    """A float32 share may be an ulp above 1."""
    return min(max(value, 0.0), 1.0)


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def _plain(value: Scalar) -> Scalar:
    return _finite(value) if isinstance(value, float) else value
