"""The drive's conditions, and what weather, light, lens and encoder do to a drawn picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final

import cv2
import numpy as np
import numpy.typing as npt

from gain_core.errors import ConfigError
from gain_scenes.roadsigns.scenery import HEIGHT_PX, WIDTH_PX, Window, smooth_noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Strengths of everything that can degrade a picture, each 0 (absent) to 1 (full)."""

    fog: float = 0.0
    rain: float = 0.0
    snow: float = 0.0  # in the air, on the plates and on the ground
    dark: float = 0.0  # missing daylight; the camera's gain and noise rise with it
    beam: float = 0.0  # own headlights: plates throw them back
    sun: float = 0.0  # low and ahead: glare, veil, and plates seen against the light
    dirt: float = 0.0  # smears on the lens
    blur: float = 0.0  # motion during the exposure
    bitrate: float = 0.0  # a starved video encoder

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"{field.name}: expected a strength in [0, 1], got {value}")

    def towards(self, other: Weather, amount: float, /) -> Weather:
        """This weather blended with another one; `amount` 1 is the other."""
        return Weather(
            **{
                f.name: getattr(self, f.name) * (1 - amount) + getattr(other, f.name) * amount
                for f in fields(self)
            }
        )

    def scaled(self, factor: float, /) -> Weather:
        """Every strength multiplied by a factor in [0, 1]."""
        return Weather(**{f.name: getattr(self, f.name) * factor for f in fields(self)})


CONDITIONS: dict[str, Weather] = {
    "clear": Weather(),
    "fog": Weather(fog=1.0),
    "rain": Weather(rain=1.0),
    "dusk": Weather(dark=0.8),
    "night": Weather(dark=1.0, beam=1.0),
    "low-sun": Weather(sun=1.0),
    "snow": Weather(snow=1.0),
    "dirty-lens": Weather(dirt=1.0),
    "motion-blur": Weather(blur=1.0),
    "low-bitrate": Weather(bitrate=1.0),
}

DEFAULT_ROUTE: tuple[str, ...] = (
    "clear",
    "fog",
    "rain",
    "dusk",
    "night",
    "low-sun",
    "snow",
    "dirty-lens",
    "motion-blur",
    "low-bitrate",
    "clear",
)

# These come and go like a switch (a tunnel, a splash, a bad link); the others roll in.
_SUDDEN = frozenset({"low-sun", "dirty-lens", "motion-blur", "low-bitrate"})
_ROLL_IN = 0.3
# Within a condition the strength wanders between this share and all of it.
_LULL = 0.75


class Route:
    """Which weather each frame of a drive has.

    The conditions are met in order, each for an equal share of the drive; the seed decides how
    their strength wanders. Raises `ConfigError` if a name is unknown, there is none, or the drive
    has fewer frames than conditions.
    """

    def __init__(self, names: Sequence[str], num_frames: int, /, *, seed: int) -> None:
        unknown = [name for name in names if name not in CONDITIONS]
        if unknown or not names:
            raise ConfigError(
                f"conditions: expected names among {', '.join(CONDITIONS)}, "
                f"got {', '.join(unknown) or 'none'}"
            )
        if num_frames < len(names):
            raise ConfigError(
                f"frames: expected at least one per condition ({len(names)}), got {num_frames}"
            )
        self._names = tuple(names)
        self._num_frames = num_frames
        rng = np.random.default_rng([seed, 11])
        self._phases = rng.uniform(0.0, 2.0 * np.pi, (len(names), 2))

    def _leg(self, index: int) -> tuple[int, float]:
        """The leg a frame lies in and how far into it, in [0, 1)."""
        progress = min(index / self._num_frames, 1.0 - 1e-9) * len(self._names)
        leg = int(progress)
        return leg, progress - leg

    def name(self, index: int, /) -> str:
        """Name of the condition of a frame."""
        return self._names[self._leg(index)[0]]

    def weather(self, index: int, /) -> Weather:
        """Weather of a frame."""
        leg, done = self._leg(index)
        name = self._names[leg]
        phases = self._phases[leg]
        swing = (
            0.5 + 0.25 * np.sin(19.0 * done + phases[0]) + 0.25 * np.sin(47.0 * done + phases[1])
        )
        present = CONDITIONS[name].scaled(_LULL + (1.0 - _LULL) * float(swing))
        if leg == 0 or name in _SUDDEN or self._names[leg - 1] in _SUDDEN:
            return present
        before = CONDITIONS[self._names[leg - 1]].scaled(_LULL)
        ease = min(done / _ROLL_IN, 1.0)
        return before.towards(present, ease * ease * (3.0 - 2.0 * ease))


Generator = np.random.Generator
Image = npt.NDArray[np.uint8]
Vector = npt.NDArray[np.float32]

# Extinction per m at full strength. Fog: a plate at 20 m keeps 40 % of its contrast.
FOG_PER_M: Final = 0.045
RAIN_PER_M: Final = 0.022
SNOW_PER_M: Final = 0.026
_TILE: Final = 256
_MUD: Final = (112, 100, 82)


def transmittance(depth_m: Vector | float, weather: Weather, /) -> Vector:
    """Share of the light from a depth that comes through the air."""
    extinction = (
        FOG_PER_M * weather.fog + RAIN_PER_M * weather.rain + SNOW_PER_M * weather.snow + 0.0004
    )
    return np.exp(np.asarray(depth_m, np.float32) * np.float32(-extinction))


def _daylight(weather: Weather) -> Vector:
    """Factors on red, green and blue of what only the sky lights."""
    dusk = np.array([0.10, 0.12, 0.17], np.float32)
    rainy = np.float32(1.0 - 0.35 * weather.rain)
    return rainy * (1.0 - weather.dark + dusk * weather.dark * (1.25 - weather.dark))


def fog_color(weather: Weather, /) -> Vector:
    """Colour of air that hides everything."""
    return np.array([206.0, 210.0, 214.0], np.float32) * _daylight(weather)


def light_on(depth_m: float, weather: Weather, /, *, returned: float = 0.0) -> Vector:
    """Factors on red, green and blue of an upright thing at a depth.

    `returned` is how strongly it throws the headlights back: 0.2 to 2 for a plate, 0.1 for a tree.
    """
    against = 1.0 - 0.4 * weather.sun
    beam = weather.beam * returned * 1.9 * np.exp(-max(depth_m - 6.0, 0.0) / 13.0)
    warm = np.array([1.0, 0.94, 0.78], np.float32)
    return _daylight(weather) * np.float32(against) + warm * np.float32(beam)


class Atmosphere:
    """Applies a weather to windows of the frame; its patterns are drawn once from a seed."""

    def __init__(self, seed: int, /) -> None:
        self._seed = seed
        self._patterns: dict[str, list[Image]] = {}

    def _pattern(self, name: str) -> list[Image]:
        """The pictures of one pattern, drawn when they are first needed."""
        if name not in self._patterns:
            order, draw, count = _PATTERNS[name]
            rng = np.random.default_rng([self._seed, 31, order])
            self._patterns[name] = [draw(rng) for _ in range(count)]
        return self._patterns[name]

    def _anywhere(self, name: str, window: Window, rng: Generator) -> Image:
        """A piece as large as the window from a random place of a pattern."""
        tiles = self._pattern(name)
        tile = tiles[rng.integers(len(tiles))]
        top = int(rng.integers(tile.shape[0] - window.height + 1))
        left = int(rng.integers(tile.shape[1] - window.width + 1))
        return tile[top : top + window.height, left : left + window.width]

    def _part(self, name: str, window: Window) -> Image:
        """The window's part of a pattern that is fixed to the frame."""
        return self._pattern(name)[0][
            window.top : window.top + window.height, window.left : window.left + window.width
        ]

    def light_ground(self, image: Image, window: Window, weather: Weather, /) -> Image:
        """Daylight and headlights on the sky and the ground."""
        sky = _daylight(weather) * np.float32(1.0 - 0.25 * weather.sun)
        if weather.beam == 0.0:
            return image if np.all(sky == 1.0) else _affine(image, sky, np.zeros(3, np.float32))
        lit = self._part("beam", window)[..., None] * np.float32(0.75 / 255.0 * weather.beam)
        return np.clip(image * (sky + lit), 0, 255).astype(np.uint8)

    def veil(self, image: Image, window: Window, weather: Weather, /, *, rng: Generator) -> Image:
        """Everything between the scene and the file, in the order in which light meets it."""
        if weather.sun > 0.0:
            image = self._dazzle(image, window, weather.sun)
        if weather.beam > 0.0:
            image = _glow(image, weather.beam)
        if weather.rain > 0.0:
            image = self._rain(image, window, weather, rng)
        if weather.snow > 0.0:
            image = self._snow(image, window, weather, rng)
        if weather.dirt > 0.0:
            image = self._dirty(image, window, weather.dirt)
        if weather.blur > 0.0:
            image = _move(image, weather.blur, rng)
        image = self._sense(image, window, weather, rng)
        return _encode(image, weather.bitrate) if weather.bitrate > 0.05 else image

    def _dazzle(self, image: Image, window: Window, strength: float) -> Image:
        veil = np.array([36.0, 30.0, 20.0], np.float32) * np.float32(strength)
        hazy = _affine(image, np.full(3, 1.0 - 0.3 * strength, np.float32), veil)
        return cv2.add(hazy, cv2.convertScaleAbs(self._part("sun", window), alpha=strength))

    def _rain(self, image: Image, window: Window, weather: Weather, rng: Generator) -> Image:
        soft = cv2.GaussianBlur(image, (0, 0), 0.3 + 1.2 * weather.rain)
        streaks = self._anywhere("streaks", window, rng)
        glint = 0.25 + 0.45 * float(_daylight(weather)[1])
        return cv2.add(soft, cv2.convertScaleAbs(streaks, alpha=weather.rain * glint))

    def _snow(self, image: Image, window: Window, weather: Weather, rng: Generator) -> Image:
        flakes = self._anywhere("flakes", window, rng)
        white = cv2.convertScaleAbs(flakes, alpha=min(1.3 * weather.snow, 1.0))
        keep = cv2.subtract(np.full_like(white, 255), white)
        dimmed = cv2.multiply(image, keep, scale=1.0 / 255.0)
        bright = cv2.convertScaleAbs(white, alpha=0.3 + 0.62 * float(_daylight(weather)[1]))
        return cv2.add(dimmed, bright)

    def _dirty(self, image: Image, window: Window, strength: float) -> Image:
        soft = cv2.GaussianBlur(image, (0, 0), 0.4 + 3.2 * strength)
        amount = self._part("smear", window).astype(np.float32)
        through = np.minimum(amount * np.float32(strength / 120.0), 1.0)
        mixed = cv2.blendLinear(image, soft, 1.0 - through, through)
        film = amount * np.float32(strength / 255.0)
        mud = np.empty_like(image)
        mud[:] = _MUD
        return cv2.blendLinear(mixed, mud, 1.0 - film, film)

    def _sense(self, image: Image, window: Window, weather: Weather, rng: Generator) -> Image:
        """The camera turns its gain up in the dark and the noise with it."""
        if weather.dark > 0.0:
            gain = np.full(3, 1.0 + 0.5 * weather.dark, np.float32)
            image = _affine(image, gain, np.full(3, 3.0, np.float32))
        sigma = 2.0 + 34.0 * weather.dark**1.5 + 3.0 * weather.rain
        noise = self._anywhere("noise", window, rng)
        return cv2.addWeighted(image, 1.0, noise, sigma / 32.0, -128.0 * sigma / 32.0)


def _affine(image: Image, factors: Vector, offsets: Vector) -> Image:
    """Multiply and shift each channel, by table."""
    levels = np.arange(256, dtype=np.float32)[:, None]
    table = np.clip(levels * factors + offsets, 0, 255).astype(np.uint8)
    return cv2.LUT(image, table[None])


def _glow(image: Image, strength: float) -> Image:
    """Halos around what the headlights over-expose."""
    small = cv2.resize(image, None, fx=0.25, fy=0.25, interpolation=cv2.INTER_AREA)
    bright = cv2.GaussianBlur(cv2.subtract(small, (150, 150, 150, 0)), (0, 0), 2.2)
    halo = cv2.resize(bright, (image.shape[1], image.shape[0]), interpolation=cv2.INTER_LINEAR)
    return cv2.add(image, cv2.convertScaleAbs(halo, alpha=1.2 * strength))


def _move(image: Image, strength: float, rng: Generator) -> Image:
    """Blur along a direction that jitters from frame to frame."""
    length = 1.0 + strength * rng.uniform(4.5, 11.0)
    angle = rng.normal(0.5, 0.5)
    reach = int(np.ceil(length / 2))
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1), np.float32)
    dx, dy = length / 2 * np.cos(angle), length / 2 * np.sin(angle)
    ends = np.rint(np.array([[reach - dx, reach - dy], [reach + dx, reach + dy]]) * 16).astype(int)
    cv2.line(kernel, tuple(map(int, ends[0])), tuple(map(int, ends[1])), 1.0, 1, cv2.LINE_AA, 4)
    return cv2.filter2D(image, -1, kernel / kernel.sum())


def _encode(image: Image, strength: float) -> Image:
    """What is left after an encoder with too few bits: half the pixels, coarse blocks."""
    height, width = image.shape[:2]
    # OpenCV takes BGR, and the encoder spends fewer bits on colour than on brightness.
    small = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    small = cv2.resize(small, (width // 2, height // 2), interpolation=cv2.INTER_AREA)
    quality = round(60 - 53 * strength)
    _, packed = cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, quality])
    coarse = cv2.cvtColor(cv2.imdecode(packed, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR)


def _streaks(rng: Generator) -> Image:
    """Rain drops drawn out by the exposure; larger than the frame."""
    layer = np.zeros((HEIGHT_PX + _TILE, WIDTH_PX + _TILE), np.uint8)
    for _ in range(5200):
        x, y = rng.uniform(0, layer.shape[1]), rng.uniform(0, layer.shape[0])
        length, level = rng.uniform(8, 34), rng.uniform(60, 210)
        end = (int(x - 0.18 * length), int(y + length))
        cv2.line(layer, (int(x), int(y)), end, float(level), 1, cv2.LINE_AA)
    return np.repeat(layer[..., None], 3, axis=2)


def _flakes(rng: Generator) -> Image:
    """Snow flakes near and far; larger than the frame."""
    layer = np.zeros((HEIGHT_PX + _TILE, WIDTH_PX + _TILE), np.uint8)
    for count, low, high in ((9000, 0.8, 1.8), (2200, 1.8, 3.6), (260, 4.0, 9.0)):
        for _ in range(count):
            x, y = rng.uniform(0, layer.shape[1]), rng.uniform(0, layer.shape[0])
            radius = rng.uniform(low, high)
            level = float(rng.uniform(120, 250) * (0.6 if low >= 4 else 1.0))
            center = (int(x * 16), int(y * 16))
            cv2.circle(layer, center, int(radius * 16), level, -1, cv2.LINE_AA, 4)
    layer = cv2.GaussianBlur(layer, (0, 0), 0.8)
    return np.repeat(layer[..., None], 3, axis=2)


def _smear(rng: Generator) -> Image:
    """How thick the dirt on the lens is, as large as the frame."""
    shape = (HEIGHT_PX, WIDTH_PX)
    thick = 0.6 * smooth_noise(rng, shape, cells=9) + 0.5 * smooth_noise(rng, shape, cells=26)
    layer = np.clip((thick - 0.14) * 260, 0, 190).astype(np.uint8)
    for _ in range(420):
        x, y = int(rng.uniform(0, shape[1])), int(rng.uniform(0, shape[0]))
        cv2.circle(layer, (x, y), int(rng.uniform(2, 11)), float(rng.uniform(120, 255)), -1)
    return cv2.GaussianBlur(layer, (0, 0), 2.5)


def _beam(_: Generator) -> Image:
    """Where the headlights fall on the road, (H, W)."""
    y, x = np.mgrid[0:HEIGHT_PX, 0:WIDTH_PX].astype(np.float32)
    across = np.exp(-(((x - 690) / (260 + 0.4 * np.maximum(y - 340, 0))) ** 2))
    down = np.exp(-(((y - 470) / 130) ** 2)) * (y > 330) + np.exp(-(((y - 330) / 40) ** 2)) * 0.12
    return np.clip(255.0 * across * down, 0, 255).astype(np.uint8)


def _sun(rng: Generator) -> Image:
    """The glare of a low sun near the roadside, as large as the frame."""
    y, x = np.mgrid[0:HEIGHT_PX, 0:WIDTH_PX].astype(np.float32)
    cx, cy = rng.uniform(760, 940), rng.uniform(215, 270)
    distance = np.hypot(x - cx, (y - cy) * 1.1)
    level = 255 * np.exp(-((distance / 46) ** 2)) + 150 * np.exp(-distance / 150)
    level += 60 * np.exp(-distance / 420)
    glare = level[..., None] * np.array([1.0, 0.84, 0.56], np.float32)
    return np.clip(glare, 0, 255).astype(np.uint8)


def _noise(rng: Generator) -> Image:
    """The sensor's noise around 128 with a deviation of 32; larger than the frame."""
    shape = (HEIGHT_PX + _TILE, WIDTH_PX + _TILE, 3)
    grain = rng.standard_normal(shape, dtype=np.float32) * 32 + 128
    return np.clip(grain, 0, 255).astype(np.uint8)


# Name: a number for its generator, how to draw it, and how many of it.
_PATTERNS: dict[str, tuple[int, Callable[[Generator], Image], int]] = {
    "noise": (0, _noise, 1),
    "streaks": (1, _streaks, 3),
    "flakes": (2, _flakes, 3),
    "smear": (3, _smear, 1),
    "beam": (4, _beam, 1),
    "sun": (5, _sun, 1),
}
