"""A small drawing surface: supersampled polygons, discs and strokes, and their coverage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import cv2
import numpy as np
import numpy.typing as npt

__all__ = ["Canvas", "Color", "Pen", "Point", "arc"]

Point = tuple[float, float]
Color = tuple[int, int, int]

UNITS = 100.0
SUPERSAMPLE = 4
# OpenCV takes sub-pixel coordinates as integers with this many fractional bits.
SHIFT = 4


def arc(
    center: Point, radii: Point, degrees: tuple[float, float], *, num_points: int = 24
) -> list[Point]:
    """Points on an ellipse from the first to the second angle; 0 is right, 90 is down."""
    angles = np.radians(np.linspace(*degrees, num_points))
    return [
        (center[0] + radii[0] * float(c), center[1] + radii[1] * float(s))
        for c, s in zip(np.cos(angles), np.sin(angles), strict=True)
    ]


class Canvas:
    """A square picture in units of 0 to 100, y down, with a coverage mask beside the colours."""

    def __init__(self, size_px: int, /) -> None:
        self.size_px = size_px
        self._scale = size_px * SUPERSAMPLE / UNITS
        side = size_px * SUPERSAMPLE
        self._colors = np.zeros((side, side, 3), np.uint8)
        self._mask = np.zeros((side, side), np.uint8)

    def _fixed(self, points: Sequence[Point]) -> npt.NDArray[np.int32]:
        result: npt.NDArray[np.int32] = np.rint(
            np.asarray(points, np.float64) * (self._scale * 2**SHIFT)
        ).astype(np.int32)
        return result

    def silhouette(self, points: Sequence[Point], /) -> None:
        """Add a polygon to the coverage mask."""
        cv2.fillPoly(self._mask, [self._fixed(points)], 255, shift=SHIFT)

    def polygon(self, points: Sequence[Point], color: Color, /) -> None:
        """Fill a polygon."""
        cv2.fillPoly(self._colors, [self._fixed(points)], color, shift=SHIFT)

    def stroke(self, points: Sequence[Point], color: Color, /, *, width: float) -> None:
        """Draw a line of the given width with round joints and square ends at the last points."""
        for start, stop in pairwise(points):
            self.polygon(_segment(start, stop, width), color)
        for joint in points[1:-1]:
            self.disc(joint, color, radius=width / 2)

    def disc(self, center: Point, color: Color, /, *, radius: float) -> None:
        """Fill a disc."""
        self.polygon(arc(center, (radius, radius), (0, 360), num_points=72), color)

    def pixels(self) -> npt.NDArray[np.uint8]:
        """The picture as (size, size, 4) uint8: RGB multiplied by coverage, and coverage."""
        size = (self.size_px, self.size_px)
        covered = cv2.bitwise_and(self._colors, self._colors, mask=self._mask)
        colors = cv2.resize(covered, size, interpolation=cv2.INTER_AREA)
        mask = cv2.resize(self._mask, size, interpolation=cv2.INTER_AREA)
        return np.dstack([colors, mask])


def _segment(start: Point, stop: Point, width: float) -> list[Point]:
    """The rectangle around a straight piece of a stroke."""
    dx, dy = stop[0] - start[0], stop[1] - start[1]
    length = max(float(np.hypot(dx, dy)), 1e-9)
    nx, ny = -dy / length * width / 2, dx / length * width / 2
    return [
        (start[0] + nx, start[1] + ny),
        (stop[0] + nx, stop[1] + ny),
        (stop[0] - nx, stop[1] - ny),
        (start[0] - nx, start[1] - ny),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pen:
    """Draws in one colour in its own 100 x 100 coordinates, placed in a box of a canvas.

    Attributes
    ----------
    canvas : Canvas
    color : RGB
    center : (x, y)
        Where the pen's (50, 50) lies on the canvas.
    size : float
        Side of the pen's box in units of the canvas.
    mirror : bool
        Whether left and right are exchanged.
    """

    canvas: Canvas
    color: Color = (20, 20, 22)
    center: Point = (50.0, 50.0)
    size: float = 100.0
    mirror: bool = False

    def _place(self, points: Sequence[Point]) -> list[Point]:
        side = -1.0 if self.mirror else 1.0
        scale = self.size / 100.0
        return [
            (self.center[0] + side * (x - 50.0) * scale, self.center[1] + (y - 50.0) * scale)
            for x, y in points
        ]

    def polygon(self, *points: Point) -> None:
        """Fill a polygon."""
        self.canvas.polygon(self._place(points), self.color)

    def stroke(self, width: float, /, *points: Point) -> None:
        """Draw a line with round joints."""
        self.canvas.stroke(self._place(points), self.color, width=width * self.size / 100.0)

    def limb(self, width: float, /, *points: Point) -> None:
        """Draw a line with round joints and round ends."""
        self.stroke(width, *points)
        for end in (points[0], points[-1]):
            self.disc(end, width / 2)

    def disc(self, center: Point, radius: float, /) -> None:
        """Fill a disc."""
        self.canvas.disc(self._place([center])[0], self.color, radius=radius * self.size / 100.0)

    def inked(self, color: Color, /) -> Pen:
        """The same pen in another colour."""
        return Pen(
            canvas=self.canvas,
            color=color,
            center=self.center,
            size=self.size,
            mirror=self.mirror,
        )
