"""`test://signs`: clean still pictures of road signs, as the classifier was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gain_apps.roadsigns.designs import LABELS
from gain_apps.roadsigns.sample import render_labelled
from gain_core.errors import ConfigError
from gain_runtime.drawn_source import DrawnSource
from gain_runtime.frame import Frame, FrameSource, SourceInfo
from gain_runtime.image_source import NOMINAL_RATE_HZ
from gain_runtime.uri import record_from_params

__all__ = ["SIGNS_URI", "StillsParams", "StillsSource", "stills_source"]

SIGNS_URI = "test://signs"
SIDE_PX = 64
# Neither what the classifier was trained on nor what it is tested on: models/roadsigns and
# benchmarks/ count from 0 and from other millions. A drive draws its signs from other streams.
FIRST_SEED = 4_000_037


@dataclass(frozen=True, slots=True, kw_only=True)
class StillsParams:
    """Which pictures.

    Attributes
    ----------
    frames : int
        How many; twenty of each class in the mean unless said otherwise.
    seed : int
    """

    frames: int = 20 * len(LABELS)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("frames", self.frames, 1, 10_000_000),
            ("seed", self.seed, 0, 2**62),
        ):
            if not low <= value <= high:
                raise ConfigError(f"{SIGNS_URI}: {name}: expected {low} to {high}, got {value}")


def stills_source(params: Mapping[str, str], seed: int = 0, /) -> FrameSource:
    """Open `test://signs`.

    Parameters
    ----------
    params : mapping of str to str
        Query parameters of the URI: the fields of `StillsParams`.
    seed : int
        Used unless `params` has a `seed`.

    Returns
    -------
    FrameSource

    Raises
    ------
    ConfigError
        If a parameter is unknown, malformed or out of range.
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
