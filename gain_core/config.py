"""Named settings, and their plain form in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeAlias

from gain_core._arrays import Array
from gain_core.errors import ConfigError
from gain_core.method import Method
from gain_core.paper.config import PaperConfig
from gain_core.paper.method import Paper
from gain_core.shift.config import ShiftConfig
from gain_core.shift.method import Shift

Config: TypeAlias = ShiftConfig | PaperConfig

_CONFIGS: dict[str, type[Config]] = {"shift": ShiftConfig, "paper": PaperConfig}
_KINDS: dict[Any, str] = {bool: "true or false", float: "a number"}

# `paper` is Algorithm 1 read literally. The paper leaves eps_Sigma, eps_p and whether features are
# normalised open; `paper-l2` is the same on unit-length features, with a large eps_Sigma.
PRESETS: dict[str, Config] = {
    "shift": ShiftConfig(),
    "paper": PaperConfig(),
    "paper-l2": PaperConfig(normalise=True, variance_floor=1e-2),
}
DEFAULT_PRESET = "shift"


def preset(name: str, /) -> Config:
    """Named settings.

    Parameters
    ----------
    name : str
        A key of `PRESETS`.

    Returns
    -------
    ShiftConfig or PaperConfig

    Raises
    ------
    ConfigError
        If there is no preset of that name.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset: expected one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]


def method_name(config: Config, /) -> str:
    """`shift` or `paper`."""
    return next(name for name, kind in _CONFIGS.items() if type(config) is kind)


def config_to_dict(config: Config, /) -> dict[str, Any]:
    """Settings as plain values for JSON, with the method's name as `method`.

    Parameters
    ----------
    config : Config

    Returns
    -------
    dict
        What `config_from_dict` reads.
    """
    return {"method": method_name(config), **asdict(config)}


def config_from_dict(record: Mapping[str, Any], /) -> Config:
    """Rebuild what `config_to_dict` gave.

    Parameters
    ----------
    record : mapping of str to value

    Returns
    -------
    ShiftConfig or PaperConfig

    Raises
    ------
    ConfigError
        If the method or a key is unknown, or a value is of another type or out of its range.
    """
    values = dict(record)
    name = values.pop("method", None)
    if name not in _CONFIGS:
        raise ConfigError(
            f"config: method: expected one of {', '.join(_CONFIGS)}, got {name!r}; "
            "it was written by another version, so make the file again"
        )
    kind = _CONFIGS[name]
    known = {item.name: item.default for item in fields(kind)}
    if unknown := sorted(set(values) - set(known)):
        raise ConfigError(
            f"config: unknown key {', '.join(unknown)}; known keys are {', '.join(sorted(known))}"
        )
    for key, value in values.items():
        if not _is_alike(value, known[key]):
            raise ConfigError(
                f"config: {key}: expected {_KINDS[type(known[key])]}, got {value!r}; "
                "correct it where it is set, or make the file again"
            )
    return kind(**values)


def _is_alike(value: Any, default: Any) -> bool:
    """Whether a value read from JSON is of the default's type: a bool is no number."""
    kinds = (float, int) if isinstance(default, float) else type(default)
    return isinstance(value, kinds) and isinstance(value, bool) == isinstance(default, bool)


def make_method(
    head_or_num_classes: Array | int,
    config: Config | None = None,
    /,
    *,
    skewness: tuple[float, float] | None = None,
    clean_moments: Sequence[Sequence[float]] | None = None,
    like: Array | None = None,
) -> Method[Any]:
    """The method of a config, for one classifier.

    Parameters
    ----------
    head_or_num_classes : array, (K, D) floating, or int
        The head's weight, or K if the weight is not known. The paper's method needs the weight.
    config : Config, optional
        Default: the preset `shift`.
    skewness : pair of float, optional
        Skewness of the source's logits on clean frames of one class, and of many; see `Shift`.
        Only `Shift` reads it; default: computed from the head, or a typical value without one.
    clean_moments : sequence of float, (2, K), optional
        What the source's logits show on clean frames; see `Shift`. Only `Shift` reads it.
    like : array, any shape and floating dtype, optional
        With K: the state gets its library, device and dtype; default: float32 of NumPy. A head's
        own library, device and precision take precedence.

    Returns
    -------
    Shift or Paper

    Raises
    ------
    ArrayError
        If the head is no floating (K, D) matrix with K >= 2.
    ConfigError
        If `config` is no config, K is below 2, `skewness` is no pair of finite numbers,
        `clean_moments` does not hold twice K finite numbers, or the paper's method gets no head.
    NumericsError
        With the paper's method on NumPy: if the head holds NaN or infinity, or its squares
        overflow.
    """
    config = PRESETS[DEFAULT_PRESET] if config is None else config
    if type(config) not in _CONFIGS.values():
        raise ConfigError(f"config: expected a config, got {config!r}; use preset(name)")
    if isinstance(config, ShiftConfig):
        return Shift(
            head_or_num_classes, config, skewness=skewness, clean_moments=clean_moments, like=like
        )
    if isinstance(head_or_num_classes, int):
        raise ConfigError(
            "head: expected the head's weight (K, D), which the paper's method needs, got the "
            f"number {head_or_num_classes}; use an artifact that has features, or the preset shift"
        )
    return Paper(head_or_num_classes, config)
