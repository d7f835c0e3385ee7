"""What a person asks of a running stream, carried from any thread to the loop."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, get_args

from gain_core.errors import ConfigError

__all__ = ["COMMANDS", "Command", "CommandQueue", "CommandRequest"]

Command = Literal["freeze", "unfreeze", "reset", "save", "roll-back", "quit"]
COMMANDS: tuple[Command, ...] = get_args(Command)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A command, who gave it, and what came of it once it was carried out."""

    command: Command
    who: str
    outcome: Future[str] = field(default_factory=Future)


class CommandQueue:
    """Commands in the order they came; any thread submits, the stream's loop drains.

    Parameters
    ----------
    capacity : int, optional
        Commands that may wait. A loop that hangs shall not collect hours of impatient clicks and
        then carry them all out.
    """

    def __init__(self, *, capacity: int = 32) -> None:
        self._capacity = capacity
        self._waiting: deque[CommandRequest] = deque()
        self._lock = threading.Lock()

    def submit(self, command: Command, /, *, who: str = "") -> CommandRequest | None:
        """Leave a command for the loop; never blocks.

        Parameters
        ----------
        command : str
            One of `COMMANDS`.
        who : str, optional
            Who gave it, for the record.

        Returns
        -------
        CommandRequest or None
            None where `capacity` of them wait already.

        Raises
        ------
        ConfigError
            If it is none of `COMMANDS`.
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
        """Take every waiting command, oldest first.

        Returns
        -------
        list of CommandRequest
        """
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        return taken
