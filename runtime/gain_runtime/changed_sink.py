"""Keeping the pictures on which adaptation changed the predicted class."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import cv2

from gain_core.errors import ConfigError, StreamError
from gain_runtime.atomic_file import write_atomically
from gain_runtime.result import FrameResult

__all__ = ["ChangedSink"]

PATTERN = re.compile(r"changed-(\d{10,})\.jpg")
QUALITY = 90

logger = logging.getLogger(__name__)


class ChangedSink:
    """Writes the whole frame as a JPEG and one line about it; the oldest make room for the newest.

    Names go on counting over runs, and `changed.tsv` has one line per picture: file name, frame
    index, class of the source and adapted class.

    Parameters
    ----------
    folder : str or Path
        Created if it is missing.
    most : int, optional
        Pictures kept.

    Raises
    ------
    ConfigError
        If `most` is below 1.
    StreamError
        If the folder cannot be used; from `write`, if it cannot be written.
    """

    def __init__(self, folder: str | Path, /, *, most: int = 1000) -> None:
        if most < 1:
            raise ConfigError(f"--save-changed-most: expected at least 1, got {most}")
        self._folder = Path(folder)
        self._most = most
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            matches = (PATTERN.fullmatch(path.name) for path in self._folder.iterdir())
        except OSError as err:
            raise StreamError(
                f"{folder}: no pictures can be kept there ({err.strerror}); name another folder"
            ) from err
        self._numbers = sorted(int(match[1]) for match in matches if match is not None)
        self._lines = _read_lines(self._folder / "changed.tsv")

    def write(self, result: FrameResult, /) -> None:
        """Keep the frame, if its prediction was changed."""
        if not result.changed:
            return
        number = self._numbers[-1] + 1 if self._numbers else 1
        bgr = cv2.cvtColor(result.frame.image, cv2.COLOR_RGB2BGR)
        data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()
        name = f"changed-{number:010d}.jpg"
        fields = (
            *(name, str(result.frame.index)),
            *(result.source_top[0].label, result.adapted_top[0].label),
        )
        try:
            write_atomically(self._folder / name, data)
            self._numbers.append(number)
            self._lines.append("\t".join(" ".join(field.split()) for field in fields))
            while len(self._numbers) > self._most:
                old = self._folder / f"changed-{self._numbers.pop(0):010d}.jpg"
                old.unlink(missing_ok=True)
            del self._lines[: -self._most]
            text = "".join(f"{line}\n" for line in self._lines)
            write_atomically(self._folder / "changed.tsv", text.encode("utf-8", "replace"))
        except OSError as err:
            raise StreamError(f"{self._folder}: cannot be written ({err.strerror})") from err

    def close(self) -> None:
        """Nothing is held open."""


def _read_lines(path: Path) -> list[str]:
    """The list of an earlier run; none where there is none."""
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
