"""Bits that flip on the way: a JPEG read back with whatever its decoder makes of the damage."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image

from gain_apps.corruptions.constants import constants
from gain_apps.corruptions.scaling import Field

__all__ = ["bit_error"]

_QUALITY = 90
_MARKER = 0xFF
_START_OF_SCAN = b"\xff\xda"


def bit_error(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Write as JPEG, flip bits of the coded pixels, and decode what is left.

    Every row of blocks starts with a marker at which the decoder finds its place again, as coded
    video has it; markers are kept, so that damage stays in the rows it falls on.
    """
    (share,) = constants("bit_error", severity)
    written = io.BytesIO()
    pixels = np.rint(image * 255).astype(np.uint8)
    Image.fromarray(pixels).save(written, "JPEG", quality=_QUALITY, restart_marker_rows=1)
    clean = np.frombuffer(written.getvalue(), dtype=np.uint8)
    flips = _places(clean, share, rng=rng)
    while True:
        damaged = clean.copy()
        np.bitwise_xor.at(damaged, flips[:, 0], flips[:, 1].astype(np.uint8))
        _restore_markers(damaged, clean)
        try:
            with Image.open(io.BytesIO(damaged.tobytes())) as picture:
                values: Field = np.asarray(picture, dtype=np.float32) / np.float32(255)
                return values
        except (OSError, SyntaxError):
            # A decoder that gives up at some damage shows nothing: it is given half of it.
            flips = flips[: len(flips) // 2]


def _places(
    coded: npt.NDArray[np.uint8], share: float, *, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Byte and bit mask of each flip, (F, 2); a higher share flips the same bits and more."""
    raw = coded.tobytes()
    header = raw.index(_START_OF_SCAN)
    start = header + 2 + int.from_bytes(raw[header + 2 : header + 4], "big")
    end = len(raw) - 2
    count = round(8 * (end - start) * share)
    # One draw per place for both numbers: a prefix is then the same whatever the count.
    draws = rng.random((count, 2))
    where = start + (draws[:, 0] * (end - start)).astype(np.int64)
    return np.stack([where, 1 << (draws[:, 1] * 8).astype(np.int64)], axis=1)


def _restore_markers(damaged: npt.NDArray[np.uint8], clean: npt.NDArray[np.uint8]) -> None:
    """Undo what would make or break a marker: bytes of 0xFF and the ones after them."""
    special = (clean == _MARKER) | (damaged == _MARKER)
    special[1:] |= special[:-1].copy()
    damaged[special] = clean[special]
