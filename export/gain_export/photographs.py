"""Reading a folder of photographs to verify an export on."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gain_core.errors import ArtifactError, StreamError
from gain_runtime.image_file import IMAGE_SUFFIXES, load_image

__all__ = ["MAX_PHOTOGRAPHS", "read_photographs"]

logger = logging.getLogger(__name__)

MAX_PHOTOGRAPHS = 64


def read_photographs(folder: Path, /) -> list[npt.NDArray[np.uint8]]:
    """Read photographs spread evenly over a folder's sorted file names, upright.

    Parameters
    ----------
    folder : Path
        Searched for image files, subfolders included; unreadable ones are skipped with a warning.

    Returns
    -------
    list of at most `MAX_PHOTOGRAPHS` arrays, (H, W, 3) uint8 RGB

    Raises
    ------
    ArtifactError
        If there is no such folder, or no readable photograph in it.
    """
    if not folder.is_dir():
        raise ArtifactError(f"{folder}: expected a folder of images, found none; check the path")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    if len(paths) > MAX_PHOTOGRAPHS:
        spread = np.linspace(0, len(paths) - 1, MAX_PHOTOGRAPHS).round().astype(int)
        paths = [paths[position] for position in spread]
    images = []
    for path in paths:
        try:
            images.append(load_image(path))
        except StreamError as err:
            logger.warning("%s; skipped", err)
    if not images:
        raise ArtifactError(
            f"{folder}: expected image files, found none that can be read; give another folder"
        )
    return images
