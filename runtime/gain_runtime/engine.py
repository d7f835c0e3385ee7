"""Network and adaptation of an `Adapter`: a session with `Gain`, or an adaptive file."""

from __future__ import annotations

import logging
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gain_core import UPDATE_EVERY, WARMUP_FRAMES, Config, Gain, Method, Prediction, make_method
from gain_core.errors import ArtifactError
from gain_runtime.files.artifact import Artifact
from gain_runtime.sessions.session import Session

if TYPE_CHECKING:
    from gain_runtime.files.adaptive import AdaptiveArtifact
    from gain_runtime.sessions.adaptive import AdaptiveSession

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
Times = tuple[int, int]


# What an `Adapter` runs, and the file it was made from.
Engine: TypeAlias = "NetworkEngine | AdaptiveEngine"
EngineArtifact: TypeAlias = "Artifact | AdaptiveArtifact"


def artifact_method(artifact: Artifact, config: Config | None = None, /) -> Method[Any]:
    """The method for an artifact on NumPy, from its head and what the export measured.

    The default is the preset `shift`. Raises ConfigError if the method reads features and the
    artifact has none.
    """
    manifest = artifact.manifest
    head = manifest.num_classes if artifact.head_weight is None else artifact.head_weight
    return make_method(head, config, **artifact.measured)


class NetworkEngine:
    """A session's forward pass, followed by `Gain` on the host.

    The default method reads only the K logits of a frame: copying them to the host costs less than
    adapting on the device. To keep everything on the device, use an adaptive file.

    Parameters
    ----------
    session : Session
        Not owned.
    config : Config, optional
        Default: the preset `shift`.
    update_every, warmup_frames : int, optional
        As for `Gain`.

    Raises
    ------
    ConfigError
        If `update_every` or `warmup_frames` is below 1, or the method reads features and the
        artifact has none.
    """

    def __init__(
        self,
        session: Session,
        config: Config | None = None,
        /,
        *,
        update_every: int = UPDATE_EVERY,
        warmup_frames: int = WARMUP_FRAMES,
    ) -> None:
        self.artifact = artifact = session.artifact
        self.artifact_sha256 = artifact.sha256
        self.provider = session.provider
        self.learner = Gain(
            artifact_method(artifact, config),
            update_every=update_every,
            warmup_frames=warmup_frames,
        )
        self._session = session
        if self.learner.method.feature_dim is None and not artifact.measured:
            logger.info(
                "%s: never measured on clean images, so adaptation begins later; "
                "gain-export %s --calibrate DIR lets it begin sooner",
                artifact.path.name,
                artifact.path.name,
            )

    def step(self, pixel_values: Floats, /, *, learn: bool) -> tuple[Prediction, Times]:
        """Predict a batch, and learn from it if asked.

        Parameters
        ----------
        pixel_values : array, (B, 3, height_px, width_px) float32
        learn : bool
            Whether the batch may change the state.

        Returns
        -------
        Prediction, (int, int)
            The prediction, and the nanoseconds spent in the network and in the adaptation.

        Raises
        ------
        ArrayError
            If the network cannot take an array of this shape, dtype or layout.
        EngineError
            If the forward pass fails.
        NumericsError
            If the network returned NaN or infinity.
        """
        started = perf_counter_ns()
        features, logits = self._session.infer(pixel_values)
        inferred = perf_counter_ns()
        prediction = (self.learner.step if learn else self.learner.predict)(features, logits)
        return prediction, (inferred - started, perf_counter_ns() - inferred)

    def warm_up(self, pixel_values: Floats, /) -> None:
        """Run the network once without learning; raises as `step`."""
        self._session.infer(pixel_values)


class AdaptiveEngine:
    """An adaptive file: network and adaptation in one call, with the state on its device.

    Parameters
    ----------
    session : AdaptiveSession
        Not owned; also the learner. The file fixes config, warm-up and the least `update_every`.

    Raises
    ------
    ArtifactError
        If the file has no network, and so takes no frames.
    """

    def __init__(self, session: AdaptiveSession, /) -> None:
        if session.artifact.features_only:
            raise ArtifactError(
                f"{session.artifact.path}: expected an adaptive file that takes frames, got one "
                "without a network; make it with gain-export --adaptive without features-only"
            )
        self.artifact = session.artifact
        self.artifact_sha256 = session.artifact.artifact_sha256
        self.provider = session.provider
        self.learner = session

    def step(self, pixel_values: Floats, /, *, learn: bool) -> tuple[Prediction, Times]:
        """As `NetworkEngine.step`; all time counts as the network's."""
        started = perf_counter_ns()
        prediction = (self.learner.step if learn else self.learner.predict)(pixel_values)
        return prediction, (perf_counter_ns() - started, 0)

    def warm_up(self, pixel_values: Floats, /) -> None:
        """Run the network once without learning; raises as `step`."""
        self.learner.predict(pixel_values)
