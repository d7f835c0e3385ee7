"""Weather: snow, frost, fog and the brightness of the day."""

from __future__ import annotations

import math

import cv2
import numpy as np

from gain_apps.corruptions.blur import enlarged, line_blur
from gain_apps.corruptions.constants import constants
from gain_apps.corruptions.frost import frost_texture
from gain_apps.corruptions.plasma import plasma_fractal
from gain_apps.corruptions.scaling import Field, fit, reference_shape

__all__ = ["brightness", "fog", "frost", "snow"]

# A plasma map of this side tiles without a seam, so very wide images need no larger one.
_LARGEST_FOG_PX = 1024


def snow(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Falling flakes, smeared by their fall, before a whitened scene.

    The layer of flakes is added twice, the second time turned by half a turn.
    """
    mean, deviation, size, threshold, radius, sigma, weight = constants("snow", severity)
    angle = math.radians(rng.uniform(-135, -45))
    draw = rng.standard_normal(reference_shape(image.shape, scale), dtype=np.float32)
    flakes = np.float32(mean) + np.float32(deviation) * enlarged(draw, size)
    flakes[flakes < threshold] = 0
    np.clip(flakes, 0, 1, out=flakes)
    flakes = fit(line_blur(flakes, angle, radius=radius, sigma=sigma), image.shape)[..., None]
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None]
    whitened = np.maximum(image, 1.5 * grey + np.float32(0.5))
    scene = np.float32(weight) * image + np.float32(1 - weight) * whitened
    snowed: Field = scene + flakes + flakes[::-1, ::-1]
    return snowed


def frost(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Mix in a drawn pane of frost."""
    scene, ice = constants("frost", severity)
    pane = frost_texture(*reference_shape(image.shape, scale), rng=rng)
    frozen: Field = np.float32(scene) * image + np.float32(ice) * fit(pane, image.shape)
    return frozen


def fog(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Add plasma clouds and scale back so that the brightest value stays what it was."""
    thickness, decay = constants("fog", severity)
    height, width = reference_shape(image.shape, scale)
    size = min(1 << (max(height, width) - 1).bit_length(), _LARGEST_FOG_PX)
    plasma = plasma_fractal(size, decay=decay, rng=rng)
    rows, columns = np.arange(height) % size, np.arange(width) % size
    clouds = fit(plasma[rows[:, None], columns], image.shape)[..., None]
    brightest = image.max()
    share = brightest / (brightest + np.float32(thickness))
    fogged: Field = (image + np.float32(thickness) * clouds) * share
    return fogged


def brightness(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Raise the value of HSV, hue and saturation kept.

    With both kept, the three channels grow by the ratio of the values; black has no hue and
    becomes grey.
    """
    (rise,) = constants("brightness", severity)
    value = image.max(axis=2, keepdims=True)
    raised = np.minimum(value + np.float32(rise), 1)
    lit = value > 0
    brighter: Field = np.where(lit, image * (raised / np.where(lit, value, 1)), raised)
    return brighter
