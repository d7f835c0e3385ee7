"""Weather: snow, frost, fog and the brightness of the day.

Frost is drawn: fern crystals that fan out from nuclei, lit from one side. The published generator
pastes crops of five photographs; nothing of them is used here. What is kept is what a classifier
sees of them: mean and spread of the brightness, the blue cast, crystals of 20 to 90 px at 224 px,
and the variety from white-out to dark glass.
"""

from __future__ import annotations

import math

import cv2
import numpy as np
import numpy.typing as npt

from gain_scenes.corruptions.blur import enlarged, line_blur
from gain_scenes.corruptions.constants import Field, constants, fit, reference_shape

_START = 100.0


def plasma_fractal(size: int, *, decay: float, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Cloud texture by the diamond-square algorithm with wrapped edges, (size, size) float32.

    The side, in px, is a power of two. The wibble, which starts at 100, is divided by `decay` after
    each octave. The random offset of an octave spans plus or minus the *square* of the wibble, as
    in the published generator, so an octave is ``decay**2`` times weaker than the one before. Both
    ends of [0, 1] are attained, and it tiles without a seam.
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


Points = npt.NDArray[np.float64]

# A fern is drawn once, pointing right, on a sprite of this size and then stamped many times.
_LENGTH_PX, _WIDTH_PX = 96, 72
_NUM_SPRITES = 4
_TWIG_SPACING_PX = 3.5
_NUM_TWIGLETS = 5
_BRANCHING = math.radians(60)  # the angle of ice
_HAZE_PX = 256
# One nucleus of crystals for this many square pixels.
_NUCLEUS_AREA_PX = 1400
_SUBPIXEL_BITS = 4
# Ice is seen through a lens focused behind it.
_SOFTNESS_PX = 0.6


def frost_texture(height: int, width: int, *, rng: np.random.Generator) -> Field:
    """A pane of frost, (height, width, 3) float32 RGB in [0, 1]; crystals have one size in px."""
    relief = _crystals(height, width, rng)
    # Breath on the pane: how thick the frost is where.
    haze = _tiled(plasma_fractal(_HAZE_PX, decay=1.55, rng=rng), height, width)
    relief += _rime(height, width, rng) * (1 - relief) * haze
    light = rng.uniform(0, 2 * math.pi)
    slope_x = cv2.Scharr(relief, cv2.CV_32F, 1, 0, scale=1 / 16)
    slope_y = cv2.Scharr(relief, cv2.CV_32F, 0, 1, scale=1 / 16)
    glint = math.cos(light) * slope_x + math.sin(light) * slope_y
    level = rng.uniform(0.50, 0.86)
    contrast = rng.uniform(0.55, 0.85) * (1.15 - level)
    grey = level + contrast * (relief - 0.35) + 0.55 * contrast * (haze - 0.5) + 0.65 * glint
    cast = np.array([0.93, 1.0, 1.05], dtype=np.float32) ** np.float32(rng.uniform(0.6, 2.2))
    return np.clip(grey, 0, 1)[..., None] ** (1 / cast)


def _tiled(tile: Field, height: int, width: int) -> Field:
    """A square texture without a seam, repeated."""
    rows, columns = np.arange(height) % len(tile), np.arange(width) % len(tile)
    return tile[rows[:, None], columns]


def _rime(height: int, width: int, rng: np.random.Generator) -> Field:
    """Fine grain between the ferns, in about [-0.5, 0.5]."""
    grain = rng.standard_normal((height, width), dtype=np.float32)
    coarse = cv2.GaussianBlur(grain, (0, 0), 2.2)
    return np.float32(0.16) * cv2.GaussianBlur(grain, (0, 0), 0.7) + np.float32(0.3) * coarse


def _crystals(height: int, width: int, rng: np.random.Generator) -> Field:
    """Height of the ice in [0, 1]: fans of ferns, the higher one showing where they overlap."""
    sprites = [_fern(rng) for _ in range(_NUM_SPRITES)]
    num_nuclei = max(4, round(height * width / _NUCLEUS_AREA_PX))
    num_ferns = rng.integers(2, 6, num_nuclei)
    total = int(num_ferns.sum())
    rank = np.arange(total) - np.repeat(np.cumsum(num_ferns) - num_ferns, num_ferns)
    nuclei = rng.uniform((-10, -10), (width + 10, height + 10), (num_nuclei, 2))
    heading = rng.uniform(0, 2 * math.pi, num_nuclei)
    spread = rng.uniform(0.25, 0.7, num_nuclei)
    angle = np.repeat(heading, num_ferns) + rank * np.repeat(spread, num_ferns)
    matrices = _placements(
        np.repeat(nuclei, num_ferns, axis=0),
        angle + rng.normal(0, 0.08, total),
        zoom=rng.uniform(0.3, 1.0, total),
        squeeze=rng.uniform(0.35, 0.95, total) * rng.choice((-1, 1), total),
    )
    which = rng.integers(_NUM_SPRITES, size=total)
    canvas = np.zeros((height, width), dtype=np.uint8)
    heights = rng.uniform(0.45, 1.0, total)
    for matrix, box, index, top in zip(matrices, _boxes(matrices), which, heights, strict=True):
        _stamp(canvas, sprites[index], matrix=matrix, box=box.tolist(), height=float(top))
    return cv2.GaussianBlur(canvas.astype(np.float32) / 255, (0, 0), _SOFTNESS_PX)


def _placements(
    origin: Points, angle: Points, *, zoom: Points, squeeze: Points
) -> npt.NDArray[np.float64]:
    """(N, 2, 3) maps from sprite to pane that turn and scale each fern about its foot."""
    cos, sin = zoom * np.cos(angle), zoom * np.sin(angle)
    turn = np.stack([cos, -sin * squeeze, sin, cos * squeeze], axis=1).reshape(-1, 2, 2)
    shift = origin - turn @ (0, _WIDTH_PX / 2)
    return np.concatenate([turn, shift[..., None]], axis=2)


def _boxes(matrices: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """(N, 4) left, top, right, bottom on the pane, in px, of each turned sprite."""
    corners = np.array(
        [[0, 0, 1], [_LENGTH_PX, 0, 1], [0, _WIDTH_PX, 1], [_LENGTH_PX, _WIDTH_PX, 1]]
    )
    turned = corners @ matrices.transpose(0, 2, 1)
    low, high = np.floor(turned.min(axis=1)), np.ceil(turned.max(axis=1))
    return np.concatenate([low, high], axis=1).astype(np.int64)


def _stamp(
    canvas: npt.NDArray[np.uint8],
    sprite: npt.NDArray[np.uint8],
    *,
    matrix: npt.NDArray[np.float64],
    box: list[int],
    height: float,
) -> None:
    """Lay one fern on the canvas, keeping whichever is higher; what lies outside is cut off."""
    left, top = max(box[0], 0), max(box[1], 0)
    right, bottom = min(box[2], canvas.shape[1]), min(box[3], canvas.shape[0])
    if right <= left or bottom <= top:
        return
    matrix = matrix.copy()
    matrix[:, 2] -= (left, top)
    patch = cv2.warpAffine(sprite, matrix, (right - left, bottom - top), flags=cv2.INTER_LINEAR)
    target = canvas[top:bottom, left:right]
    np.maximum(target, cv2.convertScaleAbs(patch, alpha=height), out=target)


def _fern(rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """One crystal: a bent stem, twigs at 60 degrees on both sides, twiglets along the twigs."""
    along = np.arange(_TWIG_SPACING_PX / 2, _LENGTH_PX - 2, _TWIG_SPACING_PX / 2)
    place = along / _LENGTH_PX
    bend = rng.uniform(-0.16, 0.16)
    stem = np.stack([along, _WIDTH_PX / 2 + bend * _LENGTH_PX * place**2], axis=1)
    side = np.where(np.arange(len(along)) % 2 == 0, 1.0, -1.0)
    slant = side * (_BRANCHING + rng.normal(0, 0.06, len(along))) + 2 * bend * place
    reach = np.minimum(place / 0.15, (1 - place) ** 0.7) * rng.uniform(0.55, 1.0, len(along))
    reach *= _WIDTH_PX / 2 / math.sin(_BRANCHING)
    tip = stem + reach[:, None] * _directions(slant)
    sprite = np.zeros((_WIDTH_PX, _LENGTH_PX), dtype=np.uint8)
    share = np.linspace(0.2, 0.9, _NUM_TWIGLETS)
    size = 0.42 * reach[:, None] * (1 - share)
    start = stem[:, None] + share[:, None] * (tip - stem)[:, None]
    for lean in (-_BRANCHING, _BRANCHING):
        end = start + size[..., None] * _directions(slant + lean)[:, None]
        _draw(sprite, start.reshape(-1, 2), end.reshape(-1, 2), value=120)
    _draw(sprite, stem, tip, value=175)
    _draw(sprite, stem[:-1], stem[1:], value=235)
    half = len(stem) // 2
    _draw(sprite, stem[:half], stem[1 : half + 1], value=255, thickness=2)
    return sprite


def _directions(angle: Points) -> Points:
    """Unit vectors, (N, 2), of angles in rad."""
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _draw(
    sprite: npt.NDArray[np.uint8],
    start: Points,
    end: Points,
    *,
    value: int,
    thickness: int = 1,
) -> None:
    """Draw anti-aliased segments, (N, 2) px each end."""
    points = np.stack([start, end], axis=1) * (1 << _SUBPIXEL_BITS)
    segments = list(np.rint(points).astype(np.int32))
    cv2.polylines(sprite, segments, False, value, thickness, cv2.LINE_AA, shift=_SUBPIXEL_BITS)


# A plasma map of this side tiles without a seam, so very wide images need no larger one.
_LARGEST_FOG_PX = 1024


def snow(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Falling flakes, smeared by their fall, before a whitened scene.

    The layer of flakes is added twice, the second time turned by half a turn.
    """
    mean, deviation, size, threshold, radius, sigma, weight = constants("snow", severity)
    angle = math.radians(rng.uniform(-135, -45))
    draw = rng.standard_normal(reference_shape(image.shape, scale), dtype=np.float32)
    flakes = np.float32(mean) + np.float32(deviation) * enlarged(draw, size)
    flakes[flakes < threshold] = 0
    np.clip(flakes, 0, 1, out=flakes)
    flakes = fit(line_blur(flakes, angle, radius=radius, sigma=sigma), image.shape)[..., None]
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None]
    whitened = np.maximum(image, 1.5 * grey + np.float32(0.5))
    scene = np.float32(weight) * image + np.float32(1 - weight) * whitened
    return scene + flakes + flakes[::-1, ::-1]


def frost(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Mix in a drawn pane of frost."""
    scene, ice = constants("frost", severity)
    pane = frost_texture(*reference_shape(image.shape, scale), rng=rng)
    return np.float32(scene) * image + np.float32(ice) * fit(pane, image.shape)


def fog(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Add plasma clouds and scale back so that the brightest value stays what it was."""
    thickness, decay = constants("fog", severity)
    height, width = reference_shape(image.shape, scale)
    size = min(1 << (max(height, width) - 1).bit_length(), _LARGEST_FOG_PX)
    plasma = plasma_fractal(size, decay=decay, rng=rng)
    clouds = fit(_tiled(plasma, height, width), image.shape)[..., None]
    brightest = image.max()
    share = brightest / (brightest + np.float32(thickness))
    return (image + np.float32(thickness) * clouds) * share


def brightness(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Raise the value of HSV, hue and saturation kept.

    With both kept, the three channels grow by the ratio of the values; black has no hue and
    becomes grey.
    """
    (rise,) = constants("brightness", severity)
    value = image.max(axis=2, keepdims=True)
    raised = np.minimum(value + np.float32(rise), 1)
    lit = value > 0
    return np.where(lit, image * (raised / np.where(lit, value, 1)), raised)
