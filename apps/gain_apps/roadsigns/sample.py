"""Still pictures of signs as a camera crops them, for training and testing a classifier."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from gain_apps.roadsigns.designs import LABELS
from gain_apps.roadsigns.pose import corners, mip, mip_size, paint
from gain_apps.roadsigns.scene import backdrop
from gain_apps.roadsigns.surface import weathered

__all__ = ["render_labelled", "render_sample"]

Generator = np.random.Generator
Image = npt.NDArray[np.uint8]

# A detector's box is at best a little larger than the sign and not quite centred.
NEAREST_PX, FARTHEST_PX = 112.0, 28.0


def render_sample(
    class_index: int, rng: Generator, /, *, size_px: int = 64, severity: float = 1.0
) -> Image:
    """Draw one picture of a sign: its pose, wear, surroundings, light, camera and distance vary.

    There is no weather and no night here; `drive` has those.

    Parameters
    ----------
    class_index : int
        Position in `LABELS`.
    rng : numpy Generator
        Advanced; the same generator state gives the same picture.
    size_px : int
        Side of the result. The picture is taken at 28 to 112 px and resized, so that far signs
        are as coarse as they are in a real crop.
    severity : float
        Scales wear, pose and light; 1 is the everyday roadside.

    Returns
    -------
    array, (size_px, size_px, 3) uint8 RGB
    """
    taken_px = round(float(np.exp(rng.uniform(np.log(FARTHEST_PX), np.log(NEAREST_PX)))))
    image = backdrop(taken_px, rng)
    half = 0.5 * taken_px / (1.0 + rng.uniform(0.02, 0.3))
    slack = max(taken_px / 2.0 - half, 1.0)
    shift = rng.uniform(-1.0, 1.0, 2) * slack * 0.9
    quad = corners(
        (taken_px / 2.0 + shift[0], taken_px / 2.0 + shift[1]),
        half,
        yaw=severity * rng.normal(0.0, 16.0),
        pitch=severity * rng.normal(0.0, 6.0),
        roll=severity * rng.normal(0.0, 4.0),
    )
    plate = weathered(mip(class_index, mip_size(half)), rng, severity=severity)
    paint(image, plate, quad)
    image = _exposed(image, rng, severity)
    filter_ = cv2.INTER_AREA if taken_px > size_px else cv2.INTER_CUBIC
    result: Image = cv2.resize(image, (size_px, size_px), interpolation=filter_)
    return result


def render_labelled(
    index: int, /, *, seed: int, size_px: int = 64, severity: float = 1.0
) -> tuple[Image, int]:
    """Sample number `index` of the endless data set `seed`: the picture and its class index."""
    rng = np.random.default_rng([seed, index])
    class_index = int(rng.integers(len(LABELS)))
    return render_sample(class_index, rng, size_px=size_px, severity=severity), class_index


def _exposed(image: Image, rng: Generator, severity: float) -> Image:
    """Light, white balance, a trace of blur and the sensor's noise."""
    picture = image.astype(np.float32)
    size = image.shape[0]
    gain = np.exp(severity * rng.normal(0.0, 0.22)) * np.exp(severity * rng.normal(0.0, 0.05, 3))
    slope = severity * rng.uniform(-0.2, 0.2, 2)
    ramp = np.linspace(-1.0, 1.0, size, dtype=np.float32)
    light = 1.0 + ramp * np.float32(slope[0]) + ramp[:, None] * np.float32(slope[1])
    picture *= light[..., None] * gain.astype(np.float32)
    contrast = np.float32(1.0 + severity * rng.uniform(-0.2, 0.15))
    picture = (picture - 118.0) * contrast + 118.0
    if rng.random() < 0.4 * severity:
        sigma_px = size / 64.0 * rng.uniform(0.3, 0.9)
        picture = cv2.GaussianBlur(picture, (0, 0), float(sigma_px))
    sigma = np.float32(severity * rng.uniform(0.5, 7.0))
    picture += rng.standard_normal(picture.shape, dtype=np.float32) * sigma
    result: Image = np.clip(picture, 0.0, 255.0).astype(np.uint8)
    return result
