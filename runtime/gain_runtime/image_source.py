"""Folders, globs and single photos as a frame source."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np

from gain_core.errors import StreamError
from gain_runtime.class_list import ClassList, read_class_list
from gain_runtime.closing import Closing
from gain_runtime.file_kind import file_status, is_file
from gain_runtime.frame import Frame, SourceInfo
from gain_runtime.image_file import IMAGE_SUFFIXES, Picture, load_picture
from gain_runtime.image_folder import CLASS_FILE, PictureList, list_pictures, matching
from gain_runtime.uri import has_magic

__all__ = [
    "NOMINAL_RATE_HZ",
    "ImageSource",
    "open_folder",
    "open_glob",
    "open_image",
    "open_images",
]

logger = logging.getLogger(__name__)

# Photos carry no presentation time; they are stamped as if shown one after another at this rate.
NOMINAL_RATE_HZ = 30.0


class ImageSource(Closing):
    """Photos in the order given, each of its own size.

    A photo that cannot be read is skipped with one warning and counted; it leaves a gap in
    `index`. Of an animated or multi-page file the first picture is used, which is said once.
    `timestamp_ns` is nominal, see `NOMINAL_RATE_HZ`.

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
        self._with_more = 0
        self._first = self._next()
        if self._first is None:
            raise StreamError(
                f"{source_id}: expected at least one readable image, got none "
                f"({self._skipped} unreadable)"
            )
        height_px, width_px = self._first.pixels.shape[:2]
        self._info = SourceInfo(
            source_id=source_id,
            width_px=width_px,
            height_px=height_px,
            rate_hz=None,
            num_frames=len(self._paths),
            live=False,
            timed=False,
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
        picture, self._first = self._first, None
        while picture is not None:
            path = self._paths[self._index]
            yield Frame(
                image=picture.pixels,
                index=self._index,
                timestamp_ns=round(self._index * 1e9 / NOMINAL_RATE_HZ),
                source_id=_relative(path, self._root),
                truth=None if self._classes is None else _truth(path, self._classes),
            )
            picture = self._next()
        if self._with_more > 1 and not self._closed:
            logger.warning(
                "%s: %d files are animated or of several pages; of each the first picture is used",
                *(self._info.source_id, self._with_more),
            )

    def close(self) -> None:
        """End the iteration; no file is held open between frames."""
        self._closed = True

    def _next(self) -> Picture | None:
        """Next readable photo, or None at the end."""
        while self._index + 1 < len(self._paths) and not self._closed:
            self._index += 1
            path = self._paths[self._index]
            try:
                picture = load_picture(path)
            except StreamError as err:
                self._skipped += 1
                logger.warning("skipped: %s", err)
                continue
            if picture.has_more:
                self._with_more += 1
                if self._with_more == 1:
                    logger.warning(
                        "%s: animated or of several pages; its first picture is used", path
                    )
            return picture
        return None


def open_folder(
    folder: Path,
    /,
    *,
    classes: ClassList | None = None,
    own_classes: bool = True,
    shuffle_seed: int | None = None,
) -> ImageSource:
    """Open the photos of a folder, in natural order (`2.jpg` before `10.jpg`).

    Parameters
    ----------
    folder : Path
        What its files are is told by their names and, where those say nothing, by their first
        bytes; hidden files are passed over, what else is left out is said.
    classes : ClassList or None
        With a class list, the photos in sub-folders named after a class are taken too, as in an
        ImageFolder tree.
    own_classes : bool
        Whether the folder's own `classes.tsv` is used where there is one and `classes` is None.
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
    closed: list[str] = []
    if classes is None and own_classes:
        classes = _classes_in(folder)
    try:
        entries = list(folder.iterdir())
        folders = [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError as err:
        raise StreamError(f"{folder}: cannot be listed ({err.strerror})") from err
    for child in folders if classes is not None else []:
        if classes is not None and classes.index_of(child.name) is not None:
            try:
                entries += child.iterdir()
            except OSError as err:
                closed.append(f"{child} ({err.strerror})")
    found = list_pictures(entries)
    found.closed += closed
    if not found.paths:
        hint = (
            f"it has {len(folders)} sub-folders: name their class list, or pass the glob "
            f"'{folder}/**/*.jpg'"
            if folders
            else f"image files end in {', '.join(sorted(IMAGE_SUFFIXES))}"
        )
        left_out = found.complaint()
        raise StreamError(
            f"{folder}: expected a folder with images, got none"
            + (f"; left out: {left_out}" if left_out else "")
            + f"; {hint}"
        )
    _say_left_out(str(folder), found)
    paths = _in_order(found, shuffle_seed)
    source = ImageSource(paths, source_id=folder.name or str(folder), root=folder, classes=classes)
    if classes is not None and all(_truth(path, classes) is None for path in paths):
        logger.warning("%s: no file or folder name matches a class, so truth is unknown", folder)
    return source


def open_glob(
    pattern: str,
    /,
    *,
    classes: ClassList | None = None,
    own_classes: bool = True,
    shuffle_seed: int | None = None,
) -> ImageSource:
    """Open the photos a pattern matches (`**` descends, into each real folder once).

    Parameters
    ----------
    pattern : str
    classes : ClassList or None
    own_classes : bool
        Whether `classes.tsv` beside the first photo is used where there is one and `classes` is
        None.
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
    closed: list[str] = []
    try:
        matches = matching(pattern, closed)
    except OSError as err:
        raise StreamError(f"{pattern}: cannot be looked for ({err.strerror})") from err
    found = list_pictures(matches)
    found.closed += closed
    if not found.paths:
        left_out = found.complaint()
        raise StreamError(
            f"{pattern}: expected images, got {len(matches)} matches and no image among them"
            + (f" ({left_out})" if left_out else "")
        )
    _say_left_out(pattern, found)
    paths = _in_order(found, shuffle_seed)
    if classes is None and own_classes:
        classes = _classes_in(paths[0].parent)
    return ImageSource(paths, source_id=pattern, root=_fixed_part(pattern), classes=classes)


def open_image(
    path: Path, /, *, classes: ClassList | None = None, own_classes: bool = True
) -> ImageSource:
    """Open one photo as a source of one frame; see `open_images`."""
    return open_images([path], classes=classes, own_classes=own_classes)


def open_images(
    paths: Sequence[Path],
    /,
    *,
    classes: ClassList | None = None,
    own_classes: bool = True,
    shuffle_seed: int | None = None,
) -> ImageSource:
    """Open photos that were named one by one, in the order given.

    Parameters
    ----------
    paths : sequence of Path
        At least one.
    classes : ClassList or None
    own_classes : bool
        Whether `classes.tsv` beside the first photo is used where there is one and `classes` is
        None.
    shuffle_seed : int or None
        With it, the photos come in an order drawn from it instead.

    Returns
    -------
    ImageSource

    Raises
    ------
    StreamError
        If one is missing or none can be read.
    ArtifactError
        If that `classes.tsv` is malformed.
    """
    for path in paths:
        if file_status(path, error=StreamError) is None:
            raise StreamError(f"{path}: no such file or folder")
    if classes is None and own_classes:
        classes = _classes_in(paths[0].parent)
    if len(paths) == 1:
        name, root = paths[0].name, paths[0].parent
    else:
        name, root = f"{len(paths)} photos", Path()
    return ImageSource(
        _in_order(PictureList(list(paths)), shuffle_seed),
        source_id=name,
        root=root,
        classes=classes,
    )


def _classes_in(folder: Path) -> ClassList | None:
    """A folder's own class list, if it has one."""
    path = folder / CLASS_FILE
    return read_class_list(path) if is_file(path, error=StreamError) else None


def _say_left_out(where: str, found: PictureList) -> None:
    """What lies there and is not shown."""
    left_out = found.complaint()
    if left_out:
        logger.warning("%s: %d pictures; left out: %s", where, len(found.paths), left_out)


def _in_order(found: PictureList, shuffle_seed: int | None) -> list[Path]:
    """The paths as they are, or in an order drawn from a seed."""
    if shuffle_seed is None:
        return found.paths
    order = np.random.default_rng(shuffle_seed).permutation(len(found.paths))
    return [found.paths[position] for position in order]


def _fixed_part(pattern: str) -> Path:
    """Folder above the first glob character."""
    return Path(*takewhile(lambda part: not has_magic(part), Path(pattern).parts))


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def _truth(path: Path, classes: ClassList) -> int | None:
    """Class a path names."""
    by_file = classes.wnids.get(path.stem.partition("_")[0])
    return by_file if by_file is not None else classes.index_of(path.parent.name)
