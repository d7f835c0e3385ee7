"""The drawing surface of the signs, and the figures on them, each in a 100 x 100 box."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import cv2
import numpy as np
import numpy.typing as npt

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
        side = size_px * SUPERSAMPLE
        self._scale = side / UNITS
        self._colors = np.zeros((side, side, 3), np.uint8)
        self._mask = np.zeros((side, side), np.uint8)

    def _fixed(self, points: Sequence[Point]) -> npt.NDArray[np.int32]:
        return np.rint(np.asarray(points, np.float64) * (self._scale * 2**SHIFT)).astype(np.int32)

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

    Its (50, 50) lies at `center`; `size` is the side of the box in units of the canvas; `mirror`
    exchanges left and right.
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
        return replace(self, color=color)


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
    """Write a line of text, digits and the letters of STOP and P, about a centre.

    Height and width are of the centre lines of a glyph, the weight is of the stroke, all in units
    of the canvas.
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


WHITE: Color = (244, 244, 242)


def arrow(pen: Pen, /, *path: Point, width: float = 14.0, head: float = 34.0) -> None:
    """A line that ends in a triangular head at the last point."""
    (x0, y0), (x1, y1) = path[-2], path[-1]
    length = math.hypot(x1 - x0, y1 - y0)
    dx, dy = (x1 - x0) / length, (y1 - y0) / length
    neck = (x1 - dx * head * 0.8, y1 - dy * head * 0.8)
    pen.stroke(width, *path[:-1], (neck[0] + dx, neck[1] + dy))
    half = head * 0.62
    pen.polygon(
        (x1, y1),
        (neck[0] - dy * half, neck[1] + dx * half),
        (neck[0] + dy * half, neck[1] - dx * half),
    )


def exclamation(pen: Pen, /) -> None:
    """General danger."""
    pen.polygon((38, 2), (62, 2), (57, 66), (43, 66))
    pen.disc((50, 86), 11.5)


def walker(pen: Pen, /) -> None:
    """A person walking."""
    pen.disc((53, 10), 9.5)
    pen.limb(17, (51, 30), (49, 54))
    pen.limb(7, (47, 27), (31, 42), (24, 58))
    pen.limb(7, (56, 27), (68, 44), (80, 52))
    pen.limb(10, (51, 56), (63, 76), (66, 95))
    pen.limb(10, (47, 56), (38, 76), (22, 93))


def child(pen: Pen, /) -> None:
    """A child running."""
    pen.disc((56, 14), 12)
    pen.limb(19, (53, 36), (46, 56))
    pen.limb(8, (50, 32), (28, 36), (18, 52))
    pen.limb(8, (58, 34), (74, 46), (88, 40))
    pen.limb(11, (48, 58), (66, 70), (64, 94))
    pen.limb(11, (44, 58), (34, 78), (8, 82))


def children(pen: Pen, /) -> None:
    """Two children running, one taller."""
    for center, size in (((28.0, 44.0), 88.0), ((76.0, 56.0), 66.0)):
        x = pen.center[0] + (center[0] - 50) * pen.size / 100 * (-1 if pen.mirror else 1)
        y = pen.center[1] + (center[1] - 50) * pen.size / 100
        child(replace(pen, center=(x, y), size=size * pen.size / 100))


def cyclist(pen: Pen, /) -> None:
    """A rider on a bicycle."""
    for center in ((22, 72), (78, 72)):
        pen.stroke(6.5, *arc(center, (18.5, 18.5), (0, 365), num_points=48))
    pen.stroke(6, (22, 72), (40, 48), (66, 48), (50, 72), (22, 72))
    pen.stroke(6, (40, 48), (50, 72))
    pen.stroke(6, (78, 72), (65, 42), (73, 40))
    pen.disc((58, 8), 9)
    pen.limb(12, (38, 38), (50, 22))
    pen.limb(6.5, (51, 22), (60, 36), (71, 38))
    pen.limb(8, (38, 40), (56, 52), (50, 74))


def deer(pen: Pen, /) -> None:
    """A deer leaping."""
    pen.polygon(
        (14, 66), (18, 54), (30, 46), (48, 44), (60, 36), (70, 20), (76, 14), (92, 24), (92, 29),
        (80, 30), (76, 44), (70, 56), (56, 62), (40, 62), (28, 68), (20, 74),
    )  # fmt: skip
    pen.limb(6, (22, 64), (12, 78), (2, 92))
    pen.limb(6, (28, 64), (24, 80), (12, 96))
    pen.limb(6, (66, 54), (84, 58), (80, 74))
    pen.limb(6, (62, 58), (74, 70), (66, 84))
    pen.limb(4, (72, 18), (60, 8), (60, -6))
    pen.limb(4, (66, 12), (52, 8))
    pen.limb(4, (76, 16), (78, 2), (72, -8))
    pen.limb(4, (78, 4), (88, -4))
    pen.limb(5, (15, 58), (10, 50))


def digger(pen: Pen, /) -> None:
    """A person shovelling a heap."""
    pen.disc((46, 12), 9.5)
    pen.limb(16, (42, 30), (26, 48))
    pen.limb(9, (26, 52), (34, 72), (28, 94))
    pen.limb(9, (24, 52), (12, 72), (4, 94))
    pen.limb(7, (44, 30), (52, 48), (60, 56))
    pen.limb(5, (30, 44), (78, 72))
    pen.polygon((72, 64), (86, 74), (80, 84), (68, 74))
    pen.polygon((54, 98), (78, 74), (100, 98))


def car_front(pen: Pen, /) -> None:
    """A car seen from the front."""
    pen.polygon((28, 18), (72, 18), (82, 44), (18, 44))
    pen.polygon((10, 44), (90, 44), (94, 52), (94, 74), (6, 74), (6, 52))
    pen.polygon((10, 72), (26, 72), (26, 90), (10, 90))
    pen.polygon((74, 72), (90, 72), (90, 90), (74, 90))
    light = pen.inked(WHITE)
    light.polygon((33, 24), (67, 24), (73, 42), (27, 42))
    light.disc((20, 58), 6)
    light.disc((80, 58), 6)


def skidding_car(pen: Pen, /) -> None:
    """A car seen from behind above the tracks of its tyres."""
    above = (pen.center[0], pen.center[1] - 0.22 * pen.size)
    car_front(replace(pen, center=above, size=pen.size * 0.62))
    for shift in (-19, 19):
        pen.stroke(7.5, *((x + shift, y) for x, y in ((50, 56), (60, 66), (44, 80), (54, 97))))


def truck(pen: Pen, /) -> None:
    """A truck seen from the side, driving left."""
    pen.polygon((36, 22), (98, 22), (98, 66), (36, 66))
    pen.polygon((4, 50), (14, 34), (32, 34), (32, 66), (4, 66))
    pen.polygon((4, 60), (98, 60), (98, 70), (4, 70))
    pen.inked(WHITE).polygon((11, 49), (17, 39), (26, 39), (26, 49))
    for x in (20, 66, 86):
        pen.disc((x, 72), 9.5)


def traffic_light(pen: Pen, /) -> None:
    """Red, amber and green lamps in a housing."""
    pen.limb(34, (50, 20), (50, 80))
    for y, color in ((17, (214, 30, 36)), (50, (246, 176, 0)), (83, (22, 150, 70))):
        pen.inked(color).disc((50, y), 13)


def bumps(pen: Pen, /) -> None:
    """An uneven road."""
    humps = [
        *arc((27, 78), (21, 30), (180, 360)),
        *arc((73, 78), (21, 30), (180, 360)),
    ]
    pen.polygon((-2, 92), (-2, 78), *humps, (102, 78), (102, 92))


def narrowing(pen: Pen, /) -> None:
    """A road that narrows on both sides."""
    for sign in (-1, 1):
        pen.stroke(12, *((50 + sign * x, y) for x, y in ((32, 100), (32, 66), (13, 36), (13, 0))))


def crossroads(pen: Pen, /) -> None:
    """Two roads that cross."""
    pen.stroke(17, (18, 14), (82, 94))
    pen.stroke(17, (82, 14), (18, 94))


def snowflake(pen: Pen, /) -> None:
    """Snow or ice."""
    for turn in range(0, 360, 60):
        tip = arc((50, 50), (48, 48), (turn, turn), num_points=1)[0]
        fork = arc((50, 50), (28, 28), (turn, turn), num_points=1)[0]
        pen.stroke(7, (50, 50), tip)
        for side in (-32, 32):
            twig = arc((50, 50), (46, 46), (turn + side * 0.72, turn + side * 0.72), num_points=1)
            pen.stroke(6, fork, twig[0])


def roundabout(pen: Pen, /) -> None:
    """Three arrows that follow each other in a circle."""
    for turn in (0, 120, 240):
        pen.stroke(13, *arc((50, 50), (34, 34), (turn + 62, turn - 18)))
        end = math.radians(turn - 20)
        tip = math.radians(turn - 52)
        pen.polygon(
            (50 + 34 * math.cos(tip), 50 + 34 * math.sin(tip)),
            (50 + 50 * math.cos(end), 50 + 50 * math.sin(end)),
            (50 + 18 * math.cos(end), 50 + 18 * math.sin(end)),
        )


def u_turn(pen: Pen, /) -> None:
    """An arrow that turns back to the left."""
    bend = arc((50, 38), (22, 22), (0, -180))
    arrow(pen, (72, 92), *bend, (28, 84), width=13, head=32)


def crossing(pen: Pen, /) -> None:
    """A person on the stripes of a crossing."""
    above = (pen.center[0], pen.center[1] - 0.06 * pen.size)
    walker(replace(pen, center=above, size=pen.size * 0.72))
    for x in (2, 22, 42, 62, 82):
        pen.polygon((x + 3, 80), (x + 13, 80), (x + 17, 100), (x + 2, 100))


def motorway(pen: Pen, /) -> None:
    """Two carriageways under a bridge."""
    pen.polygon((38, 4), (47, 4), (44, 98), (10, 98))
    pen.polygon((62, 4), (53, 4), (56, 98), (90, 98))
    pen.polygon((2, 34), (98, 34), (98, 45), (2, 45))
    pen.polygon((2, 34), (12, 34), (12, 58), (2, 58))
    pen.polygon((88, 34), (98, 34), (98, 58), (88, 58))
