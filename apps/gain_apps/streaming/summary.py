"""What a run amounts to: its scores, its summary, and the line that shows that it is alive."""

from __future__ import annotations

import errno
import logging
import math
import os
import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.control import strip_control_codes
from rich.status import Status
from rich.table import Table

from gain_apps.metrics import NUM_BINS, accuracy, calibration_excess, negative_log_likelihood
from gain_runtime.adapter import STAGES, AdaptedBatch
from gain_runtime.frames import Closing, FrameResult

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]


def percent(part: float, whole: int, /) -> float:
    """A share of at least 1 in per cent.

    Multiplied first: 100 * 1279 / 2000 is 63.95 and printed as 64.0, 100 * (1279 / 2000) as 63.9.
    """
    return 100.0 * part / whole


@dataclass(slots=True)
class Score:
    """Running accuracy, ECE and NLL of one predictor; its memory does not grow."""

    count: int = 0
    correct: int = 0
    nll_sum: float = 0.0
    excess: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(NUM_BINS))

    def add(self, log_probs: Floats, labels: Ints, /) -> None:
        """Count B >= 1 rows of normalised log-probabilities (B, K) under their labels (B,).

        ArrayError if the shapes do not fit or a label is out of range.
        """
        probs = np.exp(log_probs)
        self.count += len(labels)
        self.correct += round(accuracy(probs, labels) * len(labels))
        self.nll_sum += negative_log_likelihood(log_probs, labels) * len(labels)
        self.excess += calibration_excess(probs, labels)

    def to_dict(self) -> dict[str, float | None]:
        """Accuracy and ECE in per cent and NLL in nats; None where nothing was counted."""
        if self.count == 0:
            return {"accuracy_percent": None, "ece_percent": None, "nll_nats": None}
        nll = self.nll_sum / self.count
        return {
            "accuracy_percent": percent(self.correct, self.count),
            "ece_percent": percent(float(np.abs(self.excess).sum()), self.count),
            # JSON has no infinity.
            "nll_nats": nll if math.isfinite(nll) else None,
        }


@dataclass(slots=True)
class ScoreBoard:
    """Scores of the frozen source and of the adapted prediction, overall and by condition."""

    source: Score = field(default_factory=Score)
    adapted: Score = field(default_factory=Score)
    conditions: dict[str, tuple[Score, Score]] = field(default_factory=dict)

    def add(
        self, source_log_probs: Floats, log_probs: Floats, /, *, truth: int, condition: str | None
    ) -> None:
        """Count one frame whose class is known, from log-probabilities (K,).

        Without a condition it counts towards the whole only. ArrayError as `Score.add`.
        """
        pairs = [(self.source, self.adapted)]
        if condition is not None:
            pairs.append(self.conditions.setdefault(condition, (Score(), Score())))
        labels = np.array([truth])
        for source, adapted in pairs:
            source.add(source_log_probs[None], labels)
            adapted.add(log_probs[None], labels)

    def to_dict(self) -> dict[str, Any]:
        """Plain values: `frames`, `source`, `adapted` and `conditions` by name."""

        def both(source: Score, adapted: Score) -> dict[str, Any]:
            scores = {"source": source.to_dict(), "adapted": adapted.to_dict()}
            return {"frames": source.count, **scores}

        conditions = {name: both(*pair) for name, pair in self.conditions.items()}
        return {**both(self.source, self.adapted), "conditions": conditions}


RUN_STAGES = ("wait", *STAGES, "output")
# Percentiles are over the last frames, so that a camera may run for months; few enough that the
# windows are full before anybody looks at the memory.
STAGE_WINDOW = 4096
RATE_WINDOW_S = 2.0


@dataclass(slots=True)
class RunRecord:
    """Counts and times of one run; its memory does not grow with the stream.

    `stage_ms` holds milliseconds per frame; `wait` is the time spent waiting for the source,
    `output` drawing and writing. `left_out` frames were skipped because the device could not keep
    up.
    """

    frames: int = 0
    rejected: int = 0
    left_out: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    reconnects: int = 0
    first_rejection: str | None = None
    changed: int = 0
    strength_sum: float = 0.0
    gain_sum: float = 0.0
    scores: ScoreBoard = field(default_factory=ScoreBoard)
    stage_ms: dict[str, deque[float]] = field(
        default_factory=lambda: {stage: deque(maxlen=STAGE_WINDOW) for stage in RUN_STAGES}
    )
    started_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def seconds(self) -> float:
        """From the first request for a frame to the end, or to now."""
        return (time.monotonic() if self.ended_s is None else self.ended_s) - self.started_s

    @property
    def rate_hz(self) -> float:
        """Frames per second over the whole run."""
        return self.frames / self.seconds if self.seconds > 0.0 else 0.0

    def tick(self, num_frames: int, /) -> float:
        """Note that frames were classified now; frames per second over the last two seconds."""
        now = time.monotonic()
        self._recent.append((now, num_frames))
        while len(self._recent) > 2 and now - self._recent[0][0] > RATE_WINDOW_S:
            self._recent.popleft()
        span = now - self._recent[0][0]
        # The oldest entry marks the start of the span; its frames came before.
        counted = sum(count for _, count in self._recent) - self._recent[0][1]
        return counted / span if span > 0.0 else 0.0

    def add(self, result: FrameResult, batch: AdaptedBatch, row: int, /) -> None:
        """Count one classified frame, row `row` of its batch."""
        self.frames += 1
        self.changed += result.changed
        self.strength_sum += result.strength
        self.gain_sum += result.gain
        if result.frame.truth is not None:
            self.scores.add(
                batch.source_log_probs[row],
                batch.log_probs[row],
                truth=result.frame.truth,
                condition=result.frame.condition,
            )

    def note_fault(self, fault: str, /) -> bool:
        """Count a frame that was predicted and not learned from; whether it is the first such."""
        self.faults[fault] += 1
        return self.faults[fault] == 1

    def reject(self, reason: str, /) -> bool:
        """Count a frame that could not be classified; whether it is the first."""
        self.rejected += 1
        if self.first_rejection is not None:
            return False
        self.first_rejection = reason
        return True

    def to_dict(self) -> dict[str, Any]:
        """Plain values; means are None where no frame was classified."""
        count = self.frames or None
        return {
            "frames": self.frames,
            "rejected": self.rejected,
            "left_out": self.left_out,
            "not_learned": dict(self.faults),
            "reconnects": self.reconnects,
            "seconds": round(self.seconds, 3),
            "rate_hz": round(self.rate_hz, 3),
            "changed_percent": None if count is None else 100.0 * self.changed / count,
            "strength_mean": None if count is None else self.strength_sum / count,
            "gain_mean_nats": None if count is None else self.gain_sum / count,
            "stages_ms": stage_percentiles(self.stage_ms),
            "truth": self.scores.to_dict() if self.scores.source.count else None,
        }


def stage_percentiles(stage_ms: Mapping[str, deque[float]], /) -> dict[str, dict[str, float]]:
    """p50 and p90 of each stage that was passed, in milliseconds per frame."""
    return {
        stage: {
            "p50": round(float(np.percentile(values, 50)), 4),
            "p90": round(float(np.percentile(values, 90)), 4),
        }
        for stage, values in stage_ms.items()
        if values
    }


def print_summary(summary: Mapping[str, Any], console: Console, /) -> None:
    """Print the table a person reads of what `--json` writes."""
    console.print(_run_table(summary))
    if summary["truth"] is not None:
        console.print(_score_table(summary["truth"]))


def _run_table(summary: Mapping[str, Any]) -> Table:
    """Counts, speed and what adaptation did."""
    named = f"{summary['name']}: " if "name" in summary else ""
    table = Table(
        title=f"gain-stream: {named}{summary['source']}", show_header=False, title_style="bold"
    )
    table.add_column(style="dim")
    # Paths and hashes are copied from here: wrapped, never cut.
    table.add_column(overflow="fold")
    counts = f"{summary['frames']} ({summary['skipped']} unreadable, {summary['dropped']} dropped"
    table.add_row("frames", f"{counts}, {summary['rejected']} rejected)")
    table.add_row("speed", f"{summary['seconds']:.1f} s, {summary['rate_hz']:.1f} frames/s")
    for stage, times in summary["stages_ms"].items():
        table.add_row(f"  {stage}", f"p50 {times['p50']:.2f} ms, p90 {times['p90']:.2f} ms")
    if summary["frames"]:
        table.add_row("changed", f"{summary['changed_percent']:.1f} % of the predictions")
        table.add_row("strength", f"{summary['strength_mean']:.3f} on average")
        table.add_row("gain", f"{summary['gain_mean_nats']:.3f} nats on average")
    table.add_row("learned from", f"{summary['frames_learned']} frames in the state")
    artifact, config = summary["artifact"], summary["config"]
    faults = ", ".join(f"{count} {fault}" for fault, count in summary["not_learned"].items())
    if faults:
        table.add_row("not learned from", faults)
    if summary["left_out"]:
        table.add_row("left out", f"{summary['left_out']} frames, to keep up with the camera")
    if summary["reconnects"]:
        table.add_row("reconnected", f"{summary['reconnects']} times")
    table.add_row("artifact", f"{artifact['path']} (sha256 {artifact['sha256'][:12]})")
    table.add_row("provider", summary["provider"])
    table.add_row("config", _settings(config))
    for name, path in summary["outputs"].items():
        table.add_row(name, path)
    if summary["stopped_by"] is not None:
        table.add_row("stopped by", summary["stopped_by"])
    return table


def _settings(config: Mapping[str, Any]) -> str:
    """The settings that decide the numbers."""
    names = ("update_every", "batch_size", "seed", "device", "corrupt", "state_in", "max_frames")
    parts = [f"{name} {config[name]}" for name in names if config[name] is not None]
    frozen = "frozen, " if config["freeze"] else ""
    return f"{frozen}method {config['gain']['method']}, {', '.join(parts)}"


def _score_table(truth: Mapping[str, Any]) -> Table:
    """Frozen source against adapted, from the same pass."""
    table = Table(title=f"{truth['frames']} frames with known truth", title_style="bold")
    table.add_column()
    table.add_column("frames", justify="right")
    for measure in ("acc. %", "ECE %", "NLL"):
        table.add_column(f"{measure}\nfrozen", justify="right")
        table.add_column(f"{measure}\nadapted", justify="right", style="bold")
    table.add_row("all", str(truth["frames"]), *_score_cells(truth))
    for name, scores in truth["conditions"].items():
        table.add_row(name, str(scores["frames"]), *_score_cells(scores))
    return table


def _score_cells(scores: Mapping[str, Any]) -> list[str]:
    """Source and adapted side by side, measure by measure."""
    return [
        "inf" if scores[who][measure] is None else f"{scores[who][measure]:.{digits}f}"
        for measure, digits in (("accuracy_percent", 1), ("ece_percent", 1), ("nll_nats", 3))
        for who in ("source", "adapted")
    ]


# What everybody wants to see of a run, and no more: between INFO and WARNING.
NOTE = 25
logging.addLevelName(NOTE, "NOTE")

LOG_INTERVAL_S = 10.0
REDRAW_INTERVAL_S = 0.25


class RunProgress(Closing):
    """Reports a record's counts at intervals (a context manager); `total` frames are expected."""

    def __init__(self, record: RunRecord, console: Console, /, *, total: int | None) -> None:
        self._record = record
        self._total = total
        shown = console.is_terminal and logger.isEnabledFor(NOTE)
        self._status: Status | None = console.status("opening") if shown else None
        self._next_s = time.monotonic()

    def update(self) -> None:
        """Report, if the last report is old enough."""
        now = time.monotonic()
        if now < self._next_s:
            return
        if self._status is not None:
            self._status.update(self._line())
            self._next_s = now + REDRAW_INTERVAL_S
            return
        if self._record.frames > 0 and now - self._record.started_s >= LOG_INTERVAL_S:
            logger.log(NOTE, "%s", self._line())
            self._next_s = now + LOG_INTERVAL_S

    def __enter__(self) -> RunProgress:
        if self._status is not None:
            self._status.start()
        return self

    def close(self) -> None:
        """Take the line away; may be called twice."""
        if self._status is not None:
            self._status.stop()

    def _line(self) -> str:
        """Counts so far."""
        record = self._record
        of = "" if self._total is None else f" of {self._total}"
        count = max(record.frames, 1)
        return (
            f"{record.frames}{of} frames, {record.rate_hz:.1f}/s, "
            f"{100.0 * record.changed / count:.1f} % changed, "
            f"strength {record.strength_sum / count:.2f}"
        )


class ErrorConsole(Console):
    """Standard error, where a reader that has gone is an OSError.

    Rich itself would end the process then, and put the null device where standard output was.
    """

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def on_broken_pipe(self) -> None:
        """Say so, and do nothing else."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class ConsoleHandler(logging.Handler):
    """Logs one unwrapped line per record, above a progress line where there is one."""

    def __init__(self, console: Console, /) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record; a reader that has gone, or a full disk, stops no stream."""
        with suppress(OSError, ValueError):
            line = self.format(record)
            if self._console.is_terminal:
                self._console.print(line, markup=False, highlight=False, soft_wrap=True)
            else:
                # Not by rich, which keeps every line that a full disk did not take.
                print(strip_control_codes(line), file=self._console.file, flush=True)
