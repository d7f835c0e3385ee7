"""A run while it runs: its parts, what gives way under load, and the loop to the outputs."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gain_apps.serve.board import (
    DeviceFacts,
    KeptFacts,
    LiveBoard,
    Load,
    StreamFacts,
    StreamIdentity,
    step_words,
)
from gain_apps.serve.event_log import EventKind
from gain_apps.streaming.config import StreamConfig
from gain_apps.streaming.control import CommandQueue, StopRequest, Watchdog, drain_commands
from gain_apps.streaming.input import check_truth
from gain_apps.streaming.outputs import Outputs
from gain_apps.streaming.snapshots import SnapshotKeeper
from gain_apps.streaming.summary import RunRecord
from gain_apps.system import ThermalWatch
from gain_core import __version__
from gain_core.errors import ArrayError, GainError, NumericsError
from gain_runtime.adapter import AdaptedBatch, Adapter
from gain_runtime.frames import Frame, FrameHealth, FrameResult, FrameSource, Ranked
from gain_runtime.sessions.session import Session
from gain_runtime.sinks.mqtt import MqttPublisher
from gain_runtime.sources.reader import FrameReader, ReadStatus
from gain_runtime.sources.reconnecting import SignalLostError

logger = logging.getLogger(__name__)


EVERY_S = 5.0
# A network's first passes are slow, and a camera hands over what it has kept: neither is a load.
SETTLING_S = 10.0
# Share of the frames that may be dropped before something gives way.
BEHIND = 0.05
UPDATE_FACTOR = 4
MOST_UPDATE_EVERY = 64
STRIDES = (2, 4, 8)
# Looks without a dropped frame before a step back, and the most that relapses raise that to: an
# hour, so that a device between two steps writes a few lines a day and not one every ten seconds.
FIRST_PATIENCE = 2
MOST_PATIENCE = 720


class Backpressure:
    """Makes a live stream cheaper step by step while more than 5 % of its frames are dropped.

    First `update_every` is raised, four-fold up to 64: every frame is still learned from, in larger
    portions (an adaptive file keeps its portions and learns from fewer frames). Then frames are
    skipped before they cost anything, all but every second, fourth, eighth: evenly, where a full
    queue would drop them in bursts. Each step is a warning, and so is each step back, which comes
    when no frame was dropped for a while; a step back that was too early doubles that while.

    `dropped` gives the frames that the reader has dropped so far, `clock` monotonic seconds.
    """

    def __init__(
        self,
        adapter: Adapter,
        dropped: Callable[[], int],
        /,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._adapter = adapter
        self._dropped = dropped
        self._clock = clock
        # `update_every` and stride of each level.
        self._steps = [(adapter.update_every, 1)]
        while self._steps[-1][0] < MOST_UPDATE_EVERY:
            larger = min(UPDATE_FACTOR * self._steps[-1][0], MOST_UPDATE_EVERY)
            self._steps.append((larger, 1))
        self._steps += [(self._steps[-1][0], stride) for stride in STRIDES]
        # Steps taken; 0 while the device keeps up.
        self.level = 0
        # The first look comes after the first frame, whenever that is.
        self._next_s: float | None = None
        self._dropped_before = 0
        self._offered = self._position = 0
        self._calm = 0
        self._patience = FIRST_PATIENCE
        self._on_trial = False
        self._settled = False

    @property
    def stride(self) -> int:
        """One frame in so many is classified."""
        return self._steps[self.level][1]

    @property
    def load(self) -> Load:
        """The level in a word."""
        if self.level == 0:
            return "keeping-up"
        return "updating-less" if self.stride == 1 else "skipping"

    def takes(self) -> bool:
        """Count a frame that the reader delivered; whether it is to be classified."""
        self._offered += 1
        now_s = self._clock()
        if self._next_s is None:
            self._next_s = now_s + SETTLING_S
        elif now_s >= self._next_s:
            self._look()
        self._position = (self._position + 1) % self.stride
        return self._position == 0

    def _look(self) -> None:
        """Compare what was dropped with what was delivered since the last look."""
        dropped = self._dropped()
        lost = dropped - self._dropped_before
        share = lost / (lost + self._offered)
        self._dropped_before, self._offered = dropped, 0
        self._next_s = self._clock() + EVERY_S
        if not self._settled:
            # What was dropped up to here is counted, and says nothing of the load.
            self._settled = True
            return
        self._calm = self._calm + 1 if lost == 0 else 0
        if share > BEHIND:
            self._give_way(share)
        elif self._calm >= self._patience:
            self._recover()

    def _give_way(self, share: float) -> None:
        """One step further; after a step back on trial, the next one has to wait longer."""
        if self._on_trial:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._on_trial = False
        if self.level + 1 < len(self._steps):
            words = self._move(self.level + 1)
            logger.warning(
                "%.0f %% of the frames are dropped: %s from here on", 100.0 * share, words
            )

    def _recover(self) -> None:
        """One step back, or at the end of the way back trust in the device again."""
        self._calm = 0
        if self.level == 0:
            self._on_trial, self._patience = False, FIRST_PATIENCE
            return
        self._on_trial = True
        logger.warning("no frame is dropped: %s", self._move(self.level - 1))

    def _move(self, level: int) -> str:
        """Work as this level says; what it means."""
        self.level = level
        self._adapter.update_every = self._steps[level][0]
        return step_words(*self._steps[level])


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

    def note(self, kind: EventKind, text: str, who: str = "") -> None:
        """Add an event, where there is a page to show it."""
        if self.board is not None:
            self.board.note(kind, text, who=who)


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
    watchdog: Watchdog
    record: RunRecord = field(default_factory=RunRecord)

    @property
    def reconnects(self) -> int:
        """Times the source's signal came back; files and drawn pictures have none to lose."""
        return int(getattr(self.source, "reconnects", 0))

    def identity(self) -> StreamIdentity:
        """What does not change while the stream runs."""
        artifact = self.adapter.artifact
        return StreamIdentity(
            source_id=self.source.info.source_id,
            artifact=artifact.path.name,
            artifact_sha256=artifact.sha256,
            provider=self.adapter.provider,
            version=__version__,
            labels=tuple(artifact.manifest.labels),
        )

    def facts(self) -> StreamFacts:
        """The present counts and states; on the loop's own thread."""
        status, pressure, keeper = self.adapter.status(), self.backpressure, self.keeper
        device = DeviceFacts(
            update_every=self.adapter.update_every,
            left_out=self.record.left_out,
            throttled=self.host.thermal.throttled,
            celsius=self.host.thermal.celsius,
        )
        if pressure is not None:
            device = replace(
                device, load=pressure.load, level=pressure.level, stride=pressure.stride
            )
        kept = None
        if keeper is not None:
            kept = KeptFacts(
                written=keeper.written,
                failing=keeper.failing,
                frames_not_kept=keeper.frames_not_kept,
                last_utc_s=keeper.last_utc_s,
            )
        return StreamFacts(
            frozen=self.adapter.frozen,
            frames_learned=status.frames,
            dropped=self.reader.dropped,
            rejected=self.record.rejected,
            skipped=self.source.skipped,
            reconnects=self.reconnects,
            outputs_lost=len(self.outputs.lost),
            not_learned=dict(self.record.faults),
            adaptation={"shift_nats": status.shift_nats, "draws": status.draws},
            device=device,
            kept=kept,
        )


# Longest time until a stop request or a key in the window is noticed while no frame arrives.
POLL_S = 0.1

# Frames, whether they teach, and what waits for their result.
_UnderWay: TypeAlias = tuple[list[Frame], bool, Callable[[], AdaptedBatch]]


class StreamLoop:
    """Classifies the frames of a stream's reader until it ends or a stop is requested.

    A frame that cannot be classified (the network returned NaN, or its region is empty) is
    rejected: counted, warned about once, left out of the outputs, and nothing is learned from it.
    `on_batch` is called after every batch, for progress.
    """

    def __init__(
        self, run: RunningStream, /, *, on_batch: Callable[[], None] = lambda: None
    ) -> None:
        config, live = run.config, run.source.info.live
        self._run, self._on_batch = run, on_batch
        self._adapter, self._outputs, self._record = run.adapter, run.outputs, run.record
        # Frames of a live source are stamped by the monotonic clock when they are captured.
        self._live = live
        check = live if config.check_frames is None else config.check_frames
        self._health = FrameHealth() if check else None
        self._silence_s = math.inf
        if config.watchdog is not None:
            # A source that waits for its camera to come back is silent, and does not hang.
            waits_s = math.inf if config.reconnect is None else config.reconnect
            self._silence_s = config.watchdog + (waits_s if live else 0.0)
        self._hangups = run.stop.hangups
        # Batches that were submitted and not yet written.
        self._under_way: deque[_UnderWay] = deque()
        self._labels = run.adapter.artifact.manifest.labels

    def run(self) -> None:
        """Classify everything.

        StreamError if the source or an output fails, or gives no frame for too long; the frames
        before that have been written. ConfigError if a frame's truth is not one of the artifact's
        classes, EngineError if a forward pass fails.
        """
        self._record.started_s = asked = time.monotonic()
        try:
            for group in self._groups():
                waited_ms = 1e3 * (time.monotonic() - asked) / len(group)
                self._record.stage_ms["wait"].extend([waited_ms] * len(group))
                for learn, alike in groupby(group, key=self._teaches):
                    frames = list(alike)
                    for frame in frames:
                        check_truth(frame, len(self._labels))
                    self._submit(frames, learn=learn)
                    self._settle(everything=False)
                self._on_batch()
                self._look_around()
                asked = time.monotonic()
        finally:
            # Also where the source or a later batch failed: what was classified is written.
            self._settle(everything=True)
            self._record.ended_s = time.monotonic()

    def _look_around(self) -> None:
        """What is done after every batch, and while there is none."""
        run, host = self._run, self._run.host
        run.watchdog.beat(run.config.name or "")
        host.thermal.tick()
        drain_commands(
            *(host.queue, run.adapter, run.stop),
            state_out=run.config.state_out,
            keeper=run.keeper,
            note=partial(host.note, "command"),
        )
        if run.keeper is not None:
            run.keeper.tick()
        if run.stop.hangups != self._hangups:
            self._hangups = run.stop.hangups
            run.outputs.reopen()

    def _groups(self) -> Iterator[list[Frame]]:
        """Frames in groups of the batch size; the last one may be smaller, none is lost."""
        reader, stop, pressure = self._run.reader, self._run.stop, self._run.backpressure
        most = self._run.config.max_frames
        group: list[Frame] = []
        taken = 0
        heard_s = time.monotonic()
        try:
            while not stop and (most is None or taken < most):
                item = reader.get(timeout_s=0.0)
                if item is ReadStatus.TIMEOUT:
                    # Nothing to be ahead with: no result waits for the next frame.
                    self._settle(everything=True)
                    item = reader.get(timeout_s=POLL_S)
                if item is ReadStatus.END:
                    break
                if not isinstance(item, Frame):
                    self._outputs.poll()
                    self._look_around()
                    silent_s = time.monotonic() - heard_s
                    if silent_s > self._silence_s:
                        # A read that never returns raises nothing by itself.
                        raise SignalLostError(
                            f"no frame for {silent_s:.0f} s and no error either: the source hangs "
                            "in a read; check the camera and start again"
                        )
                    continue
                taken += 1
                heard_s = time.monotonic()
                if pressure is not None and not pressure.takes():
                    self._record.left_out += 1
                    continue
                group.append(item)
                if len(group) == self._run.config.batch_size:
                    yield group
                    group = []
        except GainError:
            if group:
                yield group
            raise
        if group:
            yield group

    def _teaches(self, frame: Frame) -> bool:
        """Whether a frame is to be learned from."""
        fault = None if self._health is None else self._health.check(frame.image)
        if fault is not None and self._record.note_fault(fault):
            logger.warning("frame %d: %s; such frames are not learned from", frame.index, fault)
        return fault is None

    def _submit(self, frames: list[Frame], *, learn: bool) -> None:
        """Start on a batch, ahead of its result where a device works on it."""
        images, regions = [frame.image for frame in frames], [frame.region for frame in frames]
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
            try:
                batch = self._adapter.step([frame.image], regions=[frame.region], learn=learn)
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
        count, top_k = len(frames), self._run.config.top_k
        rate_hz = self._record.tick(count)
        stage_ms = {stage: spent / 1e6 / count for stage, spent in batch.stage_ns.items()}
        utc_ns, now_ns = time.time_ns(), time.monotonic_ns()
        for row, frame in enumerate(frames):
            # A live frame is stamped when it was captured, others with their place in a recording.
            age_ns = max(now_ns - frame.timestamp_ns, 0) if self._live else 0
            result = FrameResult(
                frame=frame,
                source_top=rank(batch.source_probs[row], self._labels, top_k=top_k),
                adapted_top=rank(batch.probs[row], self._labels, top_k=top_k),
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


def rank(
    probs: npt.NDArray[np.floating], labels: Sequence[str], /, *, top_k: int
) -> tuple[Ranked, ...]:
    """The most probable classes of (K,), best first; ties go to the lowest index."""
    order = np.argsort(-probs, kind="stable")[:top_k]
    return tuple(
        Ranked(index=int(index), label=labels[index], prob=float(probs[index])) for index in order
    )
