"""The published constants of ImageNet-C for 224 px images, our own, and what lies between them.

Row s of a table belongs to severity s. Rows 1 to 5 of the fifteen are the published ones; row 0
is ours: the values at which the corruption has vanished. A severity between two integers
interpolates the two rows, so that a ramp of severities is a ramp of images. Textures are made at
the published scale and then fitted to the image.
"""

from __future__ import annotations

import math

import cv2
import numpy as np
import numpy.typing as npt

Field = npt.NDArray[np.float32]


def reference_shape(shape: tuple[int, ...], scale: float) -> tuple[int, int]:
    """Height and width in px at which the published constants mean what they say."""
    return max(1, round(shape[0] / scale)), max(1, round(shape[1] / scale))


def fit(texture: Field, shape: tuple[int, ...]) -> Field:
    """Resize a texture, (h, w) or (h, w, C), to height and width of `shape`; averages where it
    shrinks."""
    height, width = shape[:2]
    if texture.shape[:2] == (height, width):
        return texture
    method = cv2.INTER_AREA if texture.shape[0] > height else cv2.INTER_LINEAR
    return cv2.resize(texture, (width, height), interpolation=method)


MAX_SEVERITY = 5
# The side of the images the constants were chosen for.
REFERENCE_PX = 224

_Rows = tuple[tuple[float, ...], ...]

_TABLES: dict[str, _Rows] = {
    # standard deviation
    "gaussian_noise": ((0.0,), (0.08,), (0.12,), (0.18,), (0.26,), (0.38,)),
    # photons at white, stored as the noise they make there: 60, 25, 12, 5, 3 photons
    "shot_noise": ((0.0,), *((1 / math.sqrt(photons),) for photons in (60, 25, 12, 5, 3))),
    # share of the values replaced
    "impulse_noise": ((0.0,), (0.03,), (0.06,), (0.09,), (0.17,), (0.27,)),
    # disc radius in px, sigma of its anti-aliasing in px
    "defocus_blur": ((0.0, 0.1), (3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    # sigma in px, largest displacement in px, passes
    "glass_blur": ((0, 0, 0), (0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    # radius in px, sigma in px
    "motion_blur": ((0, 0), (10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    # largest zoom, number of zooms from 1 to it: published as arange(1, stop, step)
    "zoom_blur": ((1, 12), (1.11, 12), (1.15, 16), (1.2, 11), (1.24, 13), (1.3, 11)),
    # flakes: mean, deviation, size in px, threshold; motion: radius, sigma in px; image weight.
    # In row 0 the threshold is four deviations away, so that hardly a flake is left.
    "snow": (
        (-0.7, 0.3, 3, 0.5, 10, 4, 1.0),
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    # weight of the image, weight of the frost
    "frost": ((1, 0), (1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    # thickness, decay of the wibble
    "fog": ((0, 2), (1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    # added to the value of HSV
    "brightness": ((0.0,), (0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
    # share of the contrast that is left
    "contrast": ((1.0,), (0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
    # displacement, its sigma and the shift of the corners, all in px. The published numbers are
    # multiples of 244 (a slip for 224 that every ImageNet-C image carries).
    "elastic_transform": (
        (0, 244 * 0.7, 0),
        (244 * 2, 244 * 0.7, 244 * 0.1),
        (244 * 2, 244 * 0.08, 244 * 0.2),
        (244 * 0.05, 244 * 0.01, 244 * 0.02),
        (244 * 0.07, 244 * 0.01, 244 * 0.02),
        (244 * 0.12, 244 * 0.01, 244 * 0.02),
    ),
    # share of the side that is left
    "pixelate": ((1.0,), (0.6,), (0.5,), (0.4,), (0.3,), (0.25,)),
    # quality
    "jpeg_compression": ((100,), (25,), (18,), (15,), (10,), (7,)),
    # From here on ours, none of ImageNet-C's.
    # share of the light, noise of the photons at the image's own white, noise of the amplifier
    "low_light": (
        (1, 0, 0),
        (0.30, 0.010, 0.002),
        (0.18, 0.013, 0.002),
        (0.10, 0.016, 0.003),
        (0.06, 0.020, 0.003),
        (0.03, 0.025, 0.004),
    ),
    # noise of the photons at white, noise of the amplifier
    "iso_noise": ((0, 0), (0.08, 0.01), (0.12, 0.02), (0.18, 0.03), (0.26, 0.045), (0.38, 0.06)),
    # levels of each channel: eight bits, then five to one
    "color_quant": ((256,), (32,), (16,), (8,), (4,), (2,)),
    # share of the coded bits that flip
    "bit_error": ((0,), (3e-5,), (6e-5,), (1.2e-4,), (2.5e-4,), (5e-4,)),
    # the encoder's constant rate factor
    "h264_crf": ((10,), (31,), (36,), (41,), (46,), (51,)),
    "h265_crf": ((10,), (31,), (36,), (41,), (46,), (51,)),
    # bits per px of the whole clip
    "h264_abr": ((2,), (0.4,), (0.2,), (0.1,), (0.05,), (0.025,)),
    "h265_abr": ((2,), (0.4,), (0.2,), (0.1,), (0.05,), (0.025,)),
}


def constants(name: str, severity: float) -> tuple[float, ...]:
    """Constants of a corruption at any severity in [0, 5], in the units said beside the table."""
    rows: npt.NDArray[np.float64] = np.asarray(_TABLES[name], dtype=np.float64)
    below = min(int(severity), MAX_SEVERITY - 1)
    share = severity - below
    if share == 1:  # not 0 * a + 1 * b: the published numbers to the last bit
        return tuple(rows[below + 1].tolist())
    return tuple(((1 - share) * rows[below] + share * rows[below + 1]).tolist())
