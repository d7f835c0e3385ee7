"""A source that behaves as a camera: frames come when they come, whether or not anybody reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from gain_core.errors import ConfigError
from gain_runtime.closing import Closing
from gain_runtime.frame import Frame, FrameSource, SourceInfo

__all__ = ["LiveSource"]


class LiveSource(Closing):
    """Gives the frames of another source at that source's rate, stamped with the clock.

    Its reader drops what nobody takes in time, as it does with a camera. Where the other source is
    slower than its own rate, frames come late and none is left out here.

    Parameters
    ----------
    source : FrameSource
        Owned.

    Raises
    ------
    ConfigError
        If the source has no rate.
    """

    def __init__(self, source: FrameSource, /) -> None:
        rate_hz = source.info.rate_hz
        if rate_hz is None:
            raise ConfigError(f"{source.info.source_id}: expected a rate to play it at, got none")
        self._source = source
        self._period_s = 1.0 / rate_hz
        self._closed = threading.Event()

    @property
    def info(self) -> SourceInfo:
        """The other source's, live."""
        return replace(self._source.info, live=True)

    @property
    def skipped(self) -> int:
        """As the other source counts them."""
        return self._source.skipped

    def __iter__(self) -> Iterator[Frame]:
        due_s = time.monotonic()
        for frame in self._source:
            if self._closed.wait(max(due_s - time.monotonic(), 0.0)):
                return
            now_ns = time.monotonic_ns()
            yield replace(frame, timestamp_ns=now_ns)
            # A frame that came late moves those after it: a camera does not catch up.
            due_s = max(due_s, 1e-9 * now_ns) + self._period_s

    def close(self) -> None:
        """End the iteration, also one that waits; may be called twice."""
        self._closed.set()
        self._source.close()
