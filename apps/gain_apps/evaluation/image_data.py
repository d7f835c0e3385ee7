"""Labelled images and their class names: `.npz` arrays, tar files, WebDataset, `datasets`."""

from __future__ import annotations

import hashlib
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.streams import Order
from gain_core.errors import (
    ArtifactError,
    BackendUnavailableError,
    ConfigError,
    StreamError,
    one_line,
)
from gain_runtime.files.images import CLASS_FILE, IMAGE_SUFFIXES, decode_image
from gain_runtime.files.paths import is_file, is_folder
from gain_runtime.optional import require
from gain_runtime.sources.images import class_list_from_names, read_class_list

Image = npt.NDArray[np.uint8]

# The domain of uncorrupted images.
CLEAN = "clean"
WNID = re.compile(r"^n\d{8}$")
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageData:
    """N labelled images, the same in every domain.

    `load` gives (H, W, 3) uint8 RGB by index, domain and severity, the last two of which clean data
    ignores; `fingerprint` a hash by domain and severity that changes when the images do.
    """

    kind: str
    path: str
    labels: npt.NDArray[np.int64]
    load: Callable[[int, str, float], Image]
    fingerprint: Callable[[str, float], str]
    # Those on disk; None for clean images, whose corruptions are made on the way.
    domains: tuple[str, ...] | None = None
    default_order: Order = "shuffled"
    # Condition of each image where they are the frames of one recording, in order.
    recorded: tuple[str, ...] | None = None


def clean_data(
    kind: str,
    path: str | Path,
    labels: Any,
    load: Callable[[int], Image],
    /,
    *,
    fingerprint: str,
    recorded: tuple[str, ...] | None = None,
) -> ImageData:
    """Images by their number, the same whichever domain they are to be corrupted to."""
    return ImageData(
        kind=kind,
        path=str(path),
        labels=np.asarray(labels, dtype=np.int64),
        load=lambda index, domain, severity: load(index),
        fingerprint=lambda domain, severity: fingerprint,
        recorded=recorded,
    )


def image_files(folder: Path, /) -> list[Path]:
    """Images directly in a folder, sorted by name; `ArtifactError` if it cannot be read."""
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
    """Looks class names up: in a class list, among the artifact's K labels, in ImageNet's order.

    Where no class file is named, a `classes.tsv` in the data's root is read; one that is missing or
    malformed is an `ArtifactError`.
    """

    def __init__(
        self, labels: Sequence[str], /, *, root: Path, class_file: Path | None = None
    ) -> None:
        beside = root / CLASS_FILE
        if class_file is None and is_folder(root) and is_file(beside):
            class_file = beside
        self._num_classes = len(labels)
        listed = [] if class_file is None else [read_class_list(class_file)]
        self._lists = [*listed, class_list_from_names(labels)]

    def indices(self, names: Sequence[str], /, *, where: str) -> dict[str, int]:
        """Class index of every name.

        Names are WordNet ids, class names, or class indices (as ImageNet-V2's folders are called,
        whose order by name is not that of the classes). One that stands for no class of the
        artifact is an `ArtifactError`, which says where.
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
        found = (each.index_of(name) for each in self._lists)
        return next((index for index in found if index is not None), None)

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


def open_arrays(path: Path, /, *, num_classes: int) -> ImageData:
    """`images` (N, H, W, 3) uint8 RGB and `labels` (N,) from an `.npz` file.

    `ArtifactError` if it is damaged, lacks an array, has one of another shape or a label of no
    class.
    """
    wanted = ("images", "labels")
    try:
        # Opened here: NumPy leaves a file that is no archive open, and loads an array by any name.
        with path.open("rb") as file, np.lib.npyio.NpzFile(file) as archive:
            names = archive.files
            arrays = {name: archive[name] for name in wanted if name in names}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as err:
        raise ArtifactError(f"{path}: cannot be read ({err}); copy the file again") from err
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise ArtifactError(
            f"{path}: expected the arrays images and labels, {', '.join(missing)} missing; "
            f"it has {', '.join(names) or 'none'}"
        )
    images, labels = arrays["images"], arrays["labels"]
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
    return clean_data("arrays", path, labels, lambda index: images[index], fingerprint=sha256)


def check_labels(labels: npt.NDArray[Any], num_classes: int, /, *, where: str) -> None:
    """Refuse a label that is no class, with an `ArtifactError`."""
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ArtifactError(
            f"{where}: labels: expected class indices in [0, {num_classes}) as the artifact has, "
            f"got {labels.min()} to {labels.max()}"
        )


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
        """Its bytes; `StreamError` if the archive cannot be read, or ends before them."""
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
        """Its picture; `StreamError` if it is none, or damaged."""
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

    An archive that is damaged, compressed or cannot be read is an `ArtifactError`.
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

    Sorted by name; a WebDataset is in its own order. `ArtifactError` if there are no images, one
    has no class, or a class is none of the artifact's K.
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
    fingerprint = files_fingerprint(root if is_folder(root) else root.parent, tar_files(root))
    return clean_data(
        kind, root, truths, lambda index: images[index].image(), fingerprint=fingerprint
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

    `BackendUnavailableError` if the library is not installed, `ArtifactError` if the files cannot
    be read, lack a column, or a label is no class.
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

    fingerprint = files_fingerprint(root, files)
    return clean_data("datasets", root, truths, load, fingerprint=fingerprint)
