"""What a camera's sensor does in bad light, and what few bits per value do."""

from __future__ import annotations

import numpy as np

from gain_apps.corruptions.constants import constants
from gain_apps.corruptions.scaling import Field

__all__ = ["color_quant", "iso_noise", "low_light"]

# Of the encoding of light into pixel values.
_GAMMA = np.float32(2.2)
# 1e8 photons at white: noise nobody can see, and a mean that NumPy's Poisson still takes.
_LEAST_SHOT = 1e-4


def low_light(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Leave a share of the light; what is left is counted in few photons."""
    share, shot, read = constants("low_light", severity)
    return _exposed(image, share, shot=shot, read=read, rng=rng)


def iso_noise(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Amplify too few photons: noise of light and of the amplifier, strongest in the shadows."""
    shot, read = constants("iso_noise", severity)
    return _exposed(image, 1.0, shot=shot, read=read, rng=rng)


def color_quant(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Round every value down to one of a few levels."""
    (levels,) = constants("color_quant", severity)
    count = round(levels)
    steps = np.minimum(np.floor(image * np.float32(count)), np.float32(count - 1))
    quantised: Field = steps / np.float32(count - 1)
    return quantised


def _exposed(
    image: Field, share: float, *, shot: float, read: float, rng: np.random.Generator
) -> Field:
    """Expose a sensor to a share of the image's light.

    `shot` is the noise of the photons at the image's own white, `read` the deviation of what the
    amplifier adds, both in units of that white.
    """
    light = image**_GAMMA * np.float32(share)
    photons = np.float32(max(shot, _LEAST_SHOT) ** -2)
    counted = rng.poisson(light * photons).astype(np.float32) / photons
    counted += np.float32(read) * rng.standard_normal(image.shape, dtype=np.float32)
    encoded: Field = np.clip(counted, 0, None) ** (1 / _GAMMA)
    return encoded
