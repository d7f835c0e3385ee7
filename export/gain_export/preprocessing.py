"""Settling how frames become `pixel_values`: what is known, what was asked for, what is missing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gain_core.errors import ConfigError
from gain_runtime.manifest import Preprocess

__all__ = ["PreprocessOverrides", "complete", "from_timm_config", "parse_values"]

_FLAGS = {
    "height_px": "--img-size",
    "width_px": "--img-size",
    "mean": "--mean",
    "std": "--std",
    "crop_fraction": "--crop-pct",
    "interpolation": "--interpolation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreprocessOverrides:
    """The preprocessing settings a user gave; None where nothing was said.

    Attributes are those of `gain_runtime.manifest.Preprocess`, with `img_size` as (height, width)
    in px, and `value_range`: what black and white are to a network that normalises by itself.

    Raises
    ------
    ConfigError
        If `mean` or `std` are no numbers of [0, 1] pixels, or stand beside a `value_range`.
    """

    img_size: tuple[int, int] | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    crop_fraction: float | None = None
    interpolation: str | None = None
    crop_mode: str | None = None
    channel_order: str | None = None
    value_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is None:
                continue
            if any(not math.isfinite(value) or value > 1.0 or value < 0.0 for value in values):
                shown = " ".join(f"{value:g}" for value in values)
                scaled = " ".join(f"{value / 255.0:.4g}" for value in values)
                raise ConfigError(
                    f"--{name}: expected numbers of [0, 1] pixels, got {shown}; if these are of "
                    f"0 to 255, divide by 255: --{name} {scaled}"
                )
        if self.value_range is not None:
            low, high = self.value_range
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ConfigError(f"--input-range: expected low < high, got {low:g} {high:g}")
            if self.mean is not None or self.std is not None:
                raise ConfigError(
                    "--input-range: is for a network that normalises its pixels itself, and --mean "
                    "and --std for one that does not; give one of them"
                )

    def given(self) -> dict[str, object]:
        """The settings that were given, keyed as `Preprocess` names them."""
        names = ("mean", "std", "crop_fraction", "interpolation", "crop_mode", "channel_order")
        values = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.img_size is not None:
            values["height_px"], values["width_px"] = self.img_size
        return values


def complete(
    overrides: PreprocessOverrides, known: Mapping[str, object], /, *, what: str
) -> Preprocess:
    """Join what the user gave with what is known, or ask for the rest.

    Parameters
    ----------
    overrides : PreprocessOverrides
        Win over `known`.
    known : mapping
        Fields of `Preprocess` the source itself states.
    what : str
        The model, for messages.

    Returns
    -------
    Preprocess

    Raises
    ------
    ConfigError
        If a setting is missing (the flags are named) or out of range.
    """
    values = {**known, **overrides.given()}
    missing = [flag for name, flag in _FLAGS.items() if name not in values]
    if missing:
        raise ConfigError(
            f"{what}: its preprocessing is not known; give {', '.join(dict.fromkeys(missing))}, "
            "or --like with the timm model whose preprocessing it shares"
        )
    return parse_values(values)


def parse_values(values: Mapping[str, object], /) -> Preprocess:
    """A `Preprocess` from plain values; its own checks apply."""
    fields = dict(values)
    for name in ("mean", "std"):
        numbers = fields[name]
        assert isinstance(numbers, list | tuple)
        fields[name] = tuple(float(number) for number in numbers)
    return Preprocess(**fields)  # type: ignore[arg-type]


def from_timm_config(config: Mapping[str, object], /) -> dict[str, object]:
    """The fields of `Preprocess` in timm's resolved data configuration.

    Raises
    ------
    ConfigError
        If timm wants images of another kind than three colour planes, or a crop this project does
        not offer.
    """
    size = config["input_size"]
    assert isinstance(size, list | tuple)
    channels, height_px, width_px = size
    if channels != 3:
        raise ConfigError(f"input size: expected 3 colour channels, got {channels}")
    return {
        "height_px": int(height_px),
        "width_px": int(width_px),
        "mean": config["mean"],
        "std": config["std"],
        "crop_fraction": config["crop_pct"],
        "interpolation": config["interpolation"],
        "crop_mode": config["crop_mode"],
    }
