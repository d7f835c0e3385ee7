"""Folders, globs and single photos as a frame source."""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gain_core.errors import StreamError
from gain_runtime.class_list import ClassList, read_class_list
from gain_runtime.closing import Closing
from gain_runtime.frame import Frame, SourceInfo
from gain_runtime.image_file import IMAGE_SUFFIXES, load_image
from gain_runtime.uri import has_magic

__all__ = ["NOMINAL_RATE_HZ", "ImageSource", "open_folder", "open_glob", "open_image"]

logger = logging.getLogger(__name__)

# Photos carry no presentation time; they are stamped as if shown one after another at this rate.
NOMINAL_RATE_HZ = 30.0
CLASS_FILE = "classes.tsv"


class ImageSource(Closing):
    """Photos in the order given, each of its own size.

    A photo that cannot be read is skipped with one warning and counted; it leaves a gap in
    `index`. `timestamp_ns` is nominal, see `NOMINAL_RATE_HZ`.

    Parameters
    ----------
    paths : sequence of Path
    source_id : str
        What to call the whole; a frame's own `source_id` is its path below `root`.
    root : Path
    classes : ClassList or None
        With it, `truth` is the class whose WordNet id the file name begins with
        (`n01440764_tench.jpg`), else the class the file's folder is named after (WordNet id or
        name), else None.

    Raises
    ------
    StreamError
        If there are no paths or not one of them can be read.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        /,
        *,
        source_id: str,
        root: Path,
        classes: ClassList | None = None,
    ) -> None:
        self._paths = list(paths)
        self._root = root
        self._classes = classes
        self._skipped = 0
        self._index = -1
        self._closed = False
        self._first = self._next()
        if self._first is None:
            raise StreamError(
                f"{source_id}: expected at least one readable image, got none "
                f"({self._skipped} unreadable)"
            )
        height_px, width_px = self._first.shape[:2]
        self._info = SourceInfo(
            source_id=source_id,
            width_px=width_px,
            height_px=height_px,
            rate_hz=None,
            num_frames=len(self._paths),
            live=False,
            class_names=None if classes is None else classes.dense_names(),
        )

    @property
    def info(self) -> SourceInfo:
        """Size of the first readable photo; `num_frames` counts the unreadable ones too."""
        return self._info

    @property
    def skipped(self) -> int:
        """Photos that could not be read so far."""
        return self._skipped

    def __iter__(self) -> Iterator[Frame]:
        image, self._first = self._first, None
        while image is not None:
            path = self._paths[self._index]
            yield Frame(
                image=image,
                index=self._index,
                timestamp_ns=round(self._index * 1e9 / NOMINAL_RATE_HZ),
                source_id=_relative(path, self._root),
                truth=None if self._classes is None else _truth(path, self._classes),
            )
            image = self._next()

    def close(self) -> None:
        """End the iteration; no file is held open between frames."""
        self._closed = True

    def _next(self) -> npt.NDArray[np.uint8] | None:
        """Next readable photo, or None at the end."""
        while self._index + 1 < len(self._paths) and not self._closed:
            self._index += 1
            try:
                return load_image(self._paths[self._index])
            except StreamError as err:
                self._skipped += 1
                logger.warning("skipped: %s", err)
        return None


def open_folder(
    folder: Path, /, *, classes: ClassList | None = None, shuffle_seed: int | None = None
) -> ImageSource:
    """Open the photos of a folder, in natural order (`2.jpg` before `10.jpg`).

    Parameters
    ----------
    folder : Path
        Hidden files and files without an image suffix are left out.
    classes : ClassList or None
        If None, the folder's own `classes.tsv` is used where there is one. With a class list,
        the photos in sub-folders named after a class are taken too, as in an ImageFolder tree.
    shuffle_seed : int or None
        With it, the photos come in an order drawn from it instead.

    Returns
    -------
    ImageSource

    Raises
    ------
    StreamError
        If the folder cannot be listed or holds no readable image.
    ArtifactError
        If its `classes.tsv` is malformed.
    """
    classes = classes or _classes_in(folder)
    try:
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
        folders = [entry for entry in entries if entry.is_dir()]
        if classes is not None:
            for child in folders:
                if classes.index_of(child.name) is not None:
                    entries += child.iterdir()
    except OSError as err:
        raise StreamError(f"{folder}: cannot be listed ({err.strerror})") from err
    paths = _images(entries, shuffle_seed)
    if not paths:
        hint = (
            f"it has {len(folders)} sub-folders: name their class list, or pass the glob "
            f"'{folder}/**/*.jpg'"
            if folders
            else f"image files end in {', '.join(sorted(IMAGE_SUFFIXES))}"
        )
        raise StreamError(f"{folder}: expected a folder with images, got none; {hint}")
    source = ImageSource(paths, source_id=folder.name or str(folder), root=folder, classes=classes)
    if classes is not None and all(_truth(path, classes) is None for path in paths):
        logger.warning("%s: no file or folder name matches a class, so truth is unknown", folder)
    return source


def open_glob(
    pattern: str, /, *, classes: ClassList | None = None, shuffle_seed: int | None = None
) -> ImageSource:
    """Open the photos a pattern matches (`**` descends), in natural order.

    Parameters
    ----------
    pattern : str
    classes : ClassList or None
        If None, `classes.tsv` beside the first photo is used where there is one.
    shuffle_seed : int or None
        With it, the photos come in an order drawn from it instead.

    Returns
    -------
    ImageSource

    Raises
    ------
    StreamError
        If it matches no readable image.
    ArtifactError
        If that `classes.tsv` is malformed.
    """
    # Path.glob takes no absolute patterns.
    found = [Path(name) for name in glob.iglob(pattern, recursive=True)]  # noqa: PTH207
    paths = _images(found, shuffle_seed)
    if not paths:
        raise StreamError(
            f"{pattern}: expected images, got {len(found)} matches and no image among them"
        )
    classes = classes or _classes_in(paths[0].parent)
    return ImageSource(paths, source_id=pattern, root=_fixed_part(pattern), classes=classes)


def open_image(path: Path, /, *, classes: ClassList | None = None) -> ImageSource:
    """Open one photo as a source of one frame.

    Parameters
    ----------
    path : Path
    classes : ClassList or None
        If None, `classes.tsv` beside it is used where there is one.

    Returns
    -------
    ImageSource

    Raises
    ------
    StreamError
        If it is missing or cannot be read.
    ArtifactError
        If that `classes.tsv` is malformed.
    """
    if not path.exists():
        raise StreamError(f"{path}: no such file or folder")
    classes = classes or _classes_in(path.parent)
    return ImageSource([path], source_id=path.name, root=path.parent, classes=classes)


def _classes_in(folder: Path) -> ClassList | None:
    """A folder's own class list, if it has one."""
    path = folder / CLASS_FILE
    return read_class_list(path) if path.is_file() else None


def _images(entries: Sequence[Path], shuffle_seed: int | None) -> list[Path]:
    """Image files among paths, in natural order or in an order drawn from a seed."""
    files = [
        path
        for path in entries
        if path.suffix.lower() in IMAGE_SUFFIXES
        and not path.name.startswith(".")
        and not path.is_dir()
    ]
    paths = sorted(files, key=_natural_key)
    if shuffle_seed is None:
        return paths
    order = np.random.default_rng(shuffle_seed).permutation(len(paths))
    return [paths[position] for position in order]


def _natural_key(path: Path) -> list[tuple[int, int, str]]:
    """Sort key in which digits count as numbers; ties are broken by the exact path."""
    key = [
        (0, int(part), part) if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", path.as_posix().casefold())
    ]
    return [*key, (2, 0, path.as_posix())]


def _fixed_part(pattern: str) -> Path:
    """Folder above the first glob character."""
    return Path(*takewhile(lambda part: not has_magic(part), Path(pattern).parts))


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def _truth(path: Path, classes: ClassList) -> int | None:
    """Class a path names."""
    by_file = classes.wnids.get(path.stem.partition("_")[0])
    return by_file if by_file is not None else classes.index_of(path.parent.name)
