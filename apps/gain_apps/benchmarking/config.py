"""Settings of one benchmark."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gain_core import DEFAULT_PRESET, UPDATE_EVERY, Config, config_to_dict, preset
from gain_core.errors import ConfigError
from gain_runtime.files.paths import is_file, is_folder, resolved
from gain_runtime.sessions.session import Device
from gain_runtime.sources.uri import redact

__all__ = [
    "STDOUT",
    "BenchConfig",
]

STDOUT = "-"


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
    torch_model, torch_weights : str or None
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
    torch_model: str | None = None
    torch_weights: str | None = None
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
                raise ConfigError(f"{_flag(name)}: expected at least {least}, got {value}")
        for name, needed in (("torch_model", "compare"), ("torch_weights", "torch_model")):
            if getattr(self, name) is not None and not getattr(self, needed):
                raise ConfigError(
                    f"{_flag(name)}: expected {_flag(needed)}, for which it is used; add it"
                )
        if self.torch_weights is not None and not is_file(self.torch_weights):
            raise ConfigError(f"--torch-weights: expected a file, found no {self.torch_weights}")
        self.gain_config()
        self._check_target()

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any], /) -> BenchConfig:
        """The settings for the flags given; the others keep their defaults."""
        return cls(**flags)

    def gain_config(self) -> Config:
        """The preset."""
        return preset(self.preset)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the resolved preset under `gain`."""
        return asdict(self) | {
            "input": redact(self.input),
            "gain": config_to_dict(self.gain_config()),
        }

    def _check_target(self) -> None:
        """The result can be written, found out before anything is measured."""
        if self.json in (None, STDOUT):
            return
        path = Path(str(self.json))
        if is_folder(path) or not is_folder(path.parent) or not os.access(path.parent, os.W_OK):
            raise ConfigError(
                f"--json: expected a file in a folder that can be written to, got {path}; "
                "create the folder or name another one"
            )
        if resolved(path) == resolved(self.artifact):
            raise ConfigError(
                f"--json: {path} is the artifact and would be overwritten; name another file"
            )


def _flag(name: str) -> str:
    """How a field is spelled on the command line."""
    return f"--{name.replace('_', '-')}"
