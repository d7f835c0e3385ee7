"""An adaptive file as an adapter: frames in, adapted predictions in host memory out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from gain_core import GainConfig
from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.adaptation_status import (
    AdaptationStatus,
    status_of_gaussians,
    status_of_state,
)
from gain_runtime.adapter import STAGES, AdaptedBatch
from gain_runtime.adaptive_artifact import AdaptiveArtifact
from gain_runtime.adaptive_session import AdaptiveSession
from gain_runtime.batch_preprocess import BatchPreprocessor
from gain_runtime.closing import Closing
from gain_runtime.open_lane import say_if_not_measured
from gain_runtime.preprocess import Region
from gain_runtime.state_file import load_state, save_state
from gain_runtime.trip_log import TripLog

__all__ = ["AdaptiveAdapter"]


class AdaptiveAdapter(Closing):
    """The methods of `Adapter` on a session that adapts by itself.

    Parameters
    ----------
    session : AdaptiveSession
        Not owned: whoever opened it closes it. Config, `update_every` and
        warm-up are the file's.
    frozen : bool, optional
        Never learn.
    preprocess_threads, exact_preprocess : optional
        As for `Adapter`.

    Raises
    ------
    ArtifactError
        If the file has no network and so takes no frames.
    ConfigError
        If `preprocess_threads` is below 1.
    """

    def __init__(
        self,
        session: AdaptiveSession,
        /,
        *,
        frozen: bool = False,
        preprocess_threads: int | None = 1,
        exact_preprocess: bool = True,
    ) -> None:
        if session.artifact.features_only:
            raise ArtifactError(
                f"{session.artifact.path}: expected an adaptive file that takes frames, got one "
                "without a network; make it with gain-export --adaptive and not --features-only"
            )
        say_if_not_measured(session.artifact, session.config)
        self._session = session
        spec = session.artifact.manifest.preprocess
        self._preprocessor = BatchPreprocessor(
            spec, threads=preprocess_threads, exact=exact_preprocess
        )
        self._trips = TripLog(lambda: self.status().guard_hold_frames)
        self._update_every = session.update_every
        self._passed = 0
        if frozen:
            session.freeze()

    @property
    def artifact(self) -> AdaptiveArtifact:
        """The adaptive file in use."""
        return self._session.artifact

    @property
    def config(self) -> GainConfig:
        """The settings baked into the file."""
        return self._session.config

    @property
    def provider(self) -> str:
        """The execution provider really in use."""
        return self._session.provider

    @property
    def frozen(self) -> bool:
        """Whether nothing is learned at present."""
        return self._session.frozen

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
                f"update_every: expected at least {least}, which is baked into "
                f"{self.artifact.path}, got {frames}; make the file again with gain-export "
                "--adaptive --update-every"
            )
        self._update_every = frames

    @property
    def frames(self) -> int:
        """Frames the state has learned from (pending ones not counted)."""
        return self._session.frames

    def step(
        self,
        images: Sequence[npt.NDArray[np.uint8]],
        /,
        *,
        regions: Sequence[Region | None] | None = None,
        learn: bool = True,
    ) -> AdaptedBatch:
        """Predict a batch of frames, then learn from it.

        Parameters
        ----------
        images : sequence of B arrays, (H, W, 3) uint8 RGB
            Sizes may differ.
        regions : sequence of B regions or None, optional
            The part of each image to classify.
        learn : bool, optional
            Whether the batch may change the state; a frame of a covered lens is predicted only.

        Returns
        -------
        AdaptedBatch
            Network and adaptation are one call, whose time counts as `forward`; `adapt` is 0.

        Raises
        ------
        ArrayError
            If an image or region cannot be preprocessed or the file has another fixed batch size.
        EngineError
            If ONNX Runtime fails; the state is untouched, as after every error.
        NumericsError
            If the network returned NaN or infinity.
        """
        started = perf_counter_ns()
        pixel_values = self._preprocessor(images, regions=regions)
        prepared = perf_counter_ns()
        learn = learn and self._is_due(len(images))
        run = self._session.step if learn else self._session.predict
        learned = self._session.frames
        prediction = run(pixel_values)
        finished = perf_counter_ns()
        if learn:
            self._passed = 0
        if self._session.frames != learned:
            # Only an update trips the guard, and reading its counter waits for the device.
            self._trips.report(self._session.guard_trips)
        times = (prepared - started, finished - prepared, 0)
        source_log_probs = np.asarray(prediction.source_log_probs)
        return AdaptedBatch(
            source_probs=np.exp(source_log_probs),
            source_log_probs=source_log_probs,
            probs=np.asarray(prediction.probs),
            log_probs=np.asarray(prediction.log_probs),
            strength=np.asarray(prediction.strength),
            gain=np.asarray(prediction.gain),
            stage_ns=dict(zip(STAGES, times, strict=True)),
        )

    def warm_up(self, batch_size: int = 1, /) -> None:
        """Predict once on zeros; nothing is learned.

        Parameters
        ----------
        batch_size : int, optional
            The B that will be used.

        Raises
        ------
        ArrayError, EngineError, NumericsError
            As `step`.
        """
        size = self.artifact.manifest.preprocess
        shape = (batch_size, 3, size.height_px, size.width_px)
        self._session.predict(np.zeros(shape, dtype=np.float32))

    def status(self) -> AdaptationStatus:
        """What the adaptation is doing; copies a tracked shift's sums to the host."""
        session = self._session
        if self.config.proposal != "shift":
            # Nothing is told of their arrays, which would be copied for it.
            return status_of_gaussians(frames=session.frames)
        return status_of_state(session.state, frames=session.frames, guarded=self.config.guard)

    def reset(self) -> None:
        """Return to the source: nothing learned, nothing pending."""
        self._session.reset()
        self._passed = 0

    def freeze(self) -> None:
        """Keep predicting with the state as it is, and stop learning."""
        self._session.freeze()

    def unfreeze(self) -> None:
        """Learn again."""
        self._session.unfreeze()

    def save_state(self, path: str | Path, /, *, flush: bool = True) -> None:
        """Write the state, whole or not at all.

        Parameters
        ----------
        path : str or Path
            Replaced if it exists. An `Adapter` on the original artifact reads it as well.
        flush : bool, optional
            Learn from the pending frames first. A snapshot does not, so that taking one changes no
            later prediction.

        Raises
        ------
        ArtifactError
            If it cannot be written or holds NaN or infinity.
        """
        if flush:
            self._session.flush()
        save_state(
            path,
            self._session.state,
            config=self.config,
            artifact_sha256=self.artifact.artifact_sha256,
            frames=self._session.frames,
        )

    def load_state(self, path: str | Path, /) -> None:
        """Continue from a saved state; what was learned before is dropped.

        Parameters
        ----------
        path : str or Path
            Written by this or by an `Adapter` with the same artifact and config.

        Raises
        ------
        ArtifactError
            If it is missing, damaged, or was learned on another artifact.
        ConfigError
            If it was learned with another config.
        """
        loaded = load_state(
            path,
            prototypes=self.artifact.prototypes,
            config=self.config,
            artifact_sha256=self.artifact.artifact_sha256,
        )
        self._session.load_state(loaded.state, frames=loaded.frames)
        self._trips.resume(self._session.guard_trips)
        self._passed = 0

    def close(self) -> None:
        """End the threads that preprocess; may be called twice. The session stays open."""
        self._preprocessor.close()

    def _is_due(self, count: int) -> bool:
        """Whether a batch of so many frames may be learned from, or waits in the graph."""
        self._passed += count
        return self._passed * self._session.update_every >= self._update_every
