"""A sink that keeps what it is given."""

from __future__ import annotations

from gain_core.errors import StreamError
from gain_runtime.frames import FrameResult


class RecordingSink:
    """Keeps the indices; fails from a frame on, and to close with an error, if it is to."""

    def __init__(self, *, fails_from: int = 10**9, on_close: Exception | None = None) -> None:
        self.indices: list[int] = []
        self.closed = 0
        self._fails_from = fails_from
        self._on_close = on_close

    def write(self, result: FrameResult, /) -> None:
        if result.frame.index >= self._fails_from:
            raise StreamError("no room")
        self.indices.append(result.frame.index)

    def close(self) -> None:
        self.closed += 1
        if self._on_close is not None:
            raise self._on_close
