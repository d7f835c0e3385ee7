"""Digits and letters of road signs as strokes: condensed, even and ours."""

from __future__ import annotations

from gain_apps.roadsigns.canvas import Canvas, Color, Point, arc

__all__ = ["write"]

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
