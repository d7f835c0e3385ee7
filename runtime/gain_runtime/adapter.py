"""A session with GAIN on top: frames in, adapted predictions in host memory out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from gain_core import GainConfig
from gain_core.errors import NumericsError
from gain_runtime.adaptation_status import AdaptationStatus, status_of_state
from gain_runtime.artifact import Artifact
from gain_runtime.closing import Closing
from gain_runtime.lane import LaneResult
from gain_runtime.open_lane import open_lane
from gain_runtime.preprocess import Region
from gain_runtime.session import Session
from gain_runtime.state_file import load_state, save_state
from gain_runtime.trip_log import TripLog

__all__ = ["STAGES", "AdaptedBatch", "Adapter"]

# What a batch passes through here, in this order; keys of `AdaptedBatch.stage_ns`.
STAGES = ("preprocess", "forward", "adapt")

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdaptedBatch:
    """The predictions of one batch, as NumPy arrays of their own memory.

    Attributes
    ----------
    source_probs, source_log_probs : array, (B, K) float32
        Of the frozen source.
    probs, log_probs : array, (B, K) float32
        Of the adapted prediction, see `Gain.step`.
    strength : array, (B,) float32
        lambda* in [0, 1].
    gain : array, (B,) float32
        Expected gain of the full correction, in nats.
    stage_ns : mapping
        Nanoseconds the whole batch spent in each of `STAGES`: of the host's clock, and by a GPU's
        events what that worked on it. What a batch waits for is in none of them.
    """

    source_probs: Floats
    source_log_probs: Floats
    probs: Floats
    log_probs: Floats
    strength: Floats
    gain: Floats
    stage_ns: Mapping[str, int]


class Adapter(Closing):
    """One stream's adaptation on top of a session; closing it ends the threads that preprocess.

    Parameters
    ----------
    session : Session
        Not owned: whoever opened it closes it.
    config : GainConfig
    update_every : int, optional
        Frames between two updates of the state; 1 learns after every batch.
    warmup_frames : int, optional
        Frames the first update waits for.
    frozen : bool, optional
        Never learn. Without a loaded state every adapted prediction is then the source's own.
    device_preprocess : bool, optional
        Resize, crop and normalise on the session's GPU, bit for bit as on the host.
    preprocess_threads : int or None, optional
        Threads of the host that take a frame of the batch each otherwise, bit for bit as one does;
        None is one for each core that this process may use.
    exact_preprocess : bool, optional
        As `exact` of `preprocess`, on the host.

    Raises
    ------
    ConfigError
        If `update_every`, `warmup_frames` or `preprocess_threads` is below 1, or
        `device_preprocess` is set for a session whose results are in host memory.
    EngineError
        If the session's device has no room, or fails.
    """

    def __init__(
        self,
        session: Session,
        config: GainConfig,
        /,
        *,
        update_every: int = 1,
        warmup_frames: int = 1,
        frozen: bool = False,
        device_preprocess: bool = False,
        preprocess_threads: int | None = 1,
        exact_preprocess: bool = True,
    ) -> None:
        self._session = session
        self._lane = open_lane(
            session,
            config,
            update_every=update_every,
            warmup_frames=warmup_frames,
            device_preprocess=device_preprocess,
            preprocess_threads=preprocess_threads,
            exact_preprocess=exact_preprocess,
        )
        self._gain = self._lane.gain
        self._trips = TripLog(lambda: self.status().guard_hold_frames)
        if frozen:
            self._gain.freeze()

    @property
    def artifact(self) -> Artifact:
        """The artifact in use."""
        return self._session.artifact

    @property
    def config(self) -> GainConfig:
        """The settings in use."""
        return self._gain.config

    @property
    def provider(self) -> str:
        """The execution provider really in use."""
        return self._session.provider

    @property
    def update_every(self) -> int:
        """Frames between two updates of the state; may be changed while the stream runs."""
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
    def ahead(self) -> int:
        """Batches worth submitting ahead of their results: 1 on a device, 0 on the host."""
        return self._lane.ahead

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

        Raises
        ------
        ArrayError
            If an image or region cannot be preprocessed, or the artifact has another fixed batch
            size; the state is untouched.
        EngineError
            If the forward pass fails; the state is untouched.
        NumericsError
            If the network returned NaN or infinity; the state is untouched.
        """
        return self.submit(images, regions=regions, learn=learn)()

    def submit(
        self,
        images: Sequence[npt.NDArray[np.uint8]],
        /,
        *,
        regions: Sequence[Region | None] | None = None,
        learn: bool = True,
    ) -> Callable[[], AdaptedBatch]:
        """As `step`, without waiting for a device: so the next batch is prepared meanwhile.

        Parameters
        ----------
        images, regions, learn
            As for `step`.

        Returns
        -------
        callable
            Waits for the batch and returns it. Batches are worked on in the order of their
            submission. Raises NumericsError as `step` does, and EngineError if the device fails
            meanwhile.

        Raises
        ------
        ArrayError, EngineError
            As `step`; EngineError also where an earlier batch failed on the device.
        """
        started = perf_counter_ns()
        prepared = self._lane.prepare(images, regions=regions)
        preprocess_ns = perf_counter_ns() - started
        awaited = self._lane.submit(prepared, learn=learn)
        return lambda: self._adapted(awaited(), preprocess_ns)

    def warm_up(self, batch_size: int = 1, /) -> None:
        """Run the network once on zeros, so that the first frame does not pay for allocations.

        Parameters
        ----------
        batch_size : int, optional
            The B that will be used.

        Raises
        ------
        ArrayError
            If the artifact has another fixed batch size.
        EngineError
            If the forward pass fails.
        """
        size = self.artifact.manifest.preprocess
        shape = (batch_size, 3, size.height_px, size.width_px)
        self._session.infer(np.zeros(shape, dtype=np.float32))

    def status(self) -> AdaptationStatus:
        """What the adaptation is doing; copies a few numbers to the host."""
        with self._lane.queue():
            return status_of_state(
                self._gain.state, frames=self._gain.frames, guarded=self.config.guard
            )

    def reset(self) -> None:
        """Return to the source: nothing learned, nothing pending."""
        with self._lane.queue():
            self._gain.reset()

    def freeze(self) -> None:
        """Keep predicting with the state as it is, and stop learning."""
        self._gain.freeze()

    def unfreeze(self) -> None:
        """Learn again."""
        self._gain.unfreeze()

    def save_state(self, path: str | Path, /, *, flush: bool = True) -> None:
        """Write the state, whole or not at all.

        Parameters
        ----------
        path : str or Path
            Replaced if it exists.
        flush : bool, optional
            Learn from the pending frames first. A snapshot does not, so that taking one changes no
            later prediction.

        Raises
        ------
        ArtifactError
            If it cannot be written or holds NaN or infinity.
        """
        with self._lane.queue():
            if flush:
                self._gain.flush()
            save_state(
                path,
                self._gain.state,
                config=self.config,
                artifact_sha256=self.artifact.sha256,
                frames=self._gain.frames,
            )

    def load_state(self, path: str | Path, /) -> None:
        """Continue from a saved state; what was learned before is dropped.

        Parameters
        ----------
        path : str or Path
            Written by `save_state` of an adapter with the same artifact and config.

        Raises
        ------
        ArtifactError
            If it is missing, damaged, or was learned on another artifact.
        ConfigError
            If it was learned with another config.
        """
        with self._lane.queue():
            loaded = load_state(
                path,
                prototypes=self._lane.prototypes,
                config=self.config,
                artifact_sha256=self.artifact.sha256,
            )
            self._gain.load_state(loaded.state, frames=loaded.frames)
        self._trips.resume(self.status().guard_trips)

    def close(self) -> None:
        """End the threads that preprocess; may be called twice. The session stays open."""
        self._lane.close()

    def _adapted(self, result: LaneResult, preprocess_ns: int) -> AdaptedBatch:
        """What the batch gave, unless it was rejected."""
        self._trips.report(result.trips)
        prediction = result.prediction
        if not prediction.finite:
            raise NumericsError(
                f"{self.artifact.path}: features, logits: expected finite values, got NaN or "
                "infinity; the batch was rejected and the state is untouched"
            )
        source_log_probs = np.asarray(prediction.source_log_probs)
        return AdaptedBatch(
            source_probs=np.exp(source_log_probs),
            source_log_probs=source_log_probs,
            probs=np.asarray(prediction.probs),
            log_probs=np.asarray(prediction.log_probs),
            strength=np.asarray(prediction.strength),
            gain=np.asarray(prediction.gain),
            stage_ns={
                **result.stage_ns,
                "preprocess": preprocess_ns + result.stage_ns["preprocess"],
            },
        )
