"""What the page may see of the cameras and ask of them, and their newest pictures."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args

import cv2
import numpy as np
import numpy.typing as npt

from gain_apps.serve.board import LiveBoard, LiveView
from gain_apps.serve.event_log import EventLog
from gain_apps.streaming.control import Command, CommandQueue
from gain_apps.streaming.overlay import Overlay
from gain_core.errors import StreamError
from gain_runtime.frames import FrameResult, SourceInfo

View: TypeAlias = Literal["annotated", "side-by-side", "thumbnail"]
VIEWS: tuple[View, ...] = get_args(View)

JPEG_QUALITY = 82
# A phone shows no more, and drawing on a 4K frame would take the stream's CPU time.
MOST_SIDE_PX = 1280
THUMBNAIL_PX = 192


class PictureMaker:
    """Draws the newest result of a board; any thread may ask."""

    def __init__(self, board: LiveBoard, /) -> None:
        self._board = board
        self._locks = {view: threading.Lock() for view in VIEWS}
        self._overlays: dict[View, tuple[tuple[int, ...], Overlay]] = {}
        self._made: dict[View, tuple[LiveView, bytes]] = {}
        self.encoded = 0

    def jpeg(self, view: View = "annotated", /) -> tuple[LiveView, bytes] | None:
        """The newest picture, and what the board said when it was drawn.

        The view has the frame that is on the JPEG; None before the first result. StreamError if
        OpenCV cannot encode it.
        """
        with self._locks[view]:
            seen = self._board.view()
            if seen.result is None:
                return None
            made = self._made.get(view)
            if made is not None and made[0].sequence == seen.sequence:
                self._made[view] = seen, made[1]
                return self._made[view]
            picture = self._drawn(seen.result, view)
            done, buffer = cv2.imencode(
                ".jpg",
                cv2.cvtColor(picture, cv2.COLOR_RGB2BGR),
                [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY],
            )
            if not done:
                raise StreamError(f"frame {seen.result.frame.index}: OpenCV made no JPEG of it")
            self.encoded += 1
            self._made[view] = seen, buffer.tobytes()
            return self._made[view]

    def _drawn(self, result: FrameResult, view: View) -> npt.NDArray[np.uint8]:
        """The frame, small enough to be sent; laid out anew where its size changes."""
        image = result.frame.image
        if view == "thumbnail":
            width, height = _fitted(image.shape, THUMBNAIL_PX)
            small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
            return np.asarray(small, dtype=np.uint8)
        known = self._overlays.get(view)
        if known is None or known[0] != image.shape:
            width, height = _fitted(image.shape, MOST_SIDE_PX)
            info = SourceInfo(
                source_id=result.frame.source_id,
                width_px=width,
                height_px=height,
                rate_hz=None,
                num_frames=None,
                live=True,
            )
            known = image.shape, Overlay(info, side_by_side=view == "side-by-side")
            self._overlays[view] = known
        return known[1].render(result)


def _fitted(shape: tuple[int, ...], most_px: int) -> tuple[int, int]:
    """Width and height of a picture whose sides are no longer than is worth sending."""
    height, width = shape[:2]
    scale = min(1.0, most_px / max(width, height, 1))
    return max(round(width * scale), 1), max(round(height * scale), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedCamera:
    """A camera as the server sees it.

    `source` is its URI without credentials; `commands` are those that its settings allow; `alive`
    is whether a loop carries them out.
    """

    name: str
    source: str
    board: LiveBoard
    pictures: PictureMaker
    queue: CommandQueue
    commands: Sequence[Command]
    alive: bool


class Cameras(Protocol):
    """All cameras of a process; any thread may ask and change.

    Changes return what was done, in words, and raise ConfigError where that cannot be.
    """

    @property
    def events(self) -> EventLog: ...

    @property
    def kept_in(self) -> str | None:
        """Name of the file that remembers changes over a restart."""

    @property
    def ready(self) -> bool:
        """Whether the network is loaded and nobody asked for the end."""

    def all(self) -> list[WatchedCamera]: ...

    def find(self, name: str, /) -> WatchedCamera | None: ...

    def add(self, name: str, source: str, settings: Mapping[str, Any], /, *, who: str) -> str: ...

    def remove(self, name: str, /, *, who: str) -> str: ...

    def act(
        self, name: str, action: Literal["pause", "resume", "restart"], /, *, who: str
    ) -> str: ...
