"""Flags that several commands share, settings without one, and flags that were called otherwise."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gain_core.errors import ConfigError, StreamError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

STDOUT = "-"
NOW = "is now {}; the next release knows that name only"
REMOVED = "has no effect and goes with the next release: {}"
READERS: dict[str, Callable[[str], Any]] = {
    "bool": {"true": True, "false": False}.__getitem__,
    "float": float,
    "int": int,
    "Path": Path,
}
KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "Path": (Path,),
}


class Given(NamedTuple):
    """What `--set` was given; typed once the record can be imported, which is not for `--help`."""

    key: str
    text: str


def add_device_flags(group: argparse._ArgumentGroup, /) -> None:
    """Add `--device` and `--num-threads`: where a network runs."""
    group.add_argument("--device", metavar="NAME", help="cpu (default), cuda, tensorrt, or auto")
    threads = group.add_argument(
        "--num-threads",
        type=int,
        metavar="N",
        help="CPU threads for the network, and to preprocess a batch in (default: its library's "
        "choice, and all cores)",
    )
    add_old_spelling(group, "--threads", threads)
    add_removed(group, "--device-preprocess", why="frames are always preprocessed on the CPU")


def add_json_flag(group: argparse._ActionsContainer, /, *, what: str) -> None:
    """Add `--json FILE`, to which `what` is written."""
    group.add_argument("--json", metavar="FILE", help=f"{what}; - is standard output")


def check_json_target(path: str | None, /, *, other_than: str | Path | None = None) -> None:
    """Refuse a file of `--json` that cannot be written, or is `other_than`, which is read.

    ConfigError, before any work is done.
    """
    from gain_apps.system import closed_stream
    from gain_runtime.files.paths import is_folder, resolved

    if path == STDOUT and sys.stdout is None:
        raise closed_stream(1, wanted_by="--json -")
    if path in (None, STDOUT):
        return
    place = Path(str(path))
    if is_folder(place) or not is_folder(place.parent) or not os.access(place.parent, os.W_OK):
        raise ConfigError(
            f"--json: expected a file in a folder that can be written to, got {place}; "
            "create the folder or name another one"
        )
    if other_than is not None and resolved(place) == resolved(other_than):
        raise ConfigError(f"--json: {place} is read and would be overwritten; name another file")


def write_json_lines(target: str, records: Iterable[Mapping[str, Any]], /) -> None:
    """Write records where `--json` says, one a line, all numbers finite; a file is replaced whole.

    StreamError if it cannot be written.
    """
    from gain_apps.system import write_result
    from gain_runtime.files.paths import write_atomically

    text = "\n".join(json.dumps(each, ensure_ascii=False, allow_nan=False) for each in records)
    if target == STDOUT:
        write_result(text)
        return
    try:
        write_atomically(Path(target), f"{text}\n".encode())
    except OSError as err:
        raise StreamError(f"--json {target}: cannot be written ({err.strerror})") from err


def add_set_flag(group: argparse._ActionsContainer, /, *, example: str) -> None:
    """Add `--set KEY=VALUE`, for settings that few need; the last one wins, as with flags.

    The namespace gets a `Given` for each under the name of the record's field.
    """
    group.add_argument(
        "--set",
        action=_Set,
        metavar="KEY=VALUE",
        default=argparse.SUPPRESS,
        help=f"change a setting, as {example}; can be repeated, the keys are below",
    )


def settings_text(settings: Mapping[str, str], /) -> str:
    """The part of `--help` on the keys of `--set`: `KEY=VALUE` to what it is for."""
    width = 4 + max(map(len, settings))
    lines = ["settings:"]
    for key, text in settings.items():
        first, *others = textwrap.wrap(text, 98 - width, break_on_hyphens=False)
        lines += [f"  {key:<{width - 2}}{first}", *(" " * width + line for line in others)]
    return "\n".join(lines)


def spelled(name: str, settings: Iterable[str], /) -> str:
    """How a field of a record is spelled on the command line, where `settings` have no flag."""
    key = name.replace("_", "-")
    without = {setting.partition("=")[0] for setting in settings}
    return f"--set {key}" if key in without else f"--{key}"


def read_given(flags: Mapping[str, Any], record: type, /) -> dict[str, Any]:
    """What was given with `--set`, as fields of a dataclass; ConfigError as `checked_table`.

    Its annotations are texts, int, float, bool, paths and tuples of them.
    """
    kinds = {item.name.replace("_", "-"): str(item.type) for item in fields(record)}
    given = [value for value in flags.values() if isinstance(value, Given)]
    table = {item.key: _value_of(item.text, kinds.get(item.key, "str")) for item in given}
    return checked_table(table, record, where="--set")


def _value_of(text: str, annotation: str, /) -> Any:
    """A text as the annotated type, or as it is where it cannot be read as that."""
    kind = annotation.removesuffix(" | None")
    if kind.startswith("tuple["):
        element = kind.removeprefix("tuple[").partition(",")[0]
        return tuple(_value_of(part.strip(), element) for part in text.split(","))
    try:
        return READERS.get(kind, str)(text)
    except (ValueError, KeyError):
        return text


def checked_table(table: Mapping[str, Any], record: type, /, *, where: str) -> dict[str, Any]:
    """Keys, with dashes, and values as fields of a dataclass; a message begins with `where`.

    ConfigError if a key is none of the record's, or a value is of another type.
    """
    known = {item.name.replace("_", "-"): item for item in fields(record)}
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ConfigError(
            f"{where}: unknown key {', '.join(unknown)}; known keys are {', '.join(known)}"
        )
    return {
        known[key].name: typed(value, str(known[key].type), where=f"{where}: {key}")
        for key, value in table.items()
    }


def typed(value: Any, annotation: str, /, *, where: str) -> Any:
    """The value, or ConfigError if it is not of the annotated type; types of choices are text."""
    kind = annotation.removesuffix(" | None")
    if kind.startswith("tuple[") and isinstance(value, tuple):
        element = kind.removeprefix("tuple[").partition(",")[0]
        return tuple(typed(item, element, where=where) for item in value)
    kind = kind if kind in KINDS else "str"
    if isinstance(value, KINDS[kind]) and (kind == "bool") == isinstance(value, bool):
        return value
    raise ConfigError(f"{where}: expected {kind}, got {value!r}")


def read_toml(path: str | Path, /, *, where: str) -> dict[str, Any]:
    """Read a TOML file; ConfigError beginning with `where` if it cannot be read or is no TOML."""
    try:
        with Path(path).open("rb") as file:
            table: dict[str, Any] = tomllib.load(file)
    except OSError as err:
        raise ConfigError(f"{where}: cannot be read ({err.strerror}); check the path") from err
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise ConfigError(f"{where}: expected TOML, {err}") from err
    return table


def toml_value(text: str, /) -> Any:
    """A text as TOML reads it, or as it is."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


class _Set(argparse.Action):
    """Stores a `Given` under the name of the field, where an old flag stores its own."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        key, equals, text = str(values).partition("=")
        if not (key and equals):
            parser.error(f"--set: expected KEY=VALUE, got {values!r}")
        _store_given(key, namespace, text)


def _store_given(key: str, namespace: argparse.Namespace, value: str | Sequence[str]) -> None:
    """As `--set` does."""
    text = value if isinstance(value, str) else ",".join(value)
    setattr(namespace, key.replace("-", "_"), Given(key, text))


# What follows takes the flags of the release before. The next release needs none of it.


def parse_arguments(
    parser: argparse.ArgumentParser, arguments: Sequence[str], /
) -> argparse.Namespace:
    """Parse a command line on which `--json` may still be a switch.

    It is one unless `-` or a name that ends in `.json` follows: in `--json clip.mp4` the clip is
    the input, as it was, and no file to be overwritten.
    """
    words = list(arguments)
    for index, word in enumerate(words):
        value = words[index + 1] if index + 1 < len(words) else ""
        if word == "--json" and value != STDOUT and not value.endswith(".json"):
            warn(parser.prog, "--json", "--json FILE.json or --json -")
            words[index] = f"--json={STDOUT}"
    return parser.parse_args(words)


def add_old(
    group: argparse._ActionsContainer,
    old: str,
    /,
    *,
    now: str,
    store: Callable[[argparse.Namespace, Any], object],
    **settings: Any,
) -> None:
    """Take what a flag was called for one release, with one line of warning that says `now`.

    `store` is called with the namespace and the value, which is `const` of a flag without values;
    `settings` are those of `add_argument`.
    """
    hidden = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS, **settings}
    group.add_argument(old, action=_Old, says=NOW.format(now), store=store, **hidden)


def add_old_spelling(group: argparse._ActionsContainer, old: str, new: argparse.Action, /) -> None:
    """Take the former name of a flag that stores one value or a constant, as `add_old`."""
    add_old(
        group,
        old,
        now=new.option_strings[0],
        store=lambda namespace, value: setattr(namespace, new.dest, value),
        nargs=new.nargs,
        const=new.const,
        type=new.type or str,
        choices=new.choices,
    )


def add_old_settings(
    group: argparse._ActionsContainer,
    settings: Iterable[str],
    /,
    *,
    others: Mapping[str, str] | None = None,
) -> None:
    """Take flags that are settings now, as `add_old`; `others` were not called as their key.

    A setting is `KEY=VALUE`, its flag was `--KEY`. A VALUE in capitals was the flag's, `N,N`
    several; any other is what the flag stood for.
    """
    flags = {f"--{setting.partition('=')[0]}": setting for setting in settings}
    for old, now in {**flags, **(others or {})}.items():
        key, _, shown = now.partition("=")
        settings_of_flag: dict[str, Any] = {"nargs": "+"} if "," in shown else {}
        if not shown.isupper():
            settings_of_flag = {"nargs": 0, "const": shown}
        store = partial(_store_given, key)
        add_old(group, old, now=f"--set {now}", store=store, **settings_of_flag)


def add_removed(
    group: argparse._ActionsContainer, name: str, /, *, why: str, num_values: int = 0
) -> None:
    """Take a flag that does nothing any more for one release; `why` ends the line of warning."""
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    group.add_argument(
        name,
        action=_Old,
        nargs=num_values,
        says=REMOVED.format(why),
        store=lambda *_: None,
        **hidden,
    )


class _Old(argparse.Action):
    """Warns, and stores what was given where the new flag stores it."""

    def __init__(
        self,
        *args: Any,
        says: str,
        store: Callable[[argparse.Namespace, Any], object],
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self._says = says
        self._store = store

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        _say(parser.prog, f"{option_string} {self._says}")
        self._store(namespace, self.const if self.nargs == 0 else values)


def warn(program: str, old: str, now: str, /) -> None:
    """Say that something is called otherwise today."""
    _say(program, f"{old} {NOW.format(now)}")


def warn_removed(program: str, old: str, why: str, /) -> None:
    """Say that something has no effect any more."""
    _say(program, f"{old} {REMOVED.format(why)}")


def _say(program: str, text: str) -> None:
    print(f"{program}: warning: {text}", file=sys.stderr)
