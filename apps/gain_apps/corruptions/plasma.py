"""Plasma fractals: clouds by diamond-square on a torus, as fog and frost use them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["plasma_fractal"]

_START = 100.0


def plasma_fractal(size: int, *, decay: float, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Cloud texture by the diamond-square algorithm with wrapped edges.

    Parameters
    ----------
    size : int
        Side in px, a power of two.
    decay : float
        The wibble, which starts at 100, is divided by `decay` after each octave. The random
        offset of an octave spans plus or minus the *square* of the wibble, as in the published
        generator, so an octave is ``decay**2`` times weaker than the one before.
    rng : Generator
        Source of the offsets.

    Returns
    -------
    array, (size, size) float32
        In [0, 1], both ends attained; tiles without a seam.
    """
    grid = np.zeros((size, size), dtype=np.float32)
    step, wibble = size, _START
    while step >= 2:
        _octave(grid, step=step, amplitude=wibble * wibble, rng=rng)
        step //= 2
        wibble /= decay
    grid -= grid.min()
    grid /= grid.max()
    return grid


def _octave(
    grid: npt.NDArray[np.float32], *, step: int, amplitude: float, rng: np.random.Generator
) -> None:
    """Fill the points half a step between those known: squares first, then diamonds."""
    half = step // 2
    corners = grid[0::step, 0::step]

    offset = np.float32(amplitude) * (2 * rng.random((3, *corners.shape), dtype=np.float32) - 1)
    across = corners + np.roll(corners, -1, axis=1)
    centres = (across + np.roll(across, -1, axis=0)) / 4 + offset[0]
    grid[half::step, half::step] = centres
    beside = centres + np.roll(centres, 1, axis=0)
    grid[0::step, half::step] = (across + beside) / 4 + offset[1]
    down = corners + np.roll(corners, -1, axis=0)
    beside = centres + np.roll(centres, 1, axis=1)
    grid[half::step, 0::step] = (down + beside) / 4 + offset[2]
