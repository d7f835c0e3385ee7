"""Suites: many inputs on many streams, in a TOML file, with the bars that they have to clear.

    methods = ["shift", "neo-continual"]
    seeds = 5

    [[input]]
    name = "vit_k36"
    model = "vit_k36.npz"

    [[stream]]
    stream = "few"

    [[bar]]
    text = "never more than three points below the source"
    method = "shift"
    measure = "worst seed"
    at-least = -3.0

Every input runs on every stream, unless `streams` names some; both may set `seeds` and `methods` of
their own. An input takes the fields of `InputSettings`, a stream `order` and `batch-size`. A pair
of an input and a stream is kept in the result file seed by seed, so that a run goes on where it was
stopped, and only what is new or named to be refreshed is run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from gain_apps.evaluation.eval_input import InputSettings
from gain_apps.evaluation.methods.registry import parse_method
from gain_apps.evaluation.streams import Order, parse_stream
from gain_apps.flags import read_toml
from gain_core.errors import ConfigError
from gain_runtime.files.paths import is_file

SUITES = Path("benchmarks") / "suites"
Measure = Literal[
    "worst pair", "worst seed", "mean change", "lead", "calm pairs", "worst ece change"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteInput:
    """A feature dump, or an artifact on a data set."""

    name: str
    model: str
    data: tuple[str, ...] = ()
    settings: InputSettings = field(default_factory=InputSettings)
    streams: tuple[str, ...] | None = None
    seeds: int | None = None
    methods: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteStream:
    """One stream, under a name of its own where `stream` alone does not tell it."""

    stream: str
    name: str
    order: Order | None = None
    batch_size: int | None = None
    seeds: int | None = None
    methods: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What a method has to reach over some of the pairs.

    In points of accuracy against the source, it measures the `worst pair` of the means over seeds,
    the `worst seed`, the `mean change` over pairs, or the `lead` over the best of `over` in the
    mean over pairs. In points of ECE, the `worst ece change` of the means over seeds; `calm pairs`
    is the share in per cent of the pairs whose ECE is at most the source's.
    """

    text: str  # what is promised
    method: str
    measure: Measure
    at_least: float | None = None  # this or the next
    at_most: float | None = None
    inputs: tuple[str, ...] | None = None  # which pairs; all by default
    streams: tuple[str, ...] | None = None
    source_below: float = 101.0  # only pairs on which the source's accuracy is below it
    over: tuple[str, ...] = ()  # methods to be ahead of

    def __post_init__(self) -> None:
        if self.measure not in get_args(Measure):
            raise ConfigError(
                f"bar: measure: expected one of {', '.join(get_args(Measure))}, "
                f"got {self.measure!r}"
            )
        if (self.at_least is None) == (self.at_most is None):
            raise ConfigError(f"bar {self.text}: expected at-least or at-most, one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What a suite's file says."""

    name: str
    description: str
    methods: tuple[str, ...]
    seeds: int
    inputs: tuple[SuiteInput, ...]
    streams: tuple[SuiteStream, ...]
    bars: tuple[Bar, ...]

    def pairs(self, only: Sequence[str] = ()) -> Iterator[tuple[SuiteInput, SuiteStream]]:
        """Every input with every stream it runs on, of the inputs and streams named in `only`."""
        for each in self.inputs:
            for stream in self.streams:
                wanted = each.streams is None or stream.name in each.streams
                if wanted and (not only or each.name in only or stream.name in only):
                    yield each, stream


def suite_path(name: str, /) -> Path:
    """The file of a suite: a path to a `.toml`, or the name of one in `benchmarks/suites`.

    `ConfigError` if there is none of that name.
    """
    if name.endswith(".toml"):
        return Path(name)
    folders = [SUITES, Path(__file__).resolve().parents[3] / SUITES]
    for folder in folders:
        if is_file(folder / f"{name}.toml"):
            return folder / f"{name}.toml"
    known = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
    raise ConfigError(
        f"suite: expected one of {', '.join(known) or '(none here)'} or a .toml file, got {name}; "
        f"run it in a checkout, whose {SUITES} has them"
    )


def load_suite(path: Path, /) -> Suite:
    """Read a suite.

    `ConfigError` if the file cannot be read, is no TOML, or holds an unknown key, method, stream or
    input.
    """
    table = read_toml(path, where=str(path))
    tables = {key: table.pop(key, []) for key in ("input", "stream", "bar")}
    head = _record(table, {"description": str, "methods": tuple, "seeds": int}, where=str(path))
    suite = Suite(
        name=path.stem,
        description=head.get("description", ""),
        methods=head.get("methods", ()),
        seeds=head.get("seeds", 1),
        inputs=tuple(_input(item, where=f"{path}: input") for item in tables["input"]),
        streams=tuple(_stream(item, where=f"{path}: stream") for item in tables["stream"]),
        bars=tuple(_bar(item, where=f"{path}: bar") for item in tables["bar"]),
    )
    _check(suite, path)
    return suite


def _input(table: Mapping[str, Any], *, where: str) -> SuiteInput:
    """One `[[input]]`."""
    own = {"name": str, "model": str, "data": (str, tuple), "streams": tuple, "seeds": int}
    values = dict(table)
    mine = {key: values.pop(key) for key in (*own, "methods") if key in values}
    record = _record(mine, {**own, "methods": tuple}, where=where)
    settings = _record(
        values,
        {
            "domains": tuple,
            "severities": tuple,
            "views": int,
            "normalise": str,
            "source_images": str,
            "class_subset": str,
            "class_file": str,
            "image_list": str,
        },
        where=where,
    )
    if not {"name", "model"} <= set(record):
        raise ConfigError(f"{where}: expected name and model, got {', '.join(record) or 'none'}")
    if isinstance(record.get("data"), str):
        record["data"] = (record["data"],)
    if "severities" in settings:
        settings["severities"] = tuple(map(float, settings["severities"]))
    for key in ("class_file", "image_list"):
        if key in settings:
            settings[key] = Path(settings[key])
    return SuiteInput(**record, settings=InputSettings(**settings))


def _stream(table: Mapping[str, Any], *, where: str) -> SuiteStream:
    """One `[[stream]]`; its spec is read once, so that a wrong one is found before the run."""
    kinds = {"stream": str, "name": str, "order": str, "batch_size": int, "seeds": int}
    record = _record(table, {**kinds, "methods": tuple}, where=where)
    if "stream" not in record:
        raise ConfigError(f"{where}: expected stream, got {', '.join(record) or 'nothing'}")
    parse_stream(record["stream"])
    return SuiteStream(**{"name": record["stream"], **record})


def _bar(table: Mapping[str, Any], *, where: str) -> Bar:
    """One `[[bar]]`."""
    number = (int, float)
    kinds: dict[str, Any] = {"text": str, "method": str, "measure": str, "at_least": number}
    kinds |= {"at_most": number, "inputs": tuple, "streams": tuple, "source_below": number}
    record = _record(table, {**kinds, "over": tuple}, where=where)
    missing = {"text", "method", "measure"} - set(record)
    if missing:
        raise ConfigError(f"{where}: expected text, method and measure, lacks {sorted(missing)}")
    return Bar(**record)


def _record(table: Mapping[str, Any], kinds: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """A table's keys with underscores and its lists as tuples, each of its kind."""
    found: dict[str, Any] = {}
    for key, raw in table.items():
        name = key.replace("-", "_")
        if name not in kinds or "_" in key:
            known = ", ".join(kind.replace("_", "-") for kind in kinds)
            raise ConfigError(f"{where}: unknown key {key}; known keys are {known}")
        value = tuple(raw) if isinstance(raw, list) else raw
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise ConfigError(f"{where}: {key}: expected another type, got {raw!r}")
        found[name] = value
    return found


def _check(suite: Suite, path: Path) -> None:
    """Names are there, once, and mean something."""
    for kind, names in (
        ("input", [each.name for each in suite.inputs]),
        ("stream", [each.name for each in suite.streams]),
    ):
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated or not names:
            raise ConfigError(f"{path}: {kind}: {', '.join(repeated) or 'none'} given; each once")
    known = {each.name for each in suite.streams}
    for each in suite.inputs:
        unknown = sorted(set(each.streams or ()) - known)
        if unknown:
            raise ConfigError(f"{path}: input {each.name}: no stream {', '.join(unknown)}")
    lists = [each.methods for each in suite.inputs] + [each.methods for each in suite.streams]
    for text in (name for names in (suite.methods, *lists) for name in names or ()):
        parse_method(text)


def folders_of(text: str | None, /) -> list[Path]:
    """Folders named on the command line or in `GAIN_BEDS`, divided as in PATH."""
    given = os.environ.get("GAIN_BEDS", "") if text is None else text
    return [Path(part) for part in given.split(os.pathsep) if part]
