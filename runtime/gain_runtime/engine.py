"""What adapts behind an adapter: a network with `Gain` beside it, or an adaptive file."""

from __future__ import annotations

import logging
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from gain_core import UPDATE_EVERY, WARMUP_FRAMES, Config, Gain, Method, Prediction, make_method
from gain_core._typing import Array
from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.files.artifact import Artifact
from gain_runtime.files.manifest import Manifest
from gain_runtime.sessions.session import Session

if TYPE_CHECKING:
    from gain_runtime.sessions.adaptive import AdaptiveSession

__all__ = ["AdaptiveEngine", "Engine", "EngineArtifact", "NetworkEngine", "artifact_method"]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
Times = tuple[int, int]


class EngineArtifact(Protocol):
    """What is said about the file in use."""

    @property
    def path(self) -> Path: ...

    @property
    def sha256(self) -> str:
        """Of the file's bytes, hexadecimal."""
        ...

    @property
    def manifest(self) -> Manifest: ...


class Engine(Protocol):
    """Pixels in, adapted predictions out; the state is kept inside."""

    @property
    def artifact(self) -> EngineArtifact: ...

    @property
    def artifact_sha256(self) -> str:
        """Of the artifact that states belong to."""
        ...

    @property
    def provider(self) -> str: ...

    @property
    def method(self) -> Method[Any]: ...

    @property
    def update_every(self) -> int: ...

    @update_every.setter
    def update_every(self, frames: int) -> None: ...

    @property
    def frozen(self) -> bool: ...

    @property
    def frames(self) -> int: ...

    @property
    def state(self) -> Any:
        """A copy, NumPy arrays."""
        ...

    def step(self, pixel_values: Floats, /, *, learn: bool) -> tuple[Prediction, Times]:
        """Predict a batch, learn from it where asked; nanoseconds of network and adaptation."""
        ...

    def warm_up(self, pixel_values: Floats, /) -> None:
        """One pass from which nothing is learned."""
        ...

    def summary(self) -> dict[str, Array]: ...

    def flush(self) -> None: ...

    def reset(self) -> None: ...

    def freeze(self) -> None: ...

    def unfreeze(self) -> None: ...

    def load_state(self, state: Any, /, *, frames: int) -> None: ...


def artifact_method(artifact: Artifact, config: Config | None = None, /) -> Method[Any]:
    """The method for an artifact: its head, where it has one, and its measured skewness.

    Raises
    ------
    ConfigError
        If the method reads features and the artifact has none.
    """
    manifest = artifact.manifest
    head = manifest.num_classes if artifact.head_weight is None else artifact.head_weight
    return make_method(head, config, skewness=artifact.skewness)


class NetworkEngine:
    """A session's forward pass with `Gain` on the host behind it.

    The default reads K logits of a frame, which are less to copy than they are to adapt on a
    device; where everything is to stay there, use an adaptive file.

    Parameters
    ----------
    session : Session
        Not owned.
    config : Config, optional
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
        artifact = session.artifact
        self._session = session
        self._gain = Gain(
            artifact_method(artifact, config),
            update_every=update_every,
            warmup_frames=warmup_frames,
        )
        if self.method.feature_dim is None and artifact.skewness is None:
            logger.info(
                "%s: never measured on clean images, so adaptation begins later; "
                "gain-export %s --calibrate DIR lets it begin sooner",
                artifact.path.name,
                artifact.path.name,
            )

    @property
    def artifact(self) -> Artifact:
        """The artifact in use."""
        return self._session.artifact

    @property
    def artifact_sha256(self) -> str:
        """See `Engine`."""
        return self.artifact.sha256

    @property
    def provider(self) -> str:
        """The execution provider really in use."""
        return self._session.provider

    @property
    def method(self) -> Method[Any]:
        """The method in use."""
        return self._gain.method

    @property
    def update_every(self) -> int:
        """Frames between two updates; may be changed at any time."""
        return self._gain.update_every

    @update_every.setter
    def update_every(self, frames: int) -> None:
        self._gain.update_every = frames

    @property
    def frozen(self) -> bool:
        """Whether nothing is learned at present."""
        return self._gain.frozen

    @property
    def frames(self) -> int:
        """Frames the state has learned from (pending ones not counted)."""
        return self._gain.frames

    @property
    def state(self) -> Any:
        """See `Engine`."""
        return self._gain.state

    def step(self, pixel_values: Floats, /, *, learn: bool) -> tuple[Prediction, Times]:
        """See `Engine`."""
        started = perf_counter_ns()
        features, logits = self._session.infer(pixel_values)
        inferred = perf_counter_ns()
        prediction = (self._gain.step if learn else self._gain.predict)(features, logits)
        return prediction, (inferred - started, perf_counter_ns() - inferred)

    def warm_up(self, pixel_values: Floats, /) -> None:
        """See `Engine`."""
        self._session.infer(pixel_values)

    def summary(self) -> dict[str, Array]:
        """See `Method.summary`."""
        return self._gain.summary()

    def flush(self) -> None:
        """Learn from the pending frames now."""
        self._gain.flush()

    def reset(self) -> None:
        """Return to the source."""
        self._gain.reset()

    def freeze(self) -> None:
        """Stop learning."""
        self._gain.freeze()

    def unfreeze(self) -> None:
        """Learn again."""
        self._gain.unfreeze()

    def load_state(self, state: Any, /, *, frames: int) -> None:
        """See `Gain.load_state`."""
        self._gain.load_state(state, frames=frames)


class AdaptiveEngine:
    """An adaptive file: network and adaptation are one call, and the state stays where it runs.

    Parameters
    ----------
    session : AdaptiveSession
        Not owned. Config, warm-up and the least `update_every` are the file's.

    Raises
    ------
    ArtifactError
        If the file has no network and so takes no frames.
    """

    def __init__(self, session: AdaptiveSession, /) -> None:
        if session.artifact.features_only:
            raise ArtifactError(
                f"{session.artifact.path}: expected an adaptive file that takes frames, got one "
                "without a network; make it with gain-export --adaptive without features-only"
            )
        self._session = session
        self._update_every = session.update_every
        self._passed = 0

    @property
    def artifact(self) -> EngineArtifact:
        """The adaptive file in use."""
        return self._session.artifact

    @property
    def artifact_sha256(self) -> str:
        """Of the artifact it was made from."""
        return self._session.artifact.artifact_sha256

    @property
    def provider(self) -> str:
        """The execution provider really in use."""
        return self._session.provider

    @property
    def method(self) -> Method[Any]:
        """The method baked into the file."""
        return self._session.method

    @property
    def update_every(self) -> int:
        """Frames between two updates of the state; may be raised while the stream runs.

        What is baked into the file is the least, and what it starts with. A graph holds no more
        waiting frames than it was made for, so beyond that the others are not learned from.

        Raises
        ------
        ConfigError
            If it is set to fewer frames than the file has baked in.
        """
        return self._update_every

    @update_every.setter
    def update_every(self, frames: int) -> None:
        least = self._session.update_every
        if frames < least:
            raise ConfigError(
                f"update_every: expected at least {least}, the value fixed in "
                f"{self.artifact.path}, got {frames}; make the file again with gain-export "
                "--adaptive --set update-every=N"
            )
        self._update_every = frames

    @property
    def frozen(self) -> bool:
        """Whether nothing is learned at present."""
        return self._session.frozen

    @property
    def frames(self) -> int:
        """Frames the state has learned from (pending ones not counted)."""
        return self._session.frames

    @property
    def state(self) -> Any:
        """See `Engine`."""
        return self._session.state

    def step(self, pixel_values: Floats, /, *, learn: bool) -> tuple[Prediction, Times]:
        """See `Engine`; everything counts as the network's time."""
        started = perf_counter_ns()
        learn = learn and self._is_due(len(pixel_values))
        prediction = (self._session.step if learn else self._session.predict)(pixel_values)
        if learn:
            self._passed = 0
        return prediction, (perf_counter_ns() - started, 0)

    def warm_up(self, pixel_values: Floats, /) -> None:
        """See `Engine`."""
        self._session.predict(pixel_values)

    def summary(self) -> dict[str, Array]:
        """See `Method.summary`; copies what it needs to the host."""
        return self._session.summary()

    def flush(self) -> None:
        """Learn from the pending frames now, on the host."""
        self._session.flush()

    def reset(self) -> None:
        """Return to the source."""
        self._session.reset()
        self._passed = 0

    def freeze(self) -> None:
        """Stop learning."""
        self._session.freeze()

    def unfreeze(self) -> None:
        """Learn again."""
        self._session.unfreeze()

    def load_state(self, state: Any, /, *, frames: int) -> None:
        """See `AdaptiveSession.load_state`."""
        self._session.load_state(state, frames=frames)
        self._passed = 0

    def _is_due(self, count: int) -> bool:
        """Whether a batch of so many frames may be learned from, or waits in the graph."""
        self._passed += count
        return self._passed * self._session.update_every >= self._update_every
