"""Opening the page of a stream; the only door to the libraries of the extra `serve`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gain_apps.commands import Command, CommandQueue
from gain_apps.serve.address import ServeAddress
from gain_apps.serve.board import LiveBoard
from gain_core._optional import require
from gain_core.errors import ConfigError
from gain_runtime.frame import SourceInfo

if TYPE_CHECKING:
    from gain_apps.serve.server import PageServer

__all__ = ["open_server"]

LIBRARIES = ("fastapi", "uvicorn", "prometheus_client")


def open_server(
    board: LiveBoard,
    info: SourceInfo,
    queue: CommandQueue,
    /,
    *,
    address: ServeAddress,
    token: str | None = None,
    commands: Sequence[Command] = ("freeze", "unfreeze", "reset"),
) -> PageServer:
    """Serve the page of one stream from a thread of its own.

    Parameters
    ----------
    board : LiveBoard
        Read only; also added to the stream's outputs by the caller.
    info : SourceInfo
    queue : CommandQueue
        Receives what the buttons ask for.
    address : ServeAddress
    token : str, optional
        What viewers must know.
    commands : sequence of str, optional
        Buttons that can be carried out: `save` needs a file to save to.

    Returns
    -------
    PageServer
        Listening already; a context manager.

    Raises
    ------
    ConfigError
        If the address is reachable from other machines and there is no token.
    BackendUnavailableError
        If the extra `serve` is not installed.
    StreamError
        If the address cannot be listened on.
    """
    if token is None and not address.is_loopback:
        raise ConfigError(
            f"--serve {address.host}:{address.port}: other machines can reach it, so it needs "
            "--serve-token-file FILE; leave the host out to serve this machine only"
        )
    for library in LIBRARIES:
        require(library, extra="serve")
    from gain_apps.serve.server import PageServer

    return PageServer(board, info, queue, address=address, token=token, commands=commands)
