"""Reading the settings of a run from a TOML file."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from gain_apps.stream_config import StreamConfig
from gain_core import GainConfig
from gain_core.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

__all__ = ["read_config_file", "read_toml"]

KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
}

# What several streams have each of their own.
LISTS = ("input", "names")


def read_config_file(path: str | Path, /) -> dict[str, Any]:
    """Read settings from a TOML file.

    Parameters
    ----------
    path : str or Path
        Keys are the flags without their dashes (`update-every = 16`); the table `[gain]` holds
        fields of `GainConfig`. `input` may be a list, with `names` as another.

    Returns
    -------
    dict
        Field name of `StreamConfig`, or `names`, to value.

    Raises
    ------
    ConfigError
        If the file cannot be read, is no TOML, or holds an unknown key or a value of another
        type.
    """
    record = read_toml(path)
    known = {item.name.replace("_", "-"): item for item in fields(StreamConfig)}
    if not isinstance(record.get("names", []), list):
        raise ConfigError(f"--config {path}: names: expected a list of texts, got another type")
    lists = {key: record.pop(key) for key in LISTS if isinstance(record.get(key), list)}
    unknown = sorted(set(record) - set(known))
    if unknown:
        raise ConfigError(
            f"--config {path}: unknown key {', '.join(unknown)}; known keys are {', '.join(known)}"
        )
    settings = {
        known[key].name: _typed(value, str(known[key].type), where=f"--config {path}: {key}")
        for key, value in record.items()
        if key != "gain"
    }
    for key, values in lists.items():
        settings[key] = [_typed(value, "str", where=f"--config {path}: {key}") for value in values]
    table = record.get("gain", {})
    return {**settings, "gain": _gain_table(table, where=f"--config {path}: gain")}


def read_toml(path: str | Path, /) -> dict[str, Any]:
    """Read the file that `--config` names.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    dict

    Raises
    ------
    ConfigError
        If the file cannot be read or is no TOML.
    """
    try:
        with Path(path).open("rb") as file:
            record: dict[str, Any] = tomllib.load(file)
    except OSError as err:
        raise ConfigError(
            f"--config {path}: cannot be read ({err.strerror}); check the path"
        ) from err
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise ConfigError(f"--config {path}: expected TOML, {err}") from err
    return record


def _gain_table(table: Any, *, where: str) -> dict[str, Any]:
    """Fields of `GainConfig`; the record itself checks their names and ranges."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: expected a table [gain], got {table!r}")
    kinds = {item.name: str(item.type) for item in fields(GainConfig)}
    return {
        key: _typed(value, kinds[key], where=f"{where}.{key}") if key in kinds else value
        for key, value in table.items()
    }


def _typed(value: Any, annotation: str, *, where: str) -> Any:
    """The value, if it is of the annotated type; types of choices are text."""
    kind = annotation.removesuffix(" | None")
    kind = kind if kind in KINDS else "str"
    if isinstance(value, KINDS[kind]) and (kind == "bool") == isinstance(value, bool):
        return value
    raise ConfigError(f"{where}: expected {kind}, got {value!r}")
