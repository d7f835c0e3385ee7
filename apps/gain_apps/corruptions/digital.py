"""Digital corruptions: contrast, elastic transform, pixelate, JPEG compression."""

from __future__ import annotations

import io

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from gain_apps.corruptions.constants import constants
from gain_apps.corruptions.scaling import Field, fit, reference_shape

__all__ = ["contrast", "elastic_transform", "jpeg_compression", "pixelate"]


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
