"""Pictures on disk: one as upright 8-bit RGB, and which lie in a folder or match a pattern."""

from __future__ import annotations

import ctypes
import glob
import io
import logging
import os
import re
import stat
import struct
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image, UnidentifiedImageError

from gain_core.errors import StreamError
from gain_runtime.files.paths import Content, content_of, file_status, read_head, regular_file

logger = logging.getLogger(__name__)

# What Pillow itself refuses by default: 0.5 GB as RGB.
MOST_PIXELS = 178_956_970
_PHOTO = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".avif", ".jp2")
_SCIENCE = (".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
IMAGE_SUFFIXES = frozenset((*_PHOTO, *_SCIENCE))
_RAW_A = (".dng", ".nef", ".nrw", ".arw", ".sr2", ".cr2", ".cr3", ".crw", ".orf", ".raf", ".rw2")
_RAW_B = (".pef", ".srw", ".x3f", ".3fr", ".iiq", ".kdc", ".dcr", ".erf", ".mef", ".mos")
RAW_SUFFIXES = frozenset((*_RAW_A, *_RAW_B))
ORIENTATION, SUBFILE_TYPE, SUB_IFDS, DNG_VERSION = 0x0112, 254, 330, 50706
# By the value of the orientation tag.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
RAW_HINT = "raw data of a camera; develop it to JPEG or TIFF first"
REFUSED: dict[Content, str] = {
    "heif": "HEIC or HEIF, which is not read here; convert it: heif-convert IN OUT.jpg",
    "raw": RAW_HINT,
    "video": "a video, not a picture",
    "lfs pointer": "the pointer that Git LFS left in its place; fetch it with: git lfs pull",
}


class Picture(NamedTuple):
    """A decoded picture: (H, W, 3) uint8 RGB, and whether its file holds others besides."""

    pixels: npt.NDArray[np.uint8]
    has_more: bool


def load_image(path: Path, /) -> npt.NDArray[np.uint8]:
    """Decode a picture as (H, W, 3) uint8 RGB, upright, 16 bits scaled to 8, alpha laid over white.

    Any format Pillow reads, whatever the file's name; of an animated or multi-page file the first
    picture. Raises StreamError if it is missing, no regular file, damaged, cut short, no picture,
    raw data of a camera, of more than `MOST_PIXELS`, or of floating-point pixels.
    """
    picture = load_picture(path)
    if picture.has_more:
        logger.info("%s: animated or of several pages; its first picture is used", path)
    return picture.pixels


def load_picture(path: Path, /) -> Picture:
    """As `load_image`, and whether the file holds further pictures."""
    regular_file(path)
    head = read_head(path)
    reason = REFUSED.get(content_of(head))
    if not head:
        reason = "an empty file"
    elif reason is None and path.suffix.lower() in RAW_SUFFIXES:
        reason = RAW_HINT
    if reason is not None:
        raise StreamError(f"{path}: expected a readable image ({reason})")
    try:
        with path.open("rb") as stream:
            return _decode(stream, str(path))
    except OSError as err:
        if isinstance(err, StreamError):
            raise
        raise StreamError(f"{path}: cannot be read ({err.strerror})") from err


def decode_image(data: bytes, /, *, shown: str) -> npt.NDArray[np.uint8]:
    """Decode a picture in memory, as `load_image` does a file; errors call it `shown`."""
    return _decode(io.BytesIO(data), shown).pixels


def _decode(stream: IO[bytes], shown: str) -> Picture:
    try:
        with _quiet, Image.open(stream) as image:
            if image.width * image.height > MOST_PIXELS:
                raise Image.DecompressionBombError
            if _is_raw(image):
                raise ValueError(RAW_HINT)
            has_more = image.format != "MPO" and bool(getattr(image, "is_animated", False))
            turn = TURNS.get(_orientation(image))
            upright = image if turn is None else image.transpose(turn)
            return Picture(np.array(_to_rgb(upright)), has_more)
    except Exception as err:
        # Pillow's plug-ins raise whatever their parsing of a damaged file runs into.
        raise StreamError(f"{shown}: expected a readable image ({_reason(err)})") from err


def _orientation(image: Image.Image) -> int:
    """The value of one tag; broken ones beside it say nothing about the picture."""
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # noqa: BLE001 - metadata that cannot be read is none
        return 1


def _is_raw(image: Image.Image) -> bool:
    """Whether a TIFF is a camera's raw file, of which Pillow reads the thumbnail."""
    tags = getattr(image, "tag_v2", None)
    if image.format != "TIFF" or tags is None:
        return False
    if DNG_VERSION in tags:
        return True
    reduced = tags.get(SUBFILE_TYPE, 0)
    return isinstance(reduced, int) and bool(reduced & 1) and SUB_IFDS in tags


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow mode to RGB without losing range or inventing colour."""
    if image.mode.startswith("I"):
        # Pillow's own conversion clips at 255; 16-bit files use 0..65535.
        wide = np.asarray(image).astype(np.int64).clip(0, 65535)
        return Image.fromarray(((wide * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("floating-point pixels have no defined range; save it with 8 or 16 bits")
    if image.has_transparency_data:
        over_white = Image.new("RGBA", image.size, "white")
        over_white.alpha_composite(image.convert("RGBA"))
        return over_white.convert("RGB")
    return image.convert("RGB")


def _reason(err: BaseException) -> str:
    """One line of why Pillow gave up."""
    if isinstance(err, UnidentifiedImageError):
        return "no image format known here"
    if isinstance(err, Image.DecompressionBombError):
        return f"more than {MOST_PIXELS:,} pixels; scale it down first"
    if isinstance(err, MemoryError):
        return "not enough memory for it"
    if isinstance(err, struct.error):
        return "cut short"
    text = str(getattr(err, "strerror", None) or err).splitlines()
    return text[0] if text else type(err).__name__


class _Quiet:
    """Keeps Pillow's warnings from stderr while any thread decodes; what fails is an error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._filters = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.simplefilter("ignore")

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._filters.__exit__(None, None, None)


def _silence_libtiff() -> None:
    """Keep libtiff, which Pillow's module is linked with, from writing to stderr by itself."""
    try:
        library = ctypes.CDLL(PIL._imaging.__file__)
        library.TIFFSetErrorHandler(None)
    except (OSError, AttributeError):
        logger.debug("libtiff's messages cannot be silenced here")


_quiet = _Quiet()
_silence_libtiff()


CLASS_FILE = "classes.tsv"
# What a file is called that is not taken, and what to do about it.
LEFT_OUT = {
    "heif": "HEIC (convert with: heif-convert IN OUT.jpg)",
    "raw": "raw camera files (develop them first)",
    "video": "videos (give each as an INPUT of its own)",
    "pipe": "named pipes (read one with: gain-stream - < PIPE)",
    "unreadable": "that cannot be accessed",
    "other": "other files",
}


@dataclass(slots=True)
class PictureList:
    """Files that are pictures by their first bytes or their names, and what was left out.

    `left_out` counts other files by kind; `closed` are folders that could not be listed, each with
    the reason.
    """

    paths: list[Path] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    closed: list[str] = field(default_factory=list)

    def complaint(self) -> str:
        """What was left out, as text for messages; empty if nothing was."""
        parts = [f"{count} {LEFT_OUT[kind]}" for kind, count in sorted(self.left_out.items())]
        parts += [f"the folder {closed}" for closed in self.closed]
        return ", ".join(parts)


def list_pictures(entries: Iterable[Path], closed: list[str], /) -> PictureList:
    """The pictures among paths, in natural order (`2.jpg` before `10.jpg`).

    Folders and hidden files are passed over; `closed` goes into the result.
    """
    found = PictureList(closed=closed)
    for path in entries:
        if path.name.startswith(".") or path.name == CLASS_FILE:
            continue
        kind = _kind(path)
        if kind == "picture":
            found.paths.append(path)
        elif kind != "folder":
            found.left_out[kind] += 1
    found.paths.sort(key=_natural_key)
    return found


def pictures_below(root: Path, /) -> PictureList:
    """The pictures in a folder and all folders below it, in natural order."""
    closed: list[str] = []
    return list_pictures(matching(f"{glob.escape(str(root))}/**", closed), closed)


def walk(root: Path, closed: list[str], /) -> Iterator[Path]:
    """A folder and every folder below it that is not hidden, each real one once.

    Links to folders are followed, so a link that leads back up would never end. Folders that cannot
    be listed are added to `closed`, each with the reason.
    """
    seen: set[tuple[int, int]] = set()
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                below = [folder / item.name for item in entries if _is_visible_folder(item)]
        except OSError as err:
            closed.append(f"{folder} ({err.strerror})")
            continue
        yield folder
        waiting += sorted(below, reverse=True)


def matching(pattern: str, closed: list[str], /) -> list[Path]:
    """Every path that a pattern matches; `**` stands for any folders, visited as `walk` does."""
    parts = pattern.split("/")
    if "**" not in parts:
        return [Path(name) for name in glob.iglob(pattern)]  # noqa: PTH207 - absolute patterns
    at = parts.index("**")
    before, after = "/".join(parts[:at]), "/".join(parts[at + 1 :])
    if not before and pattern.startswith("/"):
        before = "/"
    found: dict[Path, None] = {}
    for root in [Path(name) for name in glob.iglob(before)] if before else [Path()]:  # noqa: PTH207
        if not root.is_dir():
            continue
        for folder in walk(root, closed):
            inside = f"{glob.escape(str(folder))}/{after or '*'}"
            found.update(dict.fromkeys(matching(inside, closed)))
    return list(found)


def _natural_key(path: Path, /) -> list[tuple[int, int, str]]:
    """Sort key in which digits count as numbers; ties are broken by the exact path."""
    key = [
        (0, int(part), part) if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", path.as_posix().casefold())
    ]
    return [*key, (2, 0, path.as_posix())]


def _is_visible_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return not entry.name.startswith(".") and entry.is_dir()
    except OSError:
        return False


def _kind(path: Path) -> str:
    """`picture`, `folder`, or why a file is not taken."""
    suffix = path.suffix.lower()
    try:
        status = file_status(path, error=StreamError)
        if status is None:
            raise StreamError(f"{path}: no such file or folder")
        if stat.S_ISDIR(status.st_mode):
            return "folder"
        if stat.S_ISFIFO(status.st_mode):
            return "pipe"
        if not stat.S_ISREG(status.st_mode):
            return "other"
        if suffix in RAW_SUFFIXES:
            return "raw"
        if suffix in IMAGE_SUFFIXES:
            return "picture"
        content = content_of(read_head(path))
    except StreamError:
        # What is called a picture is counted where it is loaded, with the reason.
        return "picture" if suffix in IMAGE_SUFFIXES else "unreadable"
    return "other" if content == "lfs pointer" else content
