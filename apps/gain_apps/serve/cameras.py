"""What the server needs of the service whose cameras it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from gain_apps.commands import Command, CommandQueue
from gain_apps.serve.board import LiveBoard
from gain_apps.serve.event_log import EventLog
from gain_apps.serve.picture import PictureMaker

__all__ = ["Cameras", "WatchedCamera"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedCamera:
    """A camera as the server sees it.

    Attributes
    ----------
    name : str
    source : str
        Its URI without credentials.
    board : LiveBoard
    pictures : PictureMaker
    queue : CommandQueue
    commands : sequence of str
        Those that its settings allow.
    alive : bool
        Whether a loop carries commands out.
    """

    name: str
    source: str
    board: LiveBoard
    pictures: PictureMaker
    queue: CommandQueue
    commands: Sequence[Command]
    alive: bool


class Cameras(Protocol):
    """All cameras of a process; any thread may ask and change.

    Changes return what was done, in words, and raise ConfigError where that cannot be.
    """

    @property
    def events(self) -> EventLog: ...

    @property
    def kept_in(self) -> str | None:
        """Name of the file that remembers changes over a restart."""
        ...

    @property
    def ready(self) -> bool:
        """Whether the network is loaded and nobody asked for the end."""
        ...

    def all(self) -> list[WatchedCamera]: ...

    def find(self, name: str, /) -> WatchedCamera | None: ...

    def add(self, name: str, source: str, settings: Mapping[str, Any], /, *, who: str) -> str: ...

    def remove(self, name: str, /, *, who: str) -> str: ...

    def act(
        self, name: str, action: Literal["pause", "resume", "restart"], /, *, who: str
    ) -> str: ...
