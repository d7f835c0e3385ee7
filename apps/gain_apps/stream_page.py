"""The page of a running stream: what `--serve` opens."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gain_apps.commands import Command, CommandQueue
from gain_apps.serve import LiveBoard, ServeAddress, StreamFacts, StreamIdentity, open_server
from gain_apps.serve.address import read_token
from gain_apps.serve.board import Scalar
from gain_apps.stream_config import StreamConfig
from gain_apps.summary import RunRecord
from gain_core import __version__
from gain_runtime.frame import FrameSource
from gain_runtime.reader import FrameReader
from gain_runtime.stream_adapter import StreamAdapter

if TYPE_CHECKING:
    from gain_apps.serve.server import PageServer

__all__ = ["make_board", "open_page", "status_words"]


def make_board(
    source: FrameSource, reader: FrameReader, adapter: StreamAdapter, /, *, record: RunRecord
) -> LiveBoard:
    """A board that knows the run's counts; add it to the outputs.

    Parameters
    ----------
    source : FrameSource
    reader : FrameReader
    adapter : StreamAdapter
    record : RunRecord

    Returns
    -------
    LiveBoard
    """
    artifact = adapter.artifact

    def probe() -> StreamFacts:
        words = status_words(adapter)
        # Told as frames learned already.
        words.pop("frames", None)
        return StreamFacts(
            frozen=adapter.frozen,
            frames_learned=adapter.frames,
            dropped=reader.dropped,
            rejected=record.rejected,
            skipped=source.skipped,
            reconnects=int(getattr(source, "reconnects", 0)),
            not_learned=dict(record.faults),
            adaptation=words,
        )

    identity = StreamIdentity(
        source_id=source.info.source_id,
        artifact=artifact.path.name,
        artifact_sha256=artifact.sha256,
        provider=adapter.provider,
        version=__version__,
        labels=tuple(artifact.manifest.labels),
    )
    return LiveBoard(identity, probe=probe)


def open_page(
    config: StreamConfig, board: LiveBoard, source: FrameSource, /, *, queue: CommandQueue
) -> PageServer:
    """Serve a board as the settings say.

    Parameters
    ----------
    config : StreamConfig
        With `serve` set.
    board : LiveBoard
    source : FrameSource
    queue : CommandQueue

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
    commands: list[Command] = ["freeze", "unfreeze", "reset"]
    if config.state_out is not None or config.snapshots is not None:
        commands += ["save", "roll-back"]
    path = config.serve_token_file
    return open_server(
        board,
        source.info,
        queue,
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
