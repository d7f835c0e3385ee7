"""Cameras on Ray Serve: one batched network for all, and each camera's adaptation in one place.

`serve run deploy/ray-serve.yaml`, or `serve run gain_apps.serving:app artifact=F snapshots=URL`.

Three kinds of deployment. `Front` takes frames over HTTP and WebSocket; `Network` runs the artifact
on batches of frames of any cameras and is scaled with the load; `Adaptation-0` to `Adaptation-N-1`
have one replica each and hold the states of the cameras whose key's hash is theirs. A state must
not live in two replicas, which is what rules Serve's multiplexing out: it is a preference, and a
request whose replica is busy goes to another one.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, WebSocket
from pydantic import ValidationError
from starlette.requests import HTTPConnection

from gain_apps.serve.access import Access, Logins, bearer_token
from gain_apps.serve.address import token_from_secrets
from gain_apps.serve.ray_adaptation import SHOWN, Adaptation, Seen, ServingSettings, shard_of
from gain_core.errors import ConfigError, GainError, StreamError, one_line
from gain_runtime.files.artifact import Artifact, load_artifact
from gain_runtime.files.images import decode_image
from gain_runtime.files.paths import FsspecFolder
from gain_runtime.optional import require
from gain_runtime.preprocess import BatchPreprocessor
from gain_runtime.sessions.session import open_session

logger = logging.getLogger(__name__)

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MOST_BYTES = 16 * 2**20


class Front:
    """HTTP and WebSocket; any number of replicas.

    `network` is a handle of `Network`, `adaptations` are those of `Adaptation` by shard, `token` is
    what clients must know.
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
        """Refuse who does not know the token: HTTPException 401."""
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

        HTTPException 422 or 404.
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

        HTTPException 413 or 422 for what is no picture; 503 where a replica died, with the time
        after which to send the frame again; 500 for what a replica raised.
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


# A request waits for others this long, that the network runs on them together.
BATCH_WAIT_S = 0.005
# Shares of a core; a device or a larger machine sets its own in the config file.
CPUS = {"Front": 0.25, "Network": 1.0, "Adaptation": 0.25}


class Network:
    """The artifact on batches of JPEGs; any number of replicas."""

    def __init__(self, settings: ServingSettings, /) -> None:
        artifact = load_artifact(settings.artifact)
        self._session = open_session(artifact, device=settings.device, num_threads=1)
        self._preprocessor = BatchPreprocessor(artifact.manifest.preprocess)

        async def together(frames: list[bytes]) -> list[Seen | str]:
            return await asyncio.to_thread(self.infer, frames)

        batch = require("ray.serve", extra="ray").batch
        self._together: Any = batch(
            max_batch_size=settings.batch_size, batch_wait_timeout_s=BATCH_WAIT_S
        )(together)

    async def __call__(self, frame: bytes) -> Seen | str:
        """What the network says of one frame, run in a batch with others that wait.

        The frame is any picture that `decode_image` reads; a text is one line that says what is
        wrong with it. EngineError if the forward pass fails.
        """
        seen: Seen | str = await self._together(frame)
        return seen

    def infer(self, frames: list[bytes], /) -> list[Seen | str]:
        """A batch, as `__call__`; a damaged frame has its own line and spoils no other."""
        found: list[Seen | str] = [""] * len(frames)
        images = {}
        for index, frame in enumerate(frames):
            try:
                images[index] = decode_image(frame, shown="frame")
            except StreamError as err:
                found[index] = f"{err}; send a JPEG as the body"
        if images:
            features, logits = self._session.infer(self._preprocessor(list(images.values())))
            for row, index in enumerate(images):
                one = slice(row, row + 1)
                found[index] = Seen(None if features is None else features[one], logits[one])
        return found


def app(args: ServingSettings | Mapping[str, Any]) -> Any:
    """The Serve application, for `serve run` and for `import_path` of a config file.

    The token that clients must know is found by `token_from_secrets` in the process that calls
    this; Serve shows the arguments, so it is none. Numbers of a mapping may be texts.

    Raises
    ------
    BackendUnavailableError
        If Ray is not installed.
    ArtifactError
        If the artifact is missing, damaged or an adaptive file.
    ConfigError
        If a setting is out of its range or unknown, the store of snapshots is of no known
        protocol, or the token is short, long or not printable ASCII.
    """
    serve: Any = require("ray.serve", extra="ray")
    settings = _settings(args)
    # Here, where it is one line: a replica that fails to start is tried again and again.
    artifact: Artifact = load_artifact(settings.artifact)
    settings = settings.model_copy(update={"artifact": str(artifact.path.resolve())})
    FsspecFolder(settings.snapshots)
    token = token_from_secrets()
    if token is None:
        logger.warning("no token: who reaches the port may send frames; set GAIN_SERVE_TOKEN")
    num_gpus = 0.0 if settings.device == "cpu" else 1.0
    network = serve.deployment(
        Network,
        ray_actor_options={"num_cpus": CPUS["Network"], "num_gpus": num_gpus},
        autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 8},
        max_ongoing_requests=4 * settings.batch_size,
    ).bind(settings)
    adaptations = [
        serve.deployment(
            Adaptation,
            name=f"Adaptation-{shard}",
            num_replicas=1,
            ray_actor_options={"num_cpus": CPUS["Adaptation"]},
            max_ongoing_requests=256,
            # The cameras of a shard wait until its death is noticed.
            health_check_period_s=1.0,
        ).bind(settings, shard)
        for shard in range(settings.shards)
    ]
    front = serve.deployment(
        serve.ingress(api)(Front),
        name="Front",
        ray_actor_options={"num_cpus": CPUS["Front"]},
        max_ongoing_requests=1024,
    )
    return front.bind(settings, network, *adaptations, token=token)


def _settings(args: ServingSettings | Mapping[str, Any]) -> ServingSettings:
    """Settings, checked."""
    try:
        return ServingSettings.model_validate(args)
    except ValidationError as err:
        faults = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}, got {each['input']!r}"
            for each in err.errors()
        ]
        raise ConfigError(f"args: {'; '.join(faults)}; see deploy/ray-serve.yaml") from err
