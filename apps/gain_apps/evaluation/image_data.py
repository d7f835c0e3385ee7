"""Labelled images, wherever they come from, and which class a name stands for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.streams import Order
from gain_core._optional import require
from gain_core.errors import ArtifactError, BackendUnavailableError, ConfigError
from gain_runtime.class_list import ClassList, class_list_from_names, read_class_list
from gain_runtime.file_kind import is_folder
from gain_runtime.image_file import IMAGE_SUFFIXES

__all__ = [
    "CLASS_FILE",
    "CLEAN",
    "WNID",
    "ClassNames",
    "Image",
    "ImageData",
    "files_fingerprint",
    "image_files",
]

Image = npt.NDArray[np.uint8]

# The domain of uncorrupted images.
CLEAN = "clean"
WNID = re.compile(r"^n\d{8}$")
CLASS_FILE = "classes.tsv"
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
        if class_file is None and is_folder(root) and beside.is_file():
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

        Returns
        -------
        dict of str to int

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
                f"{self._num_classes} classes: {shown}; name a classes.tsv with --class-file"
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
                "classes.tsv with --class-file, or pip install 'gain-edge[eval]', which lists them"
            ) from err
        return {name: index for index, name in enumerate(info.label_names())}
