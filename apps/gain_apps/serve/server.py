"""The server in a thread beside the streams, with bounds on what each connection may hold."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import Counter
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gain_apps.serve.address import ServeAddress
from gain_apps.serve.app import PageContext, build_app
from gain_apps.serve.cameras import Cameras
from gain_apps.streaming.summary import NOTE
from gain_core.errors import StreamError
from gain_runtime.frames import Closing

logger = logging.getLogger(__name__)

# Of all addresses together and of each: a browser opens six, a reverse proxy a few dozen.
MOST_CONNECTIONS = 128
MOST_PER_ADDRESS = 48
# For a request, head and body; what is sent byte by byte does not extend it.
REQUEST_S = 10.0


def guarded_protocol() -> type[H11Protocol]:
    """uvicorn's HTTP protocol with limits that all connections of one server share.

    A connection that does not send a whole request within ten seconds is closed. Where there are
    too many, the one that has been waiting longest without a request makes room for the newcomer,
    so that the page, `/metrics` and `/healthz` answer however many are held open.
    """
    open_ones: dict[GuardedProtocol, str] = {}

    class GuardedProtocol(H11Protocol):
        """One connection."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            address = self.client[0] if self.client else ""
            counts = Counter(open_ones.values())
            if counts[address] >= MOST_PER_ADDRESS:
                _make_room(address)
            elif len(open_ones) >= MOST_CONNECTIONS:
                _make_room(None)
            open_ones[self] = address
            self._expect_request()

        def connection_lost(self, exc: Exception | None) -> None:
            open_ones.pop(self, None)
            self._expect_nothing()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.answering:
                self._expect_nothing()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._expect_nothing()
            self._expect_request()

        @property
        def answering(self) -> bool:
            """Whether a whole request has come and is not answered yet."""
            cycle = self.cycle
            return cycle is not None and not cycle.response_complete and not cycle.more_body

        def _expect_request(self) -> None:
            """A whole request from now on, or the end."""
            self._deadline = self.loop.call_later(REQUEST_S, self.abort)

        def _expect_nothing(self) -> None:
            """No limit while an answer is being sent."""
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def abort(self) -> None:
            """Close now."""
            open_ones.pop(self, None)
            if self.transport is not None:
                self.transport.abort()

    def _make_room(address: str | None) -> None:
        """Close the connection that has waited longest; one that is being answered only at need."""
        every = [one for one, its in open_ones.items() if address is None or its == address]
        silent = [one for one in every if not one.answering]
        (silent or every)[0].abort()

    return GuardedProtocol


BACKLOG = 128
# A phone that left the house keeps its connection half open for a quarter of an hour otherwise.
DEAD_PEER_MS = 20_000
CLOSE_S = 1
# A signal shall end the process within two seconds; the daemon thread may be left behind.
JOIN_S = 0.7


class PageServer(Closing):
    """Serves cameras until it is closed (a context manager); see `open_server`.

    StreamError if the address cannot be listened on.
    """

    def __init__(self, cameras: Cameras, /, *, address: ServeAddress, token: str | None) -> None:
        self._socket = _listen(address)
        port = int(self._socket.getsockname()[1])
        self.address = ServeAddress(host=address.host, port=port)
        self._context = PageContext(cameras=cameras, token=token, port=port)
        self._server = uvicorn.Server(
            uvicorn.Config(
                build_app(self._context),
                http=guarded_protocol(),
                # Only our own packages log, and nobody's address is kept but in the events.
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=CLOSE_S,
            )
        )
        self._thread = threading.Thread(target=self._serve, name="gain-serve", daemon=True)
        self._thread.start()
        logger.log(NOTE, "watch it at %s", self.address.url)

    def close(self) -> None:
        """Stop listening and let go of every viewer; may be called twice."""
        self._context.stopping.set()
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(timeout=JOIN_S)
        if self._thread.is_alive():
            logger.debug("the page's server is left behind after %g s", JOIN_S)
        self._socket.close()

    def _serve(self) -> None:
        """The thread: a stream goes on without its page, and says so."""
        try:
            asyncio.run(self._run())
        except Exception:
            logger.exception("the page's server failed; the stream continues without it")

    async def _run(self) -> None:
        """Serve, then cut the connections that did not end by themselves."""
        await self._server.serve(sockets=[self._socket])
        for connection in list(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        # An aborted transport closes its socket in the loop's next round.
        await asyncio.sleep(0)


def _listen(address: ServeAddress) -> socket.socket:
    """A listening socket, so that an address in use is found out before the first frame."""
    listener = None
    try:
        family, _, _, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Connections inherit it; not every system has it.
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)
        listener.bind(where)
        listener.listen(BACKLOG)
    except OSError as err:
        if listener is not None:
            listener.close()
        raise StreamError(
            f"--serve {address.host}:{address.port}: cannot be listened on ({err.strerror}); "
            "choose another port or an address of this machine"
        ) from err
    return listener
