"""The web application: page, pictures, API, metrics and health checks."""

from __future__ import annotations

import asyncio
import base64
import logging
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Annotated, cast, get_args

from fastapi import FastAPI, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse

from gain_apps.serve.access import Access, AccessGate, Logins
from gain_apps.serve.board import Scale
from gain_apps.serve.cameras import Cameras, View, WatchedCamera
from gain_apps.serve.event_log import EventKind
from gain_apps.serve.metrics import MetricsPage
from gain_apps.serve.schema import (
    NAME_PATTERN,
    CameraAction,
    CameraCommand,
    CameraList,
    CameraStatus,
    Credentials,
    Done,
    EventList,
    FrameReply,
    Health,
    HistoryReply,
    NewCamera,
    Problem,
    row_of,
    status_of,
)
from gain_apps.streaming.control import Command
from gain_core import __version__
from gain_core.errors import ConfigError

logger = logging.getLogger(__name__)

# Read once, when the application is built: no request ever names a file.
ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    **{
        f"/{name}": (name, media_type)
        for name, media_type in (
            ("page.css", "text/css; charset=utf-8"),
            ("icon.svg", "image/svg+xml"),
            *(
                (f"{script}.js", "text/javascript; charset=utf-8")
                for script in ("page", "api", "overview", "camera", "charts", "events", "words")
            ),
        )
    },
}
OPEN_PATHS = frozenset(ASSETS) | {"/healthz", "/readyz", "/api/session"}
MOST_VIEWERS = 16
PICTURE_INTERVAL_S = 1.0 / 12.0
BOUNDARY = "gain-frame"
WRONG_TOKEN_DELAY_S = 0.5
COOKIE_SECONDS = 30 * 24 * 3600
# A command waits for the batch before it; a person waits no longer than this to read what it did.
OUTCOME_S = 3.0

PROBLEMS: dict[int | str, dict[str, object]] = {
    status: {"model": Problem, "description": text}
    for status, text in (
        (401, "No token, or a wrong one"),
        (403, "Another site or another name asked"),
        (404, "No such camera"),
        (411, "A body of unknown length"),
        (413, "A body too large"),
        (422, "A value that is not allowed"),
    )
}
BUSY: dict[int | str, dict[str, object]] = {503: {"model": Problem, "description": "Busy"}}
REFUSED: dict[int | str, dict[str, object]] = {
    409: {"model": Problem, "description": "It cannot be carried out"}
}
JPEG: dict[str, object] = {"content": {"image/jpeg": {}}, "description": "The picture"}
METRICS: dict[int | str, dict[str, object]] = {
    200: {"content": {"text/plain": {}}, "description": "Prometheus text format"}
}
NOT_READY: dict[int | str, dict[str, object]] = {503: {"model": Health}}
CameraName = Annotated[str, Path(pattern=NAME_PATTERN)]


@dataclass(slots=True, kw_only=True)
class PageContext:
    """What the application reads and changes; only the server's thread counts `viewers`."""

    cameras: Cameras
    token: str | None
    port: int
    logins: Logins = field(default_factory=Logins)
    started_s: float = field(default_factory=time.monotonic)
    stopping: threading.Event = field(default_factory=threading.Event)
    viewers: int = 0

    def camera(self, name: str) -> WatchedCamera:
        """A camera, or the reply that there is none."""
        found = self.cameras.find(name)
        if found is None:
            raise HTTPException(404, f"{name}: there is no camera of that name")
        return found


def build_app(context: PageContext, /) -> AccessGate:
    """The ASGI application, behind its gate."""
    app = FastAPI(
        title="gain-stream",
        summary="What the cameras of a running service see, and the commands they take.",
        version=__version__,
        openapi_url="/api/openapi.json",
        # Their pages load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        responses=PROBLEMS,
    )
    app.add_exception_handler(RequestValidationError, _say_what_was_expected)
    app.add_exception_handler(ConfigError, _say_why_not)
    access = Access(context.token, port=context.port, open_paths=OPEN_PATHS)
    _add_page(app)
    _add_session(app, access, context)
    _add_cameras(app, context)
    _add_status(app, context)
    _add_commands(app, context)
    _add_pictures(app, context)
    _add_monitoring(app, context)
    return AccessGate(app, access, on_refusal=lambda who: _note_refusal(context, who, "request"))


async def _say_what_was_expected(request: Request, err: Exception) -> JSONResponse:
    """422 in one line: the field and what it has to be, never what was sent: a token, maybe."""
    assert isinstance(err, RequestValidationError)
    parts = [
        "body: expected JSON"
        if error["type"] == "json_invalid"
        else f"{'.'.join(str(item) for item in error['loc'] if item != 'body')}: {error['msg']}"
        for error in err.errors()
    ]
    return JSONResponse({"detail": "; ".join(parts)}, status_code=422)


async def _say_why_not(request: Request, err: Exception) -> JSONResponse:
    """409: what was asked for cannot be carried out."""
    return JSONResponse({"detail": str(err)}, status_code=409)


def _who(request: Request) -> str:
    """Where a request comes from, for the record."""
    address = "unknown" if request.client is None else request.client.host
    page = "mozilla" in request.headers.get("user-agent", "").lower()
    return f"{'page' if page else 'API'} at {address}"


def _note_refusal(context: PageContext, who: str, what: str) -> None:
    """A refused token: counted, and said now and then."""
    if context.logins.refused(who):
        logger.warning("refused %s with a wrong token from %s", what, who)
        context.cameras.events.add("", "login", f"{what} refused: wrong token", who=who)


def _add_page(app: FastAPI) -> None:
    """The page and what belongs to it."""
    folder = files("gain_apps.serve") / "page"

    def add(path: str, content: bytes, media_type: str) -> None:
        async def asset() -> Response:
            return Response(content, media_type=media_type)

        app.api_route(path, methods=["GET", "HEAD"], include_in_schema=False)(asset)

    for path, (name, media_type) in ASSETS.items():
        add(path, (folder / name).read_bytes(), media_type)


def _add_session(app: FastAPI, access: Access, context: PageContext) -> None:
    """Exchanging the token for a cookie, because a picture cannot send a header."""

    @app.post("/api/session", status_code=204, tags=["session"])
    async def log_in(credentials: Credentials, request: Request) -> Response:
        """Set the cookie that stands for the token."""
        if access.needs_token and not access.is_token(credentials.token):
            _note_refusal(context, _who(request), "login")
            await asyncio.sleep(WRONG_TOKEN_DELAY_S)
            raise HTTPException(401, "token: wrong")
        reply = Response(status_code=204)
        if access.needs_token:
            context.logins.accepted()
            context.cameras.events.add("", "login", "logged in", who=_who(request))
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


def _add_cameras(app: FastAPI, context: PageContext) -> None:
    """The overview, and what is added to it and taken away."""
    cameras = context.cameras

    @app.get("/api/cameras", tags=["cameras"])
    async def overview() -> CameraList:
        """All cameras, a row each."""
        return CameraList(
            version=__version__,
            utc_s=time.time(),
            uptime_s=time.monotonic() - context.started_s,
            kept_in=cameras.kept_in,
            cameras=[row_of(camera, camera.board.view()) for camera in cameras.all()],
        )

    @app.post("/api/cameras", status_code=201, tags=["cameras"], responses=REFUSED)
    async def add(new: NewCamera, request: Request) -> Done:
        """Add a camera and start it; it is kept in the settings file where there is one."""
        settings = {name.replace("-", "_"): value for name, value in new.settings.items()}
        outcome = await asyncio.to_thread(
            cameras.add, new.name, new.input, settings, who=_who(request)
        )
        return Done(outcome=outcome, done=True)

    @app.delete("/api/cameras/{name}", tags=["cameras"], responses=REFUSED)
    async def remove(name: CameraName, request: Request) -> Done:
        """End a camera and forget it; its files and snapshots stay."""
        context.camera(name)
        outcome = await asyncio.to_thread(cameras.remove, name, who=_who(request))
        return Done(outcome=outcome, done=True)


def _add_status(app: FastAPI, context: PageContext) -> None:
    """What a camera is doing, and what happened."""

    @app.get("/api/cameras/{name}", tags=["cameras"])
    async def status(name: CameraName) -> CameraStatus:
        """Newest result, counts and state."""
        camera = context.camera(name)
        return status_of(camera, camera.board.view())

    @app.get("/api/cameras/{name}/history", tags=["cameras"])
    async def history(
        name: CameraName,
        scale: Scale = "fine",
        since_s: Annotated[float, Query(ge=0.0, allow_inf_nan=False)] = 0.0,
    ) -> HistoryReply:
        """Means over bins of a second (`fine`, ten minutes) or of two minutes (`coarse`, a day)."""
        board = context.camera(name).board
        return HistoryReply(utc_s=time.time(), points=board.points(scale, since_s=since_s))

    @app.get("/api/events", tags=["events"])
    async def events(
        camera: Annotated[str | None, Query(max_length=64)] = None,
        kind: EventKind | None = None,
        before: Annotated[int | None, Query(ge=0, le=2**53)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> EventList:
        """What happened, newest first; `before` an `id` reads on."""
        found = await asyncio.to_thread(
            context.cameras.events.events, stream=camera, kind=kind, before=before, limit=limit
        )
        return EventList(events=found)


def _add_commands(app: FastAPI, context: PageContext) -> None:
    """The buttons."""

    @app.post(
        "/api/cameras/{name}/commands/{command}",
        tags=["commands"],
        responses={**REFUSED, **BUSY},
    )
    async def submit(name: CameraName, command: CameraCommand, request: Request) -> Done:
        """Carry a command out, and say what came of it."""
        camera = context.camera(name)
        if command in get_args(CameraAction):
            outcome = await asyncio.to_thread(
                context.cameras.act, name, cast(CameraAction, command), who=_who(request)
            )
            return Done(outcome=outcome, done=True)
        if command not in camera.commands:
            raise HTTPException(
                409, f"{command}: this camera has no file for it (--snapshots or --state-out)"
            )
        asked = None
        if camera.alive:
            asked = camera.queue.submit(cast(Command, command), who=_who(request))
        if asked is None:
            raise HTTPException(503, f"{command}: the camera takes no commands at present")
        try:
            outcome = await asyncio.wait_for(
                asyncio.shield(asyncio.wrap_future(asked.outcome)), OUTCOME_S
            )
        except asyncio.TimeoutError:
            return Done(outcome=f"{command}: waits for the camera's next frame", done=False)
        return Done(outcome=outcome, done=True)


def _add_pictures(app: FastAPI, context: PageContext) -> None:
    """The newest frame with its numbers, and the moving picture."""

    @app.get("/api/cameras/{name}/frame", tags=["pictures"])
    async def frame(name: CameraName, view: View = "annotated") -> FrameReply:
        """Picture and numbers of one and the same frame."""
        camera = context.camera(name)
        made = await asyncio.to_thread(camera.pictures.jpeg, view)
        if made is None:
            return FrameReply(status=status_of(camera, camera.board.view()), picture=None)
        return FrameReply(
            status=status_of(camera, made[0]), picture=base64.b64encode(made[1]).decode()
        )

    @app.get(
        "/cameras/{name}/picture.jpg",
        response_class=Response,
        tags=["pictures"],
        responses={200: JPEG, **BUSY},
    )
    async def still(name: CameraName, view: View = "annotated") -> Response:
        """The newest frame."""
        made = await asyncio.to_thread(context.camera(name).pictures.jpeg, view)
        if made is None:
            raise HTTPException(503, "no frame has been classified yet")
        return Response(made[1], media_type="image/jpeg")

    @app.get("/cameras/{name}/picture.mjpg", include_in_schema=False)
    async def moving(name: CameraName, view: View = "annotated") -> Response:
        """Annotated frames, as they come and as fast as the viewer takes them."""
        camera = context.camera(name)
        if context.viewers >= MOST_VIEWERS:
            raise HTTPException(503, f"{MOST_VIEWERS} people are watching already")
        # Here, and not when the first part is sent: many may ask at once.
        context.viewers += 1
        return _MovingPicture(context, _parts(context, camera, view))


class _MovingPicture(StreamingResponse):
    """A reply that gives its viewer's place back, however it ends."""

    def __init__(self, context: PageContext, parts: AsyncIterator[bytes]) -> None:
        super().__init__(parts, media_type=f"multipart/x-mixed-replace; boundary={BOUNDARY}")
        self._context = context

    async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        """Send the parts."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._context.viewers -= 1


async def _parts(context: PageContext, camera: WatchedCamera, view: View) -> AsyncIterator[bytes]:
    """The newest picture again and again; a viewer that reads slowly misses some."""
    shown = 0
    yield f"--{BOUNDARY}\r\n".encode()
    while not context.stopping.is_set() and context.cameras.find(camera.name) is not None:
        if camera.board.sequence != shown:
            made = await asyncio.to_thread(camera.pictures.jpeg, view)
            if made is not None:
                shown, jpeg = made[0].sequence, made[1]
                # The boundary after a part tells the browser to show it now.
                head = f"Content-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
                yield head.encode() + jpeg + f"\r\n--{BOUNDARY}\r\n".encode()
        await asyncio.sleep(PICTURE_INTERVAL_S)


def _add_monitoring(app: FastAPI, context: PageContext) -> None:
    """For machines that watch."""
    page = MetricsPage(context.cameras, context.logins)

    # One route a method: a route of two has one operation id for both in the document.
    @app.head("/metrics", response_class=Response, tags=["monitoring"], responses=METRICS)
    @app.get("/metrics", response_class=Response, tags=["monitoring"], responses=METRICS)
    async def metrics() -> Response:
        """Prometheus metrics."""
        text = await asyncio.to_thread(page.render)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.head("/healthz", tags=["monitoring"])
    @app.get("/healthz", tags=["monitoring"])
    async def healthz() -> Health:
        """200 while the process is alive, whatever its cameras do."""
        return Health(status="alive")

    @app.head("/readyz", tags=["monitoring"], responses=NOT_READY)
    @app.get("/readyz", tags=["monitoring"], responses=NOT_READY)
    async def readyz() -> JSONResponse:
        """200 once the network is loaded and cameras are served."""
        ready = context.cameras.ready
        word = "ready" if ready else "starting or ending"
        return JSONResponse({"status": word}, status_code=200 if ready else 503)
