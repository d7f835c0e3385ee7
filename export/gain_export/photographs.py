"""Reading a folder of photographs to verify an export on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gain_core.errors import ArtifactError, StreamError
from gain_runtime.file_kind import is_folder
from gain_runtime.image_file import load_image
from gain_runtime.image_folder import pictures_below

__all__ = ["MAX_PHOTOGRAPHS", "iterate_photographs", "read_photographs"]

logger = logging.getLogger(__name__)

MAX_PHOTOGRAPHS = 64


def read_photographs(folder: Path, /) -> list[npt.NDArray[np.uint8]]:
    """Read photographs spread evenly over a folder's sorted file names, upright.

    Parameters
    ----------
    folder : Path
        Searched for pictures, subfolders included; unreadable ones are skipped with a warning.

    Returns
    -------
    list of at most `MAX_PHOTOGRAPHS` arrays, (H, W, 3) uint8 RGB

    Raises
    ------
    ArtifactError
        If there is no such folder, or no readable photograph in it.
    """
    images = list(iterate_photographs(folder, most=MAX_PHOTOGRAPHS))
    if not images:
        raise ArtifactError(
            f"{folder}: expected image files, found none that can be read; give another folder"
        )
    return images


def iterate_photographs(folder: Path, /, *, most: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Read photographs one by one, spread evenly over a folder's sorted file names, upright.

    Parameters
    ----------
    folder : Path
        Searched for pictures, subfolders included; unreadable ones are skipped with a warning.
    most : int
        More files than this are thinned out.

    Yields
    ------
    array, (H, W, 3) uint8 RGB

    Raises
    ------
    ArtifactError
        If there is no such folder.
    """
    if not is_folder(folder, error=ArtifactError):
        raise ArtifactError(f"{folder}: expected a folder of images, found none; check the path")
    found = pictures_below(folder)
    if complaint := found.complaint():
        logger.warning("%s: %d pictures; left out: %s", folder, len(found.paths), complaint)
    paths = sorted(found.paths)
    if len(paths) > most:
        spread = np.linspace(0, len(paths) - 1, most).round().astype(int)
        paths = [paths[position] for position in spread]
    for path in paths:
        try:
            yield load_image(path)
        except StreamError as err:
            logger.warning("%s; skipped", err)
