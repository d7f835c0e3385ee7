"""Noticing that the device slows itself down because it is hot."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from gain_apps.system_files import read_number, read_numbers, read_text

__all__ = ["ThermalWatch"]

logger = logging.getLogger(__name__)

EVERY_S = 10.0
COOLING = "class/thermal/cooling_device*"
ZONES = "class/thermal/thermal_zone*/temp"
# x86 counts the times each core was slowed down.
COUNTERS = "devices/system/cpu/cpu*/thermal_throttle/core_throttle_count"


class ThermalWatch:
    """Looks at sysfs every ten seconds and says when throttling begins and ends.

    Slowed down means that a passive cooling device (a limit on a clock, not a fan) is in use, or
    that a core's counter of throttling has grown since the last look.

    Parameters
    ----------
    root : Path, optional
    clock : callable, optional
        Monotonic seconds.
    """

    def __init__(
        self, *, root: Path = Path("/sys"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._root = root
        self._clock = clock
        self._next_s = clock()
        self._count = self._counted()
        self._throttled = False
        self._celsius = self._hottest()

    @property
    def throttled(self) -> bool:
        """Whether the device was slowed down at the last look."""
        return self._throttled

    @property
    def celsius(self) -> float | None:
        """The hottest zone at the last look; None where none could be read."""
        return self._celsius

    def tick(self) -> None:
        """Look, if the last look is old enough, and say what changed."""
        now = self._clock()
        if now < self._next_s:
            return
        self._next_s = now + EVERY_S
        before, self._count = self._count, self._counted()
        self._celsius = self._hottest()
        throttled = self._count > before or self._limited()
        if throttled == self._throttled:
            return
        self._throttled = throttled
        celsius = self._celsius
        degrees = "temperature unknown" if celsius is None else f"{celsius:.0f} °C"
        if throttled:
            logger.warning("the device slows itself down (%s); give it air or less to do", degrees)
        else:
            logger.warning("the device runs at full speed again (%s)", degrees)

    def _hottest(self) -> float | None:
        """The hottest zone now."""
        degrees = [value / 1000.0 for value in read_numbers(self._root.glob(ZONES))]
        return max(degrees, default=None)

    def _limited(self) -> bool:
        """Whether a clock is limited."""
        for device in self._root.glob(COOLING):
            kind = read_text(device / "type").lower()
            if "fan" not in kind and read_number(device / "cur_state"):
                return True
        return False

    def _counted(self) -> int:
        """All cores' counters together."""
        return sum(read_numbers(self._root.glob(COUNTERS)))
