"""The sinks of a run: opened from its settings, each failure kept apart; the picture of a run."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_apps.metrics import calibration_excess
from gain_apps.streaming.config import StreamConfig
from gain_apps.streaming.overlay import Overlay
from gain_apps.streaming.settings import flag
from gain_apps.streaming.summary import percent
from gain_core.errors import ConfigError, GainError, StreamError
from gain_runtime.files.paths import is_folder, write_atomically
from gain_runtime.frames import FrameResult, FrameSource, Sink
from gain_runtime.optional import require
from gain_runtime.sinks.jsonl import JsonlSink
from gain_runtime.sinks.mqtt import MqttPublisher, MqttSink
from gain_runtime.sinks.pictures import ChangedSink, DisplayAction, DisplaySink
from gain_runtime.sinks.video import LONGEST_GAP_S, VideoSink
from gain_runtime.sinks.webhook import WebhookSink

logger = logging.getLogger(__name__)


class Outputs:
    """Named sinks that receive every result.

    With `drop_failing` a sink that fails is closed and left out from then on, which is said once
    and is an error of `close`; otherwise its failure is raised at once.
    """

    def __init__(self, *, drop_failing: bool = False) -> None:
        self._sinks: dict[str, Sink] = {}
        self._polls: dict[str, Callable[[], None]] = {}
        self._drop_failing = drop_failing
        self._dropped: list[StreamError] = []

    @property
    def lost(self) -> list[str]:
        """What became of the sinks that were left out, one line each."""
        return [str(err) for err in self._dropped]

    def add(self, name: str, sink: Sink, /, *, poll: Callable[[], None] | None = None) -> None:
        """Add a sink, owned from here on; `poll` is called while there is no frame to write."""
        self._sinks[name] = sink
        if poll is not None:
            self._polls[name] = poll

    def write(self, result: FrameResult, /) -> None:
        """Hand a result to every sink.

        StreamError if one failed, naming it; the others have received the result.
        """
        failures: dict[str, StreamError] = {}
        for name, sink in self._sinks.items():
            try:
                sink.write(result)
            except (GainError, OSError) as err:
                failures[name] = _failure(name, err)
        if not self._drop_failing:
            _raise_first(list(failures.values()))
            return
        for name, failure in failures.items():
            logger.error("%s; the stream continues without it", failure)
            self._dropped.append(failure)
            self._polls.pop(name, None)
            with suppress(GainError, OSError):
                self._sinks.pop(name).close()

    def poll(self) -> None:
        """Keep windows alive between frames."""
        for poll in self._polls.values():
            poll()

    def reopen(self) -> None:
        """Let sinks open files anew that were renamed to rotate them; a failure is said."""
        for name, sink in self._sinks.items():
            reopen = getattr(sink, "reopen", None)
            if reopen is not None:
                try:
                    reopen()
                except (GainError, OSError) as err:
                    logger.error("%s: %s; rows are still written to the old file", name, err)

    def close(self) -> None:
        """Close every sink; may be called twice.

        StreamError if one cannot be finished or was left out, naming it; the others are closed.
        """
        failures, self._dropped = self._dropped, []

        def close(name: str, sink: Sink) -> None:
            try:
                sink.close()
            except (GainError, OSError) as err:
                failures.append(_failure(name, err))

        # Even an error that is none of ours leaves no other sink open.
        with ExitStack() as stack:
            for name, sink in reversed(self._sinks.items()):
                stack.callback(close, name, sink)
        _raise_first(failures)


def _failure(name: str, err: GainError | OSError) -> StreamError:
    """The error of a sink, naming it."""
    failure = StreamError(f"{name}: {err}")
    failure.__cause__ = err
    return failure


def _raise_first(failures: list[StreamError]) -> None:
    """Raise the first failure, log the others."""
    for err in failures[1:]:
        logger.error("%s", err)
    if failures:
        raise failures[0]


# Photos have no rate of their own; slow enough to look at.
PHOTO_RATE_HZ = 4.0


def open_outputs(
    outputs: Outputs,
    source: FrameSource,
    config: StreamConfig,
    *,
    on_action: Callable[[DisplayAction], None],
    mqtt: MqttPublisher | None = None,
) -> None:
    """Open every sink the settings ask for; those already open stay in `outputs`.

    `on_action` is what a key in the window does; `mqtt` the connection that several streams share,
    not closed. StreamError, ConfigError or BackendUnavailableError if one cannot be opened.
    """
    info = source.info
    overlay = Overlay(info, side_by_side=config.side_by_side)
    if config.output is not None:
        video = VideoSink(
            config.output,
            render=overlay.render,
            rate_hz=info.rate_hz if info.timed else PHOTO_RATE_HZ,
            constant=not info.timed,
            longest_gap_s=LONGEST_GAP_S if info.live else None,
        )
        outputs.add("--output", video)
    if config.display:
        window = DisplaySink("gain-stream", render=overlay.render, on_action=on_action)
        outputs.add("--display", window, poll=window.poll)
    if config.save_changed is not None:
        changed = ChangedSink(config.save_changed, most=config.save_changed_most)
        outputs.add(flag("save_changed"), changed)
    if config.webhook is not None:
        outputs.add(flag("webhook"), WebhookSink(config.webhook))
    if mqtt is not None:
        outputs.add("--mqtt", MqttSink(mqtt, config.name))
    elif config.mqtt is not None:
        publisher = MqttPublisher(config.mqtt, discovery=config.mqtt_discovery)
        outputs.add("--mqtt", MqttSink(publisher, owned=True))
    if config.timeline is not None:
        outputs.add("--timeline", TimelineSink(Path(config.timeline)))
    if config.jsonl is not None:
        outputs.add("--jsonl", JsonlSink(config.jsonl))


Floats = npt.NDArray[np.float64]

# Pale and distinct enough side by side; conditions beyond these repeat them.
SHADES = ("#eef3fa", "#fdf3e3", "#eaf5ea", "#f8ebf2", "#eceff1", "#f3efe0", "#e6f4f4", "#f5e9e4")
ADAPTED_COLOUR, GAIN_COLOUR = "#0b6e4f", "#b3541e"
# A predictor's column, its name and its colour.
CURVES = (("source", "frozen source", "#8a8f98"), ("adapted", "adapted", ADAPTED_COLOUR))
# What the picture needs of a frame: classes by index, -1 where the truth is not known.
MOMENT = np.dtype(
    [(name, np.int64) for name in ("truth", "source", "adapted")]
    + [(name, np.float64) for name in ("source_prob", "adapted_prob", "strength", "gain")]
    + [("condition", object)]
)


class TimelineSink:
    """Collects a run and draws its picture when it is closed, if there was any frame.

    Accuracy and ECE (or confidence, where truth is not known), strength and gain. A PNG, or any
    format matplotlib knows by the ending; written under a temporary name and renamed when complete.
    BackendUnavailableError without matplotlib (extra `report`), ConfigError if the ending names no
    picture format, StreamError if the folder does not exist or, from `close`, if the picture cannot
    be written.
    """

    def __init__(self, path: Path, /) -> None:
        figure = require("matplotlib.figure", extra="report").Figure()
        known = sorted(figure.canvas.get_supported_filetypes())
        if path.suffix.lstrip(".").lower() not in known:
            raise ConfigError(f"{path}: expected a picture ending in {', '.join(known)}")
        if not is_folder(path.parent):
            raise StreamError(f"{path}: the folder {path.parent} does not exist; create it first")
        self._path = path
        self._moments: list[tuple[Any, ...]] = []

    def write(self, result: FrameResult, /) -> None:
        """Add one frame."""
        frame, source, adapted = result.frame, result.source_top[0], result.adapted_top[0]
        truth = -1 if frame.truth is None else int(frame.truth)
        self._moments.append(
            (
                *(truth, source.index, adapted.index, source.prob, adapted.prob),
                *(result.strength, result.gain, frame.condition or ""),
            )
        )

    def close(self) -> None:
        """Draw the picture, if there was any frame; may be called twice."""
        moments, self._moments = self._moments, []
        if moments:
            figure = _drawn(np.array(moments, dtype=MOMENT))
            buffer = io.BytesIO()
            figure.savefig(buffer, format=self._path.suffix.lstrip(".").lower())
            write_atomically(self._path, buffer.getvalue(), error=StreamError)


def rolling_mean(values: Floats, window: int, /) -> Floats:
    """Mean of the last `window` values at every position, of fewer at the start; (N,) -> (N,)."""
    total = np.cumsum(np.concatenate([[0.0], values]))
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - window, 0)
    return np.asarray((total[end] - total[start]) / (end - start))


def _drawn(moments: npt.NDArray[np.void]) -> Any:
    """The figure of at least one frame, (N,) of `MOMENT`."""
    figure = require("matplotlib.figure", extra="report").Figure(figsize=(13, 8), dpi=110)
    axes = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
    # A twentieth of the run, 30 to 240 frames where there are as many.
    window = min(240, max(30, len(moments) // 20), len(moments))
    if (moments["truth"] >= 0).any():
        _draw_scores(axes, moments, window=window)
    else:
        _draw_confidence(axes, moments, window=window)
    _draw_intervention(axes[2], moments, window=window)
    _shade_conditions(axes, list(moments["condition"]))
    axes[0].set_ylim(0, 101)
    axes[0].legend(loc="lower left", framealpha=0.9)
    axes[2].set_xlabel(f"frame (curves: mean of the last {window} frames)")
    axes[2].set_xlim(0, max(1, len(moments) - 1))
    figure.tight_layout()
    return figure


def _draw_scores(axes: Any, moments: npt.NDArray[np.void], *, window: int) -> None:
    """Accuracy and ECE of the frames whose truth is known."""
    frames = np.flatnonzero(moments["truth"] >= 0)
    known = moments[frames]
    ends = np.arange(min(window, len(frames)), len(frames) + 1, max(1, window // 8))
    for name, title, colour in CURVES:
        right, confidence = known[name] == known["truth"], known[f"{name}_prob"]
        share = 100 * rolling_mean(right.astype(np.float64), window)
        label = f"{title}: {percent(right.sum(), len(right)):.1f} %"
        axes[0].plot(frames, share, color=colour, lw=2, label=label)
        rolling = [_ece(confidence[end - window : end], right[end - window : end]) for end in ends]
        label = f"{title}: {_ece(confidence, right):.1f} over the run"
        axes[1].plot(frames[ends - 1], rolling, color=colour, lw=2, label=label)
    axes[0].set_ylabel("accuracy, %")
    axes[1].set_ylabel("ECE, %")
    axes[1].set_ylim(bottom=0)
    axes[1].legend(loc="upper right", framealpha=0.9)


def _ece(confidence: Floats, right: npt.NDArray[np.bool_]) -> float:
    """ECE in per cent of top-1 confidences: a two-class problem in which class 1 is `right`.

    A second column keeps the confidence the row's maximum, however low it is.
    """
    scores = np.stack([confidence, np.zeros_like(confidence)], axis=1)
    excess = calibration_excess(scores, (~right).astype(np.int64))
    return percent(float(np.abs(excess).sum()), len(right))


def _draw_confidence(axes: Any, moments: npt.NDArray[np.void], *, window: int) -> None:
    """Confidence, and how often both name the same class."""
    for name, title, colour in CURVES:
        share = 100 * rolling_mean(moments[f"{name}_prob"], window)
        axes[0].plot(share, color=colour, lw=2, label=title)
    axes[0].set_ylabel("confidence, %")
    same = (moments["source"] == moments["adapted"]).astype(np.float64)
    axes[1].plot(100 * rolling_mean(same, window), color=ADAPTED_COLOUR, lw=2)
    axes[1].set_ylabel("agreement with\nthe source, %")
    axes[1].set_ylim(0, 101)


def _draw_intervention(axis: Any, moments: npt.NDArray[np.void], *, window: int) -> None:
    """Strength, and the expected gain on an axis of its own."""
    axis.plot(rolling_mean(moments["strength"], window), color=ADAPTED_COLOUR, lw=2)
    axis.set_ylabel("strength", color=ADAPTED_COLOUR)
    axis.set_ylim(0, 1.05)
    right = axis.twinx()
    right.plot(rolling_mean(moments["gain"], window), color=GAIN_COLOUR, lw=1.5)
    right.set_ylabel("expected gain, nats", color=GAIN_COLOUR)


def _shade_conditions(axes: Any, conditions: list[str]) -> None:
    """One pale band per stretch of a condition, named once at the top."""
    names = list(dict.fromkeys(conditions))
    if names == [""]:
        return
    starts = [0, *(i for i in range(1, len(conditions)) if conditions[i] != conditions[i - 1])]
    for start, end in zip(starts, [*starts[1:], len(conditions)], strict=True):
        shade = SHADES[names.index(conditions[start]) % len(SHADES)]
        for axis in axes:
            axis.axvspan(start, end, color=shade, lw=0, zorder=0)
        if end - start > len(conditions) / 60:
            axes[0].text(
                (start + end) / 2,
                1.02,
                conditions[start].replace("_", " "),
                transform=axes[0].get_xaxis_transform(),
                ha="left",
                va="bottom",
                rotation=28,
                fontsize=8,
            )
