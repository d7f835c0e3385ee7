"""The road signs: their names, outlines, colours and figures, drawn once and kept as textures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from gain_core.errors import ConfigError
from gain_scenes.roadsigns import pictograms
from gain_scenes.roadsigns.pictograms import Canvas, Color, Pen, Point, arc, write

TEXTURE_PX = 256

RED: Color = (200, 24, 34)
BLUE: Color = (0, 84, 166)
WHITE: Color = (244, 244, 242)
BLACK: Color = (20, 20, 22)
YELLOW: Color = (252, 196, 0)
GREY: Color = (120, 122, 124)

Draw = Callable[[Canvas], None]
Figure = Callable[[Pen], None]

TRIANGLE: tuple[Point, ...] = ((50, 9), (96, 88), (4, 88))


def _rounded(corners: tuple[Point, ...], radius: float) -> list[Point]:
    """A convex polygon whose corners, given clockwise, are rounded outwards by a radius."""
    outline: list[Point] = []
    for index, (x, y) in enumerate(corners):
        (px, py), (nx, ny) = corners[index - 1], corners[(index + 1) % len(corners)]
        first = np.degrees(np.arctan2(-(x - px), y - py))
        last = np.degrees(np.arctan2(-(nx - x), ny - y))
        if last < first:
            last += 360.0
        outline += arc((x, y), (radius, radius), (float(first), float(last)), num_points=10)
    return outline


def _plate(canvas: Canvas, outline: list[Point], color: Color) -> None:
    canvas.silhouette(outline)
    canvas.polygon(outline, color)


def _disc(canvas: Canvas, radius: float, color: Color) -> None:
    _plate(canvas, arc((50, 50), (radius, radius), (0, 360), num_points=96), color)


def _ring(canvas: Canvas) -> None:
    """The red-edged white disc of a prohibition."""
    _disc(canvas, 49, WHITE)
    _disc(canvas, 48, RED)
    canvas.disc((50, 50), WHITE, radius=36.5)


def _speed_limit(number: str, canvas: Canvas) -> None:
    _ring(canvas)
    _number(canvas, number, BLACK)


def _number(canvas: Canvas, number: str, color: Color) -> None:
    wide = len(number) == 2
    write(
        canvas,
        number,
        color,
        center=(50, 50),
        height=34 if wide else 30,
        glyph_width=16.5 if wide else 11.5,
        weight=7.6 if wide else 6.4,
    )


def _end(number: str, canvas: Canvas) -> None:
    """A grey rim about a struck number, redrawn over the strokes that reach beyond it."""
    _disc(canvas, 49, GREY)
    _disc(canvas, 47.5, WHITE)
    if number:
        _number(canvas, number, GREY)
    for shift in (-12, -6, 0, 6, 12):
        canvas.stroke(
            [(18 + shift, 82 + shift * 0.6), (82 + shift, 18 + shift * 0.6)], BLACK, width=2.6
        )
    for start in range(0, 360, 90):
        rim = arc((50, 50), (48.2, 48.2), (start, start + 90), num_points=30)
        canvas.stroke(rim, GREY, width=2.4)


def _prohibition(figure: Figure, size: float, canvas: Canvas) -> None:
    _ring(canvas)
    figure(Pen(canvas=canvas, size=size))


def _forbidden(figure: Figure, size: float, canvas: Canvas) -> None:
    """A prohibition with a red bar across its figure."""
    _prohibition(figure, size, canvas)
    canvas.stroke([(23, 23), (77, 77)], RED, width=8)


def _no_overtaking(canvas: Canvas) -> None:
    _ring(canvas)
    pictograms.car_front(Pen(canvas=canvas, color=RED, center=(34.5, 50), size=34))
    pictograms.car_front(Pen(canvas=canvas, center=(66, 50), size=34))


def _no_entry(canvas: Canvas) -> None:
    _disc(canvas, 49, WHITE)
    _disc(canvas, 48, RED)
    canvas.polygon([(14, 41), (86, 41), (86, 59), (14, 59)], WHITE)


def _stop(canvas: Canvas) -> None:
    corners = [(22.5 + 45.0 * i) for i in range(8)]
    for radius, color in ((51.5, WHITE), (49, RED)):
        outline = [
            arc((50, 50), (radius, radius), (turn, turn), num_points=1)[0] for turn in corners
        ]
        _plate(canvas, outline, color)
    write(canvas, "STOP", WHITE, center=(50, 50), height=24, glyph_width=10.5, weight=5.2)


def _triangle(canvas: Canvas, corners: tuple[Point, ...]) -> None:
    middle = (sum(x for x, _ in corners) / 3, sum(y for _, y in corners) / 3)

    def shrunk(ratio: float) -> tuple[Point, ...]:
        return tuple(
            (middle[0] + (x - middle[0]) * ratio, middle[1] + (y - middle[1]) * ratio)
            for x, y in corners
        )

    _plate(canvas, _rounded(shrunk(0.95), 4.4), WHITE)
    canvas.polygon(_rounded(shrunk(0.95), 3.4), RED)
    canvas.polygon(_rounded(shrunk(0.69), 2.0), WHITE)


def _warning(figure: Figure, size: float, canvas: Canvas) -> None:
    _triangle(canvas, TRIANGLE)
    figure(Pen(canvas=canvas, center=(50, 61.5), size=size))


def _yield(canvas: Canvas) -> None:
    _triangle(canvas, ((4, 12), (96, 12), (50, 91)))


def _diamond(radius: float) -> list[Point]:
    return _rounded(((50, 50 - radius), (50 + radius, 50), (50, 50 + radius), (50 - radius, 50)), 3)


def _priority(ended: bool, canvas: Canvas) -> None:
    _plate(canvas, _diamond(46), BLACK)
    canvas.polygon(_diamond(45), WHITE)
    canvas.polygon(_diamond(31), BLACK)
    canvas.polygon(_diamond(30), YELLOW)
    if ended:
        for shift in (-9, -3, 3, 9):
            canvas.stroke([(27 + shift, 73 + shift), (73 + shift, 27 + shift)], BLACK, width=3.0)


def _mandatory(figure: Figure, size: float, mirror: bool, canvas: Canvas) -> None:
    _disc(canvas, 49, WHITE)
    _disc(canvas, 47.5, BLUE)
    figure(Pen(canvas=canvas, color=WHITE, size=size, mirror=mirror))


def _square(color: Color, canvas: Canvas) -> None:
    _plate(canvas, _rounded(((7, 7), (93, 7), (93, 93), (7, 93)), 5), WHITE)
    canvas.polygon(_rounded(((8, 8), (92, 8), (92, 92), (8, 92)), 4), color)


def _information(figure: Figure, size: float, canvas: Canvas) -> None:
    _square(BLUE, canvas)
    figure(Pen(canvas=canvas, color=WHITE, size=size))


def _parking(canvas: Canvas) -> None:
    _square(BLUE, canvas)
    write(canvas, "P", WHITE, center=(51, 50), height=52, glyph_width=27, weight=13)


def _crossing(canvas: Canvas) -> None:
    _square(BLUE, canvas)
    canvas.polygon([(50, 15), (87, 82), (13, 82)], WHITE)
    pictograms.crossing(Pen(canvas=canvas, center=(50, 57), size=48))


def _dead_end(canvas: Canvas) -> None:
    _square(BLUE, canvas)
    canvas.stroke([(50, 86), (50, 36)], WHITE, width=15)
    canvas.polygon([(26, 18), (74, 18), (74, 36), (26, 36)], RED)
    for line in ([(26, 18), (74, 18)], [(26, 36), (74, 36)]):
        canvas.stroke(line, WHITE, width=2)


def _arrow(*path: Point, width: float, head: float) -> Figure:
    return lambda pen: pictograms.arrow(pen, *path, width=width, head=head)


_straight = _arrow((50, 98), (50, 2), width=15, head=40)
_turn = _arrow((66, 98), (66, 44), (6, 44), width=15, head=38)
_bent = _arrow((66, 96), (66, 36), (8, 36), width=14, head=36)
_curve = _arrow((68, 100), (68, 64), (34, 12), width=15, head=38)
_double_curve = _arrow((62, 104), (62, 82), (34, 60), (62, 36), (48, 0), width=14, head=34)
_keep = _arrow((84, 12), (14, 86), width=17, head=44)
_one_way = _arrow((50, 100), (50, 0), width=20, head=48)


def _straight_or_turn(pen: Pen) -> None:
    pictograms.arrow(pen, (66, 100), (66, 0), width=14, head=36)
    pictograms.arrow(pen, (66, 62), (4, 62), width=14, head=36)


_SPEEDS = (20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, 130)
_DESIGNS: dict[str, Draw] = {
    **{f"speed limit {speed}": partial(_speed_limit, str(speed)) for speed in _SPEEDS},
    "stop": _stop,
    "yield": _yield,
    "no entry": _no_entry,
    "priority road": partial(_priority, False),
    "end of priority road": partial(_priority, True),
    "no overtaking": _no_overtaking,
    "end of restrictions": partial(_end, ""),
    "end of speed limit 80": partial(_end, "80"),
    "no vehicles": _ring,
    "no trucks": partial(_prohibition, pictograms.truck, 54),
    "no left turn": partial(_forbidden, _bent, 50),
    "no right turn": partial(_forbidden, lambda pen: _bent(replace(pen, mirror=True)), 50),
    "no U-turn": partial(_forbidden, pictograms.u_turn, 52),
    "straight only": partial(_mandatory, _straight, 68, False),
    "left only": partial(_mandatory, _turn, 70, False),
    "right only": partial(_mandatory, _turn, 70, True),
    "straight or left": partial(_mandatory, _straight_or_turn, 66, False),
    "straight or right": partial(_mandatory, _straight_or_turn, 66, True),
    "keep left": partial(_mandatory, _keep, 66, False),
    "keep right": partial(_mandatory, _keep, 66, True),
    "roundabout": partial(_mandatory, pictograms.roundabout, 72, False),
    "danger": partial(_warning, pictograms.exclamation, 42),
    "curve left": partial(_warning, _curve, 42),
    "curve right": partial(_warning, lambda pen: _curve(replace(pen, mirror=True)), 42),
    "double curve": partial(_warning, _double_curve, 42),
    "bumps": partial(_warning, pictograms.bumps, 42),
    "slippery road": partial(_warning, pictograms.skidding_car, 48),
    "road narrows": partial(_warning, pictograms.narrowing, 42),
    "road works": partial(_warning, pictograms.digger, 42),
    "traffic light": partial(_warning, pictograms.traffic_light, 42),
    "pedestrians": partial(_warning, pictograms.walker, 42),
    "children": partial(_warning, pictograms.children, 48),
    "cyclists": partial(_warning, pictograms.cyclist, 44),
    "deer": partial(_warning, pictograms.deer, 42),
    "crossroads": partial(_warning, pictograms.crossroads, 40),
    "snow or ice": partial(_warning, pictograms.snowflake, 40),
    "parking": _parking,
    "pedestrian crossing": _crossing,
    "one way": partial(_information, _one_way, 74),
    "motorway": partial(_information, pictograms.motorway, 72),
    "dead end": _dead_end,
}

LABELS: tuple[str, ...] = tuple(_DESIGNS)


def draw_sign(class_index: int, /, *, size_px: int = TEXTURE_PX) -> npt.NDArray[np.uint8]:
    """Draw the sign of a position in `LABELS`, upright and evenly lit, (size_px, size_px, 4) uint8.

    That is RGB multiplied by coverage, and coverage. Another class is a `ConfigError`.
    """
    if not 0 <= class_index < len(LABELS):
        raise ConfigError(
            f"class_index: expected 0 to {len(LABELS) - 1}, got {class_index}; see LABELS"
        )
    canvas = Canvas(size_px)
    _DESIGNS[LABELS[class_index]](canvas)
    return canvas.pixels()


@cache
def texture(class_index: int, /) -> npt.NDArray[np.uint8]:
    """The sign's picture at `TEXTURE_PX`, drawn once and shared: read only."""
    pixels = draw_sign(class_index)
    pixels.setflags(write=False)
    return pixels
