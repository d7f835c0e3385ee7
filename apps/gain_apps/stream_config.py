"""Settings of one `gain-stream` run: defaults, then a TOML file, then flags."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gain_core import GainConfig
from gain_core.errors import ConfigError
from gain_runtime.open_session import Device
from gain_runtime.uri import redact

__all__ = ["LOG_LEVELS", "NO_TRUTH", "STDOUT", "StreamConfig"]

STDOUT = "-"
NO_TRUTH = "none"
LOG_LEVELS = ("debug", "info", "warning", "error")
# Fields whose value is a file that is written, and those that are only read.
WRITTEN = ("state_out", "output", "jsonl", "timeline")
READ = ("input", "model", "state_in", "truth")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """What one run reads, computes and writes; names are those of the flags.

    Attributes
    ----------
    input : str
        Source URI.
    model : str
        Artifact.
    preset : str
        Named `GainConfig`.
    half_life : float or None
        In frames; None keeps the preset's.
    gain : mapping
        Fields of `GainConfig` that replace the preset's; from the TOML file's `[gain]` only.
    update_every, batch : int
        Frames between two updates, and frames per forward pass.
    warm_up : int
        Frames the first update waits for: a video begins with one object, and the prediction is
        the source's until a few have been seen.
    state_in, state_out : str or None
    freeze : bool
        Never learn.
    output, jsonl : str or None
        Video and JSON-lines files; `-` for `jsonl` is stdout.
    timeline : str or None
        Picture of accuracy, calibration and strength over the run.
    display : bool
        Show a window.
    side_by_side : bool
        Draw the frozen source and the adapted prediction beside each other.
    max_frames : int or None
    seed : int
    top_k : int
        Classes listed per frame.
    device : str
    threads : int or None
        Threads within one operator of the network; None lets the library choose.
    truth : str or None
        File that names the classes of frames; `none` ignores what the source knows.
    corrupt : str or None
        Corruption schedule, see `gain_apps.corrupting_source`.
    shuffle : bool
        Photos in an order drawn from `seed`.
    json, debug : bool
    log_level : str

    Raises
    ------
    ConfigError
        If a value is of the wrong type or out of range, or if two settings contradict each other.
    """

    input: str
    model: str
    preset: str = "tracked"
    half_life: float | None = None
    gain: Mapping[str, Any] = field(default_factory=dict)
    update_every: int = 1
    warm_up: int = 64
    batch: int = 1
    state_in: str | None = None
    state_out: str | None = None
    freeze: bool = False
    output: str | None = None
    jsonl: str | None = None
    timeline: str | None = None
    display: bool = False
    side_by_side: bool = False
    max_frames: int | None = None
    seed: int = 0
    top_k: int = 3
    device: Device = "cpu"
    threads: int | None = None
    truth: str | None = None
    corrupt: str | None = None
    shuffle: bool = False
    json: bool = False
    debug: bool = False
    log_level: str = "info"

    def __post_init__(self) -> None:
        for name, least in (
            ("batch", 1),
            ("update_every", 1),
            ("warm_up", 1),
            ("max_frames", 1),
            ("seed", 0),
            ("top_k", 1),
            ("threads", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{flag(name)}: expected at least {least}, got {value}")
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(
                f"--log-level: expected one of {', '.join(LOG_LEVELS)}, got {self.log_level!r}"
            )
        self._refuse_contradictions()
        self._refuse_collisions()
        for name in WRITTEN:
            _check_target(flag(name), getattr(self, name))
        self.gain_config()

    @classmethod
    def resolve(
        cls, flags: Mapping[str, Any], /, *, file: Mapping[str, Any] | None = None
    ) -> StreamConfig:
        """Defaults, overridden by a file's settings, overridden by the flags given.

        Parameters
        ----------
        flags : mapping
            Field name to value, only those given on the command line.
        file : mapping, optional
            Result of `gain_apps.config_file.read_config_file`.

        Returns
        -------
        StreamConfig

        Raises
        ------
        ConfigError
            If INPUT or the model is in neither, or as the class itself.
        """
        settings = {**(file or {}), **flags}
        for name, shown in (("input", "INPUT"), ("model", "--model")):
            if not settings.get(name):
                raise ConfigError(
                    f"{shown}: expected on the command line or in --config, got neither; "
                    "example: gain-stream clip.mp4 --model vit_b16.onnx --output out.mp4"
                )
        return cls(**settings)

    def gain_config(self) -> GainConfig:
        """The preset with what was changed in it."""
        preset = GainConfig.preset(self.preset)
        changes = dict(self.gain)
        if self.half_life is not None:
            changes["half_life"] = self.half_life
        return GainConfig.from_dict(preset.to_dict() | changes)

    def logging_level(self) -> int:
        """`log_level` as a number; `debug` wins."""
        return logging.DEBUG if self.debug else int(getattr(logging, self.log_level.upper()))

    def to_dict(self) -> dict[str, Any]:
        """Plain values of every setting, the resolved `GainConfig` under `gain`."""
        record = {item.name: getattr(self, item.name) for item in fields(self)}
        return record | {"input": redact(self.input), "gain": self.gain_config().to_dict()}

    def _refuse_contradictions(self) -> None:
        """Settings that cannot both be meant."""
        for holds, message in (
            (
                self.json and self.jsonl == STDOUT,
                "--json, --jsonl -: both write to stdout; give --jsonl a file",
            ),
            (
                self.freeze and self.state_out is not None,
                "--freeze, --state-out: a frozen run learns nothing to save; leave one out",
            ),
            (
                self.side_by_side and self.output is None and not self.display,
                "--side-by-side: expected --output or --display to draw it into; add one",
            ),
            (
                STDOUT in (self.output, self.state_out, self.timeline),
                "--output, --state-out, --timeline: expected a file, got '-'; "
                "only --jsonl takes stdout",
            ),
        ):
            if holds:
                raise ConfigError(message)

    def _refuse_collisions(self) -> None:
        """No output may overwrite an input or another output; a state may be continued in place."""
        taken: dict[Path, str] = {}
        for name in (*READ, *WRITTEN):
            value = getattr(self, name)
            if value is None or value == STDOUT or "://" in value:
                continue
            path = Path(value).resolve()
            other = taken.get(path)
            if name in WRITTEN and other is not None and (other, name) != ("state_in", "state_out"):
                raise ConfigError(
                    f"{flag(name)}: {value} is also {flag(other)} and would be overwritten; "
                    "name another file"
                )
            taken[path] = name


def flag(name: str, /) -> str:
    """How a field is spelled on the command line."""
    return "INPUT" if name == "input" else f"--{name.replace('_', '-')}"


def _check_target(name: str, value: str | None) -> None:
    """A file to be written has a folder to lie in; found out before the first frame."""
    if value is None or value == STDOUT:
        return
    path = Path(value)
    if path.is_dir():
        raise ConfigError(f"{name}: expected a file, got the folder {value}; add a file name")
    if not path.parent.is_dir():
        raise ConfigError(f"{name}: {value}: no such folder {path.parent}; create it first")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(
            f"{name}: {value}: the folder {path.parent} is not writable; choose another"
        )
