"""Prometheus metrics of a board, read when they are scraped."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gain_apps.serve.board import LiveBoard, LiveView
from gain_apps.serve.facts import DeviceFacts, KeptFacts

__all__ = ["MetricsPage"]

NOT_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


class MetricsPage:
    """The text of `/metrics`.

    Parameters
    ----------
    board : LiveBoard
    """

    def __init__(self, board: LiveBoard, /) -> None:
        # A registry of its own: the default one would add this process's, twice in a test.
        self._registry = CollectorRegistry()
        self._registry.register(_BoardCollector(board))

    def render(self) -> bytes:
        """All metrics in the text format."""
        return generate_latest(self._registry)


class _BoardCollector(Collector):
    """Turns one view of a board into metric families."""

    def __init__(self, board: LiveBoard) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        """Every family, from one moment."""
        view = self._board.view()
        yield from _counters(view)
        yield from _gauges(view)
        yield from _stages(view)
        yield from _adaptation(view)
        yield from _device(view.facts.device)
        if view.facts.kept is not None:
            yield from _kept(view.facts.kept)
        identity = self._board.identity
        yield InfoMetricFamily(
            "gain_stream",
            "What is running",
            value={
                "source": identity.source_id,
                "artifact": identity.artifact,
                "artifact_sha256": identity.artifact_sha256,
                "provider": identity.provider,
                "version": identity.version,
            },
        )


def _counters(view: LiveView) -> Iterator[Metric]:
    """Frames, by what became of them."""
    facts = view.facts
    for name, text, value in (
        ("frames", "Frames classified", view.frames),
        ("frames_changed", "Frames whose class adaptation changed", view.changed),
        ("frames_dropped", "Frames left out because the network was busy", facts.dropped),
        ("frames_rejected", "Frames that could not be classified", facts.rejected),
        ("frames_skipped", "Frames that could not be read", facts.skipped),
        ("frames_left_out", "Frames skipped to keep up with the camera", facts.device.left_out),
        ("reconnects", "Times a lost source came back", facts.reconnects),
    ):
        yield CounterMetricFamily(f"gain_{name}", text, value=value)
    family = CounterMetricFamily(
        "gain_frames_not_learned", "Frames predicted but not learned from", labels=["reason"]
    )
    for reason, count in facts.not_learned.items():
        family.add_metric([reason], count)
    yield family


def _gauges(view: LiveView) -> Iterator[Metric]:
    """The present state."""
    result, facts = view.result, view.facts
    rows: list[tuple[str, str, float]] = [
        ("uptime_seconds", "Seconds since the stream began", view.uptime_s),
        ("result_age_seconds", "Seconds since the newest result", view.age_s),
        ("frozen", "1 while nothing is learned", float(facts.frozen)),
        ("frames_learned", "Frames in the state", facts.frames_learned),
        ("outputs_lost", "Outputs that failed and were left out", facts.outputs_lost),
    ]
    if result is not None:
        rows += [
            ("rate_hz", "Frames per second over the recent past", result.rate_hz),
            ("strength", "Intervention strength of the newest frame, 0 to 1", result.strength),
            ("expected_gain_nats", "Expected gain of the newest frame", result.gain),
        ]
    if view.agreement is not None:
        text = "Share of the last 256 frames whose class adaptation left as it was"
        rows.append(("agreement", text, view.agreement))
    for name, text, value in rows:
        yield GaugeMetricFamily(f"gain_{name}", text, value=value)


def _stages(view: LiveView) -> Iterator[Metric]:
    """Seconds per stage; divided by the frames they are the time a frame takes."""
    family = CounterMetricFamily(
        "gain_stage_seconds", "Seconds spent in each stage", labels=["stage"]
    )
    for stage, seconds in view.stage_seconds.items():
        family.add_metric([stage], seconds)
    yield family


def _adaptation(view: LiveView) -> Iterator[Metric]:
    """The adapter's own status: numbers as they are, words as the label of a 1."""
    numbers = GaugeMetricFamily(
        "gain_adaptation", "Numbers of the adaptation's status", labels=["name"]
    )
    words = GaugeMetricFamily(
        "gain_adaptation_state", "Words of the adaptation's status", labels=["name", "value"]
    )
    for name, value in view.facts.adaptation.items():
        label = NOT_A_NAME.sub("_", name)
        if isinstance(value, str):
            words.add_metric([label, value], 1.0)
        elif value is not None:
            numbers.add_metric([label], float(value))
    yield numbers
    yield words


def _device(device: DeviceFacts) -> Iterator[Metric]:
    """Whether the device keeps up, and what gives way."""
    rows: list[tuple[str, str, float]] = [
        ("backpressure_level", "Steps taken to keep up; 0 while it does", device.level),
        ("update_every", "Frames between two updates at present", device.update_every),
        ("frame_stride", "One frame in so many is classified", device.stride),
        ("device_throttled", "1 while the device slows itself down", float(device.throttled)),
    ]
    if device.celsius is not None:
        rows.append(("device_celsius", "Hottest zone of the device", device.celsius))
    for name, text, value in rows:
        yield GaugeMetricFamily(f"gain_{name}", text, value=value)
    family = GaugeMetricFamily("gain_load", "What gives way, as a word", labels=["state"])
    family.add_metric([device.load], 1.0)
    yield family


def _kept(kept: KeptFacts) -> Iterator[Metric]:
    """The snapshots."""
    yield CounterMetricFamily("gain_snapshots", "Snapshots taken", value=kept.written)
    for name, text, value in (
        ("snapshot_failing", "1 while no snapshot can be written", float(kept.failing)),
        ("frames_not_kept", "Learned frames that are in no snapshot", kept.frames_not_kept),
    ):
        yield GaugeMetricFamily(f"gain_{name}", text, value=value)
