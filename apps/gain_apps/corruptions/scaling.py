"""Textures are made at the published 224 px scale and then fitted to the image."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

__all__ = ["Field", "fit", "reference_shape"]

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
    shrinks = texture.shape[0] > height
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    resized: Field = cv2.resize(texture, (width, height), interpolation=method)
    return resized
