"""The gate before the application: refusals, and headers that keep browsers careful."""

from __future__ import annotations

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gain_apps.serve.access import Access

__all__ = ["AccessGate"]

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
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
    """

    def __init__(self, app: ASGIApp, access: Access, /) -> None:
        self.app = app
        self.access = access

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
            reply.headers["WWW-Authenticate"] = "Bearer"
        await reply(scope, receive, send_careful)
