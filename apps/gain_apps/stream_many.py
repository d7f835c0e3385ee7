"""Several streams in one process: one network for all, a thread and a state for each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from gain_apps.progress import NOTE
from gain_apps.stop_request import StopRequest
from gain_apps.stream_config import StreamConfig
from gain_apps.stream_run import run_stream
from gain_core.errors import ConfigError, GainError
from gain_runtime.open_session import open_session
from gain_runtime.shared_session import SharedSession

__all__ = ["StreamNameFormatter", "run_streams"]

logger = logging.getLogger(__name__)

# Longest time until a signal is noticed.
POLL_S = 0.1


class StreamNameFormatter(logging.Formatter):
    """Puts the stream's name before what its thread logs.

    Parameters
    ----------
    names : sequence of str
    """

    def __init__(self, names: Sequence[str], /) -> None:
        super().__init__("%(levelname)s: %(message)s")
        self._names = frozenset(names)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """One line."""
        if record.threadName in self._names:
            return f"{record.levelname}: {record.threadName}: {record.message}"
        return super().formatMessage(record)


def run_streams(
    configs: Sequence[StreamConfig],
    stop: StopRequest,
    /,
    *,
    report: Callable[[dict[str, Any]], None],
) -> None:
    """Run several streams until all have ended or a stop is requested.

    A stream that fails is said once and ends; the others go on. A setting that is wrong, and a
    bug, end them all.

    Parameters
    ----------
    configs : sequence of StreamConfig
        Result of `gain_apps.stream_plan.plan_streams`: one model, different names and places.
    stop : StopRequest
        Ends all of them.
    report : callable
        Receives the summary of each stream that was opened, in their order, once all have ended.

    Raises
    ------
    GainError
        The first stream's that failed, once all have ended.
    """
    first = configs[0]
    with ExitStack() as stack:
        # For the whole process: a stream that ends shall not lift it for the others.
        stack.enter_context(threadpool_limits(limits=1, user_api="blas"))
        session = stack.enter_context(
            open_session(
                first.model or "",
                device=first.device,
                num_threads=first.threads,
                allow_host_code=first.allow_host_code,
            )
        )
        logger.log(NOTE, "%s on %s", session.artifact.path, session.provider)
        shared = SharedSession(session)
        streams = [_StreamThread(config, shared, stop) for config in configs]
        for stream in streams:
            stream.start()
        for stream in streams:
            while stream.is_alive():
                stream.join(POLL_S)
        if shared.passes:
            logger.info(
                "%d forward passes for %d frames, %.2f a pass",
                *(shared.passes, shared.rows, shared.rows / shared.passes),
            )
    for stream in streams:
        if stream.summary is not None:
            report(stream.summary)
    for stream in streams:
        if stream.failure is not None:
            raise stream.failure


class _StreamThread(threading.Thread):
    """One stream, and what came of it."""

    def __init__(self, config: StreamConfig, shared: SharedSession, stop: StopRequest) -> None:
        super().__init__(name=config.name, daemon=True)
        self._config = config
        self._shared = shared
        self._stop_request = stop
        self.summary: dict[str, Any] | None = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Everything a process with one stream does, but for the network and the report."""
        # Many lines that change cannot share a terminal: progress is logged.
        console = Console(stderr=True, force_terminal=False)
        try:
            with self._shared.join() as session:
                run_stream(
                    self._config, self._stop_request, console, report=self._keep, session=session
                )
        except ConfigError as err:
            self._fail(err, "the other streams are ended")
            self._stop_request.quit()
        except GainError as err:
            self._fail(err, "the other streams go on")
        except BaseException as err:  # noqa: BLE001 - handed over to the main thread
            self.failure = err
            self._stop_request.quit()

    def _keep(self, summary: dict[str, Any]) -> None:
        """The summary, until all can be printed."""
        self.summary = summary

    def _fail(self, err: GainError, further: str) -> None:
        """Say it now: the others may run for months."""
        self.failure = err
        logger.error("%s; %s", " ".join(str(err).split()), further)
