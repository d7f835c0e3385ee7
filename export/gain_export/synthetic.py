"""Structured test images for when no photographs are at hand: gradients, textures, shapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["synthetic_images"]

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
