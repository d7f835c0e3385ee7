"""Carrying out what the window's keys and the page's buttons ask for."""

from __future__ import annotations

import logging

from gain_apps.commands import Command, CommandQueue
from gain_apps.progress import NOTE
from gain_apps.snapshot_keeper import SnapshotKeeper
from gain_apps.stop_request import StopRequest
from gain_core.errors import GainError
from gain_runtime.file_kind import exists
from gain_runtime.stream_adapter import StreamAdapter

__all__ = ["carry_out", "drain_commands"]

logger = logging.getLogger(__name__)


def carry_out(
    command: Command,
    adapter: StreamAdapter,
    stop: StopRequest,
    /,
    *,
    state_out: str | None,
    keeper: SnapshotKeeper | None = None,
) -> None:
    """Do one thing to a running stream, on the stream's own thread.

    Parameters
    ----------
    command : str
        One of `COMMANDS`.
    adapter : StreamAdapter
    stop : StopRequest
    state_out : str or None
        Where `save` saves, and without snapshots where `roll-back` looks.
    keeper : SnapshotKeeper or None, optional
        Takes a snapshot at `save`, and goes back to one at `roll-back`.

    Raises
    ------
    ArtifactError, ConfigError
        If a state cannot be written or read, or belongs to something else.
    """
    if command == "quit":
        stop.quit()
    elif command == "reset":
        adapter.reset()
        logger.log(NOTE, "reset: back to the source")
    elif command in ("freeze", "unfreeze"):
        (adapter.freeze if command == "freeze" else adapter.unfreeze)()
        logger.log(NOTE, "frozen" if command == "freeze" else "learning again")
    elif keeper is not None and command == "roll-back":
        keeper.roll_back()
    elif keeper is None and state_out is None:
        logger.warning("%s: nothing done; name a file with --state-out or --snapshots", command)
    elif command == "save":
        _save(adapter, state_out=state_out, keeper=keeper)
    elif state_out is None or not exists(state_out):
        logger.warning("%s: nothing has been saved there yet to roll back to", state_out)
    else:
        adapter.load_state(state_out)
        logger.log(NOTE, "%s: rolled back to it", state_out)


def _save(adapter: StreamAdapter, *, state_out: str | None, keeper: SnapshotKeeper | None) -> None:
    """Take a snapshot where they are kept, and write the state file where one is named."""
    if keeper is not None and keeper.take():
        logger.log(NOTE, "%s: snapshot taken", keeper.folder)
    if state_out is not None:
        adapter.save_state(state_out)
        logger.log(NOTE, "%s: saved", state_out)


def drain_commands(
    queue: CommandQueue,
    adapter: StreamAdapter,
    stop: StopRequest,
    /,
    *,
    state_out: str | None,
    keeper: SnapshotKeeper | None = None,
) -> None:
    """Carry out everything that waits; one that fails is logged, and the stream goes on.

    Parameters
    ----------
    queue : CommandQueue
    adapter : StreamAdapter
    stop : StopRequest
    state_out : str or None
    keeper : SnapshotKeeper or None, optional
    """
    for command in queue.drain():
        try:
            carry_out(command, adapter, stop, state_out=state_out, keeper=keeper)
        except GainError as err:
            logger.error("%s: %s", command, err)
