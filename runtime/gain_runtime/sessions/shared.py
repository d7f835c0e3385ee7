"""One session for several streams: frames that are ready together share a forward pass."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gain_core.errors import ArrayError, ConfigError, EngineError, GainError
from gain_runtime.files.artifact import Artifact
from gain_runtime.frames import Closing
from gain_runtime.sessions.session import Features, Session

logger = logging.getLogger(__name__)

# How long the first frame waits for those of the other streams: far less than a camera's 33 ms
# between two frames, and than most forward passes on an edge device.
WAIT_S = 0.004
MOST_ROWS = 64
# Every wait ends after this long to look again, so nothing can hang on a lost signal.
POLL_S = 0.1


class SharedSession:
    """Runs the frames of several streams, one thread each, through one session.

    Requests that arrive during a forward pass are batched into the next one. If the last pass was
    shared, the first stream to ask waits up to `wait_s` for the others, and only until all have
    asked: cameras that are never ready together do not wait. Each stream gets its own rows. If
    the network takes no larger batch, the streams take turns; that is logged once.

    Parameters
    ----------
    session : Session
        Not owned: whoever opened it closes it, after the streams have ended.
    wait_s : float, optional
        Longest wait for other streams, in seconds.
    most_rows : int, optional
        Most frames in a forward pass; the batch of one stream is never split.

    Raises
    ------
    ConfigError
        If `wait_s` is negative or `most_rows` is below 1.
    """

    def __init__(
        self, session: Session, /, *, wait_s: float = WAIT_S, most_rows: int = MOST_ROWS
    ) -> None:
        if not wait_s >= 0.0:
            raise ConfigError(f"wait_s: expected seconds of at least 0, got {wait_s}")
        if most_rows < 1:
            raise ConfigError(f"most_rows: expected at least 1 frame, got {most_rows}")
        self._session = session
        self._wait_s = wait_s
        self._most_rows = most_rows
        self._changed = threading.Condition()
        self._waiting: list[_Request] = []
        self._busy = False
        # Whether a wait is likely to find another stream; tried once at the beginning.
        self._crowded = True
        self._streams = 0
        self._passes = self._rows = 0

    @property
    def artifact(self) -> Artifact:
        """The artifact that all streams use."""
        return self._session.artifact

    @property
    def provider(self) -> str:
        """The execution provider really in use."""
        return self._session.provider

    @property
    def passes(self) -> int:
        """Forward passes so far."""
        return self._passes

    @property
    def rows(self) -> int:
        """Frames in those passes."""
        return self._rows

    def join(self) -> StreamSession:
        """A session for one more stream.

        Returns
        -------
        StreamSession
            Close it when the stream ends, so that the others do not wait for it.
        """
        with self._changed:
            self._streams += 1
        return StreamSession(self)

    def leave(self) -> None:
        """One stream less; `StreamSession.close` calls this."""
        with self._changed:
            self._streams -= 1
            self._changed.notify_all()

    def infer(self, pixel_values: npt.NDArray[np.float32], /) -> Features:
        """Run one stream's batch, together with what other streams ask for; see `Session`.

        Parameters
        ----------
        pixel_values : array, (B, 3, height_px, width_px) float32

        Returns
        -------
        Features
            The rows of this batch.

        Raises
        ------
        ArrayError, EngineError
            As the session's `infer`.
        """
        request = _Request(pixel_values)
        with self._changed:
            self._waiting.append(request)
            self._changed.notify_all()
            while request.answer is None:
                if not self._busy and self._waiting[0] is request:
                    break
                self._changed.wait(POLL_S)
            group = [] if request.answer is not None else self._gathered()
        if group:
            try:
                self._answer(group)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
        answer = request.answer
        assert answer is not None
        if isinstance(answer, GainError):
            # An exception of its own for each thread: a traceback belongs to one.
            raise type(answer)(str(answer)) from answer
        return answer

    def _gathered(self) -> list[_Request]:
        """The requests of the next pass, taken out of the queue; the lock is held."""
        # Nobody else begins a pass meanwhile.
        self._busy = True
        crowded = self._crowded or len(self._waiting) > 1
        end_s = time.monotonic() + (self._wait_s if crowded else 0.0)
        while (
            len(self._waiting) < self._streams
            and sum(request.rows for request in self._waiting) < self._most_rows
        ):
            left_s = end_s - time.monotonic()
            if left_s <= 0.0:
                break
            self._changed.wait(left_s)
        group = [self._waiting.pop(0)]
        rows = group[0].rows
        while self._waiting and rows + self._waiting[0].rows <= self._most_rows:
            if not group[0].fits(self._waiting[0]):
                break
            group.append(self._waiting.pop(0))
            rows += group[-1].rows
        self._crowded = len(group) > 1 or bool(self._waiting)
        return group

    def _answer(self, group: list[_Request]) -> None:
        """Give every request its rows or its error, whatever happens."""
        try:
            refused = self._answer_together(group) if len(group) > 1 else None
            for request in group:
                if request.answer is None:
                    try:
                        request.answer = self._run(request.pixel_values)
                    except GainError as err:
                        request.answer = err  # of one stream alone, so its own
            failed = any(isinstance(request.answer, GainError) for request in group)
            if refused is not None and not failed:
                logger.warning("streams cannot share a forward pass and take turns: %s", refused)
                self._most_rows = 1
        finally:
            # A bug ends the stream that ran the pass; the others shall not wait for ever.
            for request in group:
                if request.answer is None:
                    request.answer = EngineError(
                        f"{self.artifact.path}: the forward pass that was shared with another "
                        "stream failed; see the error before this one"
                    )

    def _answer_together(self, group: list[_Request]) -> ArrayError | None:
        """One pass for all; where it fails nobody is answered, and the batch may be the reason."""
        try:
            features, logits = self._run(np.concatenate([item.pixel_values for item in group]))
        except ArrayError as err:
            return err
        except GainError as err:
            logger.debug("a shared forward pass failed, each stream is tried alone: %s", err)
            return None
        start = 0
        for request in group:
            end = start + request.rows
            rows = None if features is None else features[start:end]
            request.answer = Features(rows, logits[start:end])
            start = end
        return None

    def _run(self, pixel_values: npt.NDArray[np.float32]) -> Features:
        """One counted pass."""
        result = self._session.infer(pixel_values)
        self._passes += 1
        self._rows += len(pixel_values)
        return result


class StreamSession(Closing):
    """One stream's way into a `SharedSession`: a `Session` whose `close` only leaves it."""

    def __init__(self, shared: SharedSession, /) -> None:
        self._shared: SharedSession | None = shared
        self.artifact = shared.artifact
        self.provider = shared.provider

    def infer(self, pixel_values: npt.NDArray[np.float32], /) -> Features:
        """As `SharedSession.infer`; raises EngineError where this stream has left."""
        if self._shared is None:
            raise EngineError(
                f"{self.artifact.path}: this stream has left the session; join it again before use"
            )
        return self._shared.infer(pixel_values)

    def close(self) -> None:
        """Leave the shared session; may be called twice."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.leave()


@dataclass(slots=True, eq=False)
class _Request:
    """One stream's batch, and what came of it."""

    pixel_values: npt.NDArray[np.float32]
    answer: Features | GainError | None = None

    @property
    def rows(self) -> int:
        """Frames in the batch."""
        return len(self.pixel_values)

    def fits(self, other: _Request) -> bool:
        """Whether both can go through the network at once; the session checks the rest."""
        mine, others = self.pixel_values, other.pixel_values
        return mine.shape[1:] == others.shape[1:] and mine.dtype == others.dtype
