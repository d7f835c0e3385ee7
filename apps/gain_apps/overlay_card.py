"""The card drawn over a frame: source against adapted, strength, gain, rate, truth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from PIL import Image, ImageDraw

from gain_apps.label_text import drawable, fitted, font
from gain_runtime.result import FrameResult, Ranked

__all__ = ["CARD_HEIGHT", "CARD_WIDTH", "CardContent", "describe", "draw_card"]

# The card is laid out in these units and drawn at any scale.
CARD_WIDTH, CARD_HEIGHT = 616, 124
SUPERSAMPLE = 3

INK = (244, 246, 250, 255)
FAINT = (168, 176, 190, 255)
BACKGROUND = (15, 18, 26, 205)
GROOVE = (66, 71, 84, 255)
SOURCE = (134, 150, 178, 255)
ADAPTED = (64, 208, 164, 255)
CHANGED = (255, 178, 62, 255)
RIGHT, WRONG = (92, 220, 120, 255), (255, 96, 92, 255)

Colour = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One prediction: who made it, what it is and whether it is right (None: not known)."""

    title: str
    top: Ranked
    colour: Colour
    right: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardContent:
    """What a card says: one or two predictions and a line of figures below."""

    rows: tuple[Row, ...]
    strength: float | None
    figures: tuple[str, ...]


def describe(result: FrameResult, /, *, view: str = "both") -> CardContent:
    """What to write on the card of a result.

    Parameters
    ----------
    result : FrameResult
    view : {"both", "source", "adapted"}
        `source` and `adapted` are the halves of a side-by-side view.

    Returns
    -------
    CardContent
    """
    truth = result.frame.truth
    source = Row(
        title="source",
        top=result.source_top[0],
        colour=SOURCE,
        right=None if truth is None else result.source_top[0].index == truth,
    )
    adapted = Row(
        title="adapted",
        top=result.adapted_top[0],
        colour=CHANGED if result.changed else ADAPTED,
        right=None if truth is None else result.adapted_top[0].index == truth,
    )
    rate = f"{result.rate_hz:.1f} fps" if result.rate_hz > 0.0 else ""
    condition = drawable(result.frame.condition or "", fallback="")
    gain = f"gain {result.gain:.2f} nats" if result.gain < 100.0 else f"gain {result.gain:.1e} nats"
    if view == "source":
        return CardContent(rows=(source,), strength=None, figures=(f"frozen  {condition}", rate))
    figures = (gain, condition) if view == "adapted" else (gain, condition, rate)
    rows = (adapted,) if view == "adapted" else (source, adapted)
    return CardContent(rows=rows, strength=result.strength, figures=figures)


def draw_card(content: CardContent, /, *, scale: float) -> Image.Image:
    """Draw a card with a transparent surround.

    Parameters
    ----------
    content : CardContent
    scale : float
        Pixels per layout unit.

    Returns
    -------
    Image
        RGBA, `CARD_WIDTH` x its height times `scale`.
    """
    num_rows = len(content.rows)
    image = _background(num_rows, scale).copy()
    pen = _Pen(image, scale)
    for at, row in enumerate(content.rows):
        _draw_row(pen, row, top=14 + 38 * at)
    _draw_figures(pen, content, top=14 + 38 * num_rows)
    return image


class _Pen:
    """Draws on an image in layout units."""

    def __init__(self, image: Image.Image, scale: float) -> None:
        self._draw = ImageDraw.Draw(image)
        self._scale = scale

    def px(self, units: float) -> int:
        return round(units * self._scale)

    def text(
        self, x: float, y: float, text: str, *, size: float, fill: Colour, anchor: str = "lm"
    ) -> None:
        """Write one line, vertically centred on y."""
        place = (self.px(x), self.px(y))
        self._draw.text(place, text, font=font(self.px(size)), fill=fill, anchor=anchor)

    def label(
        self, x: float, y: float, text: str, *, size: float, width: float, fill: Colour = INK
    ) -> None:
        """Write one line, cut to `width`."""
        cut = fitted(text, max(self.px(size), 6), self.px(width))
        self.text(x, y, cut, size=size, fill=fill)

    def gauge(self, x: float, y: float, share: float, *, width: float, fill: Colour) -> None:
        """Draw a horizontal bar, filled from the left to `share` in [0, 1]."""
        top, bottom = self.px(y - 5), self.px(y + 5)
        left, right = self.px(x), self.px(x + width)
        radius = max((bottom - top) // 2, 1)
        self._draw.rounded_rectangle((left, top, right, bottom), radius, fill=GROOVE)
        end = left + round((right - left) * min(max(share, 0.0), 1.0))
        # Narrower than its own rounding it would bulge out of the groove.
        if end - left >= 2 * radius:
            self._draw.rounded_rectangle((left, top, end, bottom), radius, fill=fill)
        elif end > left:
            self._draw.rectangle((left, top + radius // 2, end, bottom - radius // 2), fill=fill)

    def mark(self, x: float, y: float, *, right: bool) -> None:
        """Draw a tick or a cross."""
        width = max(self.px(3), 1)
        if right:
            strokes = [((-7, 0), (-2, 6)), ((-2, 6), (8, -7))]
        else:
            strokes = [((-6, -6), (6, 6)), ((-6, 6), (6, -6))]
        for (x0, y0), (x1, y1) in strokes:
            line = (self.px(x + x0), self.px(y + y0), self.px(x + x1), self.px(y + y1))
            self._draw.line(line, fill=RIGHT if right else WRONG, width=width)


@lru_cache(maxsize=16)
def _background(num_rows: int, scale: float) -> Image.Image:
    """The empty panel, with smooth corners."""
    height = CARD_HEIGHT - 38 * (2 - num_rows)
    size = (max(round(CARD_WIDTH * scale), 1), max(round(height * scale), 1))
    large = Image.new("RGBA", (size[0] * SUPERSAMPLE, size[1] * SUPERSAMPLE), (*BACKGROUND[:3], 0))
    radius = round(12 * scale * SUPERSAMPLE)
    box = (0, 0, large.width - 1, large.height - 1)
    ImageDraw.Draw(large).rounded_rectangle(box, radius, fill=BACKGROUND)
    return large.resize(size, Image.Resampling.BOX)


def _draw_row(pen: _Pen, row: Row, *, top: float) -> None:
    """Title, label, confidence bar, percentage, mark."""
    middle = top + 16
    pen.text(18, middle, row.title, size=16, fill=row.colour)
    label = drawable(row.top.label, fallback=f"class {row.top.index}")
    pen.label(104, middle, label, size=21, width=228)
    pen.gauge(342, middle, row.top.prob, width=168, fill=row.colour)
    percent = f"{100.0 * row.top.prob:.0f} %" if row.top.prob >= 0.01 else "< 1 %"
    pen.text(568, middle, percent, size=18, fill=INK, anchor="rm")
    if row.right is not None:
        pen.mark(591, middle, right=row.right)


def _draw_figures(pen: _Pen, content: CardContent, *, top: float) -> None:
    """The line of figures below the predictions."""
    middle = top + 14
    x = 18.0
    if content.strength is not None:
        pen.text(x, middle, "strength", size=15, fill=FAINT)
        pen.gauge(104, middle, content.strength, width=110, fill=ADAPTED)
        pen.text(222, middle, f"{content.strength:.2f}", size=15, fill=INK)
        x = 276.0
    *others, last = content.figures
    for text, width in zip(others, (120, 136), strict=False):
        pen.label(x, middle, text, size=15, width=width if len(others) > 1 else 300, fill=FAINT)
        x += width + 6
    pen.text(CARD_WIDTH - 18, middle, last, size=15, fill=FAINT, anchor="rm")
