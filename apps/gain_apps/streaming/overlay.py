"""Drawing results over frames: a card of source against adapted, on a canvas of one size."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from gain_runtime.frames import FrameResult, Ranked, SourceInfo
from gain_runtime.preprocess import Region

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

ELLIPSIS = "..."
# Letters that do not decompose into a base letter and an accent, and typographers' signs.
SPELLED = str.maketrans(
    dict(zip("øØłŁđĐð\u0131", "oOlLdDdi", strict=True))
    | {"ß": "ss", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "þ": "th", "Þ": "Th"}
    | dict(zip("\u2018\u2019\u201c\u201d\u2013\u2014\u00d7", "''\"\"--x", strict=True))
)


@lru_cache(maxsize=32)
def font(size_px: int, /) -> Font:
    """Pillow's own typeface, so that frames look alike on every machine."""
    return ImageFont.load_default(max(size_px, 6))


@lru_cache(maxsize=4096)
def drawable(text: str, /, *, fallback: str) -> str:
    """Spell a text in ASCII, or take the fallback where too little of it would be left.

    Accents are dropped (`Crème brûlée` is `Creme brulee`): the built-in typeface has no letters
    beyond ASCII. The fallback (`class 17`) is for labels in other alphabets.
    """
    plain = unicodedata.normalize("NFKD", text.translate(SPELLED))
    kept = "".join(char for char in plain if char.isascii() and char.isprintable())
    letters = sum(char.isalnum() for char in text)
    if 2 * sum(char.isalnum() for char in kept) < letters or not kept.strip():
        return fallback
    return kept.replace("_", " ").strip()


@lru_cache(maxsize=4096)
def fitted(text: str, size_px: int, width_px: int, /) -> str:
    """Cut a text so that it is no wider than `width_px` at this size."""
    face = font(size_px)
    if face.getlength(text) <= width_px:
        return text
    # Width grows with length, so the longest start that fits is found by halving.
    fits = bisect_right(
        range(1, len(text) + 1), width_px, key=lambda n: round(face.getlength(text[:n] + ELLIPSIS))
    )
    return text[:fits].rstrip() + ELLIPSIS


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

    The views `source` and `adapted` are the halves of a side-by-side view.
    """
    truth = result.frame.truth

    def row(title: str, top: Ranked, colour: Colour) -> Row:
        right = None if truth is None else top.index == truth
        return Row(title=title, top=top, colour=colour, right=right)

    source = row("source", result.source_top[0], SOURCE)
    adapted = row("adapted", result.adapted_top[0], CHANGED if result.changed else ADAPTED)
    rate = f"{result.rate_hz:.1f} fps" if result.rate_hz > 0.0 else ""
    condition = drawable(result.frame.condition or "", fallback="")
    gain = f"gain {result.gain:.2f} nats" if result.gain < 100.0 else f"gain {result.gain:.1e} nats"
    if view == "source":
        return CardContent(rows=(source,), strength=None, figures=(f"frozen  {condition}", rate))
    figures = (gain, condition) if view == "adapted" else (gain, condition, rate)
    rows = (adapted,) if view == "adapted" else (source, adapted)
    return CardContent(rows=rows, strength=result.strength, figures=figures)


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


Image8 = npt.NDArray[np.uint8]

LEAST_WIDTH_PX, LEAST_HEIGHT_PX = 640, 360
PHOTO_CANVAS = (960, 720)
# Two of them side by side fit any screen; OpenCV's MPEG-4 spends about a bit per pixel and frame.
MOST_HALF_PX = (640, 640)
# A sliver is letterboxed instead of scaled until its card can be read.
WIDEST, TALLEST = 2.4, 2.4
BORDER = (26, 28, 34)
BOX_COLOUR = (64, 208, 164)
DIVIDER_PX = 4


class Overlay:
    """Renders results for sinks that show pictures.

    `info` decides the canvas, which every frame is fitted into. With `side_by_side` the frozen
    source is on the left, the adapted prediction on the right.
    """

    def __init__(self, info: SourceInfo, /, *, side_by_side: bool = False) -> None:
        self._size = canvas_size(info, half=side_by_side)
        self._side_by_side = side_by_side
        self._last: tuple[FrameResult, Image8] | None = None

    def render(self, result: FrameResult, /) -> Image8:
        """Draw one result: (H, W, 3) uint8 RGB, the same size for every result, both sides even.

        Shared between sinks that ask for the same result: do not write into it.
        """
        if self._last is not None and self._last[0] is result:
            return self._last[1]
        canvas = self._fit(result)
        if self._side_by_side:
            gap = np.full((canvas.shape[0], DIVIDER_PX, 3), BORDER, dtype=np.uint8)
            left, right = canvas, canvas.copy()
            _stamp(left, result, view="source")
            _stamp(right, result, view="adapted")
            canvas = np.concatenate([left, gap, right], axis=1)
        else:
            _stamp(canvas, result, view="both")
        self._last = (result, canvas)
        return canvas

    def _fit(self, result: FrameResult) -> Image8:
        """The frame on the canvas, with its region outlined; a new array."""
        image = result.frame.image
        width, height = self._size
        scale = min(width / image.shape[1], height / image.shape[0])
        inner_w = min(max(round(image.shape[1] * scale), 1), width)
        inner_h = min(max(round(image.shape[0] * scale), 1), height)
        top, left = (height - inner_h) // 2, (width - inner_w) // 2
        method = cv2.INTER_AREA if scale < 1.0 else cv2.INTER_CUBIC
        if image.shape[:2] == (height, width):
            canvas: Image8 = image.copy()
        else:
            canvas = np.full((height, width, 3), BORDER, dtype=np.uint8)
            inner = cv2.resize(image, (inner_w, inner_h), interpolation=method)
            canvas[top : top + inner_h, left : left + inner_w] = inner
        if result.frame.region is not None:
            _outline(canvas, result.frame.region, scale=scale, origin=(left, top))
        return canvas


def canvas_size(info: SourceInfo, /, *, half: bool = False) -> tuple[int, int]:
    """Width and height in px, even, of the picture drawn for a source or of one half of it.

    A video's own size where the card can be read on it, larger for small frames, and one size for
    photos, whose own sizes differ.
    """
    width, height = float(info.width_px), float(info.height_px)
    if not info.timed:
        width, height = PHOTO_CANVAS
    width, height = max(width, height / TALLEST), max(height, width / WIDEST)
    grow = max(1.0, LEAST_WIDTH_PX / width, LEAST_HEIGHT_PX / height)
    if half:
        grow = min(grow, MOST_HALF_PX[0] / width, MOST_HALF_PX[1] / height)
    return 2 * round(width * grow / 2), 2 * round(height * grow / 2)


def _stamp(canvas: Image8, result: FrameResult, *, view: str) -> None:
    """Lay the card over the lower edge of the canvas, in place."""
    height, width = canvas.shape[:2]
    margin = max(round(min(width, height) * 0.02), 4)
    # Readable on a phone-sized video, not a billboard on a 4K one.
    scale = min((width - 2 * margin) / CARD_WIDTH, max(height / 560, 1.0))
    content = describe(result, view=view)
    card = _background(len(content.rows), scale).copy()
    pen = _Pen(card, scale)
    for at, row in enumerate(content.rows):
        _draw_row(pen, row, top=14 + 38 * at)
    _draw_figures(pen, content, top=14 + 38 * len(content.rows))
    top, left = height - margin - card.height, (width - card.width) // 2
    under = canvas[top : top + card.height, left : left + card.width]
    blended = Image.fromarray(under).convert("RGBA")
    blended.alpha_composite(card)
    under[...] = np.asarray(blended)[..., :3]


def _outline(canvas: Image8, region: Region, *, scale: float, origin: tuple[int, int]) -> None:
    """Draw the region's border, in place."""
    left, top, right, bottom = (round(edge * scale) for edge in region)
    thickness = max(round(min(canvas.shape[:2]) / 240), 2)
    cv2.rectangle(
        canvas,
        (origin[0] + left, origin[1] + top),
        (origin[0] + right, origin[1] + bottom),
        BOX_COLOUR,
        thickness,
        cv2.LINE_AA,
    )
