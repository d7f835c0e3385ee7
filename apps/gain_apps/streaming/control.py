"""What reaches a running stream from outside: signals, commands, and the end of one that hangs."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from gain_apps.streaming.settings import flag
from gain_apps.streaming.snapshots import SnapshotKeeper
from gain_apps.streaming.summary import NOTE
from gain_apps.system import notify, watchdog_interval_s
from gain_core.errors import ConfigError, GainError
from gain_runtime.adapter import Adapter
from gain_runtime.files.paths import exists
from gain_runtime.frames import Closing

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HANGUP = getattr(signal, "SIGHUP", None)


class StopRequest:
    """Whether and why a run was asked to stop before its source ended.

    What stops `parent`, the process's for one of several streams, stops this. While
    `nothing_to_lose` is set, a signal ends the process at once: nothing was learned or written yet,
    and an opening that hangs in a driver cannot be interrupted.
    """

    def __init__(self, parent: StopRequest | None = None, /) -> None:
        self._parent = parent
        self._signum: int | None = None
        self._quit = False
        self._hangups = 0
        self.nothing_to_lose = False

    def __bool__(self) -> bool:
        return self._quit or self._signum is not None or bool(self._parent)

    @property
    def reason(self) -> str | None:
        """Name of the signal, `quit` for the window's key, or None."""
        if self._parent:
            return self._parent.reason
        if self._signum is not None:
            return signal.Signals(self._signum).name
        return "quit" if self._quit else None

    @property
    def exit_status(self) -> int:
        """128 plus the signal's number, as a shell reports it; 0 without a signal."""
        return 0 if self._signum is None else 128 + self._signum

    @property
    def hangups(self) -> int:
        """SIGHUPs so far: files that are rotated are to be opened again after each."""
        return self._hangups if self._parent is None else self._parent.hangups

    def quit(self) -> None:
        """Stop because the user closed the window: a normal end."""
        self._quit = True

    def on_signal(self, signum: int, /) -> None:
        """Handle a signal; the second does not come back, nor the first with nothing to lose."""
        if self._signum is not None:
            os._exit(128 + signum)
        self._signum = signum
        if self.nothing_to_lose:
            name = signal.Signals(signum).name
            with suppress(OSError):
                os.write(2, f"gain-stream: ended by {name} before the source was open\n".encode())
            os._exit(128 + signum)

    def on_hangup(self) -> None:
        """Note that files are to be opened again."""
        self._hangups += 1


@contextmanager
def signals_handled(stop: StopRequest, /) -> Iterator[None]:
    """Let SIGINT and SIGTERM set `stop` while the block runs; main thread only.

    SIGHUP asks for rotated files to be opened again, or where there is a terminal, whose end it
    means then, for the end. A thread reads what the system's own handler notes, because Python's
    waits for the main thread, and that may hang in a driver.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Messages go to a terminal, which may be closed.
    hangup_ends = False
    with suppress(AttributeError, ValueError):
        hangup_ends = sys.stderr.isatty()
    # `nohup` ignores it, and means it.
    hangup = HANGUP if HANGUP and signal.getsignal(HANGUP) is not signal.SIG_IGN else None
    reading, writing = socket.socketpair()
    writing.setblocking(False)

    seen = threading.Semaphore(0)

    def watch() -> None:
        while noted := reading.recv(1):
            if noted[0] == 0:
                return
            if noted[0] == hangup and not hangup_ends:
                stop.on_hangup()
            else:
                stop.on_signal(noted[0])
            seen.release()

    def wait_until_seen(*_: object) -> None:
        # So that whatever follows in the main thread knows of it.
        seen.acquire(timeout=1.0)

    taken = (*SIGNALS, hangup) if hangup else SIGNALS
    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    earlier = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    previous = {signum: signal.signal(signum, wait_until_seen) for signum in taken}
    watcher.start()
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(earlier)
        writing.send(b"\0")
        watcher.join()
        reading.close()
        writing.close()


HUNG_STATUS = 4


class Watchdog(Closing):
    """Ends the process when a stream did not call `beat` for `limit_s` (a context manager).

    A driver that hangs in a forward pass cannot be interrupted from Python; the process ends with
    status 4 and the stacks on stderr, so that a supervisor starts it again from the last snapshot.
    Under systemd (`Type=notify`, `WatchdogSec=`), which is told that the process is alive only
    while every stream is, it also works without a limit of its own. `on_expiry` is what ends the
    process.
    """

    def __init__(
        self, limit_s: float | None, /, *, on_expiry: Callable[[], None] | None = None
    ) -> None:
        self._system_s = watchdog_interval_s()
        limits = [limit for limit in (limit_s, self._system_s) if limit is not None]
        self._limit_s = limit_s
        self._every_s = min(limits) / 4.0 if limits else None
        self._on_expiry = _end_process if on_expiry is None else on_expiry
        self._beats: dict[str, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def beat(self, stream: str = "", /) -> None:
        """Say that a stream is alive; the first time, watch it from now on."""
        self._beats[stream] = time.monotonic()

    def forget(self, stream: str = "", /) -> None:
        """Watch a stream no longer."""
        self._beats.pop(stream, None)

    def __enter__(self) -> Watchdog:
        if self._every_s is not None:
            self._thread.start()
        return self

    def close(self) -> None:
        """Stop watching; may be called twice."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        """Thread: compare the last beats with the limits until told to stop."""
        while not self._done.wait(self._every_s):
            now_s = time.monotonic()
            # The stream whose last beat is the oldest.
            ages = [(now_s - beat_s, name) for name, beat_s in dict(self._beats).items()]
            silent_s, stream = max(ages, default=(0.0, ""))
            if self._system_s is not None and silent_s < self._system_s:
                notify("WATCHDOG=1")
            if self._limit_s is not None and silent_s > self._limit_s:
                named = f"{stream}: " if stream else ""
                logger.critical(
                    "%shung: no sign of life for %.1f s (%s=%g)",
                    *(named, silent_s, flag("watchdog"), self._limit_s),
                )
                self._on_expiry()
                return


def _end_process() -> None:
    """Show where every thread stands, and end without waiting for any of them."""
    faulthandler.dump_traceback(sys.__stderr__ or sys.stderr, all_threads=True)
    os._exit(HUNG_STATUS)


Command = Literal["freeze", "unfreeze", "reset", "save", "roll-back", "quit"]
COMMANDS: tuple[Command, ...] = get_args(Command)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A command in the queue, who gave it, and what was done, once it was carried out."""

    command: Command
    who: str
    outcome: Future[str] = field(default_factory=Future)


class CommandQueue:
    """Commands in the order they came; any thread submits, the stream's loop drains.

    Parameters
    ----------
    capacity : int, optional
        Most commands that wait, so that a loop that hangs does not later carry out all of the
        clicks made meanwhile.
    """

    def __init__(self, *, capacity: int = 32) -> None:
        self._capacity = capacity
        self._waiting: deque[CommandRequest] = deque()
        self._lock = threading.Lock()

    def submit(self, command: Command, /, *, who: str = "") -> CommandRequest | None:
        """Queue a command for the loop; never blocks.

        Parameters
        ----------
        command : str
            One of `COMMANDS`.
        who : str, optional
            Who gave it, for the record.

        Returns
        -------
        CommandRequest or None
            None if `capacity` commands already wait.

        Raises
        ------
        ConfigError
            If `command` is none of `COMMANDS`.
        """
        if command not in COMMANDS:
            raise ConfigError(f"command: expected one of {', '.join(COMMANDS)}, got {command!r}")
        request = CommandRequest(command=command, who=who)
        with self._lock:
            if len(self._waiting) >= self._capacity:
                return None
            self._waiting.append(request)
        return request

    def drain(self) -> list[CommandRequest]:
        """Take every waiting command.

        Returns
        -------
        list of CommandRequest
            Oldest first.
        """
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        return taken


def carry_out(
    command: Command,
    adapter: Adapter,
    stop: StopRequest,
    /,
    *,
    state_out: str | None,
    keeper: SnapshotKeeper | None = None,
    who: str = "",
) -> str:
    """Do one thing to a running stream, on the stream's own thread; what was done, in words.

    `save` saves to `state_out`, where without snapshots `roll-back` looks. `keeper` takes a
    snapshot at `save`, goes back to one at `roll-back`, and remembers over a restart that learning
    was paused. ArtifactError or ConfigError if a state cannot be written or read, or belongs to
    something else.
    """
    if command == "quit":
        stop.quit()
        return "ending"
    if command == "reset":
        adapter.reset()
        return "reset: back to the source network, everything learned is dropped"
    if command in ("freeze", "unfreeze"):
        return _hold(command == "freeze", adapter, keeper, who)
    if keeper is None and state_out is None:
        return f"{command}: nothing done; name a file with --state-out or --snapshots"
    if command == "save":
        return _save(adapter, state_out=state_out, keeper=keeper)
    if keeper is not None:
        return keeper.roll_back()
    if state_out is None or not exists(state_out):
        return f"{state_out}: nothing has been saved there yet to roll back to"
    adapter.load_state(state_out)
    return f"rolled back to {adapter.frames} learned frames ({Path(state_out).name})"


def _hold(pause: bool, adapter: Adapter, keeper: SnapshotKeeper | None, who: str) -> str:
    """Pause learning or go on with it, also after the next start where that can be kept."""
    (adapter.freeze if pause else adapter.unfreeze)()
    if keeper is None:
        return (
            "learning paused until the next start (no --snapshots)" if pause else "learning again"
        )
    if pause:
        keeper.hold(who)
    else:
        keeper.release()
    return "learning paused, also over a restart" if pause else "learning again"


def _save(adapter: Adapter, *, state_out: str | None, keeper: SnapshotKeeper | None) -> str:
    """Take a snapshot where they are kept, and write the state file where one is named."""
    done = []
    if keeper is not None:
        taken = keeper.take()
        done.append("snapshot taken" if taken else "no snapshot could be written; see the log")
    if state_out is not None:
        adapter.save_state(state_out)
        done.append(f"saved to {Path(state_out).name}")
    return f"{', '.join(done)} ({adapter.frames} learned frames)"


def drain_commands(
    queue: CommandQueue,
    adapter: Adapter,
    stop: StopRequest,
    /,
    *,
    state_out: str | None,
    keeper: SnapshotKeeper | None = None,
    note: Callable[[str, str], None] | None = None,
) -> None:
    """Carry out everything that waits; one that fails is said, and the stream goes on.

    `note` receives what was done and who asked for it.
    """
    for request in queue.drain():
        try:
            outcome = carry_out(
                request.command,
                adapter,
                stop,
                state_out=state_out,
                keeper=keeper,
                who=request.who,
            )
            # What a person did is worth a line whatever else is said.
            logger.log(NOTE, "%s", outcome)
        except GainError as err:
            outcome = f"{request.command} failed: {err}"
            logger.error("%s", outcome)
        if note is not None:
            note(outcome, request.who)
        request.outcome.set_result(outcome)
