"""A live source that is opened again when its signal is lost."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Literal

from gain_core.errors import GainError, StreamError
from gain_runtime.frames import Closing, Frame, FrameSource
from gain_runtime.sources.reader import POLL_S

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0


class SignalLostError(StreamError):
    """A live source that worked gives no more frames; a supervisor may start the stream again."""

    exit_status = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Whether a source gives frames at present, and since when in seconds since 1970.

    `connecting` is before the first connection only, `closed` while no source is wanted. `reason`
    says, without credentials, why the last try failed or the signal was lost. `attempt` counts
    tries since the signal was lost or the stream began or failed, 0 while connected; the next
    begins at `next_try_s` (since 1970), None during one and while connected.
    """

    state: Literal["connecting", "connected", "reconnecting", "closed"] = "connecting"
    since_s: float = dataclasses.field(default_factory=time.time)
    reason: str | None = None
    attempt: int = 0
    next_try_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionWatch:
    """What the owner of a stream wants to know and to decide.

    `changed` receives every change of the connection, from any thread; `stopping` says whether to
    give up waiting now; with `waits_at_start` a source that cannot be opened the first time is
    waited for, as after a loss.
    """

    changed: Callable[[Connection], None] = lambda connection: None
    stopping: Callable[[], bool] = lambda: False
    waits_at_start: bool = False


class ReconnectingSource(Closing):
    """Frames of a live source across interruptions; `index` goes on counting.

    `open_source` is called once at once, and again after each loss; the pauses between two tries
    double from half a second to thirty. A try that hangs in a driver is left behind when the stream
    ends, so that it does not delay the end. Messages call it `shown`, without credentials, before
    it was opened. Whatever `open_source` raises the first time is raised, unless
    `watch.waits_at_start`; raises SignalLostError if no frame comes for `patience_s` (may be
    infinite), or `watch.stopping` says so before it was opened.
    """

    def __init__(
        self,
        open_source: Callable[[], FrameSource],
        /,
        *,
        patience_s: float,
        watch: ConnectionWatch | None = None,
        shown: str = "source",
    ) -> None:
        self._open_source = open_source
        self._patience_s = patience_s
        self._watch = ConnectionWatch() if watch is None else watch
        self._shown = shown
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._source: FrameSource | None = None
        self._skipped_before = 0
        self._next_index = 0
        # Times the signal came back.
        self.reconnects = 0
        self.connection = Connection()
        self._source = first = self._first()
        # Of the first connection.
        self.info = first.info
        self._shown = first.info.source_id
        self._tell(state="connected", reason=None, attempt=0, next_try_s=None)

    @property
    def skipped(self) -> int:
        """Failed reads so far, over all connections."""
        source = self._source
        return self._skipped_before + (0 if source is None else source.skipped)

    def __iter__(self) -> Iterator[Frame]:
        while not self._ends():
            source = self._source
            assert source is not None
            base = self._next_index
            try:
                for frame in source:
                    index = base + frame.index
                    self._next_index = index + 1
                    yield dataclasses.replace(frame, index=index)
                reason = "the stream ended"
            except StreamError as err:
                reason = self._reason(err)
            if not self._ends():
                self._reconnect(reason)

    def close(self) -> None:
        """End the iteration and the waiting; may be called twice and from another thread."""
        self._closing.set()
        with self._lock:
            if self._source is not None:
                self._source.close()

    def _ends(self) -> bool:
        """Whether nobody waits for frames any more."""
        return self._closing.is_set() or self._watch.stopping()

    def _first(self) -> FrameSource:
        """The first connection."""
        self._tell(attempt=1)
        try:
            found = self._try_open()
        except StreamError as err:
            if not self._watch.waits_at_start:
                raise
            logger.warning("%s; trying again", err)
            found = self._keep_trying(self._reason(err))
            if found is not None:
                logger.warning("%s: the signal is there", found.info.source_id)
        if found is None:
            raise SignalLostError(f"{self._shown}: stopped before it could be opened")
        return found

    def _reconnect(self, reason: str) -> None:
        """Open the source again, or raise once the patience is over."""
        for_s = "" if math.isinf(self._patience_s) else f" for {self._patience_s:g} s"
        logger.warning("%s: %s; trying again%s", self._shown, reason, for_s)
        self._tell(state="reconnecting", reason=reason, attempt=0, since_s=time.time())
        with self._lock:
            source, self._source = self._source, None
            if source is not None:
                self._skipped_before += source.skipped
                source.close()
        found = self._keep_trying(reason)
        if found is not None:
            self._take(found)

    def _keep_trying(self, reason: str) -> FrameSource | None:
        """Try with pauses that double; None once nobody waits any more."""
        lost_s, pause_s = time.monotonic(), FIRST_PAUSE_S
        attempt = self.connection.attempt
        while not self._ends():
            left_s = self._patience_s - (time.monotonic() - lost_s)
            if left_s <= 0.0:
                raise SignalLostError(
                    f"{self._shown}: signal "
                    f"lost after {self._next_index} frames and not "
                    f"back within {self._patience_s:g} s ({reason}); check the cable, the network "
                    "and the power of the camera"
                )
            self._pause(min(pause_s, left_s), reason)
            pause_s = min(2.0 * pause_s, LONGEST_PAUSE_S)
            attempt += 1
            self._tell(attempt=attempt, next_try_s=None)
            try:
                found = None if self._ends() else self._try_open()
            except GainError as err:
                reason = self._reason(err)
                logger.debug("not back: %s", reason)
                continue
            if found is not None:
                return found
        return None

    def _pause(self, seconds: float, reason: str) -> None:
        """Wait before the next try."""
        self._tell(reason=reason, next_try_s=time.time() + seconds)
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0.0 and not self._ends():
            self._closing.wait(min(left_s, POLL_S))

    def _try_open(self) -> FrameSource | None:
        """One try, in a thread of its own; None where it outlasts the stream."""
        attempt: Future[FrameSource] = Future()

        def run() -> None:
            try:
                found = self._open_source()
            except BaseException as err:  # noqa: BLE001 - handed over to whoever waits
                if attempt.set_running_or_notify_cancel():
                    attempt.set_exception(err)
            else:
                if attempt.set_running_or_notify_cancel():
                    attempt.set_result(found)
                else:
                    found.close()

        # What it logs belongs to the stream that asks.
        name = f"{threading.current_thread().name.split('/')[0]}/open"
        threading.Thread(target=run, name=name, daemon=True).start()
        while not wait([attempt], POLL_S).done:
            if self._ends() and attempt.cancel():
                return None
        return attempt.result()

    def _reason(self, err: GainError) -> str:
        """What went wrong, without the name of the source, which is known where it is read."""
        return str(err).removeprefix(f"{self._shown}: ")

    def _take(self, source: FrameSource) -> None:
        """Go on with a new connection, unless this was closed meanwhile."""
        with self._lock:
            self._source = source
            if self._closing.is_set():
                source.close()
                return
        self.reconnects += 1
        self._tell(state="connected", reason=None, attempt=0, next_try_s=None, since_s=time.time())
        logger.warning("%s: the signal is back", self.info.source_id)

    def _tell(self, **changes: object) -> None:
        """Note how the connection stands, and say so."""
        self.connection = dataclasses.replace(self.connection, **changes)  # type: ignore[arg-type]
        self._watch.changed(self.connection)
