"""What stands beside a road, and the textures and light that it is drawn with."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

Generator = np.random.Generator

_LEAF_COLORS = ((58, 84, 34), (84, 110, 44), (40, 58, 28), (110, 96, 44))
_STICKER_COLORS = ((240, 240, 236), (30, 30, 34), (250, 214, 40), (40, 150, 90), (230, 120, 30))
_DIRT = np.array([96.0, 84.0, 66.0], np.float32)


def smooth_noise(
    rng: Generator, shape: tuple[int, int], /, *, cells: int
) -> npt.NDArray[np.float32]:
    """Smooth random heights, (H, W) float32 around 0 to 1, with about `cells` bumps per side."""
    coarse = rng.random((cells, cells), dtype=np.float32)
    return cv2.resize(coarse, (shape[1], shape[0]), interpolation=cv2.INTER_CUBIC)


def weathered(
    plate: npt.NDArray[np.uint8], rng: Generator, /, *, severity: float = 1.0
) -> npt.NDArray[np.uint8]:
    """Give a sign's plate, (S, S, 4) uint8 of colours multiplied by coverage, its own history.

    A severity of 0 leaves the plate as new, 1 is the everyday roadside.
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
    return colors * (1.0 - amount) + _DIRT * coverage * amount


def _shadow(size: int, rng: Generator) -> npt.NDArray[np.float32]:
    """The edge of a shadow across the plate, (S, S, 1) factors."""
    angle = rng.uniform(0.0, 2.0 * np.pi)
    ramp = np.linspace(-1.0, 1.0, size, dtype=np.float32)
    distance = ramp * np.float32(np.cos(angle)) + ramp[:, None] * np.float32(np.sin(angle))
    soft = np.float32(rng.uniform(0.04, 0.2))
    inside = np.clip((distance - np.float32(rng.uniform(-0.6, 0.6))) / soft, 0.0, 1.0)
    return (1.0 - inside * np.float32(rng.uniform(0.3, 0.6)))[..., None]


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


Image = npt.NDArray[np.uint8]
Picture = npt.NDArray[np.float32]

WIDTH_PX, HEIGHT_PX = 1280, 720
HORIZON_PX = 336
FOCAL_PX = 1000.0
CAMERA_HEIGHT_M = 1.4
# The camera sways by at most this much; tables reach as far beyond the frame.
MARGIN_PX = 24

_TEXELS_PER_M = 20.0
_TILE_M = 25.6
# Depth in m from which on the ground is taken from a texture blurred along the road.
_BANDS = ((0.0, 1), (12.0, 5), (18.0, 17), (30.0, 61), (60.0, 255))


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The part of the full frame that is drawn, in px."""

    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Where the camera is: metres along the road and to the right, and its sway in px."""

    along_m: float
    right_m: float
    sway_x_px: int
    sway_y_px: int


class Scenery:
    """The unchanging surroundings of one drive, drawn once from a seed."""

    def __init__(self, seed: int, /) -> None:
        rng = np.random.default_rng([seed, 21])
        self._panorama = _panorama(rng)
        tile = _ground_tile(rng)
        self._grounds = [_along(tile, blur) for _, blur in _BANDS]
        rows = np.arange(HORIZON_PX + 1, HEIGHT_PX + MARGIN_PX) - HORIZON_PX
        self.depth_m: Picture = (CAMERA_HEIGHT_M * FOCAL_PX / rows).astype(np.float32)
        columns = np.arange(-MARGIN_PX, WIDTH_PX + MARGIN_PX, dtype=np.float32) - WIDTH_PX / 2
        lateral_m = _fold(columns[None] * (self.depth_m[:, None] / FOCAL_PX))
        self._texel_x = (lateral_m + np.float32(_TILE_M / 2)) * np.float32(_TEXELS_PER_M)
        self.trees = [pyramid(_tree(rng)) for _ in range(6)]

    def sky(self, window: Window, view: View, /) -> Image:
        """Rows above the horizon that lie in the window; may have no rows."""
        stop = min(window.top + window.height, HORIZON_PX + view.sway_y_px + 1)
        top = window.top - view.sway_y_px + MARGIN_PX
        left = window.left - view.sway_x_px + MARGIN_PX
        rows = max(stop - window.top, 0)
        return self._panorama[top : top + rows, left : left + window.width]

    def ground(self, window: Window, view: View, /) -> tuple[Image, Picture]:
        """Rows below the horizon that lie in the window, and the depth of each in m."""
        first = max(window.top - view.sway_y_px - HORIZON_PX - 1, 0)
        stop = window.top + window.height - view.sway_y_px - HORIZON_PX - 1
        left = window.left - view.sway_x_px + MARGIN_PX
        depth = self.depth_m[first : max(stop, first)]
        x = self._texel_x[first : max(stop, first), left : left + window.width]
        x = x + np.float32(view.right_m * _TEXELS_PER_M)
        along_m = np.mod(depth + np.float32(view.along_m % _TILE_M), _TILE_M)
        y = np.repeat((along_m * np.float32(_TEXELS_PER_M))[:, None], x.shape[1], axis=1)
        image = np.empty((*x.shape, 3), np.uint8)
        starts = [start for start, _ in _BANDS]
        for band, (low, high) in enumerate(zip(starts, [*starts[1:], np.inf], strict=True)):
            picked = np.flatnonzero((depth >= low) & (depth < high))
            if picked.size:
                rows = slice(int(picked[0]), int(picked[-1]) + 1)
                cv2.remap(self._grounds[band], x[rows], y[rows], cv2.INTER_LINEAR, dst=image[rows])
        return image, depth


def pyramid(plate: Image) -> tuple[Image, ...]:
    """A plate and its halves down to 16 px, largest first."""
    levels = [plate]
    while levels[-1].shape[0] > 16:
        levels.append(cv2.resize(levels[-1], None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA))
    return tuple(levels)


def fitting(levels: tuple[Image, ...], half_px: float) -> Image:
    """The smallest level that is not coarser than a plate of this half width."""
    for level in reversed(levels):
        if level.shape[0] >= 2.0 * half_px:
            return level
    return levels[0]


def _fold(lateral_m: Picture) -> Picture:
    """Lateral places mapped into the ground tile; beyond its sides the grass is folded back."""
    half = _TILE_M / 2
    # The camera leaves its lane's middle by less than this.
    edge = half - 0.6
    folded = np.copysign(np.mod(np.abs(lateral_m), 4.0) + edge - 4.0, lateral_m)
    return np.where(np.abs(lateral_m) > edge, folded, lateral_m).astype(np.float32)


def _along(tile: Image, blur: int) -> Image:
    """The tile blurred along the road, and one row more so that it can be repeated."""
    tall = cv2.blur(np.concatenate([tile] * 3), (1, blur))
    return tall[len(tile) : 2 * len(tile) + 1]


def _ground_tile(rng: Generator) -> Image:
    """Grass, verge, asphalt and marks, seen from above; the left column is far left."""
    side = int(_TILE_M * _TEXELS_PER_M)
    shape = (side, side)
    fine = rng.random(shape, dtype=np.float32)
    coarse = smooth_noise(rng, shape, cells=24)
    amount = (0.5 * fine + 0.6 * coarse)[..., None]
    grass = np.array([52, 66, 26], np.float32) + amount * np.array([62, 62, 34], np.float32)
    gravel = np.array([116, 110, 100], np.float32) + (fine[..., None] - 0.5) * 60
    asphalt = np.array([84, 85, 88], np.float32) + (fine[..., None] - 0.5) * 26 + 10 * amount
    metres = (np.arange(side) + 0.5) / _TEXELS_PER_M - _TILE_M / 2
    tile = grass
    for color, low, high in ((gravel, -6.0, 2.5), (asphalt, -5.45, 1.95)):
        inside = (metres >= low) & (metres < high)
        tile[:, inside] = color[:, inside]
    white = np.float32(222.0)
    for low in (-5.3, 1.65):
        tile[:, (metres >= low) & (metres < low + 0.15)] = white
    dashes = (metres >= -1.83) & (metres < -1.68)
    for start in (0, side // 2):
        tile[start : start + int(5.0 * _TEXELS_PER_M), dashes] = white
    return np.clip(tile, 0, 255).astype(np.uint8)


def _panorama(rng: Generator) -> Image:
    """Sky with clouds above hills and a line of woods, in the colours of a clear day."""
    height, width = HORIZON_PX + MARGIN_PX + 2, WIDTH_PX + 2 * MARGIN_PX
    ramp = np.linspace(0, 1, height, dtype=np.float32)[:, None, None]
    top, low = np.array([92, 146, 212], np.float32), np.array([206, 222, 236], np.float32)
    picture = np.repeat(top + (low - top) * ramp, width, axis=1)
    clouds = sum(
        smooth_noise(rng, (height, width), cells=cells) * weight
        for cells, weight in ((4, 0.5), (9, 0.3), (24, 0.2))
    )
    cover = np.clip((clouds - np.float32(rng.uniform(0.42, 0.55))) * 4.0, 0, 0.9)[..., None]
    picture = picture + (np.float32(246.0) - picture) * cover
    columns = np.arange(width)
    for color, base, swing, cells in (
        ((136, 156, 166), 34, 34, 7),
        ((96, 118, 92), 16, 22, 14),
        ((52, 72, 42), 5, 16, 90),
    ):
        ridge = smooth_noise(rng, (8, width), cells=cells)[0] * swing + base
        floor = height - ridge.astype(int)
        outline = np.stack([columns, floor], axis=1)
        polygon = np.concatenate([outline, [[width, height + 9], [0, height + 9]]])
        shade = tuple(float(channel * rng.uniform(0.9, 1.1)) for channel in color)
        cv2.fillPoly(picture, [polygon.astype(np.int32)], shade)
    return np.clip(picture, 0, 255).astype(np.uint8)


def _tree(rng: Generator) -> Image:
    """A tree, (256, 256, 4) with colours multiplied by coverage; its foot is at the bottom."""
    plate = np.zeros((256, 256, 4), np.float32)
    cv2.fillPoly(plate, [np.array([[120, 256], [124, 130], [132, 130], [138, 256]])],
                 (66.0, 54.0, 40.0, 255.0))  # fmt: skip
    base = np.array([62, 86, 36]) * rng.uniform(0.75, 1.2) + rng.uniform(-10, 14, 3)
    for step in range(130):
        spread = 0.5 + 0.5 * step / 130
        x = 128 + float(np.clip(rng.normal(0, 36), -84, 84)) * spread
        y = 100 + float(np.clip(rng.normal(0, 34), -68, 60)) * spread
        light = 0.7 + 0.5 * step / 130 - (y - 100) / 260
        color = tuple(float(channel) for channel in base * light * rng.uniform(0.8, 1.2))
        radius = int(rng.integers(9, 24))
        cv2.circle(plate, (int(x), int(y)), radius, (*color, 255.0), -1)
    return np.clip(plate, 0, 255).astype(np.uint8)
