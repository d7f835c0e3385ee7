"""The outputs that the settings of a stream ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gain_apps.outputs import Outputs
from gain_apps.overlay import Overlay
from gain_apps.stream_config import StreamConfig
from gain_apps.timeline import TimelineSink
from gain_runtime.changed_sink import ChangedSink
from gain_runtime.display_sink import DisplayAction, DisplaySink
from gain_runtime.frame import FrameSource
from gain_runtime.jsonl_sink import JsonlSink
from gain_runtime.mqtt_sink import MqttPublisher, MqttSink
from gain_runtime.video_sink import LONGEST_GAP_S, VideoSink
from gain_runtime.webhook_sink import WebhookSink

__all__ = ["open_outputs"]

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

    Parameters
    ----------
    outputs : Outputs
    source : FrameSource
    config : StreamConfig
    on_action : callable
        What a key in the window does.
    mqtt : MqttPublisher, optional
        The connection that several streams share; not closed.

    Raises
    ------
    StreamError, ConfigError, BackendUnavailableError
        If one cannot be opened.
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
        outputs.add("--save-changed", changed)
    if config.webhook is not None:
        outputs.add("--webhook", WebhookSink(config.webhook))
    if mqtt is not None:
        outputs.add("--mqtt", MqttSink(mqtt, config.name))
    elif config.mqtt is not None:
        publisher = MqttPublisher(config.mqtt, discovery=config.mqtt_discovery)
        outputs.add("--mqtt", MqttSink(publisher, owned=True))
    if config.timeline is not None:
        outputs.add("--timeline", TimelineSink(Path(config.timeline)))
    if config.jsonl is not None:
        outputs.add("--jsonl", JsonlSink(config.jsonl))
