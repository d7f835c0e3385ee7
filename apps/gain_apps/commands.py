"""What a person asks of a running stream, carried from any thread to the loop."""

from __future__ import annotations

import threading
from collections import deque
from typing import Literal, get_args

from gain_core.errors import ConfigError

__all__ = ["COMMANDS", "Command", "CommandQueue"]

Command = Literal["freeze", "unfreeze", "reset", "save", "roll-back", "quit"]
COMMANDS: tuple[Command, ...] = get_args(Command)


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
        self._waiting: deque[Command] = deque()
        self._lock = threading.Lock()

    def submit(self, command: Command, /) -> bool:
        """Leave a command for the loop; never blocks.

        Parameters
        ----------
        command : str
            One of `COMMANDS`.

        Returns
        -------
        bool
            Whether it was taken: False where `capacity` of them wait already.

        Raises
        ------
        ConfigError
            If it is none of `COMMANDS`.
        """
        if command not in COMMANDS:
            raise ConfigError(f"command: expected one of {', '.join(COMMANDS)}, got {command!r}")
        with self._lock:
            if len(self._waiting) >= self._capacity:
                return False
            self._waiting.append(command)
            return True

    def drain(self) -> list[Command]:
        """Take every waiting command, oldest first.

        Returns
        -------
        list of str
        """
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        return taken
