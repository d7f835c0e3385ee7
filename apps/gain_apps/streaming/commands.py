"""What a person asks of a running stream: carried from any thread to the loop, and done there."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from gain_apps.streaming.snapshots import SnapshotKeeper
from gain_apps.streaming.stopping import StopRequest
from gain_apps.streaming.summary import NOTE
from gain_core.errors import ConfigError, GainError
from gain_runtime.adapter import Adapter
from gain_runtime.files.paths import exists

__all__ = [
    "COMMANDS",
    "Command",
    "CommandQueue",
    "CommandRequest",
    "carry_out",
    "drain_commands",
]

logger = logging.getLogger(__name__)

Command = Literal["freeze", "unfreeze", "reset", "save", "roll-back", "quit"]
COMMANDS: tuple[Command, ...] = get_args(Command)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A command in the queue.

    Attributes
    ----------
    command : Command
    who : str
        Who gave it.
    outcome : Future of str
        What was done, once it was carried out.
    """

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
    """Do one thing to a running stream, on the stream's own thread.

    Parameters
    ----------
    command : str
        One of `COMMANDS`.
    adapter : Adapter
    stop : StopRequest
    state_out : str or None
        Where `save` saves, and without snapshots where `roll-back` looks.
    keeper : SnapshotKeeper or None, optional
        Takes a snapshot at `save`, goes back to one at `roll-back`, and remembers over a restart
        that learning was paused.
    who : str, optional
        Who asked for it.

    Returns
    -------
    str
        What was done, for the log and the page.

    Raises
    ------
    ArtifactError, ConfigError
        If a state cannot be written or read, or belongs to something else.
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

    Parameters
    ----------
    queue : CommandQueue
    adapter : Adapter
    stop : StopRequest
    state_out : str or None
    keeper : SnapshotKeeper or None, optional
    note : callable, optional
        Receives what was done and who asked for it.
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
