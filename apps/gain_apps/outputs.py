"""Several sinks as one, so that one that fails does not take the others with it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gain_core.errors import GainError, StreamError
from gain_runtime.result import FrameResult, Sink

__all__ = ["Outputs", "PacedSink"]

logger = logging.getLogger(__name__)

# A camera that hangs for minutes shall not fill the disk with copies of one frame.
MOST_REPEATS = 300


class Outputs:
    """Named sinks that receive every result."""

    def __init__(self) -> None:
        self._sinks: list[tuple[str, Sink]] = []
        self._polls: list[Callable[[], None]] = []

    def add(self, name: str, sink: Sink, /, *, poll: Callable[[], None] | None = None) -> None:
        """Add a sink.

        Parameters
        ----------
        name : str
            What messages call it.
        sink : Sink
            Owned from here on.
        poll : callable, optional
            Called while there is no frame to write.
        """
        self._sinks.append((name, sink))
        if poll is not None:
            self._polls.append(poll)

    def write(self, result: FrameResult, /) -> None:
        """Hand a result to every sink.

        Raises
        ------
        StreamError
            If one failed, naming it; the others have received the result.
        """
        self._each(lambda sink: sink.write(result))

    def poll(self) -> None:
        """Keep windows alive between frames."""
        for poll in self._polls:
            poll()

    def close(self) -> None:
        """Close every sink; may be called twice.

        Raises
        ------
        StreamError
            If one cannot be finished, naming it; the others are closed.
        """
        self._each(lambda sink: sink.close())

    def _each(self, action: Callable[[Sink], None]) -> None:
        """Do something with every sink, then report the first failure."""
        first: StreamError | None = None
        for name, sink in self._sinks:
            try:
                action(sink)
            except (GainError, OSError) as err:
                if first is None:
                    first = StreamError(f"{name}: {err}")
                    first.__cause__ = err
                else:
                    logger.error("%s: %s", name, err)
        if first is not None:
            raise first


class PacedSink:
    """Repeats or leaves out frames so that a video of a live source runs at its true speed.

    A camera's frames are dropped while the network is busy; written one after another at the
    camera's nominal rate they would play too fast.

    Parameters
    ----------
    sink : Sink
        Owned.
    rate_hz : float
        Constant frame rate of the sink.
    """

    def __init__(self, sink: Sink, /, *, rate_hz: float) -> None:
        self._sink = sink
        self._rate_hz = rate_hz
        self._start_ns: int | None = None
        self._written = 0

    def write(self, result: FrameResult, /) -> None:
        """Write the result as often as its time stamp asks for."""
        now_ns = result.frame.timestamp_ns
        if self._start_ns is None:
            self._start_ns = now_ns
        due = int((now_ns - self._start_ns) * self._rate_hz / 1e9) + 1
        for _ in range(min(due - self._written, MOST_REPEATS)):
            self._sink.write(result)
        self._written = max(due, self._written)

    def close(self) -> None:
        """Close the sink; may be called twice."""
        self._sink.close()
