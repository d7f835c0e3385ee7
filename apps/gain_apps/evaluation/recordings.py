"""Clean images held in memory: `.npz` arrays, and the frames of a `test://` source."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_apps import corruptions, roadsigns
from gain_apps.app_sources import app_schemes
from gain_apps.evaluation.image_data import Image, ImageData
from gain_core import __version__
from gain_core.errors import ArtifactError, ConfigError, StreamError
from gain_runtime.atomic_file import write_atomically
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
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()

    def load(index: int, domain: str, severity: float) -> Image:
        image: Image = images[index]
        return image

    return ImageData(
        kind="arrays",
        path=str(path),
        labels=labels.astype(np.int64),
        load=load,
        fingerprint=lambda domain, severity: sha256,
    )


def open_test_source(uri: str, /, *, seed: int, num_classes: int, cache: Path) -> ImageData:
    """All frames of a `test://` source, each cut to its region.

    Drawing thousands of frames takes minutes: labels and conditions are kept in the cache beside
    the features, and the frames are drawn only where an image is asked for.

    Parameters
    ----------
    uri : str
    seed : int
    num_classes : int
        K.
    cache : Path
        Folder.

    Returns
    -------
    ImageData
        `recorded` holds the frames' conditions.

    Raises
    ------
    ConfigError, StreamError
        As `open_source`; also if a frame has no truth.
    ArtifactError
        If a truth is no class of the artifact, or the cache is damaged or cannot be written.
    """
    key = hashlib.sha256(f"{uri}\0{seed}\0{_drawing_code()}".encode()).hexdigest()
    facts = cache / f"{key[:32]}.recording.json"
    drawn: list[Image] = []
    if facts.is_file():
        labels, conditions = _read_facts(facts)
    else:
        drawn, labels, conditions = _draw(uri, seed)
        text = json.dumps({"labels": labels, "conditions": conditions})
        try:
            cache.mkdir(parents=True, exist_ok=True)
            write_atomically(facts, text.encode())
        except OSError as err:
            raise ArtifactError(
                f"{facts}: cannot be written ({err.strerror}); choose another folder with --cache"
            ) from err
    truths = np.asarray(labels, dtype=np.int64)
    _check_labels(truths, num_classes, where=uri)

    def load(index: int, domain: str, severity: float) -> Image:
        if not drawn:
            drawn.extend(_draw(uri, seed)[0])
        return drawn[index]

    return ImageData(
        kind="test source",
        path=uri,
        labels=truths,
        load=load,
        fingerprint=lambda domain, severity: key,
        recorded=tuple(conditions),
    )


def _draw(uri: str, seed: int) -> tuple[list[Image], list[int], list[str]]:
    """Every frame's image, label and condition."""
    images: list[Image] = []
    labels: list[int] = []
    conditions: list[str] = []
    with open_source(uri, schemes=app_schemes(), seed=seed) as source:
        if source.info.num_frames is None:
            raise ConfigError(f"{uri}: expected a source of known length; add ?frames=N")
        for frame in source:
            if frame.truth is None:
                raise ConfigError(f"{uri}: frame {frame.index} has no truth to score against")
            images.append(_region(frame))
            labels.append(frame.truth)
            conditions.append(frame.condition or UNNAMED)
    if not images:
        raise StreamError(f"{uri}: expected at least one frame, got none")
    return images, labels, conditions


def _read_facts(path: Path) -> tuple[list[int], list[str]]:
    """Labels and conditions of a recording that was drawn before."""
    try:
        record = json.loads(path.read_bytes())
        return record["labels"], record["conditions"]
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise ArtifactError(f"{path}: damaged cache file ({err}); delete it and run again") from err


def _drawing_code() -> str:
    """Hash of the code that draws: other code draws other frames."""
    digest = hashlib.sha256(__version__.encode())
    for package in (corruptions, roadsigns):
        for path in sorted(Path(package.__file__ or "").parent.glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


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
