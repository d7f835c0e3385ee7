"""One entry for all corruptions: checks, the random generator of an image, 8 bits in and out."""

from __future__ import annotations

import math
import numbers
import zlib
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gain_core.errors import ArrayError, ConfigError
from gain_scenes.corruptions import blur, digital, weather
from gain_scenes.corruptions.constants import MAX_SEVERITY, REFERENCE_PX, Field


class _Corruption(Protocol):
    """What each corruption is: values in [0, 1] in, values that may lie outside it out."""

    def __call__(
        self, image: Field, severity: float, *, rng: np.random.Generator, scale: float
    ) -> Field: ...


_PUBLISHED: dict[str, _Corruption] = {
    "gaussian_noise": digital.gaussian_noise,
    "shot_noise": digital.shot_noise,
    "impulse_noise": digital.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
}
_EXTRA: dict[str, _Corruption] = {
    "low_light": digital.low_light,
    "iso_noise": digital.iso_noise,
    "color_quant": digital.color_quant,
    "bit_error": digital.bit_error,
    "h264_crf": digital.h264_crf,
    "h264_abr": digital.h264_abr,
    "h265_crf": digital.h265_crf,
    "h265_abr": digital.h265_abr,
}
_FUNCTIONS = _PUBLISHED | _EXTRA
CORRUPTIONS: tuple[str, ...] = tuple(_PUBLISHED)
EXTRA_CORRUPTIONS: tuple[str, ...] = tuple(_EXTRA)

_LEAST_SIDE_PX = 32
# Float32 leaves k / 255 * 255 a hair below k, and the published pixels are cut, not rounded.
_CUT_GUARD = np.float32(2**-10)


def corrupt(
    image: npt.NDArray[np.uint8],
    name: str,
    severity: float,
    *,
    rng: np.random.Generator,
    pixel_scale: float | None = None,
) -> npt.NDArray[np.uint8]:
    """Corrupt one frame, (H, W, 3) uint8 RGB with sides of at least 32 px, which is not changed.

    Severities 1 to 5 are the published ones, 0 leaves the image as it is, and what lies between
    interpolates the constants (`jpeg_compression` in whole steps of quality, `color_quant` of
    levels). Everything random comes from `rng`, see `image_rng`. Values of the new array are cut to
    whole numbers, not rounded, as in the published data set.

    `pixel_scale` is a factor on everything the published constants give in px: radii,
    displacements, flakes, crystals, clouds. By default it is ``min(H, W) / 224``, so that a
    severity looks the same at any size; 1 keeps the published px. Noise and JPEG blocks are of
    single pixels at any size.

    Raises `ConfigError` for an unknown name, a severity or scale out of range or an `rng` that is
    no generator, and `ArrayError` for another image.

    ImageNet-C is made from 224 px images (resized to 256, centre crop). CIFAR-10-C has other
    constants, for 32 px images; they are not offered here.
    """
    _check_image(image, np.uint8)
    _check_request(name, severity, rng=rng, pixel_scale=pixel_scale)
    if severity == 0:
        return image.copy()
    values: Field = image.astype(np.float32) / np.float32(255)
    corrupted = _corrupted(values, name, float(severity), rng=rng, pixel_scale=pixel_scale)
    return (corrupted * 255 + _CUT_GUARD).astype(np.uint8)


def corrupt_float(
    image: Field,
    name: str,
    severity: float,
    *,
    rng: np.random.Generator,
    pixel_scale: float | None = None,
) -> Field:
    """Corrupt one frame without rounding it to 8 bits, so that corruptions can be chained.

    As `corrupt`, of (H, W, 3) float32 RGB in [0, 1], which is what it returns too. What codes the
    image works on 8-bit pixels by nature, and so does `pixelate`.
    """
    _check_image(image, np.float32)
    low, high = image.min(), image.max()
    if not (low >= 0 and high <= 1):
        raise ArrayError(
            f"image: expected values in [0, 1], got [{low:g}, {high:g}]; "
            "divide 8-bit pixels by 255, clip the rest"
        )
    _check_request(name, severity, rng=rng, pixel_scale=pixel_scale)
    if severity == 0:
        return image.copy()
    return _corrupted(image, name, float(severity), rng=rng, pixel_scale=pixel_scale)


def image_rng(seed: int, index: int, name: str) -> np.random.Generator:
    """Random generator of one image, by its index in the data set, under one corruption.

    The same for the same three, whatever the order in which images are visited, and independent of
    all others. Severity does not enter: a ramp keeps its flakes and clouds. A seed or index that is
    no whole number of at least 0 is a `ConfigError`; any name will do.
    """
    for field, value in (("seed", seed), ("index", index)):
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
            raise ConfigError(f"{field}: expected a whole number of at least 0, got {value!r}")
    entropy = (int(seed), int(index), zlib.crc32(name.encode()))
    return np.random.default_rng(np.random.SeedSequence(entropy))


def _corrupted(
    values: Field,
    name: str,
    severity: float,
    *,
    rng: np.random.Generator,
    pixel_scale: float | None,
) -> Field:
    """Apply one corruption and bring the result back into [0, 1]."""
    scale = min(values.shape[:2]) / REFERENCE_PX if pixel_scale is None else float(pixel_scale)
    corrupted = _FUNCTIONS[name](np.ascontiguousarray(values), severity, rng=rng, scale=scale)
    return np.clip(corrupted, 0, 1).astype(np.float32, copy=False)


def _check_image(image: Any, dtype: type[np.generic]) -> None:
    """Refuse what is not an RGB frame of `dtype`."""
    wanted = f"image: expected (H, W, 3) {np.dtype(dtype)} RGB"
    if not isinstance(image, np.ndarray):
        raise ArrayError(f"{wanted}, got {type(image).__name__}; use np.asarray(picture)")
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != dtype:
        other = "corrupt_float" if dtype == np.uint8 else "corrupt"
        raise ArrayError(
            f"{wanted}, got {image.shape} {image.dtype}; convert it, or see {other} for its dtype"
        )
    if min(image.shape[:2]) < _LEAST_SIDE_PX:
        raise ArrayError(
            f"image: expected sides of at least {_LEAST_SIDE_PX} px, "
            f"got {image.shape[0]} x {image.shape[1]}; resize it first"
        )


def _check_request(name: Any, severity: Any, *, rng: Any, pixel_scale: Any) -> None:
    """Refuse an unknown corruption, a number out of range or something else than a generator."""
    if not isinstance(name, str) or name not in _FUNCTIONS:
        raise ConfigError(f"corruption: expected one of {', '.join(_FUNCTIONS)}, got {name!r}")
    if not _is_real(severity) or not 0 <= float(severity) <= MAX_SEVERITY:
        raise ConfigError(f"severity: expected a number in [0, {MAX_SEVERITY}], got {severity!r}")
    if not isinstance(rng, np.random.Generator):
        raise ConfigError(
            f"rng: expected a numpy.random.Generator, got {type(rng).__name__}; "
            "use image_rng(seed, index, name)"
        )
    if pixel_scale is not None and not (_is_real(pixel_scale) and 0 < pixel_scale < math.inf):
        raise ConfigError(
            f"pixel_scale: expected a finite number above 0, got {pixel_scale!r}; "
            "leave it out to scale with the image"
        )


def _is_real(value: Any) -> bool:
    """Whether a value is a number; True and False are not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
