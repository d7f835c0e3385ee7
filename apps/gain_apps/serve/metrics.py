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

STATES: tuple[CameraState, ...] = get_args(CameraState)

Seen: TypeAlias = tuple[str, LiveView]
Read: TypeAlias = Callable[[LiveView], float | None]

COUNTERS: dict[str, Read] = {
    "frames": lambda view: view.frames,
    "frames_changed": lambda view: view.changed,
    "frames_dropped": lambda view: view.facts.dropped,
    "frames_rejected": lambda view: view.facts.rejected,
    "frames_skipped": lambda view: view.facts.skipped,
    "frames_left_out": lambda view: view.facts.device.left_out,
    "reconnects": lambda view: view.facts.reconnects,
    "snapshots": lambda view: None if view.facts.kept is None else view.facts.kept.written,
}
GAUGES: dict[str, Read] = {
    "uptime_seconds": lambda view: view.uptime_s,
    "result_age_seconds": lambda view: view.age_s,
    "learning_paused": lambda view: float(view.facts.frozen),
    "frames_learned": lambda view: view.facts.frames_learned,
    "outputs_lost": lambda view: view.facts.outputs_lost,
    "rate_hz": lambda view: view.rate_hz,
    "reconnect_attempts": lambda view: view.connection.attempt,
    "strength_ratio": lambda view: None if view.result is None else view.result.strength,
    "expected_gain_nats": lambda view: None if view.result is None else view.result.gain,
    "agreement_ratio": lambda view: view.agreement,
    "adaptation_shift_nats": lambda view: view.facts.adaptation.get("shift_nats"),
    "adaptation_draws": lambda view: view.facts.adaptation.get("draws"),
    "backpressure_level": lambda view: view.facts.device.level,
    "update_every_frames": lambda view: view.facts.device.update_every,
    "frame_stride": lambda view: view.facts.device.stride,
    "snapshot_failing": (
        lambda view: None if view.facts.kept is None else float(view.facts.kept.failing)
    ),
    "frames_not_kept": (
        lambda view: None if view.facts.kept is None else view.facts.kept.frames_not_kept
    ),
    "snapshot_timestamp_seconds": (
        lambda view: None if view.facts.kept is None else view.facts.kept.last_utc_s
    ),
}
# What is counted or measured, in which unit, and when it changes: the lines HELP of the page, and
# the table of the documentation.
HELP = {
    "frames": "Frames that the network has classified since the camera was added.",
    "frames_changed": "Classified frames whose class differs between the source and the adapted "
    "prediction.",
    "frames_dropped": "Frames of a live source that were replaced by newer ones before the network "
    "was free.",
    "frames_rejected": "Frames that could not be classified because the network's output was not "
    "finite or their region was empty.",
    "frames_skipped": "Frames that the source delivered and that could not be decoded.",
    "frames_left_out": "Frames that were not classified because the stride is above one.",
    "reconnects": "Times that the source was opened again after its signal was lost.",
    "snapshots": "Snapshots of the state that were written since the camera was started.",
    "uptime_seconds": "Seconds since the camera was added or the service was started.",
    "result_age_seconds": "Seconds since the newest frame was classified.",
    "learning_paused": "1 while the state does not learn because a person paused it, else 0.",
    "frames_learned": "Frames that the state has learned from; a reset sets it to 0, a snapshot "
    "restores it.",
    "outputs_lost": "Outputs such as files and webhooks that failed and are left out until the "
    "next start.",
    "rate_hz": "Classified frames per second, over the last five seconds.",
    "reconnect_attempts": "Attempts to open the source since the signal was lost; 0 while it is "
    "connected.",
    "strength_ratio": "Share of the correction that the newest frame got, from 0 (the source) to 1 "
    "(all of it).",
    "expected_gain_nats": "Gain in log-likelihood that is expected of the correction of the newest "
    "frame, in nats.",
    "agreement_ratio": "Share of the last 256 frames with one class in the source and the adapted "
    "prediction.",
    "adaptation_shift_nats": "Root mean square over the classes of the shift of the logits that "
    "predictions subtract, in nats; changes with every update.",
    "adaptation_draws": "Effective number of draws of each class behind the shift; changes with "
    "every update.",
    "backpressure_level": "Steps by which the stream has reduced its workload; 0 while the device "
    "keeps up.",
    "update_every_frames": "Frames between two updates of the state; grows when the device does "
    "not keep up.",
    "frame_stride": "One frame in this many is classified; above 1 when the device does not keep "
    "up.",
    "snapshot_failing": "1 from a snapshot that could not be written until the next that could, "
    "else 0.",
    "frames_not_kept": "Learned frames that are in no snapshot yet, and would be lost in a power "
    "cut.",
    "snapshot_timestamp_seconds": "Time at which the newest snapshot was written, in seconds since "
    "1970 (UTC).",
}


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
        for kind, table in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
            for name, read in table.items():
                yield _family(kind, name, seen, read)
        yield from _labelled(seen)
        yield _latency(seen)
        yield from _process(seen, self._logins)


def _family(kind: type[Any], name: str, seen: Sequence[Seen], read: Read) -> Metric:
    """One number of each camera; one that a camera does not have is left out."""
    family: Metric = kind(f"gain_{name}", HELP[name], labels=["stream"])
    for stream, view in seen:
        value = read(view)
        if value is not None:
            family.add_metric([stream], value)  # type: ignore[attr-defined]
    return family


def _labelled(seen: Sequence[Seen]) -> Iterator[Metric]:
    """What has a second label."""
    states = GaugeMetricFamily(
        "gain_state",
        "1 for the state that the camera is in, 0 for the others.",
        labels=["stream", "state"],
    )
    stages = CounterMetricFamily(
        "gain_stage_seconds",
        "Seconds that frames have spent in each stage of the processing, summed over all frames.",
        labels=["stream", "stage"],
    )
    reasons = CounterMetricFamily(
        "gain_frames_not_learned",
        "Frames that were classified and not learned from, by what was wrong with the picture.",
        labels=["stream", "reason"],
    )
    info = InfoMetricFamily(
        "gain_stream",
        "Always 1; the labels name the source, the artifact, the provider and the version in use.",
        labels=["stream"],
    )
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
        "gain_latency_seconds",
        "Seconds from the capture of a live frame to its prediction, one observation per frame.",
        labels=["stream"],
    )
    bounds = [*(str(bound) for bound in LATENCY_BOUNDS_S), "+Inf"]
    for stream, view in seen:
        counts = accumulate(view.latency_counts)
        buckets = list(zip(bounds, map(float, counts), strict=True))
        family.add_metric([stream], buckets, sum_value=view.latency_sum_s)
    return family


def _process(seen: Sequence[Seen], logins: Logins) -> Iterator[Metric]:
    """What the whole process has once."""
    family = CounterMetricFamily(
        "gain_logins",
        "Tokens that were sent to this server, accepted and refused.",
        labels=["outcome"],
    )
    family.add_metric(["accepted"], logins.num_accepted)
    family.add_metric(["refused"], logins.num_refused)
    yield family
    if not seen:
        return
    device = seen[0][1].facts.device
    yield GaugeMetricFamily(
        "gain_device_throttled",
        "1 while the device lowers its clock because of heat or power, else 0; read every ten "
        "seconds.",
        value=float(device.throttled),
    )
    if device.celsius is not None:
        yield GaugeMetricFamily(
            "gain_device_celsius",
            "Temperature of the hottest thermal zone in degrees Celsius, read every ten seconds.",
            value=device.celsius,
        )
