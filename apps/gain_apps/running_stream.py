"""What one run of a stream holds open and has counted, and what it shares with its process."""

from __future__ import annotations

from dataclasses import dataclass, field

from gain_apps.backpressure import Backpressure
from gain_apps.commands import CommandQueue
from gain_apps.outputs import Outputs
from gain_apps.serve.board import LiveBoard
from gain_apps.snapshot_keeper import SnapshotKeeper
from gain_apps.stop_request import StopRequest
from gain_apps.stream_config import StreamConfig
from gain_apps.summary import RunRecord
from gain_apps.thermal import ThermalWatch
from gain_apps.watchdog import Watchdog
from gain_runtime.adapter import Adapter
from gain_runtime.frame import FrameSource
from gain_runtime.mqtt_sink import MqttPublisher
from gain_runtime.reader import FrameReader
from gain_runtime.session import Session

__all__ = ["RunningStream", "StreamHost"]


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
