"""Prometheus metrics of all cameras and of the process, read when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeAlias, get_args

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gain_apps.serve.access import Logins
from gain_apps.serve.board import LATENCY_BOUNDS_S, LiveView
from gain_apps.serve.cameras import Cameras
from gain_apps.serve.schema import CameraState, state_of

__all__ = ["MetricsPage"]

STATES: tuple[CameraState, ...] = get_args(CameraState)

Seen: TypeAlias = tuple[str, LiveView]

COUNTERS: tuple[tuple[str, str, Callable[[LiveView], float]], ...] = (
    ("frames", "Frames classified", lambda view: view.frames),
    ("frames_changed", "Frames whose class adaptation changed", lambda view: view.changed),
    ("frames_dropped", "Left out because the network was busy", lambda view: view.facts.dropped),
    ("frames_rejected", "Frames that could not be classified", lambda view: view.facts.rejected),
    ("frames_skipped", "Frames that could not be read", lambda view: view.facts.skipped),
    (
        "frames_left_out",
        "Frames skipped to keep up with the camera",
        lambda view: view.facts.device.left_out,
    ),
    ("reconnects", "Times a lost source came back", lambda view: view.facts.reconnects),
)
GAUGES: tuple[tuple[str, str, Callable[[LiveView], float | None]], ...] = (
    ("uptime_seconds", "Seconds since the camera was added", lambda view: view.uptime_s),
    ("result_age_seconds", "Seconds since the newest result", lambda view: view.age_s),
    ("learning_paused", "1 while nothing is learned", lambda view: float(view.facts.frozen)),
    ("frames_learned", "Frames in the state", lambda view: view.facts.frames_learned),
    ("outputs_lost", "Outputs that failed and were left out", lambda view: view.facts.outputs_lost),
    ("rate_hz", "Frames per second over the last five seconds", lambda view: view.rate_hz),
    (
        "reconnect_attempts",
        "Tries since the signal was lost; 0 while it is there",
        lambda view: view.connection.attempt,
    ),
    (
        "strength_ratio",
        "Intervention strength of the newest frame, 0 to 1",
        lambda view: None if view.result is None else view.result.strength,
    ),
    (
        "expected_gain_nats",
        "Expected gain of the newest frame",
        lambda view: None if view.result is None else view.result.gain,
    ),
    (
        "agreement_ratio",
        "Share of the last 256 frames whose class adaptation left as it was",
        lambda view: view.agreement,
    ),
    (
        "backpressure_level",
        "Steps taken to keep up; 0 while it does",
        lambda view: view.facts.device.level,
    ),
    (
        "update_every_frames",
        "Frames between two updates at present",
        lambda view: view.facts.device.update_every,
    ),
    (
        "frame_stride",
        "One frame in so many is classified",
        lambda view: view.facts.device.stride,
    ),
    (
        "snapshot_failing",
        "1 while no snapshot can be written",
        lambda view: None if view.facts.kept is None else float(view.facts.kept.failing),
    ),
    (
        "frames_not_kept",
        "Learned frames that are in no snapshot",
        lambda view: None if view.facts.kept is None else view.facts.kept.frames_not_kept,
    ),
    (
        "snapshot_timestamp_seconds",
        "When the last snapshot was written, in seconds since 1970",
        lambda view: None if view.facts.kept is None else view.facts.kept.last_utc_s,
    ),
)


class MetricsPage:
    """The text of `/metrics`."""

    def __init__(self, cameras: Cameras, logins: Logins, /) -> None:
        # A registry of its own: in the default one a second server would be a duplicate.
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._registry.register(_CameraCollector(cameras, logins))

    def render(self) -> bytes:
        """All metrics in the text format."""
        return generate_latest(self._registry)


class _CameraCollector(Collector):
    """Turns one view of every board into metric families."""

    def __init__(self, cameras: Cameras, logins: Logins) -> None:
        self._cameras = cameras
        self._logins = logins

    def collect(self) -> Iterator[Metric]:
        """Every family, each with all cameras."""
        seen = [(camera.name, camera.board.view()) for camera in self._cameras.all()]
        for name, text, read in COUNTERS:
            yield _family(CounterMetricFamily, name, text, seen, read)
        for name, text, read_gauge in GAUGES:
            yield _family(GaugeMetricFamily, name, text, seen, read_gauge)
        kept = [(name, view) for name, view in seen if view.facts.kept is not None]
        yield _family(
            *(CounterMetricFamily, "snapshots", "Snapshots taken", kept),
            lambda view: view.facts.kept.written if view.facts.kept else None,
        )
        yield from _labelled(seen)
        yield _latency(seen)
        yield from _adaptation(seen)
        yield from _process(seen, self._logins)


def _family(
    kind: type[Any],
    name: str,
    text: str,
    seen: Sequence[Seen],
    read: Callable[[LiveView], float | None],
) -> Metric:
    """One number of each camera; one that a camera does not have is left out."""
    family: Metric = kind(f"gain_{name}", text, labels=["stream"])
    for stream, view in seen:
        value = read(view)
        if value is not None:
            family.add_metric([stream], value)  # type: ignore[attr-defined]
    return family


def _labelled(seen: Sequence[Seen]) -> Iterator[Metric]:
    """What has a second label."""
    states = GaugeMetricFamily("gain_state", "1 for what it does", labels=["stream", "state"])
    stages = CounterMetricFamily(
        "gain_stage_seconds", "Seconds spent in each stage", labels=["stream", "stage"]
    )
    reasons = CounterMetricFamily(
        "gain_frames_not_learned",
        "Frames predicted but not learned from",
        labels=["stream", "reason"],
    )
    info = InfoMetricFamily("gain_stream", "What is running", labels=["stream"])
    for stream, view in seen:
        present = state_of(view)[0]
        for state in STATES:
            states.add_metric([stream, state], float(state == present))
        for stage, seconds in view.stage_seconds.items():
            stages.add_metric([stream, stage], seconds)
        for reason, count in view.facts.not_learned.items():
            reasons.add_metric([stream, reason], count)
        identity = view.identity
        if identity is not None:
            what = {
                "source": identity.source_id,
                "artifact": identity.artifact,
                "artifact_sha256": identity.artifact_sha256,
                "provider": identity.provider,
                "version": identity.version,
            }
            info.add_metric([stream], what)
    yield from (states, stages, reasons, info)


def _latency(seen: Sequence[Seen]) -> Metric:
    """From the capture of a live frame to its prediction."""
    family = HistogramMetricFamily(
        "gain_latency_seconds", "From the capture of a frame to its prediction", labels=["stream"]
    )
    bounds = [*(str(bound) for bound in LATENCY_BOUNDS_S), "+Inf"]
    for stream, view in seen:
        counts = accumulate(view.latency.counts)
        buckets = list(zip(bounds, map(float, counts), strict=True))
        family.add_metric([stream], buckets, sum_value=view.latency.sum_s)
    return family


def _adaptation(seen: Sequence[Seen]) -> Iterator[Metric]:
    """The adapter's own status: each number under its own name."""
    families: dict[str, GaugeMetricFamily] = {}
    for stream, view in seen:
        for name, value in view.facts.adaptation.items():
            family = families.setdefault(
                name,
                GaugeMetricFamily(
                    f"gain_adaptation_{name}", f"The adaptation's {name}", labels=["stream"]
                ),
            )
            family.add_metric([stream], value)
    yield from families.values()


def _process(seen: Sequence[Seen], logins: Logins) -> Iterator[Metric]:
    """What the whole process has once."""
    family = CounterMetricFamily("gain_logins", "Tokens that viewers sent", labels=["outcome"])
    family.add_metric(["accepted"], logins.num_accepted)
    family.add_metric(["refused"], logins.num_refused)
    yield family
    if not seen:
        return
    device = seen[0][1].facts.device
    yield GaugeMetricFamily(
        "gain_device_throttled",
        "1 while the device slows itself down",
        value=float(device.throttled),
    )
    if device.celsius is not None:
        yield GaugeMetricFamily(
            "gain_device_celsius", "Hottest zone of the device", value=device.celsius
        )
