"""Class names: a user's file, ImageNet's, or numbers."""

from __future__ import annotations

import logging
from pathlib import Path

from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.models_dir import find_models_dir

__all__ = ["choose_labels", "imagenet_labels", "read_labels"]

logger = logging.getLogger(__name__)

_IMAGENET_CLASSES = 1000


def choose_labels(path: Path | None, /, *, num_classes: int) -> tuple[str, ...]:
    """The class names an artifact will carry.

    Parameters
    ----------
    path : Path or None
        A file with one name per line. Without it a model of 1000 classes gets ImageNet's names
        and any other gets `class 0`, `class 1`, ..., which is logged as a warning.
    num_classes : int

    Returns
    -------
    tuple of `num_classes` str

    Raises
    ------
    ArtifactError
        If the file cannot be read or has an empty line among its names.
    ConfigError
        If it does not have one name per class.
    """
    if path is not None:
        labels = read_labels(path)
        if len(labels) != num_classes:
            raise ConfigError(
                f"{path}: expected {num_classes} lines, one per class of the model, "
                f"got {len(labels)}; give the labels the model was trained with"
            )
        return labels
    if num_classes == _IMAGENET_CLASSES:
        return imagenet_labels()
    logger.warning(
        "labels: %d classes and no --labels FILE, so they are called 'class 0' to 'class %d'",
        num_classes,
        num_classes - 1,
    )
    return tuple(f"class {index}" for index in range(num_classes))


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
