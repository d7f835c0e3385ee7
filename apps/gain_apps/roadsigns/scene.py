"""Small procedural backgrounds to put a sign before: sky, foliage, asphalt, buildings, bokeh."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from gain_apps.roadsigns.surface import smooth_noise

__all__ = ["backdrop"]

Generator = np.random.Generator
Picture = npt.NDArray[np.float32]


def backdrop(size_px: int, rng: Generator, /) -> npt.NDArray[np.uint8]:
    """A square piece of roadside.

    Parameters
    ----------
    size_px : int
    rng : numpy Generator
        Advanced; decides the kind of scene and everything in it.

    Returns
    -------
    array, (size_px, size_px, 3) uint8 RGB
    """
    kinds = (_sky, _foliage, _asphalt, _building, _bokeh)
    picture = kinds[rng.choice(5, p=(0.28, 0.3, 0.1, 0.2, 0.12))](size_px, rng)
    if rng.random() < 0.35:
        lower = kinds[rng.choice(3, p=(0.1, 0.6, 0.3))](size_px, rng)
        horizon = int(size_px * rng.uniform(0.3, 0.9))
        picture[horizon:] = lower[horizon:]
    if rng.random() < 0.75:
        _post(picture, rng)
    if rng.random() < 0.6:
        picture = cv2.GaussianBlur(picture, (0, 0), float(size_px * rng.uniform(0.005, 0.03)))
    return np.clip(picture, 0.0, 255.0).astype(np.uint8)


def _mix(low: object, high: object, amount: Picture) -> Picture:
    """Two colours blended by (H, W) amounts."""
    first, second = np.asarray(low, np.float32), np.asarray(high, np.float32)
    return first + (second - first) * amount[..., None]


def _sky(size: int, rng: Generator) -> Picture:
    """A gradient with clouds, blue to overcast."""
    overcast = rng.random()
    top = np.array([70, 130, 205]) * (1 - overcast) + np.array([170, 176, 184]) * overcast
    low = np.array([176, 206, 232]) * (1 - overcast) + np.array([226, 228, 230]) * overcast
    ramp = np.broadcast_to(np.linspace(0, 1, size, dtype=np.float32)[:, None], (size, size))
    picture = _mix(top, low, ramp * np.float32(rng.uniform(0.3, 1.0)))
    clouds = smooth_noise(rng, (size, size), cells=int(rng.integers(2, 6)))
    result: Picture = (
        _mix(0, 1, np.clip(clouds * 1.6 - 0.7, 0, 1))
        * (244 - picture)
        * np.float32(rng.uniform(0.0, 0.9))
        + picture
    )
    return result


def _foliage(size: int, rng: Generator) -> Picture:
    """Leaves in light and shade."""
    amount = 0.45 * smooth_noise(rng, (size, size), cells=4)
    amount += 0.35 * smooth_noise(rng, (size, size), cells=11)
    amount += 0.35 * smooth_noise(rng, (size, size), cells=max(size // 3, 12))
    season = rng.random()
    bright = np.array([120, 152, 58]) * (1 - season) + np.array([168, 136, 66]) * season
    return _mix((18, 30, 14), bright * rng.uniform(0.7, 1.2), np.clip(amount, 0, 1.2))


def _asphalt(size: int, rng: Generator) -> Picture:
    """A grey, grainy surface, at times with a white mark."""
    grain = 0.7 * smooth_noise(rng, (size, size), cells=5)
    grain += 0.3 * smooth_noise(rng, (size, size), cells=max(size // 2, 8))
    level = rng.uniform(60, 140)
    picture = _mix([level * 0.8] * 3, [level * 1.2, level * 1.2, level * 1.24], grain)
    if rng.random() < 0.4:
        x = rng.uniform(0, size, 2)
        line = np.rint(
            [[x[0], 0], [x[0] + size * 0.1, 0], [x[1] + size * 0.14, size], [x[1], size]]
        )
        cv2.fillPoly(picture, [line.astype(np.int32)], (214.0, 214.0, 208.0))
    return picture


def _building(size: int, rng: Generator) -> Picture:
    """A wall with rows of windows."""
    wall = np.array([150, 138, 124]) + rng.uniform(-40, 60) + rng.uniform(-22, 22, 3)
    picture = _mix(wall * 0.85, wall * 1.1, smooth_noise(rng, (size, size), cells=4))
    pitch = rng.uniform(0.22, 0.5, 2) * size
    offset = rng.uniform(-0.3, 0.2, 2) * size
    glass = rng.uniform(30, 110) + np.array([0.0, 8.0, 18.0])
    for x in np.arange(offset[0], size, pitch[0]):
        for y in np.arange(offset[1], size, pitch[1]):
            color = tuple(float(channel) for channel in glass * rng.uniform(0.6, 1.5))
            stop = (int(x + pitch[0] * 0.55), int(y + pitch[1] * 0.6))
            cv2.rectangle(picture, (int(x), int(y)), stop, color, -1)
    return picture


def _bokeh(size: int, rng: Generator) -> Picture:
    """Lights and leaves far out of focus."""
    base = rng.uniform(20, 120) + rng.uniform(-16, 24, 3)
    picture = _mix(base * 0.7, base * 1.3, smooth_noise(rng, (size, size), cells=3))
    for _ in range(int(rng.integers(4, 14))):
        center = rng.uniform(0, size, 2)
        color = base + rng.uniform(10, 120) + rng.uniform(-30, 30, 3)
        radius = max(int(size * rng.uniform(0.04, 0.16)), 1)
        blob = picture.copy()
        cv2.circle(blob, (int(center[0]), int(center[1])), radius, tuple(map(float, color)), -1)
        picture = picture * 0.55 + blob * 0.45
    result: Picture = cv2.GaussianBlur(picture, (0, 0), float(max(size * 0.02, 0.5)))
    return result


def _post(picture: Picture, rng: Generator) -> None:
    """The sign's post below the middle, in place."""
    size = picture.shape[0]
    half = max(size * rng.uniform(0.018, 0.035), 0.6)
    x = size * rng.uniform(0.47, 0.53)
    level = rng.uniform(90, 190)
    picture[size // 2 :, max(int(x - half), 0) : int(np.ceil(x + half))] = level
