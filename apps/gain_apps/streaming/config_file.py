"""The settings of a run in a TOML file: read, and kept when cameras are added and removed."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Mapping
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
)
from gain_apps.streaming.config import StreamConfig
from gain_core.errors import ConfigError
from gain_runtime.files.paths import exists, file_status, write_atomically
from gain_runtime.optional import require

__all__ = [
    "SHARED",
    "CameraFile",
    "read_config_file",
    "read_settings",
]

# What keys were called in the release before.
OLD_KEYS = {"batch": "batch-size", "threads": "num-threads"}

# What several streams have each of their own.
LISTS = ("input", "names")
# What all streams of a process share, and a camera's table cannot change.
SHARED = (
    *("allow_host_code", "debug", "device", "display"),
    *("event_webhook", "events", "json", "log_level", "model", "mqtt", "mqtt_discovery", "name"),
    *("num_threads", "serve", "serve_token_file", "watchdog"),
)


def read_settings(flags: Mapping[str, Any], /) -> tuple[dict[str, Any], Path | None]:
    """What the flags say, over what the files say that they name.

    Parameters
    ----------
    flags : mapping
        Field name of `StreamConfig` to value or `Given`, and `config` and `cameras`: paths.

    Returns
    -------
    (dict, Path or None)
        Settings for `gain_apps.streaming.plan.plan_streams`, and the file that remembers cameras.

    Raises
    ------
    ConfigError
        As `read_config_file`, also of what `--set` was given.
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
    if given.get("input"):
        settings.pop("cameras", None)
        file = None
    if "gain" in given:
        given["gain"] = {**settings.get("gain", {}), **given["gain"]}
    return {**settings, **given}, file


def read_config_file(path: str | Path, /) -> dict[str, Any]:
    """Read settings from a TOML file.

    Parameters
    ----------
    path : str or Path
        Keys are the flags without their dashes (`update-every = 16`); the table `[gain]` holds
        fields of the method's config. `input` may be a list, with `names` as another; or each
        camera has a table `[cameras.NAME]` with its `input` and the settings in which it differs.

    Returns
    -------
    dict
        Field name of `StreamConfig`, `names` or `cameras`, to value; `cameras` holds a dict of
        fields for each name.

    Raises
    ------
    ConfigError
        If the file cannot be read, is no TOML, or holds an unknown key or a value of another
        type.
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
        settings["gain"] = _gain_table(gain, where=f"{where}: gain")
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
        found[OLD_KEYS.get(key, key)] = value
    return found


def _given_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """What `--set` was given; `gain.KEY` is a key of the table."""
    method = {
        name: value
        for name, value in flags.items()
        if isinstance(value, Given) and value.key.startswith("gain.")
    }
    settings = read_given({k: v for k, v in flags.items() if k not in method}, StreamConfig)
    if method:
        settings["gain"] = {
            value.key.removeprefix("gain."): toml_value(value.text) for value in method.values()
        }
    return settings


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


def _gain_table(table: Any, *, where: str) -> dict[str, Any]:
    """Fields of the method's config, which checks their names and ranges itself."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: expected a table [gain], got {table!r}")
    return table


# A file that is made here may come to hold passwords.
NEW_MODE = 0o600


class CameraFile:
    """The tables `[cameras.NAME]` of a TOML file; comments and all other settings stay as they are.

    Parameters
    ----------
    path : str or Path
        Created at the first change if it is missing.
    """

    def __init__(self, path: str | Path, /) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The file's name, without its folder."""
        return self._path.name

    @property
    def writable(self) -> bool:
        """Whether changes can be kept: a file handed over by systemd cannot be written."""
        target = self._path if exists(self._path) else self._path.parent
        return os.access(target, os.W_OK) and os.access(self._path.parent, os.W_OK)

    def put(self, name: str, settings: Mapping[str, Any], /) -> None:
        """Add a camera, or replace its settings.

        Parameters
        ----------
        name : str
        settings : mapping
            Keys as in the file (`update-every`).

        Raises
        ------
        ConfigError
            If the file cannot be read or written; it is as before then.
        """
        self._change(lambda tables: tables.update({name: dict(settings)}) is None)

    def set(self, name: str, key: str, value: Any, /) -> bool:
        """Change one setting of a camera; whether it stands in this file."""

        def change(tables: Any) -> bool:
            if name in tables:
                tables[name][key] = value
            return name in tables

        return self._change(change)

    def remove(self, name: str, /) -> bool:
        """Remove a camera's table; whether there was one."""
        return self._change(lambda tables: tables.pop(name, None) is not None)

    def _change(self, change: Callable[[Any], bool]) -> bool:
        """Read the file anew, change it and replace it where it changed."""
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
