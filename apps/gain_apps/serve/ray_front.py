"""What takes frames over HTTP and WebSocket for the deployments of Ray Serve."""

from __future__ import annotations

import logging
import re
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, WebSocket
from starlette.requests import HTTPConnection

from gain_apps.serve.access import Access, Logins, bearer_token
from gain_apps.serve.ray_adaptation import SHOWN, ServingSettings, shard_of
from gain_core.errors import GainError, one_line
from gain_runtime.files.artifact import load_artifact
from gain_runtime.optional import require

__all__ = ["Front", "api"]

logger = logging.getLogger(__name__)

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MOST_BYTES = 16 * 2**20


class Front:
    """HTTP and WebSocket; any number of replicas.

    Parameters
    ----------
    settings : ServingSettings
    network : handle
        Of `Network`.
    *adaptations : handle
        Of `Adaptation`, by shard.
    token : str, optional
        What clients must know.
    """

    def __init__(
        self,
        settings: ServingSettings,
        network: Any,
        /,
        *adaptations: Any,
        token: str | None = None,
    ) -> None:
        artifact = load_artifact(settings.artifact)
        self._name, self._sha256 = artifact.path.stem, artifact.sha256
        self._network, self._adaptations = network, adaptations
        self._access = Access(token, port=0, open_paths=frozenset())
        self._logins = Logins()

    def admit(self, connection: HTTPConnection, /) -> None:
        """Refuse who does not know the token.

        Raises
        ------
        HTTPException
            401.
        """
        access = self._access
        if not access.needs_token or access.is_token(bearer_token(connection.headers)):
            return
        who = "unknown" if connection.client is None else connection.client.host
        if self._logins.refused(who):
            logger.warning("refused %s without the token; %d so far", who, self._logins.num_refused)
        raise HTTPException(
            401,
            "token: expected in 'Authorization: Bearer TOKEN', got none or a wrong one",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def check(self, key: str, artifact: str | None, /) -> None:
        """Refuse a key that names no file, and an artifact that is not served.

        Raises
        ------
        HTTPException
            422 or 404.
        """
        if KEY.fullmatch(key) is None:
            raise HTTPException(
                422,
                f"key: expected 1 to 64 letters, digits, '.', '_' or '-', a letter or digit first, "
                f"got {key[:80]!a}; rename the camera",
            )
        known = artifact in (None, self._name)
        if artifact and not known and len(artifact) >= SHOWN:
            known = self._sha256.startswith(artifact)
        if not known:
            raise HTTPException(
                404,
                f"artifact: expected {self._name} (sha256 {self._sha256[:SHOWN]}), which is served "
                f"here, got {(artifact or '')[:80]!a}; leave it out, or ask the application that "
                "serves it",
            )

    async def classify(self, key: str, frame: bytes, /) -> dict[str, Any]:
        """A JPEG through the network, then through the camera's adaptation.

        Raises
        ------
        HTTPException
            413 or 422 for what is no picture; 503 where a replica died, with the time after which
            to send the frame again; 500 for what a replica raised.
        """
        if not 0 < len(frame) <= MOST_BYTES:
            raise HTTPException(
                413 if frame else 422,
                f"frame: expected a JPEG of 1 to {MOST_BYTES} bytes, got {len(frame)}; send it as "
                "the body, or as a binary message",
            )
        shard = self._adaptations[shard_of(key, len(self._adaptations))]
        try:
            seen = await self._network.remote(frame)
            if isinstance(seen, str):
                raise HTTPException(422, seen)
            reply: dict[str, Any] = await shard.step.remote(key, seen)
        except _gone() as err:
            raise HTTPException(
                503,
                f"{key}: expected its replica, got one that died or is full; it comes back with "
                "the last snapshot, so send the frame again",
                headers={"Retry-After": "1"},
            ) from err
        except Exception as err:
            # Serve wraps what a replica raised; ours are one line already.
            cause = getattr(err, "cause", None)
            if not isinstance(cause, GainError):
                raise
            raise HTTPException(500, one_line(cause)) from err
        return reply


def _gone() -> tuple[type[Exception], ...]:
    """What a call raises whose replica died or is full."""
    died = require("ray.exceptions", extra="ray")
    full = require("ray.serve.exceptions", extra="ray")
    return died.RayActorError, full.BackPressureError, full.DeploymentUnavailableError


def _front() -> Front:
    """The replica that a request has come to."""
    found: Front = require("ray.serve", extra="ray").get_replica_context().servable_object
    return found


async def _admit(connection: HTTPConnection, front: Annotated[Any, Depends(_front)]) -> None:
    """Every request and every WebSocket passes here first."""
    front.admit(connection)


api = FastAPI(
    title="gain-edge on Ray Serve",
    openapi_url=None,
    docs_url=None,
    redoc_url=None,
    dependencies=[Depends(_admit)],
)


@api.post("/cameras/{key}/frames")
async def post_frame(
    key: str,
    request: Request,
    front: Annotated[Any, Depends(_front)],
    artifact: str | None = None,
) -> dict[str, Any]:
    """Source and adapted prediction of a JPEG, which the camera then learns from."""
    front.check(key, artifact)
    reply: dict[str, Any] = await front.classify(key, await request.body())
    return reply


@api.websocket("/cameras/{key}/frames")
async def stream_frames(
    websocket: WebSocket,
    key: str,
    front: Annotated[Any, Depends(_front)],
    artifact: str | None = None,
) -> None:
    """The same for one binary message after the other; an error is an object with `detail`."""
    await websocket.accept()
    try:
        front.check(key, artifact)
    except HTTPException as err:
        await websocket.send_json({"detail": err.detail, "status": err.status_code})
        await websocket.close(1008)
        return
    while (message := await websocket.receive())["type"] != "websocket.disconnect":
        try:
            reply = await front.classify(key, message.get("bytes") or b"")
        except HTTPException as err:
            reply = {"detail": err.detail, "status": err.status_code}
        await websocket.send_json(reply)
