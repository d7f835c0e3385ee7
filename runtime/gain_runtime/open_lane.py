"""Sessions that keep their results where the adaptation runs, and the lane on top of them."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gain_core import Gain, GainConfig
from gain_core._optional import require
from gain_core.errors import ConfigError
from gain_core.shift import tests_mixtures
from gain_runtime.adaptive_artifact import AdaptiveArtifact
from gain_runtime.artifact import Artifact, artifact_prototypes
from gain_runtime.batch_preprocess import BatchPreprocessor
from gain_runtime.cuda_memory import cuda_failures
from gain_runtime.lane import HostLane, Lane
from gain_runtime.open_session import Device, open_session
from gain_runtime.session import Session

__all__ = ["open_adapting_session", "open_lane", "say_if_not_measured"]

logger = logging.getLogger(__name__)


def open_adapting_session(
    artifact: Artifact | str | Path,
    /,
    *,
    device: Device = "cpu",
    num_threads: int | None = None,
    allow_host_code: bool = False,
) -> Session:
    """Open a session whose results stay where the adaptation is to run.

    Parameters
    ----------
    artifact : Artifact, str or Path
    device, num_threads, allow_host_code
        As for `open_session`.

    Returns
    -------
    Session
        On a GPU the results stay there if CuPy is installed; else it is logged that the
        adaptation runs on the host.

    Raises
    ------
    ArtifactError, BackendUnavailableError, ConfigError, EngineError
        As `open_session`.
    """
    stays = device != "cpu" and find_spec("cupy") is not None
    if device != "cpu" and not stays:
        logger.info(
            "adaptation runs on the host, since CuPy is not installed; to keep it on the GPU, "
            "install gain-edge[cuda12] or gain-edge[cuda13]"
        )
    return open_session(
        artifact,
        device=device,
        num_threads=num_threads,
        device_outputs=stays,
        allow_host_code=allow_host_code,
    )


def open_lane(
    session: Session,
    config: GainConfig,
    /,
    *,
    update_every: int = 1,
    warmup_frames: int = 1,
    device_preprocess: bool = False,
    preprocess_threads: int | None = 1,
    exact_preprocess: bool = True,
) -> Lane:
    """Put the method behind a session.

    Parameters
    ----------
    session : Session
        Not owned.
    config : GainConfig
    update_every, warmup_frames : int, optional
        As for `Gain`.
    device_preprocess : bool, optional
        Resize, crop and normalise on the device, too.
    preprocess_threads : int or None, optional
        Threads of the host that take a batch's frames otherwise, None as many as there are cores;
        `Lane.close` ends them.
    exact_preprocess : bool, optional
        As `exact` of `preprocess`, on the host.

    Returns
    -------
    Lane

    Raises
    ------
    ConfigError
        If `update_every`, `warmup_frames` or `preprocess_threads` is below 1, or
        `device_preprocess` is set for a session whose results are in host memory.
    BackendUnavailableError
        If the session's results stay on a device and CuPy is not installed.
    EngineError
        If the device has no room, or fails.
    """
    artifact = session.artifact
    say_if_not_measured(artifact, config)
    if session.stream is None:
        if device_preprocess:
            raise ConfigError(
                f"device_preprocess: expected a session that runs on a GPU and keeps its results "
                f"there, got {session.provider}; use the device cuda or tensorrt, with CuPy "
                "installed, or leave preprocessing on the host"
            )
        prototypes = artifact_prototypes(artifact, config)
        gain = Gain(prototypes, config, update_every=update_every, warmup_frames=warmup_frames)
        return HostLane(
            session,
            prototypes,
            gain,
            preprocessor=BatchPreprocessor(
                artifact.manifest.preprocess, threads=preprocess_threads, exact=exact_preprocess
            ),
        )
    from gain_runtime.cuda.cuda_gain import CudaGain
    from gain_runtime.cuda.cuda_preprocess import CudaPreprocessor
    from gain_runtime.device_lane import DeviceLane

    cupy: Any = require("cupy", extra="cuda12")
    # On the stream it is used on: another one's memory might be read before it is written.
    with cuda_failures(cupy, str(artifact.path)), session.stream:
        prototypes = artifact_prototypes(artifact, config, place=cupy.asarray)
        fused = CudaGain(prototypes, config, update_every=update_every, warmup_frames=warmup_frames)
        spec = artifact.manifest.preprocess
        preprocessor = (
            CudaPreprocessor(spec)
            if device_preprocess
            else BatchPreprocessor(spec, threads=preprocess_threads, exact=exact_preprocess)
        )
        return DeviceLane(session, prototypes, fused, preprocessor=preprocessor)


def say_if_not_measured(artifact: Artifact | AdaptiveArtifact, config: GainConfig, /) -> None:
    """Log that clean images would let it adapt sooner, where they would.

    Parameters
    ----------
    artifact : Artifact or AdaptiveArtifact
    config : GainConfig
    """
    tested = tests_mixtures(config, num_classes=artifact.manifest.num_classes)
    if config.proposal != "shift" or not tested or artifact.manifest.fitness is not None:
        return
    name = artifact.path.name
    remedy = f"gain-export {name} --calibrate DIR lets it do more"
    if isinstance(artifact, AdaptiveArtifact):
        # What was measured is baked in: measuring this file would change nothing.
        remedy = (
            "gain-export NAME.gain.onnx --calibrate DIR --adaptive --force, of the artifact it was "
            "made from, lets it do more"
        )
    logger.info(
        "%s: never measured on clean images, so adaptation waits until frames are surely of many "
        "classes; %s",
        name,
        remedy,
    )
