"""The conditions of the drive: what each one does, and how they follow each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from gain_core.errors import ConfigError

__all__ = [
    "CONDITIONS",
    "DEFAULT_ROUTE",
    "Route",
    "Weather",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Strengths of everything that can degrade a picture, each 0 (absent) to 1 (full).

    Attributes
    ----------
    fog, rain, snow : float
        In the air, and for snow also on the plates and the ground.
    dark : float
        Missing daylight; the camera's gain and noise rise with it.
    beam : float
        Own headlights: plates throw them back.
    sun : float
        A low sun ahead: glare, veil, and plates seen against the light.
    dirt, blur, bitrate : float
        Smears on the lens, motion during the exposure, a starved video encoder.
    """

    fog: float = 0.0
    rain: float = 0.0
    snow: float = 0.0
    dark: float = 0.0
    beam: float = 0.0
    sun: float = 0.0
    dirt: float = 0.0
    blur: float = 0.0
    bitrate: float = 0.0

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

    Parameters
    ----------
    names : sequence of str
        Conditions in the order in which they are met, each for an equal share of the drive.
    num_frames : int
        Length of the drive.
    seed : int
        Decides how the strength wanders.

    Raises
    ------
    ConfigError
        If a name is unknown, there is none, or the drive has fewer frames than conditions.
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
