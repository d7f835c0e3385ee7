"""Noise on each value by itself: gaussian, shot and impulse noise."""

from __future__ import annotations

import numpy as np

from gain_apps.corruptions.constants import constants
from gain_apps.corruptions.scaling import Field

__all__ = ["gaussian_noise", "impulse_noise", "shot_noise"]

# 1e8 photons at white: noise nobody can see, and a mean that NumPy's Poisson still takes.
_LEAST_SHOT = 1e-4


def gaussian_noise(
    image: Field, severity: float, *, rng: np.random.Generator, scale: float
) -> Field:
    """Add a normal deviate to every value."""
    (deviation,) = constants("gaussian_noise", severity)
    noisy: Field = image + np.float32(deviation) * rng.standard_normal(
        image.shape, dtype=np.float32
    )
    return noisy


def shot_noise(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Count photons: Poisson with the value times the photons at white as its mean."""
    (noise_at_white,) = constants("shot_noise", severity)
    photons = np.float32(max(noise_at_white, _LEAST_SHOT) ** -2)
    counts = rng.poisson(image * photons).astype(np.float32)
    noisy: Field = counts / photons
    return noisy


def impulse_noise(
    image: Field, severity: float, *, rng: np.random.Generator, scale: float
) -> Field:
    """Replace a share of the values, each channel by itself, by 0 or 1 with equal chances."""
    (share,) = constants("impulse_noise", severity)
    draw = rng.random(image.shape, dtype=np.float32)
    salted = np.where(draw < share, np.float32(1), image)
    return np.where(draw < share / 2, np.float32(0), salted)
