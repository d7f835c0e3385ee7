"""What years at the roadside do to a sign: fading, dirt, a shadow, a sticker, leaves before it."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

__all__ = ["smooth_noise", "weathered"]

Generator = np.random.Generator

_LEAF_COLORS = ((58, 84, 34), (84, 110, 44), (40, 58, 28), (110, 96, 44))
_STICKER_COLORS = ((240, 240, 236), (30, 30, 34), (250, 214, 40), (40, 150, 90), (230, 120, 30))
_DIRT = np.array([96.0, 84.0, 66.0], np.float32)


def smooth_noise(
    rng: Generator, shape: tuple[int, int], /, *, cells: int
) -> npt.NDArray[np.float32]:
    """Smooth random heights, (H, W) float32 around 0 to 1, with about `cells` bumps per side."""
    coarse = rng.random((cells, cells), dtype=np.float32)
    smooth: npt.NDArray[np.float32] = cv2.resize(
        coarse, (shape[1], shape[0]), interpolation=cv2.INTER_CUBIC
    )
    return smooth


def weathered(
    plate: npt.NDArray[np.uint8], rng: Generator, /, *, severity: float = 1.0
) -> npt.NDArray[np.uint8]:
    """Give a sign's plate its own history.

    Parameters
    ----------
    plate : array, (S, S, 4) uint8
        Colours multiplied by coverage, and coverage; read only.
    rng : numpy Generator
        Advanced.
    severity : float
        0 leaves the plate as new, 1 is the everyday roadside.

    Returns
    -------
    array, (S, S, 4) uint8
    """
    size = plate.shape[0]
    coverage = plate[..., 3:].astype(np.float32) / 255.0
    colors = plate[..., :3].astype(np.float32)
    fade = severity * rng.uniform(0.0, 0.22)
    colors = colors * (1.0 - fade) + coverage * (150.0 * fade)
    if rng.random() < 0.5 * severity:
        colors = _dirty(colors, coverage, rng, severity)
    if rng.random() < 0.35 * severity:
        colors = colors * _shadow(size, rng)
    worn = np.dstack([colors, coverage * 255.0])
    if rng.random() < 0.15 * severity:
        _stick(worn, rng)
    if rng.random() < 0.2 * severity:
        _grow(worn, rng)
    return np.clip(worn, 0.0, 255.0).astype(np.uint8)


def _dirty(
    colors: npt.NDArray[np.float32],
    coverage: npt.NDArray[np.float32],
    rng: Generator,
    severity: float,
) -> npt.NDArray[np.float32]:
    """Brown blotches, thicker towards a random side."""
    noise = smooth_noise(rng, colors.shape[:2], cells=int(rng.integers(4, 9)))
    amount = np.clip((noise - rng.uniform(0.45, 0.7)) * 2.0, 0.0, 1.0)
    amount = amount[..., None] * np.float32(severity * rng.uniform(0.2, 0.7))
    result: npt.NDArray[np.float32] = colors * (1.0 - amount) + _DIRT * coverage * amount
    return result


def _shadow(size: int, rng: Generator) -> npt.NDArray[np.float32]:
    """The edge of a shadow across the plate, (S, S, 1) factors."""
    angle = rng.uniform(0.0, 2.0 * np.pi)
    ramp = np.linspace(-1.0, 1.0, size, dtype=np.float32)
    distance = ramp * np.float32(np.cos(angle)) + ramp[:, None] * np.float32(np.sin(angle))
    soft = np.float32(rng.uniform(0.04, 0.2))
    inside = np.clip((distance - np.float32(rng.uniform(-0.6, 0.6))) / soft, 0.0, 1.0)
    shaded: npt.NDArray[np.float32] = (1.0 - inside * np.float32(rng.uniform(0.3, 0.6)))[..., None]
    return shaded


def _stick(worn: npt.NDArray[np.float32], rng: Generator) -> None:
    """A small sticker, in place."""
    size = worn.shape[0]
    center = rng.uniform(0.25, 0.75, 2) * size
    side = rng.uniform(0.06, 0.14, 2) * size
    box = cv2.boxPoints((tuple(center), tuple(side), float(rng.uniform(0.0, 90.0))))
    color = _STICKER_COLORS[rng.integers(len(_STICKER_COLORS))]
    cv2.fillPoly(worn, [np.rint(box).astype(np.int32)], (*color, 255.0))


def _grow(worn: npt.NDArray[np.float32], rng: Generator) -> None:
    """Leaves that reach over an edge of the plate, in place."""
    size = worn.shape[0]
    angle = rng.uniform(0.0, 2.0 * np.pi)
    direction = np.array([np.cos(angle), np.sin(angle)])
    root = 0.5 + direction * rng.uniform(0.42, 0.58)
    for _ in range(int(rng.integers(4, 12))):
        center = (root + rng.normal(0.0, 0.09, 2)) * size
        axes = (max(int(size * rng.uniform(0.03, 0.09)), 1), max(int(size * 0.03), 1))
        shade = rng.uniform(0.6, 1.2)
        color = [channel * shade for channel in _LEAF_COLORS[rng.integers(len(_LEAF_COLORS))]]
        cv2.ellipse(
            worn,
            (int(center[0]), int(center[1])),
            axes,
            float(rng.uniform(0.0, 180.0)),
            0.0,
            360.0,
            (*color, 255.0),
            -1,
        )
