"""Where a sign's plate lies in a picture, and painting it there."""

from __future__ import annotations

from functools import cache

import cv2
import numpy as np
import numpy.typing as npt

from gain_apps.roadsigns.designs import TEXTURE_PX, texture

__all__ = ["corners", "mip", "mip_size", "paint"]

# Distance of the eye in half sign widths: a moderate perspective.
EYE = 7.0
SMALLEST_MIP_PX = 16


def corners(
    center: tuple[float, float], half_px: float, /, *, yaw: float, pitch: float, roll: float
) -> npt.NDArray[np.float32]:
    """Project the corners of a square plate.

    Parameters
    ----------
    center : (x, y)
        Middle of the plate in px.
    half_px : float
        Half its side, seen straight on.
    yaw, pitch, roll : float
        Turn about the vertical, the horizontal and the line of sight, in degrees.

    Returns
    -------
    array, (4, 2) float32
        Top left, top right, bottom right, bottom left.
    """
    cy, sy = np.cos(np.radians(yaw)), np.sin(np.radians(yaw))
    cp, sp = np.cos(np.radians(pitch)), np.sin(np.radians(pitch))
    cr, sr = np.cos(np.radians(roll)), np.sin(np.radians(roll))
    x = np.array([-1.0, 1.0, 1.0, -1.0])
    y = np.array([-1.0, -1.0, 1.0, 1.0])
    x, y = x * cr - y * sr, x * sr + y * cr
    y, z = y * cp, y * sp
    x, z = x * cy + z * sy, z * cy - x * sy
    depth = EYE / (EYE + z)
    points = np.stack([center[0] + half_px * x * depth, center[1] + half_px * y * depth], axis=1)
    return points.astype(np.float32)


def mip_size(half_px: float, /) -> int:
    """The texture size, a power of two, that a plate of this size is painted from."""
    size = SMALLEST_MIP_PX
    while size < TEXTURE_PX and size < 2.0 * half_px:
        size *= 2
    return size


@cache
def mip(class_index: int, size_px: int, /) -> npt.NDArray[np.uint8]:
    """A sign's texture at a smaller size: shared, read only."""
    if size_px >= TEXTURE_PX:
        return texture(class_index)
    small = cv2.resize(texture(class_index), (size_px, size_px), interpolation=cv2.INTER_AREA)
    small.setflags(write=False)
    result: npt.NDArray[np.uint8] = small
    return result


def paint(
    image: npt.NDArray[np.uint8], plate: npt.NDArray[np.uint8], quad: npt.NDArray[np.float32], /
) -> None:
    """Paint a plate into a picture, in place.

    Parameters
    ----------
    image : array, (H, W, 3) uint8
    plate : array, (S, S, 4) uint8
        Colours multiplied by coverage, and coverage.
    quad : array, (4, 2) float32
        Where its corners go, as `corners` orders them; parts outside the picture are cut.
    """
    height, width = image.shape[:2]
    left, top = np.maximum(np.floor(quad.min(axis=0)).astype(int) - 1, 0)
    right, bottom = np.minimum(np.ceil(quad.max(axis=0)).astype(int) + 2, (width, height))
    if right <= left or bottom <= top:
        return
    side = float(plate.shape[0])
    source = np.array([[0, 0], [side, 0], [side, side], [0, side]], np.float32) - 0.5
    # OpenCV counts from the centre of the first pixel, corners from its edge.
    target = quad - np.array([left + 0.5, top + 0.5], np.float32)
    matrix = cv2.getPerspectiveTransform(source, target)
    warped = cv2.warpPerspective(
        plate, matrix, (int(right - left), int(bottom - top)), flags=cv2.INTER_LINEAR
    )
    part = image[top:bottom, left:right]
    through = cv2.cvtColor(255 - warped[..., 3], cv2.COLOR_GRAY2RGB)
    behind = cv2.multiply(part, through, scale=1.0 / 255.0)
    part[:] = cv2.add(cv2.cvtColor(warped, cv2.COLOR_RGBA2RGB), behind)
