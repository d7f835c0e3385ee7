"""The settings of several streams in one process: one set for each, with places of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gain_apps.flags import STDOUT
from gain_apps.streaming.config import StreamConfig
from gain_apps.streaming.settings import flag
from gain_apps.system import fill_in
from gain_core.errors import ConfigError
from gain_runtime.files.paths import is_file
from gain_runtime.sources.opening import is_picture
from gain_runtime.sources.uri import parse_uri

__all__ = [
    "ProcessPlan",
    "plan_camera",
    "plan_streams",
]

# A name is a folder, a topic and a word in the log.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
FILES = ("jsonl", "output", "timeline", "state_out")
FOLDERS = ("snapshots", "save_changed")
# Settings that may name secrets.
WITH_SECRETS = ("input", "webhook", "event_webhook", "mqtt")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """What a process is to run.

    Attributes
    ----------
    configs : tuple of StreamConfig
        One for each stream; may be empty if cameras can be added.
    shared : mapping
        The settings of all streams, also of those that are added later.
    is_service : bool
        Whether failed streams are restarted: of several streams, or of one with a page.
    goes_on : bool
        Whether the process waits for cameras to be added when it has none.
    """

    configs: tuple[StreamConfig, ...]
    shared: Mapping[str, Any]
    is_service: bool
    goes_on: bool


def plan_streams(settings: Mapping[str, Any], /) -> ProcessPlan:
    """One `StreamConfig` for each input or camera.

    A single input gets the settings as they are. With several, each stream writes into a folder of
    its name, created here: `--jsonl out/rows.jsonl` becomes `out/NAME/rows.jsonl`, `--snapshots
    kept` becomes `kept/NAME`. Page, metrics and MQTT connection are shared. The streams of a
    service wait for their cameras without limit, unless `reconnect` is set.

    Parameters
    ----------
    settings : mapping
        Field name of `StreamConfig` to value, flags over file. `input` and `names` are a string or
        a list of strings; `cameras` maps each name to its settings.

    Returns
    -------
    ProcessPlan

    Raises
    ------
    ConfigError
        As `StreamConfig.resolve`; also if the names do not fit the inputs, or a setting does not
        suit several streams.
    """
    values = _with_secrets(settings)
    inputs, names = _listed(values.pop("input", None)), _listed(values.pop("names", None))
    if not names and len(inputs) > 1 and all(map(_is_photo, inputs)):
        # A shell has written out *.jpg.
        values["photos"] = tuple(inputs)
        del inputs[1:]
    cameras = values.pop("cameras", None)
    is_service = cameras is not None or len(inputs) > 1 or values.get("serve") is not None
    if is_service:
        values.setdefault("reconnect", None)
    if cameras is not None:
        if inputs or names:
            raise ConfigError(
                "INPUT: expected no input beside the cameras of the settings file; give it a "
                "table [cameras.NAME] there"
            )
        configs = _plan_several(values, cameras)
        return ProcessPlan(
            configs=configs, shared=values, is_service=True, goes_on=values.get("serve") is not None
        )
    if len(inputs) < 2:
        if names:
            raise ConfigError("--names: expected several INPUTs to name, got one; leave it out")
        only = StreamConfig.resolve({**values, "input": inputs[0] if inputs else None})
        return ProcessPlan(configs=(only,), shared=values, is_service=is_service, goes_on=False)
    names = names or [f"stream-{number + 1}" for number in range(len(inputs))]
    if len(names) != len(inputs):
        raise ConfigError(f"--names: expected {len(inputs)}, one for each INPUT, got {len(names)}")
    lower = [name.lower() for name in names]
    twice = sorted({name for name in lower if lower.count(name) > 1})
    if twice:
        raise ConfigError(f"--names: expected different names, got {', '.join(twice)} twice")
    if inputs.count(STDOUT) > 1:
        raise ConfigError("INPUT: standard input can be read by one stream only")
    tables = {name: {"input": uri} for name, uri in zip(names, inputs, strict=True)}
    configs = _plan_several(values, tables)
    return ProcessPlan(configs=configs, shared=values, is_service=True, goes_on=False)


def _is_photo(uri: str) -> bool:
    """Whether an input is one picture."""
    parsed = parse_uri(uri)
    return parsed.kind == "path" and is_file(parsed.target) and is_picture(Path(parsed.target))


def plan_camera(name: str, own: Mapping[str, Any], /, *, shared: Mapping[str, Any]) -> StreamConfig:
    """The settings of one of several streams; the folders of its files are made.

    Parameters
    ----------
    name : str
    own : mapping
        Its `input`, and settings in which it differs.
    shared : mapping
        Those of all streams.

    Raises
    ------
    ConfigError
        As `plan_streams`.
    """
    _check(name, own, shared)
    _make_folders(shared, own, name)
    return StreamConfig.resolve({**_placed(shared, own, name), "name": name})


def _plan_several(
    shared: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]
) -> tuple[StreamConfig, ...]:
    """All of them, or an error before a folder is made."""
    for name, own in tables.items():
        _check(name, own, shared)
    return tuple(plan_camera(name, own, shared=shared) for name, own in tables.items())


def _check(name: str, own: Mapping[str, Any], shared: Mapping[str, Any]) -> None:
    """Refuse what one stream would, and what only one at a time can have."""
    if NAME.fullmatch(name) is None:
        raise ConfigError(
            f"--names: expected letters, digits, '-', '_' and '.', got {name!r}; "
            "example: --names kitchen,yard"
        )
    config = StreamConfig.resolve({**shared, **_with_secrets(own, of=name)})
    for holds, message in (
        (config.display, "--display: a window shows one stream; use --serve for several"),
        (config.jsonl == STDOUT, "--jsonl -: the streams would mix; name a file"),
    ):
        if holds:
            raise ConfigError(message)


def _with_secrets(settings: Mapping[str, Any], *, of: str | None = None) -> dict[str, Any]:
    """The settings with the secrets filled in that they name; `of` is the stream's name."""
    stream = "" if of is None else f"{of}: "
    return {
        key: fill_in(value, where=f"{stream}{flag(key)}")
        if key in WITH_SECRETS and isinstance(value, str)
        else value
        for key, value in settings.items()
    }


def _listed(value: Any) -> list[str]:
    """A text or several as a list."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)


def _make_folders(shared: Mapping[str, Any], own: Mapping[str, Any], name: str) -> None:
    """The folders of a stream's files; those of snapshots and pictures make themselves."""
    for field in FILES:
        if shared.get(field) is None or field in own:
            continue
        folder = _inside(shared[field], name).parent
        try:
            folder.mkdir(exist_ok=True)
        except OSError as err:
            raise ConfigError(
                f"{flag(field)}: {folder}: the stream's folder cannot be made "
                f"({err.strerror}); choose another place"
            ) from err


def _placed(shared: Mapping[str, Any], own: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Shared settings with places of the stream's own, under those that it has for itself."""
    placed = dict(shared)
    for field in FILES:
        if placed.get(field) is not None:
            placed[field] = str(_inside(placed[field], name))
    for field in FOLDERS:
        if placed.get(field) is not None:
            placed[field] = str(Path(placed[field]) / name)
    return {**placed, **_with_secrets(own, of=name)}


def _inside(path: str, name: str) -> Path:
    """The file in the stream's own folder."""
    return Path(path).parent / name / Path(path).name
