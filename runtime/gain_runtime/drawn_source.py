"""Sources whose frames are drawn by code, each from its index alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from gain_runtime.closing import Closing
from gain_runtime.frame import Frame, SourceInfo

__all__ = ["DrawnSource"]


class DrawnSource(Closing):
    """Frames 0 to N - 1, until it is closed.

    Parameters
    ----------
    num_frames : int
        N.
    """

    def __init__(self, num_frames: int, /) -> None:
        self._num_frames = num_frames
        self._closed = False

    @property
    @abstractmethod
    def info(self) -> SourceInfo:
        """Everything is known in advance."""

    @abstractmethod
    def frame(self, index: int, /) -> Frame:
        """Draw one frame; it depends on the source's parameters and its index only."""

    @property
    def skipped(self) -> int:
        """Always 0: a drawn frame cannot fail to decode."""
        return 0

    def __iter__(self) -> Iterator[Frame]:
        for index in range(self._num_frames):
            if self._closed:
                return
            yield self.frame(index)

    def close(self) -> None:
        """End the iteration; may be called twice."""
        self._closed = True
