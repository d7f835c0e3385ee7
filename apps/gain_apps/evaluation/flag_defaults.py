"""Defaults of a command's flags from a TOML file: defaults < file < flags."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gain_apps.config_file import read_toml
from gain_core.errors import ConfigError

__all__ = ["add_config_flag", "parse_with_config"]

NOT_IN_FILE = frozenset({"help", "config"})
# What TOML must hold for a flag whose text is read by one of these.
KINDS: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float), Path: (str,), None: (str,)}


def add_config_flag(parser: argparse._ActionsContainer, /) -> None:
    """Add `--config FILE`."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="TOML file of flags without their dashes (batch-size = 16); flags given here win",
    )


def parse_with_config(
    parser: argparse.ArgumentParser, argv: Sequence[str], /
) -> argparse.Namespace:
    """Parse a command line whose `--config` sets what it leaves out.

    Parameters
    ----------
    parser : ArgumentParser
        With a `--config` flag; its defaults are replaced by the file's.
    argv : sequence of str

    Returns
    -------
    Namespace

    Raises
    ------
    ConfigError
        If the file cannot be read, is no TOML, or holds an unknown key or a value that its flag
        does not take.
    """
    args = parser.parse_args(argv)
    if args.config is None:
        return args
    flags = {
        option[2:]: action
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--") and action.dest not in NOT_IN_FILE
    }
    record = read_toml(args.config)
    unknown = sorted(set(record) - set(flags))
    if unknown:
        raise ConfigError(
            f"--config {args.config}: unknown key {', '.join(unknown)}; "
            f"known keys are {', '.join(sorted(flags))}"
        )
    for key, value in record.items():
        where = f"--config {args.config}: {key}"
        parser.set_defaults(**{flags[key].dest: _converted(value, flags[key], where=where)})
    return parser.parse_args(argv)


def _converted(value: Any, action: argparse.Action, /, *, where: str) -> Any:
    """The value as the flag would have made it of its text; lists stand for commas."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ConfigError(f"{where}: expected true or false, got {value!r}")
        return value
    listed = action.type not in KINDS
    kinds = (str, int, float) if listed else KINDS[action.type]
    parts = value if listed and isinstance(value, list) else [value]
    if not parts or not all(
        isinstance(part, kinds) and not isinstance(part, bool) for part in parts
    ):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigError(
            f"{where}: expected {names}{', or a list of them' if listed else ''}, got {value!r}"
        )
    text = ",".join(map(str, parts))
    try:
        converted = action.type(text) if callable(action.type) else text
    except (argparse.ArgumentTypeError, ValueError) as err:
        raise ConfigError(f"{where}: {err}") from err
    if action.choices is not None and converted not in action.choices:
        raise ConfigError(
            f"{where}: expected one of {', '.join(map(str, action.choices))}, got {value!r}"
        )
    return converted
