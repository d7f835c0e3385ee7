"""Reading a source ahead in a thread, behind a bounded queue."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Literal, get_args

from gain_core.errors import ConfigError
from gain_runtime.frames import Closing, Frame, FrameSource

__all__ = [
    "FrameReader",
    "Policy",
    "ReadStatus",
]

logger = logging.getLogger(__name__)

Policy = Literal["block", "drop_oldest"]

# Every wait ends after this long to look at the stop event, so nothing can hang on a lost signal
# between threads; notifications make the ordinary case immediate.
POLL_S = 0.1
# A stop shall take less than two seconds, also where a camera hangs.
JOIN_S = 0.5


class ReadStatus(Enum):
    """Why `FrameReader.get` returned no frame."""

    TIMEOUT = "timeout"
    END = "end"


class FrameReader(Closing):
    """Runs a source in one thread and hands its frames to one consumer.

    The thread starts with the first `get` or iteration. The reader does not own the source:
    close the reader first, then the source, as nested `with` statements do.

    Parameters
    ----------
    source : FrameSource
    policy : {"block", "drop_oldest"} or None
        What happens when the queue is full: the source waits (every frame arrives), or the
        oldest queued frame is dropped and counted. None means `drop_oldest` for live sources
        and `block` for the others.
    queue_size : int
        Most frames to read ahead.

    Raises
    ------
    ConfigError
        If `policy` or `queue_size` is out of range.
    """

    def __init__(
        self, source: FrameSource, /, *, policy: Policy | None = None, queue_size: int = 4
    ) -> None:
        if policy is not None and policy not in get_args(Policy):
            raise ConfigError(
                f"policy: expected one of {', '.join(get_args(Policy))}, got {policy!r}"
            )
        if queue_size < 1:
            raise ConfigError(f"queue_size: expected at least 1, got {queue_size}")
        self._source = source
        self._policy: Policy = policy or ("drop_oldest" if source.info.live else "block")
        self._queue_size = queue_size
        self._queue: deque[Frame] = deque()
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._finished = False
        self._error: BaseException | None = None
        self._dropped = 0
        # What it logs belongs to the stream that it reads for.
        name = f"{threading.current_thread().name}/reader"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def policy(self) -> Policy:
        """The policy in use."""
        return self._policy

    @property
    def dropped(self) -> int:
        """Frames dropped so far because the consumer was slower than the source."""
        return self._dropped

    def get(self, *, timeout_s: float) -> Frame | ReadStatus:
        """Next frame, or why there is none.

        Parameters
        ----------
        timeout_s : float
            Longest wait, in seconds.

        Returns
        -------
        Frame or ReadStatus
            `END` after the last frame and after `close`.

        Raises
        ------
        Exception
            Whatever the source raised, once the frames before it were delivered.
        """
        self._start()
        with self._changed:
            self._changed.wait_for(self._has_news, timeout=timeout_s)
            if self._stop.is_set():
                return ReadStatus.END
            if self._queue:
                frame = self._queue.popleft()
                self._changed.notify_all()
                return frame
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            return ReadStatus.END if self._finished else ReadStatus.TIMEOUT

    def __iter__(self) -> Iterator[Frame]:
        while (item := self.get(timeout_s=POLL_S)) is not ReadStatus.END:
            if isinstance(item, Frame):
                yield item

    def close(self) -> None:
        """Stop the thread and wait for it; may be called twice, from any thread.

        A source that blocks longer than `JOIN_S` is left to end by itself.
        """
        with self._changed:
            again = self._stop.is_set()
            self._stop.set()
            self._queue.clear()
            self._changed.notify_all()
        if again or self._thread.ident is None or self._thread is threading.current_thread():
            return
        self._thread.join(JOIN_S)
        if self._thread.is_alive():
            logger.warning(
                "%s: still blocked in a read after %g s; its thread is abandoned",
                self._source.info.source_id,
                JOIN_S,
            )

    def _start(self) -> None:
        with self._changed:
            if self._thread.ident is None and not self._stop.is_set():
                self._thread.start()

    def _has_news(self) -> bool:
        return bool(self._queue) or self._finished or self._stop.is_set()

    def _run(self) -> None:
        """Thread: move frames from the source to the queue until the end, an error or a stop."""
        try:
            for frame in self._source:
                if not self._put(frame):
                    break
        except BaseException as err:  # noqa: BLE001 - handed over to the consumer
            self._error = err
        finally:
            with self._changed:
                self._finished = True
                self._changed.notify_all()

    def _put(self, frame: Frame) -> bool:
        """Queue one frame by the policy; False once stopped."""
        with self._changed:
            while len(self._queue) >= self._queue_size and not self._stop.is_set():
                if self._policy == "drop_oldest":
                    self._queue.popleft()
                    self._dropped += 1
                else:
                    self._changed.wait(POLL_S)
            if self._stop.is_set():
                return False
            self._queue.append(frame)
            self._changed.notify_all()
            return True
