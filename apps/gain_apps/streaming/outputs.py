"""The sinks of a run: opened from its settings, and kept apart so that one failure stays one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from gain_apps.streaming.config import StreamConfig
from gain_apps.streaming.overlay import Overlay
from gain_apps.streaming.settings import flag
from gain_apps.streaming.timeline import TimelineSink
from gain_core.errors import GainError, StreamError
from gain_runtime.frames import FrameResult, FrameSource, Sink
from gain_runtime.sinks.jsonl import JsonlSink
from gain_runtime.sinks.mqtt import MqttPublisher, MqttSink
from gain_runtime.sinks.pictures import ChangedSink, DisplayAction, DisplaySink
from gain_runtime.sinks.video import LONGEST_GAP_S, VideoSink
from gain_runtime.sinks.webhook import WebhookSink

__all__ = [
    "Outputs",
    "open_outputs",
]

logger = logging.getLogger(__name__)


class Outputs:
    """Named sinks that receive every result.

    Parameters
    ----------
    drop_failing : bool, optional
        Whether a sink that fails is closed and left out from then on, which is said once and is
        an error of `close`; otherwise its failure is raised at once.
    """

    def __init__(self, *, drop_failing: bool = False) -> None:
        self._sinks: list[tuple[str, Sink]] = []
        self._polls: list[tuple[str, Callable[[], None]]] = []
        self._drop_failing = drop_failing
        self._dropped: list[StreamError] = []

    @property
    def lost(self) -> list[str]:
        """What became of the sinks that were left out, one line each."""
        return [str(err) for err in self._dropped]

    def add(self, name: str, sink: Sink, /, *, poll: Callable[[], None] | None = None) -> None:
        """Add a sink.

        Parameters
        ----------
        name : str
            What messages call it.
        sink : Sink
            Owned from here on.
        poll : callable, optional
            Called while there is no frame to write.
        """
        self._sinks.append((name, sink))
        if poll is not None:
            self._polls.append((name, poll))

    def write(self, result: FrameResult, /) -> None:
        """Hand a result to every sink.

        Raises
        ------
        StreamError
            If one failed, naming it; the others have received the result.
        """
        failures = self._each(lambda sink: sink.write(result))
        if not self._drop_failing:
            _raise_first(list(failures.values()))
            return
        for name, err in failures.items():
            self._drop(name, err)

    def poll(self) -> None:
        """Keep windows alive between frames."""
        for _, poll in self._polls:
            poll()

    def reopen(self) -> None:
        """Let sinks open files anew that were renamed to rotate them; a failure is said."""
        for name, sink in self._sinks:
            reopen = getattr(sink, "reopen", None)
            if reopen is not None:
                try:
                    reopen()
                except (GainError, OSError) as err:
                    logger.error("%s: %s; rows are still written to the old file", name, err)

    def close(self) -> None:
        """Close every sink; may be called twice.

        Raises
        ------
        StreamError
            If one cannot be finished or was left out, naming it; the others are closed.
        """
        failures, self._dropped = self._dropped, []
        # Even an error that is none of ours leaves no other sink open.
        with ExitStack() as stack:
            for name, sink in reversed(self._sinks):
                stack.callback(_close, name, sink, failures)
        _raise_first(failures)

    def _each(self, action: Callable[[Sink], None]) -> dict[str, StreamError]:
        """Do something with every sink; the failures by name."""
        failures = {}
        for name, sink in self._sinks:
            try:
                action(sink)
            except (GainError, OSError) as err:
                failures[name] = _failure(name, err)
        return failures

    def _drop(self, name: str, err: StreamError) -> None:
        """Close a sink and go on without it."""
        logger.error("%s; the stream continues without it", err)
        self._dropped.append(err)
        for known, sink in self._sinks:
            if known == name:
                with suppress(GainError, OSError):
                    sink.close()
        self._sinks = [item for item in self._sinks if item[0] != name]
        self._polls = [item for item in self._polls if item[0] != name]


def _close(name: str, sink: Sink, failures: list[StreamError]) -> None:
    """Close a sink, and note its failure."""
    try:
        sink.close()
    except (GainError, OSError) as err:
        failures.append(_failure(name, err))


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
