"""One camera of a service: its thread, its states, and how it comes back by itself."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from rich.console import Console

from gain_apps.serve.board import LiveBoard
from gain_apps.serve.cameras import PictureMaker, WatchedCamera
from gain_apps.streaming.config import StreamConfig
from gain_apps.streaming.control import Command, CommandQueue, StopRequest
from gain_apps.streaming.loop import StreamHost
from gain_apps.streaming.run import run_stream
from gain_core.errors import ConfigError, GainError, StreamError, one_line
from gain_runtime.sessions.shared import SharedSession
from gain_runtime.sources.uri import parse_uri

logger = logging.getLogger(__name__)

# A camera whose stream failed is started again after this long; the pause doubles up to a bound.
FIRST_RESTART_S = 5.0
LONGEST_RESTART_S = 300.0
POLL_S = 0.1
# Longest wait for a camera that is to end: a batch, a snapshot and the outputs.
END_S = 10.0
LIVE_KINDS = ("camera", "network", "pipeline")


# Begins the names of a camera's threads.
THREADS = "camera "


class CameraNameFormatter(logging.Formatter):
    """Puts the camera's name before what its threads log."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """One line."""
        thread = (record.threadName or "").split("/")[0]
        name = f"{thread.removeprefix(THREADS)}: " if thread.startswith(THREADS) else ""
        return f"{record.levelname}: {name}{record.message}"


class Camera:
    """A stream that can be paused, restarted and watched; only the service's threads change it.

    `host` has the session, connection and clocks that all share; the board is the camera's own,
    `stop` the process's.
    """

    def __init__(
        self,
        config: StreamConfig,
        /,
        *,
        host: StreamHost,
        board: LiveBoard,
        stop: StopRequest,
    ) -> None:
        self.name, self.config = board.name, config
        self.board = board
        # Of the last run, until all can be printed.
        self.summary: dict[str, Any] | None = None
        self.failure: BaseException | None = None
        self._host = host
        self._queue = CommandQueue()
        self._process_stop = stop
        self._stop = StopRequest(stop)
        # The network that all share; without one a stream opens its own.
        self.shared: SharedSession | None = None
        self._thread: threading.Thread | None = None
        self._pictures = PictureMaker(board)
        self._live = parse_uri(config.input).kind in LIVE_KINDS
        self._source = parse_uri(config.input).shown

    @property
    def alive(self) -> bool:
        """Whether its stream runs or is being started."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def done(self) -> bool:
        """Whether nothing more comes of it by itself: it has ended, failed, or was paused."""
        return not self.alive and self.board.view().state != "paused"

    def watched(self) -> WatchedCamera:
        """As the server sees it."""
        commands: list[Command] = ["freeze", "unfreeze", "reset"]
        if self.config.state_out is not None or self.config.snapshots is not None:
            commands += ["save", "roll-back"]
        return WatchedCamera(
            name=self.name,
            source=self._source,
            board=self.board,
            pictures=self._pictures,
            queue=self._queue,
            commands=commands,
            alive=self.alive,
        )

    def start(self) -> None:
        """Begin, unless it runs already."""
        if self.alive:
            return
        self.failure = None
        self._stop = StopRequest(self._process_stop)
        self.board.enter("starting")
        self._thread = threading.Thread(target=self._run, name=f"{THREADS}{self.name}", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Start, unless the settings say that it is paused."""
        if self.config.paused:
            self.board.enter("paused", "by the settings")
        else:
            self.start()

    def ask_to_end(self) -> None:
        """Let the stream finish its files and its last snapshot."""
        self._stop.quit()

    def join(self, *, end_s: float) -> bool:
        """Wait until it has ended, but not longer than until `end_s` of the monotonic clock."""
        if self._thread is not None:
            self._thread.join(max(end_s - time.monotonic(), 0.0))
        return not self.alive

    def pause(self, why: str, /) -> None:
        """End the stream and wait to be resumed; ConfigError if it does not end."""
        self._end()
        self.board.enter("paused", why)

    def restart(self) -> None:
        """End the stream and begin anew; ConfigError if it does not end."""
        self._end()
        self.start()

    def _end(self) -> None:
        """End the stream within bounds."""
        self.ask_to_end()
        if not self.join(end_s=time.monotonic() + END_S):
            raise ConfigError(
                f"{self.name}: has not ended within {END_S:g} s; try again, and where it hangs in "
                "a driver restart the service"
            )

    def _run(self) -> None:
        """Thread: the stream, again and again where it is a camera."""
        pause_s = FIRST_RESTART_S
        attempt = 1
        stop = self._stop
        while True:
            began_s = time.monotonic()
            self.failure = None
            try:
                self._run_once(stop)
            except GainError as err:
                if stop and self.summary is None:
                    # It was waiting for its camera; there is nothing to be finished.
                    return
                self.failure = err
                if stop or not self._comes_back(err):
                    self._fail(err)
                    return
            except BaseException as err:
                self.failure = err
                logger.exception("a bug ended this camera; the others continue")
                self._fail(err)
                return
            else:
                if not stop:
                    self.board.enter("ended", "the source ended")
                    self.board.note("stream", "the source ended")
                return
            if time.monotonic() - began_s > LONGEST_RESTART_S:
                pause_s, attempt = FIRST_RESTART_S, 1
            attempt += 1
            self._wait_to_restart(stop, pause_s, attempt)
            pause_s = min(2.0 * pause_s, LONGEST_RESTART_S)
            if stop:
                # It would have begun again: no failure of the service that is to end.
                self.failure = None
                return

    def _run_once(self, stop: StopRequest) -> None:
        """Everything a process with one stream does, but for the network and the report."""
        # Many lines that change cannot share a terminal: progress is logged.
        console = Console(stderr=True, force_terminal=False)

        def keep(summary: dict[str, Any]) -> None:
            self.summary = summary

        with nullcontext() if self.shared is None else self.shared.join() as session:
            host = replace(self._host, board=self.board, queue=self._queue, session=session)
            run_stream(self.config, stop, console, report=keep, host=host)

    def _comes_back(self, err: GainError) -> bool:
        """Whether a failure may be over after a while: one of a camera, not of a setting."""
        return (
            self._live
            and self.config.reconnect is None
            and isinstance(err, StreamError)
            and not isinstance(err, ConfigError)
        )

    def _wait_to_restart(self, stop: StopRequest, seconds: float, attempt: int) -> None:
        """Say why, and when it begins again."""
        logger.error("%s; starting again in %.0f s", one_line(self.failure), seconds)
        reason = one_line(self.failure).removeprefix(f"{self._source}: ")
        self.board.note("stream", f"failed: {reason}; starting again in {seconds:.0f} s")
        self.board.enter("failed", reason, attempt=attempt, next_try_s=time.time() + seconds)
        end_s = time.monotonic() + seconds
        while not stop and time.monotonic() < end_s:
            time.sleep(POLL_S)
        self.board.enter("failed", reason, attempt=attempt)

    def _fail(self, err: BaseException) -> None:
        """Say it now: the others may run for months."""
        reason = one_line(err)
        if isinstance(err, GainError):
            logger.error("%s; the other cameras continue", reason)
        # Whoever reads it knows the source.
        reason = reason.removeprefix(f"{self._source}: ")
        self.board.enter("failed", reason)
        self.board.note("stream", f"failed: {reason}")
