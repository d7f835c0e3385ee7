"""Folders, globs and single photos as a source, and the class that a folder's name stands for."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import numpy as np

from gain_core.errors import ArtifactError, StreamError
from gain_runtime.files.images import (
    CLASS_FILE,
    IMAGE_SUFFIXES,
    Picture,
    PictureList,
    list_pictures,
    load_picture,
    matching,
)
from gain_runtime.files.paths import file_status, is_file
from gain_runtime.frames import Closing, Frame, SourceInfo
from gain_runtime.sources.uri import has_magic

logger = logging.getLogger(__name__)

COLUMNS = ("index", "wnid", "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassList:
    """Names and WordNet ids of classes.

    `names` by class index need not be contiguous (a subset of ImageNet's 1,000); `wnids` is empty
    where there are none.
    """

    names: Mapping[int, str]
    wnids: Mapping[str, int] = field(default_factory=dict)

    def index_of(self, label: str, /) -> int | None:
        """Class with this WordNet id or name; None for none and for a name two classes share."""
        if label in self.wnids:
            return self.wnids[label]
        matches = [index for index, name in self.names.items() if name == label]
        return matches[0] if len(matches) == 1 else None

    def dense_names(self) -> tuple[str, ...] | None:
        """Names in order of index, or None if an index is missing."""
        if sorted(self.names) != list(range(len(self.names))):
            return None
        return tuple(self.names[index] for index in range(len(self.names)))


def class_list_from_names(names: Sequence[str], /) -> ClassList:
    """Class list whose indices are positions, as those of an artifact's labels."""
    return ClassList(names=dict(enumerate(names)))


def read_class_list(path: Path, /) -> ClassList:
    """Read `classes.tsv`: tab-separated, with the columns `index`, `wnid` and `name`.

    Raises ArtifactError if it is missing, not UTF-8, lacks a column, or repeats an index or a
    WordNet id.
    """
    names: dict[int, str] = {}
    wnids: dict[str, int] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise ArtifactError(
                    f"{path}: expected the tab-separated columns {', '.join(COLUMNS)}, "
                    f"{', '.join(missing)} missing"
                )
            for row in reader:
                index, wnid, name = _row(row, where=f"{path}, line {reader.line_num}")
                if index in names or wnid in wnids:
                    raise ArtifactError(
                        f"{path}, line {reader.line_num}: index {index} or wnid {wnid} repeated"
                    )
                names[index], wnids[wnid] = name, index
    except (OSError, UnicodeDecodeError, csv.Error) as err:
        if isinstance(err, ArtifactError):
            raise
        reason = getattr(err, "strerror", None) or str(err)
        raise ArtifactError(f"{path}: expected a class list (classes.tsv), {reason}") from err
    if not names:
        raise ArtifactError(f"{path}: expected at least one class, got none")
    return ClassList(names=names, wnids=wnids)


def _row(row: Mapping[str, str | None], *, where: str) -> tuple[int, str, str]:
    """Values of one line."""
    index, wnid, name = (row[column] for column in COLUMNS)
    if index is None or not index.isascii() or not index.isdigit() or not wnid or not name:
        raise ArtifactError(
            f"{where}: expected an index from 0, a wnid and a name, got {dict(row)}"
        )
    return int(index), wnid, name


# Photos carry no presentation time; they are stamped as if shown one after another at this rate.
NOMINAL_RATE_HZ = 30.0


class ImageSource(Closing):
    """Photos in the order given, each of its own size.

    A photo that cannot be read is skipped with one warning and counted; it leaves a gap in `index`.
    Of an animated or multi-page file the first picture is used, which is said once. `timestamp_ns`
    is nominal, see `NOMINAL_RATE_HZ`. A frame's own `source_id` is its path below `root`. With
    `classes`, `truth` is the class whose WordNet id the file name begins with
    (`n01440764_tench.jpg`), else the class the file's folder is named after (WordNet id or name),
    else None. Raises StreamError if there are no paths or not one can be read.
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
        # Photos that could not be read so far.
        self.skipped = 0
        self._index = -1
        self._closed = False
        self._with_more = 0
        self._first = self._next()
        if self._first is None:
            raise StreamError(
                f"{source_id}: expected at least one readable image, got none "
                f"({self.skipped} unreadable)"
            )
        height_px, width_px = self._first.pixels.shape[:2]
        # The size is that of the first readable photo; the number counts unreadable ones, too.
        self.info = SourceInfo(
            source_id=source_id,
            width_px=width_px,
            height_px=height_px,
            rate_hz=None,
            num_frames=len(self._paths),
            live=False,
            timed=False,
            class_names=None if classes is None else classes.dense_names(),
        )

    def __iter__(self) -> Iterator[Frame]:
        picture, self._first = self._first, None
        while picture is not None:
            path = self._paths[self._index]
            shown = path.relative_to(self._root) if path.is_relative_to(self._root) else path
            yield Frame(
                image=picture.pixels,
                index=self._index,
                timestamp_ns=round(self._index * 1e9 / NOMINAL_RATE_HZ),
                source_id=shown.as_posix(),
                truth=None if self._classes is None else _truth(path, self._classes),
            )
            picture = self._next()
        if self._with_more > 1 and not self._closed:
            logger.warning(
                "%s: %d files are animated or of several pages; of each the first picture is used",
                *(self.info.source_id, self._with_more),
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
                if len(self._paths) == 1:
                    raise
                self.skipped += 1
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
    """Open the photos of a folder, in natural order (`2.jpg` before `10.jpg`) or a seed's.

    What its files are is told by their names and, where those say nothing, by their first bytes;
    hidden files are passed over, what else is left out is said. With a class list (`classes` or,
    with `own_classes`, the folder's own `classes.tsv`), the photos in sub-folders named after a
    class are taken too, as in an ImageFolder tree. Raises StreamError if the folder cannot be
    listed or holds no readable image, ArtifactError if its `classes.tsv` is malformed.
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
    found = list_pictures(entries, closed)
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
    paths = _in_order(found.paths, shuffle_seed)
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

    As `open_folder` otherwise; its own class list is the `classes.tsv` beside the first photo.
    """
    closed: list[str] = []
    try:
        matches = matching(pattern, closed)
    except OSError as err:
        raise StreamError(f"{pattern}: cannot be searched ({err.strerror})") from err
    found = list_pictures(matches, closed)
    if not found.paths:
        left_out = found.complaint()
        raise StreamError(
            f"{pattern}: expected images, got {len(matches)} matches and no image among them"
            + (f" ({left_out})" if left_out else "")
        )
    _say_left_out(pattern, found)
    paths = _in_order(found.paths, shuffle_seed)
    if classes is None and own_classes:
        classes = _classes_in(paths[0].parent)
    # The folder above the first glob character.
    root = Path(*takewhile(lambda part: not has_magic(part), Path(pattern).parts))
    return ImageSource(paths, source_id=pattern, root=root, classes=classes)


def open_images(
    paths: Sequence[Path],
    /,
    *,
    classes: ClassList | None = None,
    own_classes: bool = True,
    shuffle_seed: int | None = None,
) -> ImageSource:
    """Open at least one photo, named one by one, in the order given; otherwise as `open_glob`."""
    for path in paths:
        if file_status(path, error=StreamError) is None:
            raise StreamError(f"{path}: no such file or folder")
    if classes is None and own_classes:
        classes = _classes_in(paths[0].parent)
    name, root = f"{len(paths)} photos", Path()
    if len(paths) == 1:
        name, root = paths[0].name, paths[0].parent
    paths = _in_order(paths, shuffle_seed)
    return ImageSource(paths, source_id=name, root=root, classes=classes)


def _classes_in(folder: Path) -> ClassList | None:
    """A folder's own class list, if it has one."""
    path = folder / CLASS_FILE
    if not is_file(path, error=StreamError):
        return None
    try:
        return read_class_list(path)
    except ArtifactError as err:
        raise ArtifactError(
            f"{err}; name another with --set truth=FILE, or run without: --set truth=none"
        ) from err


def _say_left_out(where: str, found: PictureList) -> None:
    """What lies there and is not shown."""
    left_out = found.complaint()
    if left_out:
        logger.warning("%s: %d pictures; left out: %s", where, len(found.paths), left_out)


def _in_order(paths: Sequence[Path], shuffle_seed: int | None) -> Sequence[Path]:
    """The paths as they are, or in an order drawn from a seed."""
    if shuffle_seed is None:
        return paths
    order = np.random.default_rng(shuffle_seed).permutation(len(paths))
    return [paths[position] for position in order]


def _truth(path: Path, classes: ClassList) -> int | None:
    """Class a path names."""
    by_file = classes.wnids.get(path.stem.partition("_")[0])
    return by_file if by_file is not None else classes.index_of(path.parent.name)
