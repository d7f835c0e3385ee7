"""A small drawing surface: supersampled polygons, discs, strokes, letters; their coverage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import cv2
import numpy as np
import numpy.typing as npt

__all__ = [
    "Canvas",
    "Color",
    "Pen",
    "Point",
    "arc",
    "write",
]

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


# Each glyph is a list of centre lines in a 1 x 1 box, y down.
_ROUND = [
    *arc((0.5, 0.32), (0.5, 0.32), (180, 360)),
    *arc((0.5, 0.68), (0.5, 0.32), (0, 180)),
    (0.0, 0.32),
    (0.02, 0.25),
]
_SIX = [
    [*arc((0.5, 0.7), (0.5, 0.3), (180, 545))],
    [(0.0, 0.72), (0.0, 0.5), *arc((0.62, 0.5), (0.62, 0.5), (190, 285))],
]
_GLYPHS: dict[str, list[list[Point]]] = {
    "0": [_ROUND],
    "1": [[(0.05, 0.22), (0.5, 0.02), (0.5, 1.07)]],
    "2": [[*arc((0.5, 0.3), (0.48, 0.3), (190, 395)), (0.02, 0.98), (0.02, 1.0), (1.07, 1.0)]],
    "3": [
        [*arc((0.48, 0.255), (0.46, 0.255), (195, 450))],
        [*arc((0.48, 0.735), (0.52, 0.265), (270, 525))],
    ],
    "4": [[(0.72, 1.07), (0.72, 0.0), (0.0, 0.72), (1.1, 0.72)]],
    "5": [
        [(1.0, 0.0), (0.14, 0.0), (0.08, 0.46), *arc((0.47, 0.68), (0.53, 0.32), (222, 520))],
    ],
    "6": _SIX,
    "7": [[(-0.06, 0.0), (1.0, 0.0), (0.97, 0.08), (0.32, 1.07)]],
    "8": [
        [*arc((0.5, 0.25), (0.44, 0.25), (0, 365))],
        [*arc((0.5, 0.74), (0.52, 0.26), (0, 365))],
    ],
    "9": [[(1.0 - x, 1.0 - y) for x, y in line] for line in _SIX],
    "S": [
        [
            *arc((0.5, 0.255), (0.47, 0.255), (335, 95)),
            *arc((0.5, 0.745), (0.5, 0.255), (270, 515)),
        ]
    ],
    "T": [[(-0.1, 0.0), (1.1, 0.0)], [(0.5, 0.0), (0.5, 1.07)]],
    "O": [_ROUND],
    "P": [[(0.0, 1.07), (0.0, 0.0), *arc((0.5, 0.29), (0.5, 0.29), (270, 450)), (0.0, 0.58)]],
}
_NARROW = {"1": 0.6}


def write(
    canvas: Canvas,
    text: str,
    color: Color,
    /,
    *,
    center: Point,
    height: float,
    glyph_width: float,
    weight: float,
) -> None:
    """Write a line of text.

    Parameters
    ----------
    canvas : Canvas
    text : str
        Digits and the letters of STOP and P.
    color : RGB
    center : (x, y)
        Middle of the text.
    height, glyph_width : float
        Size of the centre lines of a glyph, in units of the canvas.
    weight : float
        Stroke width.
    """
    gap = weight * 1.55
    widths = [glyph_width * _NARROW.get(letter, 1.0) for letter in text]
    left = center[0] - (sum(widths) + gap * (len(text) - 1)) / 2
    top = center[1] - height / 2
    for letter, width in zip(text, widths, strict=True):
        for line in _GLYPHS[letter]:
            points = [(left + x * width, top + y * height) for x, y in line]
            canvas.stroke(points, color, width=weight)
        left += width + gap
