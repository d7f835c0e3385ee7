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
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from gain_apps.fsspec_folder import FsspecFolder
from gain_apps.serve.address import token_from_secrets
from gain_apps.serve.ray_adaptation import Adaptation, Seen, ServingSettings
from gain_apps.serve.ray_front import Front, api
from gain_core.errors import ConfigError, StreamError
from gain_runtime.files.artifact import Artifact, load_artifact
from gain_runtime.files.images import decode_image
from gain_runtime.optional import require
from gain_runtime.preprocess import BatchPreprocessor
from gain_runtime.sessions.session import open_session

__all__ = ["Network", "ServingSettings", "app"]

logger = logging.getLogger(__name__)

# A request waits for others this long, that the network runs on them together.
BATCH_WAIT_S = 0.005
# Shares of a core; a device or a larger machine sets its own in the config file.
CPUS = {"Front": 0.25, "Network": 1.0, "Adaptation": 0.25}


class Network:
    """The artifact on batches of JPEGs; any number of replicas.

    Parameters
    ----------
    settings : ServingSettings
    """

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

        Parameters
        ----------
        frame : bytes
            A JPEG, or any picture that `decode_image` reads.

        Returns
        -------
        Seen or str
            A str is one line that says what is wrong with the frame.

        Raises
        ------
        EngineError
            If the forward pass fails.
        """
        seen: Seen | str = await self._together(frame)
        return seen

    def infer(self, frames: list[bytes], /) -> list[Seen | str]:
        """A batch, as `__call__`; a damaged frame has its own line and spoils no other."""
        found: list[Seen | str] = []
        images = []
        for frame in frames:
            try:
                images.append(decode_image(frame, shown="frame"))
                found.append("")
            except StreamError as err:
                found.append(f"{err}; send a JPEG as the body")
        if images:
            features, logits = self._session.infer(self._preprocessor(images))
            rows = iter(range(len(images)))
            for index, said in enumerate(found):
                if not said:
                    row = slice(at := next(rows), at + 1)
                    found[index] = Seen(None if features is None else features[row], logits[row])
        return found


def app(args: ServingSettings | Mapping[str, Any]) -> Any:
    """The application, for `serve run` and for `import_path` of a config file.

    The token that clients must know is found by `token_from_secrets` in the process that calls
    this; Serve shows the arguments, so it is none.

    Parameters
    ----------
    args : ServingSettings, or mapping of its fields
        Serve gives what stands in the file; numbers may be texts.

    Returns
    -------
    ray.serve.Application

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
    options = {name: {"num_cpus": cpus} for name, cpus in CPUS.items()}
    if settings.device != "cpu":
        options["Network"]["num_gpus"] = 1.0
    network = serve.deployment(
        Network,
        ray_actor_options=options["Network"],
        autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 8},
        max_ongoing_requests=4 * settings.batch_size,
    ).bind(settings)
    adaptations = [
        serve.deployment(
            Adaptation,
            name=f"Adaptation-{shard}",
            num_replicas=1,
            ray_actor_options=options["Adaptation"],
            max_ongoing_requests=256,
            # The cameras of a shard wait until its death is noticed.
            health_check_period_s=1.0,
        ).bind(settings, shard)
        for shard in range(settings.shards)
    ]
    front = serve.deployment(
        serve.ingress(api)(Front),
        name="Front",
        ray_actor_options=options["Front"],
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
