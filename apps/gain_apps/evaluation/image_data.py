"""Labelled images: folders, `.npz` arrays, and the frames of a `test://` source."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.streams import Order
from gain_core import __version__
from gain_core.errors import ArtifactError, BackendUnavailableError, ConfigError, StreamError
from gain_runtime.files.images import CLASS_FILE, IMAGE_SUFFIXES
from gain_runtime.files.paths import is_file, is_folder, write_atomically
from gain_runtime.frames import Frame
from gain_runtime.optional import require
from gain_runtime.sources.images import ClassList, class_list_from_names, read_class_list
from gain_runtime.sources.opening import open_source
from gain_scenes import corruptions, roadsigns
from gain_scenes.sources import app_schemes

__all__ = [
    "CLEAN",
    "WNID",
    "ClassNames",
    "Image",
    "ImageData",
    "check_labels",
    "files_fingerprint",
    "image_files",
    "open_arrays",
    "open_test_source",
]

Image = npt.NDArray[np.uint8]

# The domain of uncorrupted images.
CLEAN = "clean"
WNID = re.compile(r"^n\d{8}$")
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageData:
    """N labelled images, the same in every domain.

    Attributes
    ----------
    kind, path : str
        For messages and result files.
    labels : array, (N,) int64
        Indices among the artifact's classes.
    load : callable
        (index, domain, severity) to (H, W, 3) uint8 RGB. Clean data ignores the last two.
    fingerprint : callable
        (domain, severity) to a hash that changes when the images do.
    domains : tuple of str, or None
        Domains on disk; None for clean images, whose corruptions are made on the way.
    default_order : str
        The order to visit them in, unless asked otherwise.
    recorded : tuple of str, or None
        Condition of each image where they are the frames of one recording, in order.
    """

    kind: str
    path: str
    labels: npt.NDArray[np.int64]
    load: Callable[[int, str, float], Image]
    fingerprint: Callable[[str, float], str]
    domains: tuple[str, ...] | None = None
    default_order: Order = "shuffled"
    recorded: tuple[str, ...] | None = None


def image_files(folder: Path, /) -> list[Path]:
    """Images directly in a folder, sorted by name.

    Raises
    ------
    ArtifactError
        If the folder cannot be read.
    """
    try:
        return sorted(
            path
            for path in folder.iterdir()
            if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")
        )
    except OSError as err:
        raise ArtifactError(f"{folder}: cannot be read ({err.strerror}); check the path") from err


def files_fingerprint(root: Path, paths: Iterable[Path], /) -> str:
    """Hash of names, sizes and modification times: cheap, and changes whenever a file does."""
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


class ClassNames:
    """Looks class names up: in a class list, among the artifact's labels, in ImageNet's order.

    Parameters
    ----------
    labels : sequence of K str
        Of the artifact.
    root : Path
        Of the data; a `classes.tsv` in it is read where no other is named.
    class_file : Path, optional

    Raises
    ------
    ArtifactError
        If the class list is missing or malformed.
    """

    def __init__(
        self, labels: Sequence[str], /, *, root: Path, class_file: Path | None = None
    ) -> None:
        beside = root / CLASS_FILE
        if class_file is None and is_folder(root) and is_file(beside):
            class_file = beside
        self._num_classes = len(labels)
        self._listed: ClassList | None = None if class_file is None else read_class_list(class_file)
        self._labels = class_list_from_names(labels)

    def indices(self, names: Sequence[str], /, *, where: str) -> dict[str, int]:
        """Class index of every name.

        Parameters
        ----------
        names : sequence of str
            WordNet ids, class names, or class indices (as ImageNet-V2's folders are called, whose
            order by name is not that of the classes).
        where : str
            Of the data, for messages.

        Raises
        ------
        ArtifactError
            If a name stands for no class, or for one the artifact does not have.
        """
        if names and all(name.isascii() and name.isdigit() for name in names):
            found: dict[str, int | None] = {name: int(name) for name in names}
        else:
            found = {name: self._index(name) for name in names}
        if any(index is None for index in found.values()) and all(map(WNID.match, names)):
            synsets = self._imagenet(names, where=where)
            found = {name: synsets.get(name) for name in names}
        unknown = [
            name for name, index in found.items() if index is None or index >= self._num_classes
        ]
        if unknown:
            shown = ", ".join(unknown[:SHOWN]) + (", ..." if len(unknown) > SHOWN else "")
            raise ArtifactError(
                f"{where}: {len(unknown)} of {len(names)} class names are none of the artifact's "
                f"{self._num_classes} classes: {shown}; name a classes.tsv with "
                "--set class-file=FILE"
            )
        return {name: index for name, index in found.items() if index is not None}

    def _index(self, name: str) -> int | None:
        """Class of one name, by the list where there is one."""
        if self._listed is not None:
            index = self._listed.index_of(name)
            if index is not None:
                return index
        return self._labels.index_of(name)

    def _imagenet(self, names: Sequence[str], *, where: str) -> dict[str, int]:
        """WordNet ids in ImageNet's order, which is their own: sorted."""
        if self._num_classes != 1000:
            return {}
        if len(set(names)) == 1000:
            return {name: index for index, name in enumerate(sorted(names))}
        try:
            info = require("timm.data", extra="eval").ImageNetInfo("imagenet-1k")
        except BackendUnavailableError as err:
            raise ConfigError(
                f"{where}: folders named by WordNet id and fewer than 1000 of them; name a "
                "classes.tsv with --set class-file=FILE, or pip install 'gain-edge[eval]', which "
                "lists them"
            ) from err
        return {name: index for index, name in enumerate(info.label_names())}


UNNAMED = "recorded"


def open_arrays(path: Path, /, *, num_classes: int) -> ImageData:
    """`images` (N, H, W, 3) uint8 RGB and `labels` (N,) from an `.npz` file.

    Parameters
    ----------
    path : Path
    num_classes : int
        K of the artifact.

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
    check_labels(labels, num_classes, where=str(path))
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
    if is_file(facts):
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
    check_labels(truths, num_classes, where=uri)

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


def check_labels(labels: npt.NDArray[Any], num_classes: int, /, *, where: str) -> None:
    """Refuse a label that is no class.

    Raises
    ------
    ArtifactError
    """
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ArtifactError(
            f"{where}: labels: expected class indices in [0, {num_classes}) as the artifact has, "
            f"got {labels.min()} to {labels.max()}"
        )
