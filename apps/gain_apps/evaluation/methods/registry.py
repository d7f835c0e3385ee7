"""Methods by name, with options: `shift`, `neo-continual:rate=0.3`, `paper:rule=fixed`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gain_apps.evaluation.methods.forward_only import (
    T3A,
    BatchRecentring,
    Dota,
    FoaShift,
    Lame,
    Neo,
    NeoContinual,
)
from gain_apps.evaluation.methods.gain import AblatedPaper, Ablation, GainMethod, Source
from gain_apps.evaluation.methods.protocol import Head, Method, TorchNetwork
from gain_core import (
    PRESETS,
    UPDATE_EVERY,
    WARMUP_FRAMES,
    Config,
    PaperConfig,
    ShiftConfig,
    config_to_dict,
    preset,
)
from gain_core import make_method as make_gain
from gain_core.errors import ConfigError

__all__ = [
    "ALL_METHODS",
    "METHODS",
    "TORCH_METHODS",
    "MethodSpec",
    "describe_method",
    "make_method",
    "parse_method",
    "parse_spec",
]

Value = str | int | float | bool

_BASELINES: dict[str, Callable[..., Method]] = {
    "neo": Neo,
    "neo-continual": NeoContinual,
    "foa-shift": FoaShift,
    "t3a": T3A,
    "lame": Lame,
    "dota": Dota,
    "recentre": BatchRecentring,
}
_WITHOUT_HEAD = frozenset({"lame"})
# Module and class of the methods that need torch; imported when asked for.
_WITH_TORCH = {
    "torch-source": ("entropy", "TorchSource"),
    "tent": ("entropy", "Tent"),
    "eata": ("entropy", "Eata"),
    "sar": ("entropy", "Sar"),
    "cotta": ("augmented", "Cotta"),
    "roid": ("augmented", "Roid"),
    "foa": ("foa", "Foa"),
}
TORCH_METHODS: tuple[str, ...] = tuple(_WITH_TORCH)
METHODS: tuple[str, ...] = ("source", *PRESETS, *_BASELINES)
ALL_METHODS = (*METHODS, *TORCH_METHODS)

_WAITS = {"update_every": UPDATE_EVERY, "warmup_frames": WARMUP_FRAMES}
_GAIN_KEYS = frozenset({*_WAITS, "measured"})
_ABLATION_KEYS = frozenset(item.name for item in fields(Ablation))


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSpec:
    """A method as the command line names it: `text` is its key in the results."""

    text: str
    name: str
    options: Mapping[str, Value]


def parse_method(text: str, /) -> MethodSpec:
    """Read `NAME` or `NAME:key=value:key=value`.

    Raises
    ------
    ConfigError
        If the name is unknown or an option is malformed or given twice.
    """
    name, options = parse_spec(text)
    if name not in ALL_METHODS:
        raise ConfigError(f"method: expected one of {', '.join(ALL_METHODS)}, got {name!r}")
    return MethodSpec(text=text.strip(), name=name, options=options)


def parse_spec(text: str, /) -> tuple[str, dict[str, Value]]:
    """A name, and the keys with their values behind it, as `NAME:key=value:key=value` has them.

    Raises
    ------
    ConfigError
        If a pair is malformed or a key is given twice.
    """
    name, *pairs = text.strip().split(":")
    options: dict[str, Value] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key or not value:
            raise ConfigError(f"{text}: expected NAME:key=value:key=value, got {pair!r}")
        if key in options:
            raise ConfigError(f"{text}: {key} is given more than once")
        options[key] = _value(value)
    return name, options


def make_method(
    spec: MethodSpec | str, head: Head, /, *, network: Callable[[], TorchNetwork] | None = None
) -> Method:
    """Build a method for a head.

    Parameters
    ----------
    spec : MethodSpec or str
        GAIN presets take every key of their config, `update_every`, `warmup_frames` and
        `measured` (whether clean images are used where there are some; the default), the paper's
        presets those of `Ablation`; the baselines take the keywords of their classes.
    head : Head
    network : callable, optional
        Makes the network in torch, for the methods that train it.

    Raises
    ------
    ConfigError
        If the name or an option is unknown or out of range, or the head lacks what it needs, or
        there is no network for a method that trains one.
    BackendUnavailableError
        If it needs torch and there is none.
    """
    if isinstance(spec, str):
        spec = parse_method(spec)
    if spec.name == "source":
        _check_options(spec, frozenset())
        return Source()
    if spec.name in _WITH_TORCH:
        if network is None:
            raise ConfigError(
                f"{spec.text}: needs the network itself, on images; give --timm and --weights"
            )
        module, name = _WITH_TORCH[spec.name]
        methods = importlib.import_module(f"gain_apps.evaluation.methods.{module}")
        return _build(spec, getattr(methods, name), network())
    if head.logits_only and not isinstance(PRESETS.get(spec.name), ShiftConfig):
        raise ConfigError(
            f"{spec.text}: needs features, and the network has logits only; use shift"
        )
    if spec.name in PRESETS:
        return _make_gain(spec, head)
    arguments = () if spec.name in _WITHOUT_HEAD else (head,)
    return _build(spec, _BASELINES[spec.name], *arguments)


def _build(spec: MethodSpec, build: Callable[..., Method], *arguments: object) -> Method:
    """Call a method's class with the spec's options."""
    keywords = inspect.signature(build).parameters.values()
    _check_options(spec, frozenset(p.name for p in keywords if p.kind is p.KEYWORD_ONLY))
    try:
        return build(*arguments, **spec.options)
    except TypeError as err:
        raise ConfigError(f"{spec.text}: an option is of the wrong type ({err})") from err


def describe_method(spec: MethodSpec, /) -> dict[str, Any]:
    """The whole configuration of a method, for a result file."""
    if spec.name not in PRESETS:
        return {"name": spec.name, "options": dict(spec.options)}
    config, ablation = gain_settings(spec)
    record: dict[str, Any] = {"name": spec.name, "config": config_to_dict(config)}
    if not ablation.is_neutral:
        record["ablation"] = {item.name: getattr(ablation, item.name) for item in fields(ablation)}
    record |= {key: spec.options[key] for key in _GAIN_KEYS if key in spec.options}
    return record


def gain_settings(spec: MethodSpec, /) -> tuple[Config, Ablation]:
    """The config and the ablation that a spec of a GAIN preset means."""
    config = preset(spec.name)
    config_keys = frozenset(item.name for item in fields(config))
    ablation_keys = _ABLATION_KEYS if isinstance(config, PaperConfig) else frozenset()
    _check_options(spec, config_keys | ablation_keys | _GAIN_KEYS)
    changes: dict[str, Any] = {k: v for k, v in spec.options.items() if k in config_keys}
    exchanged: dict[str, Any] = {k: v for k, v in spec.options.items() if k in ablation_keys}
    try:
        return replace(config, **changes), Ablation(**exchanged)
    except TypeError as err:
        raise ConfigError(f"{spec.text}: an option is of the wrong type ({err})") from err


def _make_gain(spec: MethodSpec, head: Head) -> Method:
    """GAIN itself, or with parts exchanged."""
    config, ablation = gain_settings(spec)
    waits = {}
    for name, default in _WAITS.items():
        frames = spec.options.get(name, default)
        if isinstance(frames, bool) or not isinstance(frames, int):
            raise ConfigError(f"{spec.text}: {name}: expected a whole number of frames")
        waits[name] = frames
    measured = spec.options.get("measured", True)
    if not isinstance(measured, bool):
        raise ConfigError(f"{spec.text}: measured: expected true or false, got {measured!r}")
    if isinstance(config, PaperConfig) and not ablation.is_neutral:
        return GainMethod(AblatedPaper(head.weight, config, ablation), **waits)
    of = head.num_classes if head.logits_only else head.weight
    method = make_gain(of, config, **(head.measured if measured else {}))
    return GainMethod(method, **waits)


def _check_options(spec: MethodSpec, known: frozenset[str]) -> None:
    """Every option is one that the method has."""
    unknown = sorted(set(spec.options) - known)
    if unknown:
        raise ConfigError(
            f"{spec.text}: unknown option {', '.join(unknown)}; "
            f"{spec.name} has {', '.join(sorted(known)) or 'none'}"
        )


def _value(text: str) -> Value:
    """A number, a truth value or a word."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
