"""The page of a running stream: what `--serve` opens."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gain_apps.commands import Command
from gain_apps.running_stream import RunningStream
from gain_apps.serve import (
    DeviceFacts,
    KeptFacts,
    LiveBoard,
    ServeAddress,
    StreamFacts,
    StreamIdentity,
    open_server,
)
from gain_apps.serve.address import read_token
from gain_apps.serve.facts import Scalar
from gain_core import __version__

if TYPE_CHECKING:
    from gain_apps.serve.server import PageServer

__all__ = ["make_board", "open_page", "status_words"]


def make_board(run: RunningStream, /) -> LiveBoard:
    """A board that knows the run's counts; add it to the outputs.

    Parameters
    ----------
    run : RunningStream

    Returns
    -------
    LiveBoard
    """
    source, adapter = run.source, run.adapter
    artifact = adapter.artifact

    def probe() -> StreamFacts:
        words = status_words(adapter)
        # Told as frames learned already.
        words.pop("frames", None)
        return StreamFacts(
            frozen=adapter.frozen,
            frames_learned=adapter.frames,
            dropped=run.reader.dropped,
            rejected=run.record.rejected,
            skipped=source.skipped,
            reconnects=int(getattr(source, "reconnects", 0)),
            outputs_lost=len(run.outputs.lost),
            not_learned=dict(run.record.faults),
            adaptation=words,
            device=_device_facts(run),
            kept=_kept_facts(run),
        )

    identity = StreamIdentity(
        source_id=_shown_name(run),
        artifact=artifact.path.name,
        artifact_sha256=artifact.sha256,
        provider=adapter.provider,
        version=__version__,
        labels=tuple(artifact.manifest.labels),
    )
    return LiveBoard(identity, probe=probe)


def _shown_name(run: RunningStream) -> str:
    """The source, after the stream's name where there are several."""
    source_id, name = run.source.info.source_id, run.config.name
    return source_id if name is None else f"{name}: {source_id}"


def _device_facts(run: RunningStream) -> DeviceFacts:
    """What gives way, and how warm it is."""
    pressure = run.backpressure
    if pressure is None:
        return DeviceFacts(
            update_every=run.adapter.update_every,
            throttled=run.thermal.throttled,
            celsius=run.thermal.celsius,
        )
    return DeviceFacts(
        load=pressure.load,
        level=pressure.level,
        update_every=run.adapter.update_every,
        stride=pressure.stride,
        left_out=run.record.left_out,
        throttled=run.thermal.throttled,
        celsius=run.thermal.celsius,
    )


def _kept_facts(run: RunningStream) -> KeptFacts | None:
    """The snapshots, where there are any."""
    keeper = run.keeper
    if keeper is None:
        return None
    return KeptFacts(
        written=keeper.written, failing=keeper.failing, frames_not_kept=keeper.frames_not_kept
    )


def open_page(run: RunningStream, board: LiveBoard, /) -> PageServer:
    """Serve a board as the settings say.

    Parameters
    ----------
    run : RunningStream
        With `serve` set in its config.
    board : LiveBoard

    Returns
    -------
    PageServer

    Raises
    ------
    ConfigError
        If the token cannot be read, or is missing where other machines can reach the address.
    BackendUnavailableError
        If the extra `serve` is not installed.
    StreamError
        If the address cannot be listened on.
    """
    config = run.config
    commands: list[Command] = ["freeze", "unfreeze", "reset"]
    if config.state_out is not None or config.snapshots is not None:
        commands += ["save", "roll-back"]
    path = config.serve_token_file
    return open_server(
        board,
        run.source.info,
        run.queue,
        address=ServeAddress.parse(config.serve or ""),
        token=None if path is None else read_token(path),
        commands=commands,
    )


def status_words(adapter: object, /) -> dict[str, Scalar]:
    """Numbers and words of an adapter's `status()`; empty where it has none.

    Parameters
    ----------
    adapter : object
        `status`, where there is one, returns a mapping or a dataclass.

    Returns
    -------
    dict
        Name to number, word or None; anything else is left out.
    """
    status = getattr(adapter, "status", None)
    if status is None:
        return {}
    told = status()
    if dataclasses.is_dataclass(told) and not isinstance(told, type):
        told = {item.name: getattr(told, item.name) for item in dataclasses.fields(told)}
    return {
        str(name): value
        for name, value in dict(told).items()
        if value is None or isinstance(value, bool | int | float | str)
    }
