"""Which pictures lie in a folder or match a pattern, and what was left out."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gain_core.errors import StreamError
from gain_runtime.file_kind import content_of, file_status, read_head
from gain_runtime.image_file import IMAGE_SUFFIXES, RAW_SUFFIXES

__all__ = ["PictureList", "list_pictures", "matching", "natural_key", "pictures_below"]

CLASS_FILE = "classes.tsv"
# What a file is called that is not taken, and what to do about it.
LEFT_OUT = {
    "heif": "HEIC (convert with: heif-convert IN OUT.jpg)",
    "raw": "raw camera files (develop them first)",
    "video": "videos (give each as an INPUT of its own)",
    "pipe": "named pipes (read one with: gain-stream - < PIPE)",
    "unreadable": "that cannot be looked at",
    "other": "other files",
}


@dataclass(slots=True)
class PictureList:
    """Files that are pictures by their first bytes or their names, and what else was met.

    `left_out` counts files that were not taken by kind, `closed` are folders that could not be
    listed, each with the reason.
    """

    paths: list[Path] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    closed: list[str] = field(default_factory=list)

    def complaint(self) -> str:
        """What was left out, as one clause; empty where it was nothing."""
        parts = [f"{count} {LEFT_OUT[kind]}" for kind, count in sorted(self.left_out.items())]
        parts += [f"the folder {closed}" for closed in self.closed]
        return ", ".join(parts)

    def add(self, path: Path, /) -> None:
        """Take a file in, or count why not; folders and hidden files are passed over."""
        if path.name.startswith(".") or path.name == CLASS_FILE:
            return
        kind = _kind(path)
        if kind == "picture":
            self.paths.append(path)
        elif kind != "folder":
            self.left_out[kind] += 1


def list_pictures(entries: Iterable[Path], /) -> PictureList:
    """The pictures among paths, in natural order (`2.jpg` before `10.jpg`).

    Parameters
    ----------
    entries : iterable of Path

    Returns
    -------
    PictureList
    """
    found = PictureList()
    for path in entries:
        found.add(path)
    found.paths.sort(key=natural_key)
    return found


def pictures_below(root: Path, /) -> PictureList:
    """The pictures in a folder and all folders below it, in natural order.

    Parameters
    ----------
    root : Path

    Returns
    -------
    PictureList
    """
    closed: list[str] = []
    entries: list[Path] = []
    for folder in walk(root, closed):
        try:
            entries += folder.iterdir()
        except OSError as err:
            closed.append(f"{folder} ({err.strerror})")
    found = list_pictures(entries)
    found.closed += closed
    return found


def walk(root: Path, closed: list[str], /) -> Iterator[Path]:
    """A folder and every folder below it that is not hidden, each real one once.

    Links to folders are followed, so a link that leads back up would never end.

    Parameters
    ----------
    root : Path
    closed : list of str
        Gets the folders that cannot be listed, each with the reason.
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
    """Everything that a pattern matches; `**` stands for any folders, visited as `walk` does.

    Parameters
    ----------
    pattern : str
    closed : list of str
        Gets the folders that cannot be listed.

    Returns
    -------
    list of Path
    """
    before, stars, after = _split(pattern)
    if not stars:
        return [Path(name) for name in glob.iglob(pattern)]  # noqa: PTH207 - absolute patterns
    found: dict[Path, None] = {}
    for root in [Path(name) for name in glob.iglob(before)] if before else [Path()]:  # noqa: PTH207
        if not root.is_dir():
            continue
        for folder in walk(root, closed):
            inside = f"{glob.escape(str(folder))}/{after or '*'}"
            found.update(dict.fromkeys(matching(inside, closed)))
    return list(found)


def natural_key(path: Path, /) -> list[tuple[int, int, str]]:
    """Sort key in which digits count as numbers; ties are broken by the exact path."""
    key = [
        (0, int(part), part) if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", path.as_posix().casefold())
    ]
    return [*key, (2, 0, path.as_posix())]


def _split(pattern: str) -> tuple[str, bool, str]:
    """What is before the first `**`, whether there is one, and what is after it."""
    parts = pattern.split("/")
    if "**" not in parts:
        return pattern, False, ""
    at = parts.index("**")
    before = "/".join(parts[:at])
    return before or ("/" if pattern.startswith("/") else ""), True, "/".join(parts[at + 1 :])


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
