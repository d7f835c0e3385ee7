"""Who may ask: tokens, names of hosts, refused logins, and the gate that every request passes."""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gain_apps.serve.address import is_loopback

# A guessing machine shall not fill the log: one line a minute for each address.
SAY_EVERY_S = 60.0
MOST_ADDRESSES = 1000


class Logins:
    """Tokens that were right and wrong; any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said_s: dict[str, float] = {}
        self.num_accepted = 0
        self.num_refused = 0

    def accepted(self) -> None:
        """Count a login."""
        with self._lock:
            self.num_accepted += 1

    def refused(self, who: str, /) -> bool:
        """Count a wrong token; whether it is worth a line."""
        now_s = time.monotonic()
        with self._lock:
            self.num_refused += 1
            if now_s - self._said_s.get(who, -SAY_EVERY_S) < SAY_EVERY_S:
                return False
            if len(self._said_s) >= MOST_ADDRESSES:
                self._said_s.clear()
            self._said_s[who] = now_s
            return True


SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# What the browser itself says of a request; absent in old ones and outside secure contexts.
OWN_SITE = ("same-origin", "none")
MOST_BODY_BYTES = 4096
FOREIGN_HOST = (
    "Host: expected localhost, 127.0.0.1 or [::1]; any other name needs --serve-token-file"
)
FOREIGN_SITE = "Origin: expected this page's own; another site asked"
NO_TOKEN = "token: expected in 'Authorization: Bearer TOKEN', or log in on the page"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request is not answered."""

    status: int
    detail: str


class Access:
    """The rules; it holds no connection and keeps no session.

    Without a token the page answers only to loopback names, so that a foreign site whose name is
    made to resolve to 127.0.0.1 cannot read it. With one, everything but `open_paths` (the empty
    page, the health checks and the login) needs it, as `Authorization: Bearer` or as the cookie the
    login sets. Requests another site starts are refused in both cases. `port` is part of the
    cookie's name, because cookies do not know ports.
    """

    def __init__(self, token: str | None, /, *, port: int, open_paths: frozenset[str]) -> None:
        self._token = token
        self._open_paths = open_paths
        self.cookie_name = f"gain-session-{port}"

    @property
    def needs_token(self) -> bool:
        """Whether a token is set."""
        return self._token is not None

    def is_token(self, offered: str, /) -> bool:
        """Whether it is the token, in a time that does not tell how much of it is right."""
        return self._token is not None and _equal(offered, self._token)

    def cookie_value(self) -> str:
        """What the login's cookie holds: proof of the token that is not the token itself."""
        key = (self._token or "").encode()
        return hmac.new(key, b"gain-edge page, version 1", hashlib.sha256).hexdigest()

    def refusal(self, method: str, path: str, headers: Mapping[str, str], /) -> Refusal | None:
        """Why a request is refused, None for one to be answered; names of headers in lower case."""
        length = headers.get("content-length", "")
        small = not length or (length.isdecimal() and int(length) <= MOST_BODY_BYTES)
        for refused, code, detail in (
            (self._foreign_host(headers), 403, FOREIGN_HOST),
            (_foreign_site(method, headers), 403, FOREIGN_SITE),
            ("transfer-encoding" in headers, 411, "Content-Length: expected, got a chunked body"),
            (not small, 413, f"body: expected at most {MOST_BODY_BYTES} bytes"),
            (not self._knows_token(path, headers), 401, NO_TOKEN),
        ):
            if refused:
                return Refusal(status=code, detail=detail)
        return None

    def _foreign_host(self, headers: Mapping[str, str]) -> bool:
        """Whether the name in the address bar is not this machine's own, and has to be."""
        try:
            name = urlsplit(f"//{headers.get('host', '')}").hostname
        except ValueError:
            name = None
        return not (self.needs_token or is_loopback(name or ""))

    def _knows_token(self, path: str, headers: Mapping[str, str]) -> bool:
        """Whether a request has the token or the cookie, or needs neither."""
        return (
            not self.needs_token
            or path in self._open_paths
            or self.is_token(bearer_token(headers))
            or _equal(self._cookie(headers), self.cookie_value())
        )

    def _cookie(self, headers: Mapping[str, str]) -> str:
        """Value of our cookie, empty where there is none."""
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie_name)
        except CookieError:
            return ""
        return "" if morsel is None else morsel.value


def bearer_token(headers: Mapping[str, str], /) -> str:
    """What `Authorization: Bearer` offers; empty where it is missing."""
    scheme, _, offered = headers.get("authorization", "").partition(" ")
    return offered.strip() if scheme.lower() == "bearer" else ""


def _foreign_site(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a page of another origin started a request."""
    safe = method in SAFE_METHODS
    followed_link = safe and headers.get("sec-fetch-mode") == "navigate"
    foreign = headers.get("sec-fetch-site", "none") not in OWN_SITE and not followed_link
    origin = headers.get("origin")
    if safe or origin is None:
        return foreign
    try:
        own = urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    except ValueError:
        own = False
    return foreign or not own


def _equal(offered: str, wanted: str) -> bool:
    """Constant-time comparison of any two strings."""
    return hmac.compare_digest(offered.encode("utf-8", "surrogatepass"), wanted.encode())


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

    `on_refusal` receives who sent a wrong token; a request without any is not one.
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
