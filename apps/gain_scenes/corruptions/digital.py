"""Values changed one by one or in blocks: noise, a sensor in bad light, contrast, JPEG."""

from __future__ import annotations

import io

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from gain_scenes.corruptions.constants import Field, constants, fit, reference_shape

__all__ = [
    "color_quant",
    "contrast",
    "elastic_transform",
    "gaussian_noise",
    "impulse_noise",
    "iso_noise",
    "jpeg_compression",
    "low_light",
    "pixelate",
    "shot_noise",
]

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


# Of the encoding of light into pixel values.
_GAMMA = np.float32(2.2)
# 1e8 photons at white: noise nobody can see, and a mean that NumPy's Poisson still takes.


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


def contrast(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Draw every value towards the mean of its channel."""
    (share,) = constants("contrast", severity)
    mean = image.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)
    drawn: Field = (image - mean) * np.float32(share) + mean
    return drawn


def elastic_transform(
    image: Field, severity: float, *, rng: np.random.Generator, scale: float
) -> Field:
    """Shift three corners of a centred square at random, then ripple the image."""
    ripple, sigma, corner = constants("elastic_transform", severity)
    height, width = image.shape[:2]
    centre = np.array([width // 2, height // 2], dtype=np.float32)
    reach = min(height, width) // 3
    corners = np.array([[1, 1], [1, -1], [-1, -1]], dtype=np.float32)
    triangle = centre + reach * corners
    moved = triangle + rng.uniform(-corner * scale, corner * scale, (3, 2)).astype(np.float32)
    sheared = cv2.warpAffine(
        image,
        cv2.getAffineTransform(triangle, moved),
        (width, height),
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REFLECT_101,
    )
    shape = reference_shape(image.shape, scale)
    dx, dy = (
        fit(_smooth_noise(shape, sigma, rng=rng), image.shape) * np.float32(ripple * scale)
        for _ in range(2)
    )
    rippled: Field = cv2.remap(
        sheared,
        dx + np.arange(width, dtype=np.float32),
        dy + np.arange(height, dtype=np.float32)[:, None],
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REFLECT,
    )
    return rippled


def _smooth_noise(shape: tuple[int, int], sigma: float, *, rng: np.random.Generator) -> Field:
    """Uniform noise in [-1, 1] under a gaussian of `sigma` px cut at three sigma, edges mirrored.

    With mirrored edges the cosine transform turns the filter into a product, which does not grow
    with sigma; at 170 px the filter itself would have 1,025 taps. The transform wants even sides
    with small factors; what they are too long is cut off.
    """
    rows, columns = (2 * cv2.getOptimalDFTSize((side + 1) // 2) for side in shape)
    noise = 2 * rng.random((rows, columns), dtype=np.float32) - 1
    response = np.outer(_response(rows, sigma), _response(columns, sigma)).astype(np.float32)
    smooth: Field = cv2.idct(cv2.dct(noise) * response)
    return np.ascontiguousarray(smooth[: shape[0], : shape[1]])


def _response(side: int, sigma: float) -> npt.NDArray[np.float64]:
    """What the filter leaves of each of the `side` cosines."""
    taps = np.arange(int(3 * sigma + 0.5) + 1)
    weights = np.exp(-0.5 * (taps / sigma) ** 2)
    weights[1:] *= 2  # both sides of the middle
    waves = np.cos(np.outer(np.arange(side) * (np.pi / side), taps))
    response: npt.NDArray[np.float64] = waves @ (weights / weights.sum())
    return response


def pixelate(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Shrink by box averaging and blow up again, on 8-bit pixels."""
    (share,) = constants("pixelate", severity)
    height, width = image.shape[:2]
    small = (max(1, int(width * share)), max(1, int(height * share)))
    picture = Image.fromarray(_pixels(image))
    coarse = picture.resize(small, Image.Resampling.BOX)
    return _values(coarse.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(
    image: Field, severity: float, *, rng: np.random.Generator, scale: float
) -> Field:
    """Write as JPEG of low quality and read back. Quality is a whole number, so are its steps."""
    (quality,) = constants("jpeg_compression", severity)
    written = io.BytesIO()
    Image.fromarray(_pixels(image)).save(written, "JPEG", quality=round(quality))
    with Image.open(written) as picture:
        return _values(picture)


def _pixels(image: Field) -> npt.NDArray[np.uint8]:
    """Nearest 8-bit pixels."""
    return np.rint(image * 255).astype(np.uint8)


def _values(picture: Image.Image) -> Field:
    """Values in [0, 1] of an 8-bit picture."""
    values: Field = np.asarray(picture, dtype=np.float32) / np.float32(255)
    return values
