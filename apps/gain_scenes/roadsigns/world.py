"""The road: where its signs and trees stand, and how one window of one frame looks."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from gain_scenes.roadsigns.atmosphere import Atmosphere, Weather, fog_color, light_on, transmittance
from gain_scenes.roadsigns.designs import LABELS
from gain_scenes.roadsigns.sample import corners, mip, paint
from gain_scenes.roadsigns.scenery import (
    CAMERA_HEIGHT_M,
    FOCAL_PX,
    HORIZON_PX,
    WIDTH_PX,
    Scenery,
    View,
    Window,
    fitting,
    pyramid,
    smooth_noise,
    weathered,
)

Generator = np.random.Generator
Image = npt.NDArray[np.uint8]

SIGN_WIDTH_M = 0.9
# A sign is the current one until it comes this near; then it leaves to the right.
NEAREST_M = 9.5
FARTHEST_M = 140.0
SPACING_M = (20.0, 30.0)
_PLATE_PX = 128
_TREE_CELL_M = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One sign at the roadside: place in m, turn in degrees, its class and its worn plate."""

    class_index: int
    along_m: float
    right_m: float
    up_m: float
    yaw: float
    pitch: float
    roll: float
    returned: float
    plates: tuple[Image, ...]
    snowed: tuple[Image, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shot:
    """What is drawn, from where and in which weather."""

    window: Window
    view: View
    weather: Weather


class World:
    """Everything along one road, decided by a seed, as far as the camera will drive."""

    def __init__(self, seed: int, /, *, length_m: float) -> None:
        self._seed = seed
        self._scenery = Scenery(seed)
        self._atmosphere = Atmosphere(seed)
        rng = np.random.default_rng([seed, 41])
        count = int((length_m + FARTHEST_M) / SPACING_M[0]) + 2
        self.places_m = NEAREST_M + 6.0 + np.cumsum(rng.uniform(*SPACING_M, count))
        decks = [rng.permutation(len(LABELS)) for _ in range(-(-count // len(LABELS)))]
        self._classes = np.concatenate(decks)[:count]
        self._signs: dict[int, Sign] = {}
        self._forest: dict[int, list[tuple[float, float, int]]] = {}

    def current(self, along_m: float, /) -> int:
        """Number of the sign that is being approached."""
        return int(np.searchsorted(self.places_m, along_m + NEAREST_M))

    def sign(self, number: int, /) -> Sign:
        """The sign of a number; the same at every call."""
        if number not in self._signs:
            for passed in [known for known in self._signs if known < number - 4]:
                del self._signs[passed]
            self._signs[number] = self._build(number)
        return self._signs[number]

    def _build(self, number: int) -> Sign:
        rng = np.random.default_rng([self._seed, 43, number])
        class_index = int(self._classes[number])
        plate = weathered(mip(class_index, _PLATE_PX), rng)
        return Sign(
            class_index=class_index,
            along_m=float(self.places_m[number]),
            right_m=float(rng.uniform(2.9, 4.0)),
            up_m=float(rng.uniform(1.9, 2.6)),
            yaw=float(rng.normal(-4.0, 9.0)),
            pitch=float(rng.normal(0.0, 3.0)),
            roll=float(rng.normal(0.0, 3.0)),
            returned=float(np.exp(rng.uniform(np.log(0.2), np.log(2.2)))),
            plates=pyramid(plate),
            snowed=pyramid(_snow_on(plate, rng)),
        )

    def project(self, sign: Sign, view: View, /) -> tuple[float, float, float, float]:
        """Centre x, y and half the width of a sign's plate in px, and its depth in m."""
        depth = sign.along_m - view.along_m
        scale = FOCAL_PX / depth
        x = WIDTH_PX / 2 + view.sway_x_px + (sign.right_m - view.right_m) * scale
        y = HORIZON_PX + view.sway_y_px - (sign.up_m - CAMERA_HEIGHT_M) * scale
        return x, y, SIGN_WIDTH_M / 2 * scale, depth

    def draw(self, window: Window, view: View, weather: Weather, /, *, rng: Generator) -> Image:
        """One window of the frame, (height, width, 3) uint8 RGB."""
        shot = _Shot(window=window, view=view, weather=weather)
        image = self._backdrop(shot)
        trees = self._trees(view)
        first, stop = np.searchsorted(self.places_m, view.along_m + np.array([3.0, FARTHEST_M]))
        order = [
            (float(self.places_m[number]) - view.along_m, number) for number in range(first, stop)
        ]
        order += [(tree[0], -1 - index) for index, tree in enumerate(trees)]
        for _, item in sorted(order, reverse=True):
            if item >= 0:
                self._draw_sign(image, self.sign(item), shot)
            else:
                self._draw_tree(image, trees[-1 - item], shot)
        return self._atmosphere.veil(image, window, weather, rng=rng)

    def _trees(self, view: View) -> list[tuple[float, float, int]]:
        """Depth in m, place to the right in m and kind of each tree in sight."""
        first = int(view.along_m // _TREE_CELL_M) + 1
        return [
            (along - view.along_m, right, kind)
            for cell in range(first, first + 20)
            for along, right, kind in self._trees_of(cell)
        ]

    def _trees_of(self, cell: int) -> list[tuple[float, float, int]]:
        """Places and kinds of the trees of one cell of the road."""
        if cell not in self._forest:
            for passed in [known for known in self._forest if known < cell - 40]:
                del self._forest[passed]
            rng = np.random.default_rng([self._seed, 47, cell])
            trees = []
            for side in (-1, 1):
                along, right = rng.random() + cell, 9.0 + 13.0 * rng.random()
                kind = int(rng.integers(len(self._scenery.trees)))
                if rng.random() < 0.62:
                    # Beyond the opposite lane on the left.
                    trees.append((along * _TREE_CELL_M, right if side > 0 else -right - 3.5, kind))
            self._forest[cell] = trees
        return self._forest[cell]

    def _backdrop(self, shot: _Shot) -> Image:
        """Sky and ground in the light and behind the air of the weather."""
        weather = shot.weather
        sky = self._scenery.sky(shot.window, shot.view)
        ground, depth = self._scenery.ground(shot.window, shot.view)
        image = np.concatenate([sky, ground])
        if weather.snow > 0.0:
            white = image[len(sky) :]
            cv2.addWeighted(white, 1 - 0.55 * weather.snow, np.full_like(white, 228),
                            0.55 * weather.snow, 0.0, dst=white)  # fmt: skip
        image = self._atmosphere.light_ground(image, shot.window, weather)
        hidden = max(weather.fog, 0.85 * weather.rain, 0.9 * weather.snow)
        if hidden == 0.0:
            return image
        through = np.full(len(image), 1.0 - hidden, np.float32)
        through[len(sky) :] = transmittance(depth, weather)
        weights = np.repeat(through[:, None], image.shape[1], axis=1)
        air = np.empty_like(image)
        air[:] = fog_color(weather)
        return cv2.blendLinear(image, air, weights, 1.0 - weights)

    def _draw_sign(self, image: Image, sign: Sign, shot: _Shot) -> None:
        """The post and the plate, in place."""
        window, weather = shot.window, shot.weather
        x, y, half, depth = self.project(sign, shot.view)
        x, y = x - window.left, y - window.top
        if not (-half < x < window.width + half and y - half < window.height):
            return
        foot = y + sign.up_m * FOCAL_PX / depth
        pole = np.array([92.0, 94.0, 96.0], np.float32) * light_on(depth, weather, returned=0.14)
        through = transmittance(depth, weather)
        color = pole * through + fog_color(weather) * (1 - through)
        thick = max(0.035 * FOCAL_PX / depth, 0.6)
        box = np.array([[x - thick, y], [x + thick, y], [x + thick, foot], [x - thick, foot]])
        fixed = np.rint(box * 16).astype(np.int32)
        cv2.fillPoly(image, [fixed], tuple(map(float, color)), cv2.LINE_AA, 4)
        quad = corners((x, y), half, yaw=sign.yaw, pitch=sign.pitch, roll=sign.roll)
        plate = fitting(sign.plates, half)
        if weather.snow > 0.0:
            share = weather.snow
            plate = cv2.addWeighted(plate, 1.0 - share, fitting(sign.snowed, half), share, 0.0)
        light = light_on(depth, weather, returned=sign.returned)
        paint(image, _seen(plate, light, depth, weather), quad)

    def _draw_tree(self, image: Image, tree: tuple[float, float, int], shot: _Shot) -> None:
        """A tree that stands on the ground, in place."""
        window, view, weather = shot.window, shot.view, shot.weather
        depth, right, kind = tree
        if depth < 4.0:
            return
        scale = FOCAL_PX / depth
        half = 3.6 * scale
        x = WIDTH_PX / 2 + view.sway_x_px + (right - view.right_m) * scale - window.left
        foot = HORIZON_PX + view.sway_y_px + CAMERA_HEIGHT_M * scale - window.top
        if not (-half < x < window.width + half and foot > 0 and foot - 2 * half < window.height):
            return
        plate = fitting(self._scenery.trees[kind], half)
        light = light_on(depth, weather, returned=0.12)
        quad = corners((x, foot - half), half, yaw=0.0, pitch=0.0, roll=0.0)
        paint(image, _seen(plate, light, depth, weather), quad)


def _seen(plate: Image, light: npt.NDArray[np.float32], depth: float, weather: Weather) -> Image:
    """A plate under a light and behind the air before it; coverage stays."""
    through = transmittance(depth, weather)
    mixing = np.eye(4, dtype=np.float32)
    mixing[(0, 1, 2), (0, 1, 2)] = light * through
    # Colours are multiplied by coverage, so the air's share is its colour times coverage.
    mixing[:3, 3] = fog_color(weather) * (1 - through) / 255.0
    return cv2.transform(plate, mixing)


def _snow_on(plate: Image, rng: Generator) -> Image:
    """The plate with snow stuck to it, thickest towards the top."""
    size = plate.shape[0]
    height = smooth_noise(rng, (size, size), cells=5) * 0.8
    height += 0.3 * smooth_noise(rng, (size, size), cells=17)
    height += np.linspace(0.22, -0.12, size, dtype=np.float32)[:, None]
    amount = np.clip((height - np.float32(rng.uniform(0.58, 0.85))) * 5.0, 0, 0.95)[..., None]
    coverage = plate[..., 3:].astype(np.float32) / 255.0
    white = np.array([232.0, 236.0, 242.0], np.float32) * coverage
    colors = plate[..., :3] * (1.0 - amount) + white * amount
    return np.dstack([colors.astype(np.uint8), plate[..., 3]])
