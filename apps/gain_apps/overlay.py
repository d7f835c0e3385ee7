"""Drawing results over frames, on a canvas of one size for the whole stream."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from gain_apps.overlay_card import CARD_WIDTH, describe, draw_card
from gain_runtime.frame import SourceInfo
from gain_runtime.preprocess import Region
from gain_runtime.result import FrameResult

__all__ = ["Overlay", "canvas_size"]

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

    Parameters
    ----------
    info : SourceInfo
        Decides the canvas, which every frame is fitted into.
    side_by_side : bool, optional
        Frozen source on the left, adapted prediction on the right.
    """

    def __init__(self, info: SourceInfo, /, *, side_by_side: bool = False) -> None:
        self._size = canvas_size(info, half=side_by_side)
        self._side_by_side = side_by_side
        self._last: tuple[FrameResult, Image8] | None = None

    def render(self, result: FrameResult, /) -> Image8:
        """Draw one result.

        Parameters
        ----------
        result : FrameResult

        Returns
        -------
        array, (H, W, 3) uint8 RGB
            The same size for every result, both sides even. Shared between sinks that ask for the
            same result: do not write into it.
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
    """Width and height of the picture drawn for a source.

    Parameters
    ----------
    info : SourceInfo
    half : bool, optional
        Whether it is one half of a side-by-side view.

    Returns
    -------
    (width, height) in px
        Even. A video's own size where the card can be read on it, larger for small frames, and
        one size for photos, whose own sizes differ.
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
    card = draw_card(describe(result, view=view), scale=scale)
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
