"""The settings of several streams in one process: one set for each, with places of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gain_apps.serve.address import ServeAddress
from gain_apps.stream_config import STDOUT, StreamConfig, flag
from gain_core.errors import ConfigError
from gain_runtime.file_kind import is_file
from gain_runtime.sources import is_picture
from gain_runtime.uri import parse_uri

__all__ = ["plan_streams"]

# A name is a folder, a topic and a word in the log.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
FILES = ("jsonl", "output", "timeline", "state_out")
FOLDERS = ("snapshots", "save_changed")
HIGHEST_PORT = 65_535


def plan_streams(settings: Mapping[str, Any], /) -> tuple[StreamConfig, ...]:
    """One `StreamConfig` for each input; photos named one by one are one stream.

    A single input gets the settings as they are. Of several, each writes into a folder of its
    name, made here: `--jsonl out/rows.jsonl` becomes `out/NAME/rows.jsonl`, `--snapshots kept`
    becomes `kept/NAME`. MQTT topics get the name at their end, and pages the ports from `--serve`
    on.

    Parameters
    ----------
    settings : mapping
        Field name of `StreamConfig` to value, flags over file; `input` and `names` are a text or
        a list of texts.

    Returns
    -------
    tuple of StreamConfig

    Raises
    ------
    ConfigError
        As `StreamConfig.resolve`; if the names do not fit the inputs, or a setting cannot be meant
        for several streams.
    """
    values = dict(settings)
    inputs, names = _listed(values.pop("input", None)), _listed(values.pop("names", None))
    if not names and len(inputs) > 1 and all(map(_is_photo, inputs)):
        # A shell has written out *.jpg.
        return (StreamConfig.resolve({**values, "input": inputs[0], "photos": tuple(inputs)}),)
    if len(inputs) < 2:
        if names:
            raise ConfigError("--names: expected several INPUTs to name, got one; leave it out")
        return (StreamConfig.resolve({**values, "input": inputs[0] if inputs else None}),)
    names = _checked_names(names or [f"stream-{number + 1}" for number in range(len(inputs))])
    if len(names) != len(inputs):
        raise ConfigError(f"--names: expected {len(inputs)}, one for each INPUT, got {len(names)}")
    for first in inputs:
        # Everything that one stream would refuse, before a folder is made.
        _refuse_shared(StreamConfig.resolve({**values, "input": first}), inputs)
    _make_folders(values, names)
    return tuple(
        StreamConfig.resolve({**_own(values, name, number), "input": uri, "name": name})
        for number, (uri, name) in enumerate(zip(inputs, names, strict=True))
    )


def _is_photo(uri: str) -> bool:
    """Whether an input is one picture."""
    parsed = parse_uri(uri)
    return parsed.kind == "path" and is_file(parsed.target) and is_picture(Path(parsed.target))


def _listed(value: Any) -> list[str]:
    """A text or several as a list."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)


def _checked_names(names: Sequence[str]) -> list[str]:
    """Each can be a folder, and none is used twice."""
    for name in names:
        if NAME.fullmatch(name) is None:
            raise ConfigError(
                f"--names: expected letters, digits, '-', '_' and '.', got {name!r}; "
                "example: --names kitchen,yard"
            )
    lower = [name.lower() for name in names]
    twice = sorted({name for name in lower if lower.count(name) > 1})
    if twice:
        raise ConfigError(f"--names: expected different names, got {', '.join(twice)} twice")
    return list(names)


def _refuse_shared(config: StreamConfig, inputs: Sequence[str]) -> None:
    """What only one stream at a time can have."""
    for holds, message in (
        (config.display, "--display: a window shows one stream; use --serve for several"),
        (config.jsonl == STDOUT, "--jsonl -: the streams would mix; name a file"),
        (
            config.adaptive is not None,
            "--adaptive: an adaptive file keeps one stream's state; use --model, whose network "
            "all streams share",
        ),
        (
            config.device_preprocess,
            "--device-preprocess: frames of several streams are batched in host memory; leave it "
            "out",
        ),
        (inputs.count("-") > 1, "INPUT: standard input can be read by one stream only"),
    ):
        if holds:
            raise ConfigError(message)


def _make_folders(values: Mapping[str, Any], names: Sequence[str]) -> None:
    """The folders of the streams' files; those of snapshots and pictures make themselves."""
    for field in FILES:
        if values.get(field) is None:
            continue
        for name in names:
            folder = _inside(values[field], name).parent
            try:
                folder.mkdir(exist_ok=True)
            except OSError as err:
                raise ConfigError(
                    f"{flag(field)}: {folder}: the stream's folder cannot be made "
                    f"({err.strerror}); choose another place"
                ) from err


def _own(values: Mapping[str, Any], name: str, number: int) -> dict[str, Any]:
    """The settings of one stream."""
    own = dict(values)
    for field in FILES:
        if own.get(field) is not None:
            own[field] = str(_inside(own[field], name))
    for field in FOLDERS:
        if own.get(field) is not None:
            own[field] = str(Path(own[field]) / name)
    if own.get("mqtt") is not None:
        own["mqtt"] = f"{own['mqtt'].rstrip('/')}/{name}"
    if own.get("serve") is not None:
        own["serve"] = _port_of(own["serve"], number)
    return own


def _inside(path: str, name: str) -> Path:
    """The file in the stream's own folder."""
    return Path(path).parent / name / Path(path).name


def _port_of(serve: str, number: int) -> str:
    """The page's address; each stream has the next port, and 0 stays any free one."""
    address = ServeAddress.parse(serve)
    port = address.port and address.port + number
    if port > HIGHEST_PORT:
        raise ConfigError(
            f"--serve {serve}: stream {number + 1} would need port {port}; begin with a lower one"
        )
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{port}"
