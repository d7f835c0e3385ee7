"""Settings of one benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gain_apps.flags import Given, check_json_target, read_given, spelled
from gain_core import DEFAULT_PRESET, PRESETS, UPDATE_EVERY, Config, config_to_dict, preset
from gain_core.errors import ConfigError
from gain_runtime.files.paths import is_file
from gain_runtime.sources.uri import redact

if TYPE_CHECKING:
    from gain_runtime.sessions.session import Device

__all__ = ["SETTINGS", "BenchConfig"]

# What has no flag: a key of --set, and what it is for.
SETTINGS = {
    "update-every=N": f"frames between two updates (default {UPDATE_EVERY})",
    "preset=NAME": f"one of {', '.join(PRESETS)} (default {DEFAULT_PRESET})",
    "allow-host-code=true": "run an engine built as version-compatible, which brings code for the "
    "CPU",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What is measured, on what and how long; names are those of the flags.

    Attributes
    ----------
    artifact : str
    input : str
        Source URI; opened again when it ends before enough frames were measured.
    frames, warm_up : int
        Frames that are measured, rounded up to whole batches, and frames before them that are not.
    batch_size, update_every : int
        Frames per forward pass, and between two updates.
    preset : str
        Of `gain_core.PRESETS`.
    seed : int
        Of the source.
    device : str
    allow_host_code : bool
        Run an engine that brings code for the CPU.
    num_threads : int or None
        Threads within one operator of the network, None lets the library choose; and threads that
        take a frame of the batch each to preprocess it on the host, None is one for each core.
    compare : bool
        Measure the same network in other libraries too.
    timm, weights : str or None
        timm model for the comparison and its checkpoint; random weights without one.
    json : str or None
        Result file; `-` for stdout.

    Raises
    ------
    ConfigError
        If a value is out of range, two contradict each other, the checkpoint is missing or the
        result has no folder.
    """

    artifact: str
    input: str = "test://pattern"
    frames: int = 200
    warm_up: int = 20
    batch_size: int = 1
    update_every: int = UPDATE_EVERY
    preset: str = DEFAULT_PRESET
    seed: int = 0
    device: Device = "cpu"
    allow_host_code: bool = False
    num_threads: int | None = None
    compare: bool = False
    timm: str | None = None
    weights: str | None = None
    json: str | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("frames", 1),
            ("warm_up", 0),
            ("batch_size", 1),
            ("update_every", 1),
            ("seed", 0),
            ("num_threads", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(
                    f"{spelled(name, SETTINGS)}: expected at least {least}, got {value}"
                )
        for name, needed in (("timm", "compare"), ("weights", "timm")):
            if getattr(self, name) is not None and not getattr(self, needed):
                raise ConfigError(
                    f"--{name}: expected --{needed} beside it; add that or leave --{name} out"
                )
        if self.weights is not None and not is_file(self.weights):
            raise ConfigError(f"--weights: expected a file, found no {self.weights}")
        self.gain_config()
        check_json_target(self.json, other_than=self.artifact)

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any], /) -> BenchConfig:
        """The settings for the flags given, also with `--set`; the others keep their defaults."""
        plain = {name: value for name, value in flags.items() if not isinstance(value, Given)}
        return cls(**plain, **read_given(flags, cls))

    def gain_config(self) -> Config:
        """The preset."""
        return preset(self.preset)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the resolved preset under `gain`."""
        return asdict(self) | {
            "input": redact(self.input),
            "gain": config_to_dict(self.gain_config()),
        }
