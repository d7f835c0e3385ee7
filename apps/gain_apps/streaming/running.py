"""What a run consists of while it runs, and what the page is told of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gain_apps.serve.board import (
    DeviceFacts,
    KeptFacts,
    LiveBoard,
    StreamFacts,
    StreamIdentity,
)
from gain_apps.streaming.backpressure import Backpressure
from gain_apps.streaming.commands import CommandQueue
from gain_apps.streaming.config import StreamConfig
from gain_apps.streaming.outputs import Outputs
from gain_apps.streaming.snapshots import SnapshotKeeper
from gain_apps.streaming.stopping import StopRequest, Watchdog
from gain_apps.streaming.summary import RunRecord
from gain_apps.system import ThermalWatch
from gain_core import __version__
from gain_runtime.adapter import Adapter
from gain_runtime.frames import FrameSource
from gain_runtime.sessions.session import Session
from gain_runtime.sinks.mqtt import MqttPublisher
from gain_runtime.sources.reader import FrameReader

__all__ = [
    "RunningStream",
    "StreamHost",
    "facts_of",
    "identity_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHost:
    """What a stream finds in its process; alone, it finds nothing.

    Attributes
    ----------
    session : Session or None
        The network, where streams share it; not closed. None opens the settings' own.
    board : LiveBoard or None
        Where the page looks.
    mqtt : MqttPublisher or None
        The connection that all streams share.
    queue : CommandQueue
        What viewers ask for.
    thermal : ThermalWatch
    watchdog : Watchdog or None
        One that runs already; None starts one where the settings ask for it.
    waits : bool
        Whether a source that is away is waited for at the start, too.
    """

    session: Session | None = None
    board: LiveBoard | None = None
    mqtt: MqttPublisher | None = None
    queue: CommandQueue = field(default_factory=CommandQueue)
    thermal: ThermalWatch = field(default_factory=ThermalWatch)
    watchdog: Watchdog | None = None
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStream:
    """Everything between opening and the summary.

    `keeper` is None without snapshots, `backpressure` where every frame is wanted.
    """

    config: StreamConfig
    stop: StopRequest
    host: StreamHost
    source: FrameSource
    reader: FrameReader
    adapter: Adapter
    outputs: Outputs
    keeper: SnapshotKeeper | None
    backpressure: Backpressure | None
    record: RunRecord = field(default_factory=RunRecord)

    @property
    def reconnects(self) -> int:
        """Times the source's signal came back; files and drawn pictures have none to lose."""
        return int(getattr(self.source, "reconnects", 0))


def identity_of(run: RunningStream, /) -> StreamIdentity:
    """What does not change while the stream runs."""
    artifact = run.adapter.artifact
    return StreamIdentity(
        source_id=run.source.info.source_id,
        artifact=artifact.path.name,
        artifact_sha256=artifact.sha256,
        provider=run.adapter.provider,
        version=__version__,
        labels=tuple(artifact.manifest.labels),
    )


def facts_of(run: RunningStream, /) -> StreamFacts:
    """The present counts and states; on the loop's own thread."""
    status = run.adapter.status()
    return StreamFacts(
        frozen=run.adapter.frozen,
        frames_learned=status.frames,
        dropped=run.reader.dropped,
        rejected=run.record.rejected,
        skipped=run.source.skipped,
        reconnects=run.reconnects,
        outputs_lost=len(run.outputs.lost),
        not_learned=dict(run.record.faults),
        adaptation={"shift_nats": status.shift_nats, "draws": status.draws},
        device=_device_facts(run),
        kept=_kept_facts(run),
    )


def _device_facts(run: RunningStream) -> DeviceFacts:
    """What gives way, and how warm it is."""
    pressure, thermal = run.backpressure, run.host.thermal
    if pressure is None:
        return DeviceFacts(
            update_every=run.adapter.update_every,
            throttled=thermal.throttled,
            celsius=thermal.celsius,
        )
    return DeviceFacts(
        load=pressure.load,
        level=pressure.level,
        update_every=run.adapter.update_every,
        stride=pressure.stride,
        left_out=run.record.left_out,
        throttled=thermal.throttled,
        celsius=thermal.celsius,
    )


def _kept_facts(run: RunningStream) -> KeptFacts | None:
    """The snapshots, where there are any."""
    keeper = run.keeper
    if keeper is None:
        return None
    return KeptFacts(
        written=keeper.written,
        failing=keeper.failing,
        frames_not_kept=keeper.frames_not_kept,
        last_utc_s=keeper.last_utc_s,
    )
