"""Clean images held in memory: `.npz` arrays, and the frames of a `test://` source."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_apps.app_sources import app_schemes
from gain_apps.evaluation.image_data import Image, ImageData
from gain_core.errors import ArtifactError, ConfigError, StreamError
from gain_runtime.frame import Frame
from gain_runtime.sources import open_source

__all__ = ["open_arrays", "open_test_source"]

UNNAMED = "recorded"


def open_arrays(path: Path, /, *, num_classes: int) -> ImageData:
    """`images` (N, H, W, 3) uint8 RGB and `labels` (N,) from an `.npz` file.

    Parameters
    ----------
    path : Path
    num_classes : int
        K of the artifact.

    Returns
    -------
    ImageData

    Raises
    ------
    ArtifactError
        If the file is damaged, an array is missing or of another shape, or a label is no class.
    """
    try:
        # Opened here: NumPy leaves a file that is no archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            missing = [name for name in ("images", "labels") if name not in archive.files]
            if missing:
                raise ArtifactError(
                    f"{path}: expected the arrays images and labels, {', '.join(missing)} missing; "
                    f"it has {', '.join(archive.files) or 'none'}"
                )
            images, labels = archive["images"], archive["labels"]
    except ArtifactError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as err:
        raise ArtifactError(f"{path}: cannot be read ({err}); copy the file again") from err
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8 or not len(images):
        raise ArtifactError(
            f"{path}: images: expected (N, H, W, 3) uint8 RGB, got {images.shape} {images.dtype}"
        )
    if labels.shape != (len(images),) or not np.issubdtype(labels.dtype, np.integer):
        raise ArtifactError(
            f"{path}: labels: expected ({len(images)},) integers, got {labels.shape} {labels.dtype}"
        )
    _check_labels(labels, num_classes, where=str(path))
    return _held(
        list(images),
        labels.astype(np.int64),
        kind="arrays",
        path=str(path),
        fingerprint=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def open_test_source(uri: str, /, *, seed: int, num_classes: int) -> ImageData:
    """All frames of a `test://` source, each cut to its region.

    Parameters
    ----------
    uri : str
    seed : int
    num_classes : int
        K of the artifact.

    Returns
    -------
    ImageData
        `recorded` holds the frames' conditions.

    Raises
    ------
    ConfigError, StreamError
        As `open_source`; also if a frame has no truth.
    ArtifactError
        If a truth is no class of the artifact.
    """
    images: list[Image] = []
    labels: list[int] = []
    conditions: list[str] = []
    digest = hashlib.sha256()
    with open_source(uri, schemes=app_schemes(), seed=seed) as source:
        if source.info.num_frames is None:
            raise ConfigError(f"{uri}: expected a source of known length; add ?frames=N")
        for frame in source:
            if frame.truth is None:
                raise ConfigError(f"{uri}: frame {frame.index} has no truth to score against")
            image = _region(frame)
            digest.update(image.tobytes())
            images.append(image)
            labels.append(frame.truth)
            conditions.append(frame.condition or UNNAMED)
    if not images:
        raise StreamError(f"{uri}: expected at least one frame, got none")
    truths = np.asarray(labels, dtype=np.int64)
    _check_labels(truths, num_classes, where=uri)
    return _held(
        images,
        truths,
        kind="test source",
        path=uri,
        fingerprint=digest.hexdigest(),
        recorded=tuple(conditions),
    )


def _held(
    images: list[Image],
    labels: npt.NDArray[np.int64],
    *,
    kind: str,
    path: str,
    fingerprint: str,
    recorded: tuple[str, ...] | None = None,
) -> ImageData:
    """Images in memory as data."""

    def load(index: int, domain: str, severity: float) -> Image:
        return images[index]

    return ImageData(
        kind=kind,
        path=path,
        labels=labels,
        load=load,
        fingerprint=lambda domain, severity: fingerprint,
        recorded=recorded,
    )


def _region(frame: Frame) -> Image:
    """The part of a frame that is classified, in memory of its own."""
    if frame.region is None:
        return frame.image
    left, top, right, bottom = frame.region
    image: Image = frame.image[max(top, 0) : bottom, max(left, 0) : right].copy()
    return image


def _check_labels(labels: npt.NDArray[Any], num_classes: int, *, where: str) -> None:
    """Every label is a class."""
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ArtifactError(
            f"{where}: labels: expected class indices in [0, {num_classes}) as the artifact has, "
            f"got {labels.min()} to {labels.max()}"
        )
