"""Carrying out what the window's keys and the page's buttons ask for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from gain_apps.commands import Command, CommandQueue
from gain_apps.progress import NOTE
from gain_apps.snapshot_keeper import SnapshotKeeper
from gain_apps.stop_request import StopRequest
from gain_core.errors import GainError
from gain_runtime.adapter import Adapter
from gain_runtime.file_kind import exists

__all__ = ["carry_out", "drain_commands"]

logger = logging.getLogger(__name__)


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
