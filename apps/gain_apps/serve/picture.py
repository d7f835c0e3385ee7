"""The annotated picture as JPEG, made only when somebody looks, and once for all who do."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import cv2

from gain_apps.overlay import Overlay
from gain_apps.serve.board import LiveBoard
from gain_core.errors import StreamError
from gain_runtime.frame import SourceInfo

__all__ = ["VIEWS", "PictureMaker", "View"]

View: TypeAlias = Literal["annotated", "side-by-side"]
VIEWS: tuple[View, ...] = get_args(View)

JPEG_QUALITY = 82
# A phone shows no more, and drawing on a 4K frame would take the stream's CPU time.
MOST_SIDE_PX = 1280


class PictureMaker:
    """Draws the newest result of a board; any thread may ask.

    Parameters
    ----------
    board : LiveBoard
    info : SourceInfo
        Decides the size of the picture.
    """

    def __init__(self, board: LiveBoard, info: SourceInfo, /) -> None:
        self._board = board
        small = _shrunk(info)
        self._overlays = {
            view: Overlay(small, side_by_side=view == "side-by-side") for view in VIEWS
        }
        self._locks = {view: threading.Lock() for view in VIEWS}
        self._made: dict[View, tuple[int, bytes]] = {}
        self.encoded = 0

    def jpeg(self, view: View = "annotated", /) -> tuple[int, bytes] | None:
        """The newest picture.

        Parameters
        ----------
        view : {"annotated", "side-by-side"}

        Returns
        -------
        (int, bytes) or None
            The result's sequence number and the JPEG; None before the first result.

        Raises
        ------
        StreamError
            If OpenCV cannot encode it.
        """
        with self._locks[view]:
            seen = self._board.view()
            if seen.result is None:
                return None
            made = self._made.get(view)
            if made is not None and made[0] == seen.sequence:
                return made
            picture = self._overlays[view].render(seen.result)
            done, buffer = cv2.imencode(
                ".jpg",
                cv2.cvtColor(picture, cv2.COLOR_RGB2BGR),
                [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY],
            )
            if not done:
                raise StreamError(f"frame {seen.result.frame.index}: OpenCV made no JPEG of it")
            self.encoded += 1
            self._made[view] = (seen.sequence, buffer.tobytes())
            return self._made[view]


def _shrunk(info: SourceInfo) -> SourceInfo:
    """The source as if its frames were no larger than is worth sending."""
    scale = min(1.0, MOST_SIDE_PX / max(info.width_px, info.height_px, 1))
    return replace(
        info,
        width_px=max(round(info.width_px * scale), 1),
        height_px=max(round(info.height_px * scale), 1),
    )
