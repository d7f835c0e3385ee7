"""Reading without waiting: frames ahead, in a thread; bytes from a pipe, until it is closed."""

from __future__ import annotations

import logging
import os
import select
import stat
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Literal, TypeVar, get_args

from gain_core.errors import ConfigError, StreamError
from gain_runtime.frames import Closing, Frame, FrameSource

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Every wait ends after this long to look whether it is still wanted, so nothing can hang on a lost
# signal between threads; notifications and data make the ordinary case immediate.
POLL_S = 0.1


class Guarded(Closing):
    """What one thread at a time uses and any thread may close, which waits for no use to end.

    Letting go of a device or a file that is in use may crash the process, and a use can block for
    seconds: the thread in it lets go of it then, as soon as it is done.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._released = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    def close(self) -> None:
        """Let go of it, now or when the running use ends; may be called twice."""
        self._closing.set()
        if self._lock.acquire(blocking=False):
            try:
                if not self._released:
                    self._released = True
                    self._release()
            finally:
                self._lock.release()

    @abstractmethod
    def _release(self) -> None:
        """Let go of it; called once."""

    def _use(self, work: Callable[[], T]) -> T | None:
        """What `work` gives; None once closed."""
        try:
            with self._lock:
                result = None if self.closed else work()
        finally:
            if self.closed:
                self.close()
        return None if self.closed else result


class PipeReader(Guarded):
    """Reads a file descriptor, whose first bytes can be looked at before; closes it if `owned`.

    Raises StreamError if it cannot be read.
    """

    def __init__(self, fd: int, /, *, shown: str, owned: bool = False) -> None:
        super().__init__()
        self._fd = fd
        self._owned = owned
        self._ahead = b""
        self.shown = shown

    @classmethod
    def open(cls, path: Path, /) -> PipeReader:
        """Open a named pipe without waiting for a writer; raises StreamError if it cannot be
        opened."""
        try:
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as err:
            raise StreamError(f"{path}: cannot be opened ({err.strerror})") from err
        return cls(fd, shown=str(path), owned=True)

    def peek(self, size: int, /) -> bytes:
        """Look at the first bytes without taking them; fewer than `size` only at the end."""
        while len(self._ahead) < size and (more := self._next(size - len(self._ahead))):
            self._ahead += more
        return self._ahead[:size]

    def read(self, size: int, /) -> bytes:
        """Take the next bytes, one to `size`, as they come; none at the end or once closed."""
        if self._ahead:
            piece, self._ahead = self._ahead[:size], self._ahead[size:]
            return piece
        return self._next(size)

    def _release(self) -> None:
        if self._owned:
            os.close(self._fd)

    def _next(self, size: int) -> bytes:
        """Wait for bytes of the descriptor."""
        return self._use(lambda: self._wait_and_read(size)) or b""

    def _wait_and_read(self, size: int) -> bytes:
        try:
            # A file on standard input is always ready.
            if stat.S_ISREG(os.fstat(self._fd).st_mode):
                return os.read(self._fd, size)
            poll = select.poll()
            poll.register(self._fd, select.POLLIN | select.POLLHUP)
            while not self.closed:
                if poll.poll(1e3 * POLL_S):
                    try:
                        return os.read(self._fd, size)
                    except BlockingIOError:
                        continue
        except OSError as err:
            raise StreamError(f"{self.shown}: cannot be read ({err.strerror})") from err
        return b""


Policy = Literal["block", "drop_oldest"]

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
