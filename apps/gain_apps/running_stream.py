"""What one run of a stream holds open, and what it has counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from gain_apps.backpressure import Backpressure
from gain_apps.commands import CommandQueue
from gain_apps.outputs import Outputs
from gain_apps.snapshot_keeper import SnapshotKeeper
from gain_apps.stop_request import StopRequest
from gain_apps.stream_config import StreamConfig
from gain_apps.summary import RunRecord
from gain_apps.thermal import ThermalWatch
from gain_runtime.frame import FrameSource
from gain_runtime.reader import FrameReader
from gain_runtime.stream_adapter import StreamAdapter

__all__ = ["RunningStream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStream:
    """Everything between opening and the summary.

    `keeper` is None without snapshots, `backpressure` where every frame is wanted.
    """

    config: StreamConfig
    stop: StopRequest
    source: FrameSource
    reader: FrameReader
    adapter: StreamAdapter
    outputs: Outputs
    keeper: SnapshotKeeper | None
    backpressure: Backpressure | None
    record: RunRecord = field(default_factory=RunRecord)
    queue: CommandQueue = field(default_factory=CommandQueue)
    thermal: ThermalWatch = field(default_factory=ThermalWatch)
