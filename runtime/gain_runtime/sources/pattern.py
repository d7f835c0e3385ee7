"""Pictures drawn by code, each from its index alone, and the one of `test://pattern`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gain_core.errors import ConfigError
from gain_runtime.frames import Closing, Frame, SourceInfo
from gain_runtime.sources.uri import record_from_params


class DrawnSource(Closing):
    """Frames 0 to `num_frames` - 1, until it is closed."""

    # A drawn frame cannot fail to decode.
    skipped = 0

    def __init__(self, num_frames: int, /) -> None:
        self._num_frames = num_frames
        self._closed = False

    @property
    @abstractmethod
    def info(self) -> SourceInfo:
        """Everything is known in advance."""

    @abstractmethod
    def frame(self, index: int, /) -> Frame:
        """Draw one frame; it depends on the source's parameters and its index only."""

    def __iter__(self) -> Iterator[Frame]:
        for index in range(self._num_frames):
            if self._closed:
                return
            yield self.frame(index)

    def close(self) -> None:
        """End the iteration; may be called twice."""
        self._closed = True


NAME = "test://pattern"


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternParams:
    """Parameters of the URI: size in px, number of frames, rate in Hz; ConfigError out of range."""

    width: int = 640
    height: int = 480
    frames: int = 300
    rate: float = 30.0

    def __post_init__(self) -> None:
        for name, value, high in (
            ("width", self.width, 16_384),
            ("height", self.height, 16_384),
            ("frames", self.frames, 10**9),
            ("rate", self.rate, 1000.0),
        ):
            low = 1e-3 if name == "rate" else 1
            if not low <= value <= high:
                raise ConfigError(f"{NAME}: {name}: expected {low:g} to {high:g}, got {value}")


class PatternSource(DrawnSource):
    """Drifting colour waves with a white square that travels across them.

    Frame `index` depends on the parameters, the seed (for the waves and the square's path) and the
    index only.
    """

    def __init__(self, params: PatternParams | None = None, /, *, seed: int = 0) -> None:
        self._params = params or PatternParams()
        super().__init__(self._params.frames)
        rng = np.random.default_rng(seed)
        self._cycles = rng.uniform(0.5, 3.0, size=(2, 3))
        self._phase = rng.uniform(0.0, 2.0 * np.pi, size=(2, 3))
        self._turn = rng.uniform(-0.15, 0.15, size=(2, 3))
        self._path = rng.uniform(0.005, 0.02, size=2)

    @property
    def info(self) -> SourceInfo:
        """Everything is known in advance."""
        return SourceInfo(
            source_id=NAME,
            width_px=self._params.width,
            height_px=self._params.height,
            rate_hz=self._params.rate,
            num_frames=self._params.frames,
            live=False,
        )

    def frame(self, index: int, /) -> Frame:
        """Draw one frame."""
        return Frame(
            image=self._image(index),
            index=index,
            timestamp_ns=round(index * 1e9 / self._params.rate),
            source_id=NAME,
        )

    def _image(self, index: int) -> npt.NDArray[np.uint8]:
        height, width = self._params.height, self._params.width
        rows, columns = (
            (
                np.sin(
                    2.0 * np.pi * self._cycles[axis] * np.linspace(0.0, 1.0, size)[:, None]
                    + self._phase[axis]
                    + self._turn[axis] * index
                )
                * 60.0
                + 64.0
            ).astype(np.uint8)
            for axis, size in enumerate((height, width))
        )
        # Both lie in 4..124, so the sum stays in range.
        frame = np.empty((height, width, 3), dtype=np.uint8)
        # Four times as fast by channel as broadcast over a last axis of three.
        for channel in range(3):
            np.add(rows[:, channel, None], columns[None, :, channel], out=frame[:, :, channel])
        side = max(min(height, width) // 8, 1)
        # A triangle wave: the square turns round at the borders.
        along = np.abs((self._path * index + 1.0) % 2.0 - 1.0)
        top, left = (along * (height - side, width - side)).astype(int)
        frame[top : top + side, left : left + side] = 255
        return frame


def open_pattern(params: Mapping[str, str], seed: int) -> PatternSource:
    """Open `test://pattern?width=..&height=..&frames=..&rate=..`; ConfigError for others."""
    return PatternSource(record_from_params(PatternParams, params, owner=NAME), seed=seed)
