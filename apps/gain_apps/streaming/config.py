"""Settings of one `gain-stream` run: defaults, then a TOML file, then flags."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gain_apps.flags import STDOUT
from gain_apps.serve.address import ServeAddress
from gain_apps.streaming.settings import flag
from gain_apps.streaming.summary import NOTE
from gain_core import DEFAULT_PRESET, Config, config_from_dict, config_to_dict, preset
from gain_core.errors import ConfigError
from gain_runtime.files.paths import is_folder, resolved
from gain_runtime.sessions.session import Device
from gain_runtime.sources.camera import CameraRequest
from gain_runtime.sources.uri import redact, redact_to_host

NO_TRUTH = "none"
LOG_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "note": NOTE,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
# Fields whose value is a file that is written, and those that are only read.
WRITTEN = ("state_out", "output", "jsonl", "json", "timeline", "events")
READ = ("input", "model", "state_in", "truth", "serve_token_file")
SINK_POLICIES = ("stop", "drop")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """What one run reads, computes and writes; names are those of the flags.

    Attributes
    ----------
    input : str
        Source URI.
    photos : tuple of str
        Photos named one by one, `input` the first of them; empty for every other source.
    name : str or None
        What the stream is called where several run in one process.
    model : str or None
        Artifact or adaptive file.
    preset : str or None
        Named settings of the method; None is the default, or what an adaptive file has baked in,
        as for the next two.
    gain : mapping
        Fields of the method's config that replace the preset's; from the TOML file's `[gain]` only.
    update_every, warm_up : int or None
        Frames between two updates, and frames that the first one waits for.
    batch_size : int
        Frames per forward pass.
    state_in, state_out : str or None
    snapshots : str or None
        Folder in which the last three states are kept while the stream runs, and from which the
        next run continues; wins over `state_in`.
    snapshot_every, snapshot_seconds : int, float
        Frames and seconds of learning between two snapshots, whichever are over first.
    freeze : bool
        Never learn.
    output, jsonl : str or None
        Video and JSON-lines files; `-` for `jsonl` is stdout.
    timeline : str or None
        Picture of accuracy, calibration and strength over the run.
    display : bool
        Show a window.
    serve : str or None
        `[HOST:]PORT` of the page in a browser.
    serve_token_file : str or None
        File with the token that viewers must know.
    events : str or None
        SQLite file of what happened, and of the curves; None keeps them in memory.
    event_webhook : str or None
        URL to which every event is posted.
    paused : bool
        Wait for somebody to resume the stream on the page.
    save_changed : str or None
        Folder for pictures whose prediction adaptation changed.
    save_changed_most : int
        Pictures kept there.
    webhook : str or None
        URL to which a result is posted when the class changes.
    mqtt : str or None
        Broker and topic on which every result is published.
    mqtt_discovery : str or None
        Prefix under which the streams are announced to Home Assistant.
    sink_errors : str or None
        `stop` ends the run when an output fails, `drop` goes on without it; None stops files and
        drops for live sources.
    reconnect : float or None
        Seconds for which the lost signal of a live source is waited for; None waits for ever, as
        the streams of a service do unless it is given.
    watchdog : float or None
        Seconds after which a stream that hangs ends the process.
    check_frames : bool or None
        Do not learn from black, frozen and corrupt frames; None checks live sources.
    camera_size, camera_rate, camera_format : str, float, str or None
        What is asked of a camera: `1280x720`, Hz, four characters.
    hwaccel : str or None
        FFmpeg's hardware decoder for videos and network streams.
    side_by_side : bool
        Draw the frozen source and the adapted prediction beside each other.
    max_frames : int or None
    seed : int
    top_k : int
        Classes listed per frame.
    device : str
    allow_host_code : bool
        Run an engine that brings code for the CPU.
    num_threads : int or None
        Threads within one operator of the network; None lets the library choose.
    truth : str or None
        File that names the classes of frames; `none` ignores what the source knows.
    corrupt : str or None
        Corruption schedule, see `gain_scenes.sources`.
    shuffle : bool
        Photos in an order drawn from `seed`.
    json : str or None
        File of the summary; `-` is stdout.
    debug : bool
    log_level : str

    Raises
    ------
    ConfigError
        If a value is of the wrong type or out of range, or if two settings contradict each other.
    """

    input: str
    photos: tuple[str, ...] = ()
    name: str | None = None
    model: str | None = None
    preset: str | None = None
    gain: Mapping[str, Any] = field(default_factory=dict)
    update_every: int | None = None
    warm_up: int | None = None
    batch_size: int = 1
    state_in: str | None = None
    state_out: str | None = None
    snapshots: str | None = None
    snapshot_every: int = 1000
    snapshot_seconds: float = 60.0
    freeze: bool = False
    output: str | None = None
    jsonl: str | None = None
    timeline: str | None = None
    display: bool = False
    serve: str | None = None
    serve_token_file: str | None = None
    events: str | None = None
    event_webhook: str | None = None
    paused: bool = False
    save_changed: str | None = None
    save_changed_most: int = 1000
    webhook: str | None = None
    mqtt: str | None = None
    mqtt_discovery: str | None = None
    sink_errors: str | None = None
    reconnect: float | None = 300.0
    watchdog: float | None = None
    check_frames: bool | None = None
    camera_size: str | None = None
    camera_rate: float | None = None
    camera_format: str | None = None
    hwaccel: str | None = None
    side_by_side: bool = False
    max_frames: int | None = None
    seed: int = 0
    top_k: int = 3
    device: Device = "cpu"
    allow_host_code: bool = False
    num_threads: int | None = None
    truth: str | None = None
    corrupt: str | None = None
    shuffle: bool = False
    json: str | None = None
    debug: bool = False
    log_level: str = "note"

    def __post_init__(self) -> None:
        for name, least in (
            ("batch_size", 1),
            ("update_every", 1),
            ("warm_up", 1),
            ("max_frames", 1),
            ("seed", 0),
            ("top_k", 1),
            ("num_threads", 1),
            ("snapshot_every", 1),
            ("snapshot_seconds", 0),
            ("save_changed_most", 1),
            ("reconnect", 0),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:
                raise ConfigError(f"{flag(name)}: expected at least {least}, got {value}")
        for name, choices in (("log_level", tuple(LOG_LEVELS)), ("sink_errors", SINK_POLICIES)):
            value = getattr(self, name)
            if value not in (None, *choices):
                raise ConfigError(
                    f"{flag(name)}: expected one of {', '.join(choices)}, got {value!r}"
                )
        self._refuse_contradictions()
        self.camera_request()
        if self.serve is not None:
            ServeAddress.parse(self.serve)
        self._refuse_collisions()
        for name in WRITTEN:
            _check_target(flag(name), getattr(self, name))
        self.gain_config()

    @classmethod
    def resolve(cls, settings: Mapping[str, Any], /) -> StreamConfig:
        """Defaults, overridden by what was given, by field name.

        ConfigError if INPUT or the model is missing, or as the class itself.
        """
        for name, shown in (("input", "INPUT"), ("model", "--model")):
            if not settings.get(name):
                raise ConfigError(
                    f"{shown}: expected on the command line or in --config, got neither; "
                    "example: gain-stream clip.mp4 --model vit_b16.onnx --output out.mp4"
                )
        return cls(**settings)

    def gain_config(self) -> Config | None:
        """The preset with what was changed in it; None where nothing was said of either."""
        if self.preset is None and not self.gain:
            return None
        chosen = preset(DEFAULT_PRESET if self.preset is None else self.preset)
        return config_from_dict(config_to_dict(chosen) | dict(self.gain))

    def camera_request(self) -> CameraRequest:
        """What to ask a camera for."""
        width_px = height_px = None
        if self.camera_size is not None:
            match = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", self.camera_size)
            if match is None:
                raise ConfigError(
                    f"{flag('camera_size')}: expected WIDTHxHEIGHT such as 1280x720, "
                    f"got {self.camera_size!r}"
                )
            width_px, height_px = int(match[1]), int(match[2])
        request = CameraRequest(width_px=width_px, height_px=height_px, rate_hz=self.camera_rate)
        wanted = self.camera_format
        return request if wanted is None else replace(request, pixel_format=wanted)

    def to_dict(self) -> dict[str, Any]:
        """Plain values of every setting, the resolved config under `gain` where it is given."""
        config = self.gain_config()
        record = {item.name: getattr(self, item.name) for item in fields(self)}
        record |= {
            "input": redact(self.input),
            "photos": list(self.photos),
            "gain": None if config is None else config_to_dict(config),
        }
        hidden = {"webhook": redact_to_host, "event_webhook": redact_to_host, "mqtt": redact}
        for name, hide in hidden.items():
            if record[name] is not None:
                record[name] = hide(record[name])
        return record

    def _refuse_contradictions(self) -> None:
        """Settings that cannot both be meant."""
        for holds, message in (
            (
                self.json == self.jsonl == STDOUT,
                "--json -, --jsonl -: both write to stdout; give one of them a file",
            ),
            (
                self.freeze and self.state_out is not None,
                "--freeze, --state-out: a frozen run learns nothing to save; leave one out",
            ),
            (
                self.mqtt_discovery is not None and self.mqtt is None,
                f"{flag('mqtt_discovery')}: expected --mqtt URL, whose topics it announces; add it",
            ),
            (
                self.watchdog is not None and not self.watchdog > 0.0,
                f"{flag('watchdog')}: expected seconds above 0, got {self.watchdog}",
            ),
            (
                self.side_by_side and self.output is None and not self.display,
                "--side-by-side: expected --output or --display to draw it into; add one",
            ),
            (
                self.serve_token_file is not None and self.serve is None,
                "--serve-token-file: expected --serve [HOST:]PORT, whose page it guards; add it",
            ),
            (
                STDOUT in (self.output, self.state_out, self.timeline, self.events),
                "output, state-out, timeline, events: expected a file, got '-'; "
                "only --jsonl and --json take stdout",
            ),
        ):
            if holds:
                raise ConfigError(message)

    def _refuse_collisions(self) -> None:
        """No output may overwrite an input or another output; a state may be continued in place."""
        taken: dict[Path, str] = {resolved(photo): "input" for photo in self.photos[1:]}
        for name in (*READ, *WRITTEN):
            value = getattr(self, name)
            if value is None or value == STDOUT or "://" in value:
                continue
            path = resolved(value)
            other = taken.get(path)
            if name in WRITTEN and other is not None and (other, name) != ("state_in", "state_out"):
                raise ConfigError(
                    f"{flag(name)}: {value} is also {flag(other)} and would be overwritten; "
                    "name another file"
                )
            taken[path] = name


def _check_target(name: str, value: str | None) -> None:
    """A file to be written has a folder to lie in; found out before the first frame."""
    if value is None or value == STDOUT:
        return
    path = Path(value)
    if is_folder(path):
        raise ConfigError(f"{name}: expected a file, got the folder {value}; add a file name")
    if not is_folder(path.parent):
        raise ConfigError(f"{name}: {value}: no such folder {path.parent}; create it first")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(
            f"{name}: {value}: the folder {path.parent} is not writable; choose another"
        )
