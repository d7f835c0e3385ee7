"""Labelled images, wherever they come from."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.orders import Order
from gain_core.errors import ArtifactError
from gain_runtime.image_folder import list_pictures

__all__ = ["CLEAN", "Image", "ImageData", "files_fingerprint", "image_files"]

logger = logging.getLogger(__name__)

Image = npt.NDArray[np.uint8]

# The domain of uncorrupted images.
CLEAN = "clean"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageData:
    """N labelled images, the same in every domain.

    Attributes
    ----------
    kind, path : str
        For messages and result files.
    labels : array, (N,) int64
        Indices among the artifact's classes.
    load : callable
        (index, domain, severity) to (H, W, 3) uint8 RGB. Clean data ignores the last two.
    fingerprint : callable
        (domain, severity) to a hash that changes when the images do.
    domains : tuple of str, or None
        Domains on disk; None for clean images, whose corruptions are made on the way.
    default_order : str
        The order to visit them in, unless asked otherwise.
    recorded : tuple of str, or None
        Condition of each image where they are the frames of one recording, in order.
    """

    kind: str
    path: str
    labels: npt.NDArray[np.int64]
    load: Callable[[int, str, float], Image]
    fingerprint: Callable[[str, float], str]
    domains: tuple[str, ...] | None = None
    default_order: Order = "shuffled"
    recorded: tuple[str, ...] | None = None


def image_files(folder: Path, /) -> list[Path]:
    """Images directly in a folder, sorted by name.

    Raises
    ------
    ArtifactError
        If the folder cannot be read.
    """
    try:
        found = list_pictures(folder.iterdir())
    except OSError as err:
        raise ArtifactError(f"{folder}: cannot be read ({err.strerror}); check the path") from err
    # What else lies there (class lists, notes) is no picture by its bytes; HEIC files would be.
    if complaint := found.complaint():
        logger.info("%s: %d pictures; left out: %s", folder, len(found.paths), complaint)
    return sorted(found.paths)


def files_fingerprint(root: Path, paths: Iterable[Path], /) -> str:
    """Hash of names, sizes and modification times: cheap, and changes whenever a file does."""
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
