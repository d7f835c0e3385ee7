"""Images that lie in archives: tar files as they are published, WebDataset shards, `datasets`."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gain_apps.evaluation.image_data import (
    WNID,
    ClassNames,
    Image,
    ImageData,
    check_labels,
    files_fingerprint,
)
from gain_core.errors import ArtifactError, StreamError, one_line
from gain_runtime.files.images import IMAGE_SUFFIXES, decode_image
from gain_runtime.files.paths import is_file, is_folder
from gain_runtime.optional import require

__all__ = ["Member", "dataset_files", "open_dataset", "open_tar", "read_tars", "tar_files"]

TARS = (".tar", ".tar.gz", ".tgz")
# The text file beside each image of a WebDataset that holds its class.
CLASS_SUFFIX = ".cls"
# Of a data set that `Dataset.save_to_disk` wrote.
SAVED = "state.json"


class Member(NamedTuple):
    """Where one file of an archive lies."""

    path: Path
    name: str
    offset: int
    size: int

    def read(self) -> bytes:
        """Its bytes.

        Raises
        ------
        StreamError
            If the archive cannot be read, or ends before them.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(self.size)
        except OSError as err:
            raise StreamError(f"{self.path}: cannot be read ({err.strerror})") from err
        if len(data) < self.size:
            raise StreamError(f"{self.path}: {self.name}: cut short; copy the archive again")
        return data

    def image(self) -> Image:
        """Its picture.

        Raises
        ------
        StreamError
            If it is none, or damaged.
        """
        return decode_image(self.read(), shown=f"{self.path}: {self.name}")


def tar_files(location: Path, /) -> list[Path]:
    """A tar file, or those of a folder that has nothing else but texts; none for other places."""
    if is_file(location):
        return [location] if location.name.lower().endswith(TARS) else []
    if not is_folder(location) or any(is_folder(path) for path in location.iterdir()):
        return []
    return sorted(path for path in location.iterdir() if path.name.lower().endswith(TARS))


def read_tars(paths: Sequence[Path], /) -> list[Member]:
    """Every file in some archives, but hidden ones, in order.

    Raises
    ------
    ArtifactError
        If an archive is damaged, compressed or cannot be read.
    """
    found = []
    for path in paths:
        try:
            with tarfile.open(path, "r:") as archive:
                found += [
                    Member(path, item.name, item.offset_data, item.size)
                    for item in archive
                    if item.isfile() and not item.name.rpartition("/")[2].startswith(".")
                ]
        except (OSError, tarfile.TarError) as err:
            raise ArtifactError(
                f"{path}: expected a whole, uncompressed tar file ({err}); images are read from "
                "the middle of it, so decompress it first with gunzip, or copy it again"
            ) from err
    return found


def open_tar(
    root: Path,
    members: Sequence[Member],
    names: ClassNames,
    /,
    *,
    num_classes: int,
) -> ImageData:
    """Images of class folders, of names `WNID_anything.jpg`, or beside `.cls` files, in archives.

    Parameters
    ----------
    root : Path
        The archive, or the folder of several.
    members : sequence of Member
    names : ClassNames
    num_classes : int
        K of the artifact.

    Returns
    -------
    ImageData
        Sorted by name; a WebDataset in its own order.

    Raises
    ------
    ArtifactError
        If there are no images, one has no class, or a class is none of the artifact's.
    """
    images = [each for each in members if Path(each.name).suffix.lower() in IMAGE_SUFFIXES]
    if not images:
        raise ArtifactError(f"{root}: expected images in the archive, found none")
    classes = {
        (each.path, _key(each.name)): each for each in members if each.name.endswith(CLASS_SUFFIX)
    }
    if classes:
        labels = [_class_of(each, classes) for each in images]
        kind = "WebDataset"
    else:
        images = sorted(images, key=lambda each: each.name)
        folders = [_class_name(each.name) for each in images]
        indices = names.indices(sorted(set(folders)), where=str(root))
        labels = [indices[folder] for folder in folders]
        kind = "tar"
    truths = np.asarray(labels, dtype=np.int64)
    check_labels(truths, num_classes, where=str(root))
    return _data(kind, root, truths, lambda index: images[index].image(), tar_files(root))


def _data(
    kind: str, root: Path, labels: Any, load: Callable[[int], Image], files: Sequence[Path]
) -> ImageData:
    """Clean images by their number."""
    fingerprint = files_fingerprint(root if is_folder(root) else root.parent, files)
    return ImageData(
        kind=kind,
        path=str(root),
        labels=labels,
        load=lambda index, domain, severity: load(index),
        fingerprint=lambda domain, severity: fingerprint,
    )


def _key(name: str) -> str:
    """What the files of one sample share: the name up to the first dot behind the folders."""
    folder, _, base = name.rpartition("/")
    return f"{folder}/{base.partition('.')[0]}"


def _class_of(image: Member, classes: Mapping[tuple[Path, str], Member]) -> int:
    """The number in the file beside an image."""
    beside = classes.get((image.path, _key(image.name)))
    text = "" if beside is None else beside.read().decode(errors="replace").strip()
    if not text.isdecimal():
        raise ArtifactError(
            f"{image.path}: {image.name}: expected a class index in a {CLASS_SUFFIX} file beside "
            f"it, got {text or 'none'!r}"
        )
    return int(text)


def _class_name(name: str) -> str:
    """The class of an image by its folder, or by what its own name begins with."""
    *folders, base = name.split("/")
    wnid = base.partition("_")[0]
    return wnid if WNID.match(wnid) or not folders else folders[-1]


def dataset_files(location: Path, /) -> list[Path]:
    """The files of a data set of the library `datasets`: saved, or Parquet; else none."""
    if not is_folder(location):
        return []
    if is_file(location / SAVED):
        return sorted(location.glob("*.arrow"))
    return sorted([*location.glob("*.parquet"), *location.glob("data/*.parquet")])


def open_dataset(root: Path, files: Sequence[Path], /, *, num_classes: int) -> ImageData:
    """A data set of the library `datasets`, with a column of images and one of class indices.

    Parameters
    ----------
    root : Path
    files : sequence of Path
        As `dataset_files` found them.
    num_classes : int
        K of the artifact.

    Raises
    ------
    BackendUnavailableError
        If the library is not installed.
    ArtifactError
        If it cannot be read, lacks a column, or a label is no class.
    """
    library = require("datasets", extra="eval")
    try:
        if is_file(root / SAVED):
            rows = library.load_from_disk(str(root))
        else:
            names = [str(path) for path in files]
            rows = library.load_dataset("parquet", data_files=names, split="train")
    except (OSError, ValueError, library.exceptions.DatasetsError) as err:
        reason = one_line(err)
        raise ArtifactError(f"{root}: cannot be read as a data set ({reason})") from err
    images = [name for name, kind in rows.features.items() if isinstance(kind, library.Image)]
    # Hub files of Parquet say what is an image; those without the note have the bytes in a struct.
    images += [name for name in ("image", "img") if name in rows.features and name not in images]
    labels = [name for name in ("label", "labels", "fine_label", "cls") if name in rows.features]
    if not images or not labels:
        raise ArtifactError(
            f"{root}: expected a column of images (image) and one of class indices (label), got "
            f"{', '.join(rows.features)}"
        )
    truths = np.asarray(rows[labels[0]], dtype=np.int64)
    check_labels(truths, num_classes, where=str(root))
    rows = rows.cast_column(images[0], library.Image(decode=False)).select_columns([images[0]])

    def load(index: int) -> Image:
        found = rows[index][images[0]]
        data = found["bytes"] if found["bytes"] is not None else Path(found["path"]).read_bytes()
        return decode_image(data, shown=f"{root}: image {index}")

    return _data("datasets", root, truths, load, files)
