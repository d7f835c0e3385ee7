"""The gate before the application: refusals, and headers that keep browsers careful."""

from __future__ import annotations

from collections.abc import Callable

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gain_apps.serve.access import Access

__all__ = ["AccessGate"]

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class AccessGate:
    """An ASGI application that lets through what `access` allows.

    Parameters
    ----------
    app : ASGI application
    access : Access
    on_refusal : callable, optional
        Receives who sent a wrong token; a request without any is not one.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        /,
        *,
        on_refusal: Callable[[str], None] = lambda who: None,
    ) -> None:
        self.app = app
        self.access = access
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; anything but HTTP is not served."""
        if scope["type"] != "http":
            return

        async def send_careful(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        headers = {name.lower(): value for name, value in Headers(scope=scope).items()}
        refusal = self.access.refusal(scope["method"], scope["path"], headers)
        if refusal is None:
            await self.app(scope, receive, send_careful)
            return
        reply = JSONResponse({"detail": refusal.detail}, status_code=refusal.status)
        if refusal.status == 401:
            if "authorization" in headers:
                client = scope.get("client")
                self._on_refusal(f"API at {client[0] if client else 'unknown'}")
            reply.headers["WWW-Authenticate"] = "Bearer"
        await reply(scope, receive, send_careful)
