"""Limits on connections, so that silent ones keep nobody out."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["guarded_protocol"]

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

    Returns
    -------
    type
        For `uvicorn.Config(http=...)`.
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
