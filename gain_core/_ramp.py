"""From no to yes, by and by."""

from __future__ import annotations

from array_api_compat import array_namespace

from gain_core._typing import Array

__all__ = ["along"]


def along(value: Array, ramp: tuple[float, float], /) -> Array:
    """0 up to where the ramp begins, 1 from its end; both are finite and the first is less."""
    xp = array_namespace(value)
    begins, ends = ramp
    return xp.clip((value - begins) / (ends - begins), 0.0, 1.0)
