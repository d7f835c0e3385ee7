"""Text that Pillow's built-in typeface can draw, whatever alphabet a label is in."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from functools import lru_cache

from PIL import ImageFont

__all__ = ["drawable", "fitted", "font"]

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

    Parameters
    ----------
    text : str
        A label, in any alphabet.
    fallback : str
        ASCII text to show for labels in other alphabets (`class 17`).

    Returns
    -------
    str
        Accents are dropped (`Crème brûlée` is `Creme brulee`): the built-in typeface has no
        letters beyond ASCII.
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
