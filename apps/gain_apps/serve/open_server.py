"""Opening the page; the only door to the libraries of the extra `serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gain_apps.serve.address import ServeAddress
from gain_core._optional import require
from gain_core.errors import ConfigError

if TYPE_CHECKING:
    from gain_apps.serve.cameras import Cameras
    from gain_apps.serve.server import PageServer

__all__ = ["open_server"]

LIBRARIES = ("fastapi", "uvicorn", "prometheus_client")


def open_server(
    cameras: Cameras,
    /,
    *,
    address: ServeAddress,
    token: str | None = None,
) -> PageServer:
    """Serve the page of all cameras from a thread of its own.

    Parameters
    ----------
    cameras : Cameras
    address : ServeAddress
    token : str, optional
        What viewers must know.

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

    return PageServer(cameras, address=address, token=token)
