"""A run while it runs: its parts, what the page is told, and the loop from source to outputs."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gain_apps.serve.board import DeviceFacts, KeptFacts, LiveBoard, StreamFacts, StreamIdentity
from gain_apps.streaming.backpressure import Backpressure
from gain_apps.streaming.config import StreamConfig
from gain_apps.streaming.control import CommandQueue, StopRequest, Watchdog
from gain_apps.streaming.input import check_truth
from gain_apps.streaming.outputs import Outputs
from gain_apps.streaming.snapshots import SnapshotKeeper
from gain_apps.streaming.summary import RunRecord
from gain_apps.system import ThermalWatch
from gain_core import __version__
from gain_core.errors import ArrayError, GainError, NumericsError
from gain_runtime.adapter import AdaptedBatch, Adapter
from gain_runtime.frames import Frame, FrameHealth, FrameResult, FrameSource, Ranked
from gain_runtime.preprocess import Region
from gain_runtime.sessions.session import Session
from gain_runtime.sinks.mqtt import MqttPublisher
from gain_runtime.sources.reader import FrameReader, ReadStatus
from gain_runtime.sources.reconnecting import SignalLostError

__all__ = [
    "RunningStream",
    "StreamHost",
    "StreamLoop",
    "facts_of",
    "identity_of",
    "rank",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHost:
    """What a stream finds in its process; alone, it finds nothing.

    `session` is the network, where streams share it; not closed. `board` is where the page looks,
    `mqtt` the connection that all share, `queue` what viewers ask for. Without a `watchdog` that
    runs already the settings start one. `waits` is whether a source that is away is waited for at
    the start, too.
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


# Longest time until a stop request or a key in the window is noticed while no frame arrives.
POLL_S = 0.1

# Frames, whether they teach, and what waits for their result.
_UnderWay: TypeAlias = tuple[list[Frame], bool, Callable[[], AdaptedBatch]]


class StreamLoop:
    """Classifies the frames of a reader until it ends or a stop is requested.

    A frame that cannot be classified (the network returned NaN, or its region is empty) is
    rejected: counted, warned about once, left out of the outputs, and nothing is learned from it.

    Parameters
    ----------
    adapter : Adapter
    outputs : Outputs
    record : RunRecord
        Filled while the loop runs.
    stop : StopRequest
    batch : int
        Frames per forward pass.
    max_frames : int or None
        Frames taken from the reader at most.
    top_k : int
        Classes listed per frame; all of them where the artifact has fewer.
    on_batch : callable, optional
        Called after every batch, for progress.
    between : callable, optional
        Called after every batch and while no frame arrives, to carry out commands.
    health : FrameHealth, optional
        With it, frames that it finds broken are predicted and not learned from.
    silence_s : float or None
        Longest wait for a frame, in seconds; None waits for ever.
    backpressure : Backpressure, optional
        Chooses the frames that are classified while the device cannot keep up.
    live : bool, optional
        Whether frames are stamped by the monotonic clock when they are captured.
    """

    def __init__(
        self,
        adapter: Adapter,
        outputs: Outputs,
        record: RunRecord,
        /,
        *,
        stop: StopRequest,
        batch: int = 1,
        max_frames: int | None = None,
        top_k: int = 3,
        on_batch: Callable[[], None] | None = None,
        between: Callable[[], None] | None = None,
        health: FrameHealth | None = None,
        silence_s: float | None = None,
        backpressure: Backpressure | None = None,
        live: bool = False,
    ) -> None:
        self._adapter = adapter
        self._outputs = outputs
        self._record = record
        self._stop = stop
        self._batch = batch
        self._max_frames = max_frames
        self._top_k = top_k
        self._on_batch = on_batch
        self._between = between
        self._health = health
        self._silence_s = silence_s
        self._backpressure = backpressure
        self._live = live
        # Batches that were submitted and not yet written.
        self._under_way: deque[_UnderWay] = deque()
        self._labels = adapter.artifact.manifest.labels

    def run(self, reader: FrameReader, /) -> None:
        """Classify everything.

        Raises
        ------
        StreamError
            If the source or an output fails, or gives no frame for `silence_s`; the frames
            before that have been written.
        ConfigError
            If a frame's truth is not one of the artifact's classes.
        EngineError
            If a forward pass fails.
        """
        self._record.started_s = asked = time.monotonic()
        try:
            for group in self._groups(reader):
                waited_ms = 1e3 * (time.monotonic() - asked) / len(group)
                self._record.stage_ms["wait"].extend([waited_ms] * len(group))
                for run, learn in self._sorted_out(group):
                    for frame in run:
                        check_truth(frame, len(self._labels))
                    self._submit(run, learn=learn)
                    self._settle(everything=False)
                if self._on_batch is not None:
                    self._on_batch()
                if self._between is not None:
                    self._between()
                asked = time.monotonic()
        finally:
            # Also where the source or a later batch failed: what was classified is written.
            self._settle(everything=True)
            self._record.ended_s = time.monotonic()

    def _groups(self, reader: FrameReader) -> Iterator[list[Frame]]:
        """Frames in groups of the batch size; the last one may be smaller, none is lost."""
        group: list[Frame] = []
        taken = 0
        heard_s = time.monotonic()
        try:
            while not self._stop and (self._max_frames is None or taken < self._max_frames):
                item = reader.get(timeout_s=0.0)
                if item is ReadStatus.TIMEOUT:
                    # Nothing to be ahead with: no result waits for the next frame.
                    self._settle(everything=True)
                    item = reader.get(timeout_s=POLL_S)
                if item is ReadStatus.END:
                    break
                if not isinstance(item, Frame):
                    self._outputs.poll()
                    if self._between is not None:
                        self._between()
                    self._refuse_silence(time.monotonic() - heard_s)
                    continue
                taken += 1
                heard_s = time.monotonic()
                if self._backpressure is not None and not self._backpressure.takes():
                    self._record.left_out += 1
                    continue
                group.append(item)
                if len(group) == self._batch:
                    yield group
                    group = []
        except GainError:
            if group:
                yield group
            raise
        if group:
            yield group

    def _refuse_silence(self, seconds: float) -> None:
        """A read that never returns raises nothing by itself."""
        if self._silence_s is not None and seconds > self._silence_s:
            raise SignalLostError(
                f"no frame for {seconds:.0f} s and no error either: the source hangs in a read; "
                "check the camera and start again"
            )

    def _sorted_out(self, frames: list[Frame]) -> Iterator[tuple[list[Frame], bool]]:
        """Frames in order, in runs that are learned from or not."""
        run: list[Frame] = []
        learn = True
        for frame in frames:
            teaches = self._teaches(frame)
            if run and teaches != learn:
                yield run, learn
                run = []
            learn = teaches
            run.append(frame)
        yield run, learn

    def _teaches(self, frame: Frame) -> bool:
        """Whether a frame is to be learned from."""
        if self._health is not None:
            fault = self._health.check(frame.image)
            if fault is not None:
                if self._record.note_fault(fault):
                    logger.warning(
                        "frame %d: %s; such frames are not learned from", frame.index, fault
                    )
                return False
        return True

    def _submit(self, frames: list[Frame], *, learn: bool) -> None:
        """Start on a batch, ahead of its result where a device works on it."""
        images, regions = _pictures(frames)
        try:
            result = self._adapter.submit(images, regions=regions, learn=learn)
        except (ArrayError, NumericsError) as err:
            self._settle(everything=True)
            self._settle_singly(frames, err, learn=learn)
        else:
            self._under_way.append((frames, learn, result))

    def _settle(self, *, everything: bool) -> None:
        """Write what is due; all of it, where no further batch is at hand."""
        while len(self._under_way) > (0 if everything else self._adapter.ahead):
            frames, learn, result = self._under_way.popleft()
            try:
                batch = result()
            except (ArrayError, NumericsError) as err:
                self._settle_singly(frames, err, learn=learn)
            else:
                self._emit(frames, batch)

    def _settle_singly(self, frames: list[Frame], err: GainError, *, learn: bool) -> None:
        """Frames whose batch was refused, each by itself."""
        if len(frames) == 1:
            self._reject(frames[0], err)
            return
        for frame in frames:
            images, regions = _pictures([frame])
            try:
                batch = self._adapter.step(images, regions=regions, learn=learn)
            except (ArrayError, NumericsError) as refused:
                self._reject(frame, refused)
            else:
                self._emit([frame], batch)

    def _reject(self, frame: Frame, err: GainError) -> None:
        """Leave a frame out, and say so the first time."""
        reason = f"frame {frame.index} of {frame.source_id}: {err}"
        if self._record.reject(reason):
            logger.warning("rejected: %s; further ones are only counted", reason)
        else:
            logger.debug("rejected: %s", reason)

    def _emit(self, frames: Sequence[Frame], batch: AdaptedBatch) -> None:
        """Count a batch and hand its rows to the outputs."""
        count = len(frames)
        rate_hz = self._record.tick(count)
        stage_ms = {stage: spent / 1e6 / count for stage, spent in batch.stage_ns.items()}
        utc_ns, now_ns = time.time_ns(), time.monotonic_ns()
        for row, frame in enumerate(frames):
            # A live frame is stamped when it was captured, others with their place in a recording.
            age_ns = max(now_ns - frame.timestamp_ns, 0) if self._live else 0
            result = FrameResult(
                frame=frame,
                source_top=rank(batch.source_probs[row], self._labels, top_k=self._top_k),
                adapted_top=rank(batch.probs[row], self._labels, top_k=self._top_k),
                strength=float(batch.strength[row]),
                gain=float(batch.gain[row]),
                rate_hz=rate_hz,
                stage_ms=stage_ms,
                utc_ns=utc_ns - age_ns,
                latency_ms=age_ns / 1e6 if self._live else None,
            )
            self._record.add(result, batch, row)
            for stage, spent in stage_ms.items():
                self._record.stage_ms[stage].append(spent)
            started = time.perf_counter_ns()
            self._outputs.write(result)
            self._record.stage_ms["output"].append((time.perf_counter_ns() - started) / 1e6)


def _pictures(frames: Sequence[Frame]) -> tuple[list[npt.NDArray[np.uint8]], list[Region | None]]:
    """Images, and what of them is classified."""
    return [frame.image for frame in frames], [frame.region for frame in frames]


def rank(
    probs: npt.NDArray[np.floating], labels: Sequence[str], /, *, top_k: int
) -> tuple[Ranked, ...]:
    """The most probable classes of (K,), best first; ties go to the lowest index."""
    order = np.argsort(-probs, kind="stable")[:top_k]
    return tuple(
        Ranked(index=int(index), label=labels[index], prob=float(probs[index])) for index in order
    )
