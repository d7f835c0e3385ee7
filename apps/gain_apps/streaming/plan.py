"""The settings of the streams of a process: from a TOML file and flags, one set for each stream."""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gain_apps.flags import (
    STDOUT,
    Given,
    checked_table,
    read_given,
    read_toml,
    toml_value,
    typed,
    warn,
    warn_removed,
)
from gain_apps.streaming.config import StreamConfig
from gain_apps.streaming.settings import flag
from gain_apps.system import fill_in
from gain_core.errors import ConfigError
from gain_runtime.files.paths import exists, file_status, is_file, write_atomically
from gain_runtime.optional import require
from gain_runtime.sources.opening import is_picture
from gain_runtime.sources.uri import parse_uri

# What keys were called in the release before.
OLD_KEYS = {"batch": "batch-size", "threads": "num-threads"}
# A key of that release that has no effect any more.
FAST = "fast-preprocess"

# What several streams have each of their own.
LISTS = ("input", "names")
# What all streams of a process share, and a camera's table cannot change.
SHARED = (
    *("allow_host_code", "debug", "device", "display"),
    *("event_webhook", "events", "json", "log_level", "model", "mqtt", "mqtt_discovery", "name"),
    *("num_threads", "serve", "serve_token_file", "watchdog"),
)


def read_settings(flags: Mapping[str, Any], /) -> tuple[dict[str, Any], Path | None]:
    """What the flags say, over what the files say that `config` and `cameras` among them name.

    The settings for `plan_streams`, by field name of `StreamConfig`, and the file that remembers
    cameras. ConfigError as `read_config_file`, also of what `--set` was given.
    """
    given = {name: value for name, value in flags.items() if not isinstance(value, Given)}
    given |= _given_settings(flags)
    config, cameras = given.pop("config", None), given.pop("cameras", None)
    settings = {} if config is None else read_config_file(config)
    file = Path(config) if config is not None and "cameras" in settings else None
    if cameras is not None:
        file = Path(cameras)
        known = read_config_file(file) if exists(file) else {}
        others = sorted(set(known) - {"cameras"})
        if others:
            raise ConfigError(
                f"--cameras {cameras}: expected tables [cameras.NAME] only, got "
                f"{', '.join(others)}; move them to the file of --config"
            )
        settings["cameras"] = {**settings.get("cameras", {}), **known.get("cameras", {})}
    if inputs := given.get("input"):
        given["input"] = inputs[0] if len(inputs) == 1 else inputs
        settings.pop("cameras", None)
        file = None
    if "gain" in given:
        given["gain"] = {**settings.get("gain", {}), **given["gain"]}
    return {**settings, **given}, file


def read_config_file(path: str | Path, /) -> dict[str, Any]:
    """Read settings from a TOML file, by field name of `StreamConfig`, `names` or `cameras`.

    Keys are the flags without their dashes (`update-every = 16`); the table `[gain]` holds fields
    of the method's config. `input` may be a list, with `names` as another; or each camera has a
    table `[cameras.NAME]` with its `input` and the settings in which it differs. ConfigError if the
    file cannot be read, is no TOML, or holds an unknown key or a value of another type.
    """
    where = f"--config {path}"
    record = read_toml(path, where=where)
    if not isinstance(record.get("names", []), list):
        raise ConfigError(f"{where}: names: expected a list of texts, got another type")
    lists = {key: record.pop(key) for key in LISTS if isinstance(record.get(key), list)}
    cameras = record.pop("cameras", None)
    settings = _settings(record, where=where)
    for key, values in lists.items():
        settings[key] = list(typed(tuple(values), "tuple[str, ...]", where=f"{where}: {key}"))
    if cameras is not None:
        settings["cameras"] = _cameras(cameras, where=where)
    return settings


def _settings(record: dict[str, Any], *, where: str) -> dict[str, Any]:
    """The keys of one table, as fields of `StreamConfig`."""
    record = _without_old_keys(record, where=where)
    gain = record.pop("gain", None)
    settings = checked_table(record, StreamConfig, where=where)
    if gain is not None:
        # The method's config checks names and ranges itself.
        if not isinstance(gain, dict):
            raise ConfigError(f"{where}: gain: expected a table [gain], got {gain!r}")
        settings["gain"] = gain
    return settings


def _without_old_keys(record: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """The record in today's words, and a warning for each other one."""
    found = {}
    for key, value in record.items():
        if key in OLD_KEYS:
            warn("gain-stream", f"{where}: {key}", OLD_KEYS[key])
        if key == "json" and isinstance(value, bool):
            warn("gain-stream", f"{where}: json = {str(value).lower()}", "json = '-' or a file")
            if value:
                found[key] = STDOUT
            continue
        if key == FAST:
            _warn_of_fast(where)
            continue
        found[OLD_KEYS.get(key, key)] = value
    return found


def _warn_of_fast(where: str) -> None:
    warn_removed("gain-stream", f"{where}: {FAST}", "timm's very pixels take no longer")


def _given_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """What `--set` was given; `gain.KEY` is a key of the table."""
    plain = {name: value for name, value in flags.items() if name != FAST.replace("-", "_")}
    if len(plain) < len(flags):
        _warn_of_fast("--set")
    method, others = {}, {}
    for name, value in plain.items():
        if isinstance(value, Given) and value.key.startswith("gain."):
            method[value.key.removeprefix("gain.")] = toml_value(value.text)
        else:
            others[name] = value
    settings = read_given(others, StreamConfig)
    return settings | {"gain": method} if method else settings


def _cameras(tables: Any, *, where: str) -> dict[str, dict[str, Any]]:
    """Settings of each camera."""
    if not isinstance(tables, dict) or not all(isinstance(item, dict) for item in tables.values()):
        raise ConfigError(f"{where}: cameras: expected tables [cameras.NAME], got another type")
    found = {}
    for name, table in tables.items():
        found[name] = _settings(table, where=f"{where}: cameras.{name}")
        shared = sorted(set(found[name]) & set(SHARED))
        if shared:
            raise ConfigError(
                f"{where}: cameras.{name}: {', '.join(shared).replace('_', '-')}: all cameras "
                "share it; move it to the top of the file"
            )
        if not found[name].get("input"):
            raise ConfigError(f"{where}: cameras.{name}: input: expected a source, got none")
    return found


# A name is a folder, a topic and a word in the log.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
FILES = ("jsonl", "output", "timeline", "state_out")
FOLDERS = ("snapshots", "save_changed")
# Settings that may name secrets.
WITH_SECRETS = ("input", "webhook", "event_webhook", "mqtt")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """What a process is to run: the settings of each stream, and those that all share.

    There may be no stream yet if cameras can be added, for which a process that `goes_on` waits.
    `is_service` is whether failed streams are restarted: of several streams, or of one with a page.
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
    serves = values.get("serve") is not None
    is_service = cameras is not None or len(inputs) > 1 or serves
    if is_service:
        values.setdefault("reconnect", None)
    if cameras is not None and (inputs or names):
        raise ConfigError(
            "INPUT: expected no input beside the cameras of the settings file; give it a "
            "table [cameras.NAME] there"
        )
    if cameras is None and len(inputs) < 2:
        if names:
            raise ConfigError("--names: expected several INPUTs to name, got one; leave it out")
        only = StreamConfig.resolve({**values, "input": inputs[0] if inputs else None})
        return ProcessPlan(configs=(only,), shared=values, is_service=is_service, goes_on=False)
    tables = _named(inputs, names) if cameras is None else cameras
    # All of them are right, or an error comes before a folder is made.
    for name, own in tables.items():
        _check(name, own, values)
    return ProcessPlan(
        configs=tuple(_placed(name, own, values) for name, own in tables.items()),
        shared=values,
        is_service=True,
        goes_on=cameras is not None and serves,
    )


def _named(inputs: list[str], names: list[str]) -> dict[str, dict[str, Any]]:
    """A table for each of several inputs, as a file has it for cameras."""
    names = names or [f"stream-{number + 1}" for number in range(len(inputs))]
    if len(names) != len(inputs):
        raise ConfigError(f"--names: expected {len(inputs)}, one for each INPUT, got {len(names)}")
    lower = [name.lower() for name in names]
    twice = sorted({name for name in lower if lower.count(name) > 1})
    if twice:
        raise ConfigError(f"--names: expected different names, got {', '.join(twice)} twice")
    if inputs.count(STDOUT) > 1:
        raise ConfigError("INPUT: standard input can be read by one stream only")
    return {name: {"input": uri} for name, uri in zip(names, inputs, strict=True)}


def _is_photo(uri: str) -> bool:
    """Whether an input is one picture."""
    parsed = parse_uri(uri)
    return parsed.kind == "path" and is_file(parsed.target) and is_picture(Path(parsed.target))


def plan_camera(name: str, own: Mapping[str, Any], /, *, shared: Mapping[str, Any]) -> StreamConfig:
    """The settings of one of several streams; the folders of its files are made.

    `own` has its `input`, and settings in which it differs from `shared`. ConfigError as
    `plan_streams`.
    """
    _check(name, own, shared)
    return _placed(name, own, shared)


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


def _placed(name: str, own: Mapping[str, Any], shared: Mapping[str, Any]) -> StreamConfig:
    """Settings whose shared files lie in a folder of the stream, made here, under its own ones.

    Folders of snapshots and pictures make themselves.
    """
    placed = dict(shared)
    for field in FILES:
        if shared.get(field) is None or field in own:
            continue
        path = Path(shared[field])
        folder = path.parent / name
        try:
            folder.mkdir(exist_ok=True)
        except OSError as err:
            raise ConfigError(
                f"{flag(field)}: {folder}: the stream's folder cannot be made "
                f"({err.strerror}); choose another place"
            ) from err
        placed[field] = str(folder / path.name)
    for field in FOLDERS:
        if shared.get(field) is not None:
            placed[field] = str(Path(shared[field]) / name)
    return StreamConfig.resolve({**placed, **_with_secrets(own, of=name), "name": name})


# A file that is made here may come to hold passwords.
NEW_MODE = 0o600


class CameraFile:
    """The tables `[cameras.NAME]` of a TOML file; comments and all other settings stay as they are.

    The file is created at the first change if it is missing. Every change says whether it was made:
    not in a file that cannot be written, nor of a camera that stands elsewhere. One that fails is a
    ConfigError, and the file is as before then.
    """

    def __init__(self, path: str | Path, /) -> None:
        self._path = Path(path)
        self.name = self._path.name
        self._lock = threading.Lock()

    @property
    def writable(self) -> bool:
        """Whether changes can be kept: a file handed over by systemd cannot be written."""
        target = self._path if exists(self._path) else self._path.parent
        return os.access(target, os.W_OK) and os.access(self._path.parent, os.W_OK)

    def put(self, name: str, settings: Mapping[str, Any], /) -> bool:
        """Add a camera, or replace its settings; keys as in the file (`update-every`)."""
        return self._change(lambda tables: tables.update({name: dict(settings)}) is None)

    def set(self, name: str, key: str, value: Any, /) -> bool:
        """Change one setting of a camera."""

        def change(tables: Any) -> bool:
            if name in tables:
                tables[name][key] = value
            return name in tables

        return self._change(change)

    def remove(self, name: str, /) -> bool:
        """Remove a camera's table."""
        return self._change(lambda tables: tables.pop(name, None) is not None)

    def _change(self, change: Callable[[Any], bool]) -> bool:
        """Read the file anew, change it and replace it where it changed."""
        if not self.writable:
            return False
        toml = require("tomlkit", extra="serve")
        with self._lock:
            try:
                status = file_status(self._path)
                mode = NEW_MODE if status is None else stat.S_IMODE(status.st_mode)
                text = "" if status is None else self._path.read_text("utf-8")
                document = toml.parse(text)
                if "cameras" not in document:
                    # Without a line of its own: only [cameras.NAME] is written.
                    document["cameras"] = toml.table(is_super_table=True)
                if not change(document["cameras"]):
                    return False
                write_atomically(self._path, toml.dumps(document).encode(), mode=mode)
            except (OSError, ValueError) as err:
                raise ConfigError(
                    f"{self._path}: the cameras cannot be kept there ({err}); check the file"
                ) from err
        return True
