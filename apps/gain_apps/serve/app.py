"""The web application: page, pictures, API, metrics and health check."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from gain_apps.commands import CommandQueue
from gain_apps.serve.access import Access
from gain_apps.serve.board import BINS, LiveBoard, Scale
from gain_apps.serve.gate import AccessGate
from gain_apps.serve.metrics import MetricsPage
from gain_apps.serve.picture import PictureMaker, View
from gain_apps.serve.schema import (
    Accepted,
    Credentials,
    Health,
    HistoryReply,
    PageCommand,
    Problem,
    Status,
    health_of,
    history_of,
    status_of,
)

__all__ = ["PageContext", "build_app"]

# Read once, when the application is built: no request ever names a file.
ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
OPEN_PATHS = frozenset(ASSETS) | {"/healthz", "/api/session"}
MOST_VIEWERS = 8
PICTURE_INTERVAL_S = 1.0 / 12.0
BOUNDARY = "gain-frame"
WRONG_TOKEN_DELAY_S = 0.5
COOKIE_SECONDS = 30 * 24 * 3600

PROBLEMS: dict[int | str, dict[str, object]] = {
    status: {"model": Problem, "description": text}
    for status, text in (
        (401, "No token, or a wrong one"),
        (403, "Another site or another name asked"),
        (411, "A body of unknown length"),
        (413, "A body too large"),
    )
}
BUSY: dict[int | str, dict[str, object]] = {503: {"model": Problem, "description": "Busy"}}
JPEG: dict[str, object] = {"content": {"image/jpeg": {}}, "description": "The picture"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContext:
    """What the application reads and where it leaves commands."""

    board: LiveBoard
    pictures: PictureMaker
    queue: CommandQueue
    token: str | None
    port: int
    commands: tuple[PageCommand, ...]
    stopping: threading.Event = field(default_factory=threading.Event)


def build_app(context: PageContext, /) -> AccessGate:
    """The ASGI application, behind its gate.

    Parameters
    ----------
    context : PageContext

    Returns
    -------
    AccessGate
    """
    app = FastAPI(
        title="gain-stream",
        summary="What a running stream sees, and the commands it takes.",
        version=context.board.identity.version,
        openapi_url="/api/openapi.json",
        # Their pages load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        responses=PROBLEMS,
    )
    access = Access(context.token, port=context.port, open_paths=OPEN_PATHS)
    _add_page(app)
    _add_session(app, access)
    _add_status(app, context)
    _add_commands(app, context)
    _add_pictures(app, context)
    _add_monitoring(app, context)
    return AccessGate(app, access)


def _add_page(app: FastAPI) -> None:
    """The page and what belongs to it."""
    folder = files("gain_apps.serve") / "page"

    def add(path: str, content: bytes, media_type: str) -> None:
        async def asset() -> Response:
            return Response(content, media_type=media_type)

        app.get(path, include_in_schema=False)(asset)

    for path, (name, media_type) in ASSETS.items():
        add(path, (folder / name).read_bytes(), media_type)


def _add_session(app: FastAPI, access: Access) -> None:
    """Exchanging the token for a cookie, because a picture cannot send a header."""

    @app.post("/api/session", status_code=204, tags=["session"])
    async def log_in(credentials: Credentials, request: Request) -> Response:
        """Set the cookie that stands for the token."""
        if access.needs_token and not access.is_token(credentials.token):
            await asyncio.sleep(WRONG_TOKEN_DELAY_S)
            raise HTTPException(401, "token: wrong")
        reply = Response(status_code=204)
        if access.needs_token:
            reply.set_cookie(
                access.cookie_name,
                access.cookie_value(),
                max_age=COOKIE_SECONDS,
                # Behind a proxy with TLS the browser shall never send it in the clear.
                secure=request.url.scheme == "https",
                httponly=True,
                samesite="strict",
            )
        return reply

    @app.delete("/api/session", status_code=204, tags=["session"])
    async def log_out() -> Response:
        """Take the cookie back."""
        reply = Response(status_code=204)
        reply.delete_cookie(access.cookie_name, httponly=True, samesite="strict")
        return reply


def _add_status(app: FastAPI, context: PageContext) -> None:
    """What the stream is doing."""
    board = context.board

    @app.get("/api/status", tags=["stream"])
    async def status() -> Status:
        """Newest result, counts, state and events."""
        return status_of(board, commands=context.commands)

    @app.get("/api/history", tags=["stream"])
    async def history(
        scale: Scale = "fine",
        since_s: Annotated[float, Query(ge=0.0, allow_inf_nan=False)] = 0.0,
    ) -> HistoryReply:
        """Means over bins of a second (`fine`, ten minutes) or of two minutes (`coarse`, a day)."""
        points = board.points(scale, since_s=since_s)
        return history_of(points, width_s=BINS[scale][0], uptime_s=board.view().uptime_s)


def _add_commands(app: FastAPI, context: PageContext) -> None:
    """The buttons."""
    unavailable: dict[int | str, dict[str, object]] = {
        409: {"model": Problem, "description": "This run cannot carry it out"}
    }

    @app.post(
        "/api/commands/{command}",
        status_code=202,
        tags=["commands"],
        responses={**unavailable, **BUSY},
    )
    async def submit(command: PageCommand) -> Accepted:
        """Leave a command for the loop, which carries it out between two batches."""
        if command not in context.commands:
            raise HTTPException(409, f"{command}: this run has no file for it (--state-out)")
        if context.board.closed or not context.queue.submit(command):
            raise HTTPException(503, f"{command}: the stream takes no commands at present")
        context.board.note("command", command)
        return Accepted(command=command)


def _add_pictures(app: FastAPI, context: PageContext) -> None:
    """The live picture, as a stream and one at a time."""
    viewers = _Viewers()

    @app.get(
        "/picture.jpg", response_class=Response, tags=["picture"], responses={200: JPEG, **BUSY}
    )
    async def still(view: View = "annotated") -> Response:
        """The newest annotated frame."""
        made = await asyncio.to_thread(context.pictures.jpeg, view)
        if made is None:
            raise HTTPException(503, "no frame has been classified yet")
        return Response(made[1], media_type="image/jpeg")

    @app.get("/picture.mjpg", include_in_schema=False)
    async def moving(view: View = "annotated") -> Response:
        """Annotated frames, as they come and as fast as the viewer takes them."""
        if viewers.count >= MOST_VIEWERS:
            raise HTTPException(503, f"{MOST_VIEWERS} people are watching already")
        return StreamingResponse(
            _parts(context, view, viewers),
            media_type=f"multipart/x-mixed-replace; boundary={BOUNDARY}",
        )


@dataclass(slots=True)
class _Viewers:
    """How many watch; only the server's thread counts."""

    count: int = 0


async def _parts(context: PageContext, view: View, viewers: _Viewers) -> AsyncIterator[bytes]:
    """The newest picture again and again; a viewer that reads slowly misses some."""
    viewers.count += 1
    shown = 0
    try:
        yield f"--{BOUNDARY}\r\n".encode()
        while not context.stopping.is_set() and not context.board.closed:
            if context.board.sequence != shown:
                made = await asyncio.to_thread(context.pictures.jpeg, view)
                if made is not None:
                    shown, jpeg = made
                    # The boundary after a part tells the browser to show it now.
                    head = f"Content-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
                    yield head.encode() + jpeg + f"\r\n--{BOUNDARY}\r\n".encode()
            await asyncio.sleep(PICTURE_INTERVAL_S)
    finally:
        viewers.count -= 1


def _add_monitoring(app: FastAPI, context: PageContext) -> None:
    """For machines that watch."""
    page = MetricsPage(context.board)

    @app.get(
        "/metrics",
        response_class=Response,
        tags=["monitoring"],
        responses={200: {"content": {"text/plain": {}}, "description": "Prometheus text format"}},
    )
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(page.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/healthz", tags=["monitoring"], responses={503: {"model": Health}})
    async def healthz() -> JSONResponse:
        """200 while frames are being classified, 503 after 30 s without one."""
        word = health_of(context.board, context.board.view())
        return JSONResponse(
            Health(status=word).model_dump(), status_code=200 if word == "ok" else 503
        )
