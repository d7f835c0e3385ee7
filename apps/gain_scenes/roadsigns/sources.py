"""The road signs as sources: a drive past them, and stills of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from gain_core.errors import ConfigError
from gain_runtime.frames import Frame, FrameSource, SourceInfo
from gain_runtime.sources.images import NOMINAL_RATE_HZ
from gain_runtime.sources.pattern import DrawnSource
from gain_runtime.sources.uri import record_from_params
from gain_scenes.roadsigns.atmosphere import DEFAULT_ROUTE, Route, Weather
from gain_scenes.roadsigns.designs import LABELS
from gain_scenes.roadsigns.sample import render_labelled
from gain_scenes.roadsigns.scenery import HEIGHT_PX, WIDTH_PX, View, Window
from gain_scenes.roadsigns.world import World

SOURCE_ID = "test://drive"
MODES = ("region", "centre")
RESOLUTIONS = ("720p", "crop")
CROP_PX = 128
FRAMES = (1, 10_000_000)
Box = tuple[int, int, int, int]


def _check(uri: str, params: object, **limits: tuple[float, float]) -> None:
    """Every parameter is within its limits."""
    for name, (low, high) in limits.items():
        value = getattr(params, name)
        if not low <= value <= high:
            raise ConfigError(f"{uri}: {name}: expected {low} to {high}, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveParams:
    """How to drive.

    A sign lasts 27 to 40 frames at the default speed, in km/h, and rate, in frames per second. The
    conditions are names from `CONDITIONS` in the order in which they are met, separated by commas,
    each for an equal share of the drive.

    Of the modes, `region` has the sign's box as the frame's region; in `centre` the camera zooms on
    the sign, so that the centre of the frame is the sign's box, and there is no region. The
    resolution `720p` is the whole frame, `crop` only 128 x 128 px around the sign, pixel for pixel.
    """

    frames: int = 3000
    rate: float = 30.0
    speed: float = 80.0
    conditions: str = ",".join(DEFAULT_ROUTE)
    mode: str = "region"
    resolution: str = "720p"
    seed: int = 0

    def __post_init__(self) -> None:
        _check(SOURCE_ID, self, rate=(1.0, 240.0), speed=(5.0, 250.0), frames=FRAMES)
        _check(SOURCE_ID, self, seed=(0, 2**63 - 1))
        for name, choices in (("mode", MODES), ("resolution", RESOLUTIONS)):
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{SOURCE_ID}: {name}: expected one of {', '.join(choices)}, "
                    f"got {getattr(self, name)!r}"
                )
        self.route()

    def route(self) -> Route:
        """The weather of each frame."""
        names = [name.strip() for name in self.conditions.split(",") if name.strip()]
        return Route(names, self.frames, seed=self.seed)


def drive_source(params: Mapping[str, str], seed: int = 0, /) -> FrameSource:
    """Open `test://drive`, by the fields of `DriveParams`; the seed counts where they have none.

    An unknown, malformed or out-of-range parameter is a `ConfigError`.
    """
    values = {"seed": str(seed), **params}
    return DriveSource(record_from_params(DriveParams, values, owner=SOURCE_ID))


class DriveSource(DrawnSource):
    """Frames of one drive; every frame depends on the parameters and its index only."""

    def __init__(self, params: DriveParams, /) -> None:
        super().__init__(params.frames)
        self._params = params
        self._step_m = params.speed / 3.6 / params.rate
        self._world = World(params.seed, length_m=params.frames * self._step_m)
        self._route = params.route()

    @property
    def info(self) -> SourceInfo:
        small = self._params.resolution == "crop"
        return SourceInfo(
            source_id=SOURCE_ID,
            width_px=CROP_PX if small else WIDTH_PX,
            height_px=CROP_PX if small else HEIGHT_PX,
            rate_hz=self._params.rate,
            num_frames=self._params.frames,
            live=False,
            class_names=LABELS,
        )

    def weather(self, index: int, /) -> Weather:
        """Weather of a frame."""
        return self._route.weather(index)

    def frame(self, index: int, /) -> Frame:
        """Draw one frame."""
        params = self._params
        rng = np.random.default_rng([params.seed, 53, index])
        view = _view(index * self._step_m, index / params.rate)
        sign = self._world.sign(self._world.current(view.along_m))
        x, y, half, _ = self._world.project(sign, view)
        box = _detected(x, y, half, rng)
        window = self._window(box)
        image = self._world.draw(window, view, self._route.weather(index), rng=rng)
        image, region = self._framed(image, window, box)
        return Frame(
            image=np.ascontiguousarray(image),
            index=index,
            timestamp_ns=round(index * 1e9 / params.rate),
            source_id=SOURCE_ID,
            region=region,
            truth=sign.class_index,
            condition=self._route.name(index),
        )

    def _window(self, box: Box) -> Window:
        """The part of the frame to draw."""
        if self._params.mode == "region" and self._params.resolution == "720p":
            return Window(left=0, top=0, width=WIDTH_PX, height=HEIGHT_PX)
        wide = self._params.mode == "centre" and self._params.resolution == "720p"
        width = 2 * CROP_PX if wide else CROP_PX
        left = (box[0] + box[2] - width) // 2
        top = (box[1] + box[3] - CROP_PX) // 2
        return Window(
            left=min(max(left, 0), WIDTH_PX - width),
            top=min(max(top, 0), HEIGHT_PX - CROP_PX),
            width=width,
            height=CROP_PX,
        )

    def _framed(
        self, image: npt.NDArray[np.uint8], window: Window, box: Box
    ) -> tuple[npt.NDArray[np.uint8], Box | None]:
        """The picture as it leaves the camera, and the region to classify."""
        left, top = box[0] - window.left, box[1] - window.top
        right, bottom = box[2] - window.left, box[3] - window.top
        if self._params.mode == "region":
            return image, (left, top, right, bottom)
        size = (self.info.width_px, self.info.height_px)
        aside = round((bottom - top) * (size[0] / size[1] - 1.0) / 2)
        part = image[top:bottom, left - aside : right + aside]
        zoomed: npt.NDArray[np.uint8] = cv2.resize(part, size, interpolation=cv2.INTER_LINEAR)
        return zoomed, None


def _view(along_m: float, seconds: float) -> View:
    """The camera keeps its lane but not perfectly, and the car nods."""
    return View(
        along_m=along_m,
        right_m=0.22 * float(np.sin(0.7 * seconds)) + 0.1 * float(np.sin(1.9 * seconds)),
        sway_x_px=round(9.0 * float(np.sin(0.43 * seconds + 1.0))),
        sway_y_px=round(2.2 * float(np.sin(5.1 * seconds)) + 1.3 * float(np.sin(11.3 * seconds))),
    )


def _detected(x: float, y: float, half: float, rng: np.random.Generator) -> Box:
    """The square box a detector would report: a little too large and not quite centred."""
    reach = half * rng.uniform(1.06, 1.2)
    dx, dy = rng.uniform(-0.05, 0.05, 2) * half
    side = 2 * round(reach)
    left, top = round(x + dx - side / 2), round(y + dy - side / 2)
    left = min(max(left, 0), WIDTH_PX - side)
    top = min(max(top, 0), HEIGHT_PX - side)
    return left, top, left + side, top + side


SIGNS_URI = "test://signs"
SIDE_PX = 64
# Neither what the classifier was trained on nor what it is tested on: models/roadsigns and
# benchmarks/ count from 0 and from other millions. A drive draws its signs from other streams.
FIRST_SEED = 4_000_037


@dataclass(frozen=True, slots=True, kw_only=True)
class StillsParams:
    """How many pictures, and which; twenty of each class in the mean unless said otherwise."""

    frames: int = 20 * len(LABELS)
    seed: int = 0

    def __post_init__(self) -> None:
        _check(SIGNS_URI, self, frames=FRAMES, seed=(0, 2**62))


def stills_source(params: Mapping[str, str], seed: int = 0, /) -> FrameSource:
    """Open `test://signs`, by the fields of `StillsParams`; the seed counts where they have none.

    An unknown, malformed or out-of-range parameter is a `ConfigError`.
    """
    values = {"seed": str(seed), **params}
    return StillsSource(record_from_params(StillsParams, values, owner=SIGNS_URI))


class StillsSource(DrawnSource):
    """Pictures without weather; each depends on the seed and its index only."""

    def __init__(self, params: StillsParams, /) -> None:
        super().__init__(params.frames)
        self._params = params

    @property
    def info(self) -> SourceInfo:
        return SourceInfo(
            source_id=SIGNS_URI,
            width_px=SIDE_PX,
            height_px=SIDE_PX,
            rate_hz=NOMINAL_RATE_HZ,
            num_frames=self._params.frames,
            live=False,
            class_names=LABELS,
        )

    def frame(self, index: int, /) -> Frame:
        """Draw one picture."""
        seed = FIRST_SEED + self._params.seed
        image, label = render_labelled(index, seed=seed, size_px=SIDE_PX)
        return Frame(
            image=np.ascontiguousarray(image),
            index=index,
            timestamp_ns=round(index * 1e9 / NOMINAL_RATE_HZ),
            source_id=SIGNS_URI,
            truth=label,
        )
