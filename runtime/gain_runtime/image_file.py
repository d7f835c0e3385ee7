"""One photo from disk as upright 8-bit RGB, whatever its mode."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from gain_core.errors import StreamError

__all__ = ["IMAGE_SUFFIXES", "load_image"]

_PHOTO = (".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".webp", ".avif", ".jp2")
_SCIENCE = (".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
IMAGE_SUFFIXES = frozenset((*_PHOTO, *_SCIENCE))
# What Pillow's decoders raise on damaged files.
DECODE_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    RuntimeError,
    EOFError,
    IndexError,
    KeyError,
    struct.error,
    Image.DecompressionBombError,
)


def load_image(path: Path, /) -> npt.NDArray[np.uint8]:
    """Decode a photo: EXIF orientation applied, transparency laid over white, 16 bits scaled to 8.

    Parameters
    ----------
    path : Path
        Any format Pillow reads; of an animation, the first frame.

    Returns
    -------
    array, (H, W, 3) uint8 RGB

    Raises
    ------
    StreamError
        If the file is missing, damaged, cut short, no image, or holds floating-point pixels.
    """
    try:
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened)
            return np.array(_to_rgb(image))
    except DECODE_ERRORS as err:
        raise StreamError(f"{path}: expected a readable image ({_reason(err)})") from err


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow mode to RGB without losing range or inventing colour."""
    if image.mode.startswith("I"):
        # Pillow's own conversion clips at 255; 16-bit files use 0..65535.
        wide = np.asarray(image).astype(np.int64).clip(0, 65535)
        return Image.fromarray(((wide * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("floating-point pixels have no defined range; save it with 8 or 16 bits")
    if image.has_transparency_data:
        over_white = Image.new("RGBA", image.size, "white")
        over_white.alpha_composite(image.convert("RGBA"))
        return over_white.convert("RGB")
    return image.convert("RGB")


def _reason(err: BaseException) -> str:
    """One line of why Pillow gave up."""
    if isinstance(err, FileNotFoundError):
        return "no such file"
    if isinstance(err, UnidentifiedImageError):
        return "no image format known here"
    text = str(getattr(err, "strerror", None) or err).splitlines()
    return text[0] if text else type(err).__name__
