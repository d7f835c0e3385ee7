"""A sink whose deliveries may be slow or fail: they happen in a thread, behind a bounded queue."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from gain_core.errors import GainError
from gain_runtime.frames import Closing

__all__ = [
    "BackgroundSink",
]

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
# Outputs are closed one after another, and a signal shall end a stream within two seconds.
CLOSE_S = 0.4

Item = TypeVar("Item")


class BackgroundSink(Closing, Generic[Item]):
    """Hands results, or anything else, to a callable in a thread of its own; `write` never waits.

    A delivery that fails is tried again after a pause that doubles from one second to sixty.
    Meanwhile the queue keeps the newest results and drops the others.

    Parameters
    ----------
    name : str
        What messages call it; without credentials.
    deliver : callable
        Sends one result; raises GainError or OSError where it fails.
    queue_size : int, optional
        Results that wait at most.
    """

    def __init__(
        self, name: str, deliver: Callable[[Item], None], /, *, queue_size: int = 64
    ) -> None:
        self._name = name
        self._deliver = deliver
        self._waiting: deque[Item] = deque(maxlen=queue_size)
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._dropped = 0
        self._delivering = False
        self._thread = threading.Thread(target=self._run, name=f"sink {name}", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Results that were never delivered so far."""
        return self._dropped

    def write(self, result: Item, /) -> None:
        """Leave a result for the thread."""
        with self._changed:
            if len(self._waiting) == self._waiting.maxlen:
                self._dropped += 1
            self._waiting.append(result)
            self._changed.notify()

    def close(self) -> None:
        """Deliver what waits if that is quick; may be called twice."""
        with self._changed:
            self._closing.set()
            self._changed.notify()
        self._thread.join(CLOSE_S)
        with self._changed:
            self._dropped += len(self._waiting)
            self._waiting.clear()
            delivering = self._delivering
        if delivering:
            logger.warning("%s: one result was still being delivered", self._name)
        if self._dropped:
            logger.warning("%s: %d results were not delivered", self._name, self._dropped)
            self._dropped = 0

    def _run(self) -> None:
        """Thread: deliver in order until closed and empty, or closed and failing."""
        pause_s = FIRST_PAUSE_S
        failing = False
        while (result := self._take()) is not None:
            try:
                self._deliver(result)
            except (GainError, OSError) as err:
                self._put_back(result)
                if not failing:
                    then = "delivery will be tried again"
                    if self._closing.is_set():
                        then = "delivery is not tried again, the sink is being closed"
                    logger.error("%s: %s; %s", self._name, err, then)
                failing = True
                self._closing.wait(pause_s)
                pause_s = min(2.0 * pause_s, LONGEST_PAUSE_S)
                if self._closing.is_set():
                    return
                continue
            with self._changed:
                self._delivering = False
            if failing:
                logger.warning("%s: delivering again", self._name)
            failing, pause_s = False, FIRST_PAUSE_S

    def _put_back(self, result: Item) -> None:
        """Keep a result for the next try, unless newer ones have taken all the room."""
        with self._changed:
            self._delivering = False
            if len(self._waiting) == self._waiting.maxlen:
                self._dropped += 1
            else:
                self._waiting.appendleft(result)

    def _take(self) -> Item | None:
        """The next result; None once closed and empty."""
        with self._changed:
            while not self._waiting:
                if self._closing.is_set():
                    return None
                self._changed.wait()
            self._delivering = True
            return self._waiting.popleft()
