"""Images to verify an export on: a folder of photographs, or structured pictures made by code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gain_core.errors import ArtifactError, StreamError
from gain_runtime.files.images import load_image, pictures_below
from gain_runtime.files.paths import is_folder

__all__ = [
    "MAX_PHOTOGRAPHS",
    "iterate_photographs",
    "read_photographs",
    "synthetic_images",
]

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


# Landscape, portrait, square, smaller and larger than common network inputs.
_SIZES = ((480, 640), (320, 213), (256, 256), (180, 320), (250, 375), (300, 200))

Canvas = npt.NDArray[np.float32]


def synthetic_images(count: int, /, *, seed: int = 0) -> list[npt.NDArray[np.uint8]]:
    """Draw images with edges, smooth areas and texture, unlike noise, at non-square sizes.

    Noise averages out in a network's first layers, so that two networks that differ agree on it.

    Parameters
    ----------
    count : int
    seed : int, optional

    Returns
    -------
    list of arrays, (H, W, 3) uint8 RGB
        The same for the same arguments.
    """
    rng = np.random.default_rng(seed)
    kinds: tuple[Callable[[Canvas, np.random.Generator], Canvas], ...] = (_shapes, _texture, _both)
    images = []
    for index in range(count):
        canvas = _gradient(_SIZES[index % len(_SIZES)], rng)
        canvas = kinds[index % len(kinds)](canvas, rng)
        canvas += 0.02 * rng.standard_normal(canvas.shape, dtype=np.float32)
        images.append((canvas.clip(0.0, 1.0) * 255.0).round().astype(np.uint8))
    return images


def _grid(canvas: Canvas) -> tuple[Canvas, Canvas]:
    """Row and column coordinates in [0, 1]."""
    height, width = canvas.shape[:2]
    rows = np.linspace(0, 1, height, dtype=np.float32)[:, None]
    return rows, np.linspace(0, 1, width, dtype=np.float32)[None, :]


def _gradient(size: tuple[int, int], rng: np.random.Generator) -> Canvas:
    """A colour gradient in a random direction."""
    canvas = np.zeros((*size, 3), dtype=np.float32)
    rows, columns = _grid(canvas)
    angle = rng.uniform(0, 2 * np.pi)
    ramp = (np.cos(angle) * rows + np.sin(angle) * columns)[..., None]
    start, end = rng.random(size=(2, 3), dtype=np.float32)
    colours: Canvas = start + (end - start) * (ramp - ramp.min()) / np.ptp(ramp)
    return colours


def _texture(canvas: Canvas, rng: np.random.Generator) -> Canvas:
    """A sum of waves over the picture, different in every colour plane."""
    rows, columns = _grid(canvas)
    for _ in range(4):
        across, down = rng.uniform(-40, 40, size=2)
        phase, strength = rng.uniform(0, 2 * np.pi, size=3), rng.uniform(0.05, 0.2, size=3)
        wave = 2 * np.pi * (across * columns + down * rows)
        canvas = canvas + (strength * np.sin(wave[..., None] + phase)).astype(np.float32)
    return canvas


def _shapes(canvas: Canvas, rng: np.random.Generator) -> Canvas:
    """Filled ellipses and rectangles with hard edges."""
    rows, columns = _grid(canvas)
    canvas = canvas.copy()
    for index in range(12):
        centre, radius = rng.uniform(0.1, 0.9, size=2), rng.uniform(0.05, 0.3, size=2)
        down, across = abs(rows - centre[0]) / radius[0], abs(columns - centre[1]) / radius[1]
        inside = down**2 + across**2 < 1 if index % 2 else np.maximum(down, across) < 1
        canvas[inside] = rng.uniform(size=3)
    return canvas


def _both(canvas: Canvas, rng: np.random.Generator) -> Canvas:
    """Shapes under a texture."""
    return _texture(_shapes(canvas, rng), rng)
