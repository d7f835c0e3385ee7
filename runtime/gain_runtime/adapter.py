"""A session with GAIN on top: frames in, adapted predictions in host memory out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import to_device

from gain_core import Gain, GainConfig, prepare_prototypes
from gain_core._typing import Array
from gain_core.errors import NumericsError
from gain_runtime.adaptation_status import AdaptationStatus, status_of_state
from gain_runtime.artifact import Artifact
from gain_runtime.preprocess import Region, preprocess_batch
from gain_runtime.session import Session
from gain_runtime.state_file import load_state, save_state

__all__ = ["STAGES", "AdaptedBatch", "Adapter"]

logger = logging.getLogger(__name__)

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
        Of the adapted prediction, made before the batch was learned from.
    strength : array, (B,) float32
        lambda* in [0, 1].
    gain : array, (B,) float32
        Expected gain of the full correction, in nats.
    stage_ns : mapping
        Nanoseconds the whole batch spent in each of `STAGES`.
    """

    source_probs: Floats
    source_log_probs: Floats
    probs: Floats
    log_probs: Floats
    strength: Floats
    gain: Floats
    stage_ns: Mapping[str, int]


class Adapter:
    """One stream's adaptation on top of a session.

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

    Raises
    ------
    ConfigError
        If `update_every` or `warmup_frames` is below 1.
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
    ) -> None:
        self._session = session
        artifact = session.artifact
        self._prototypes = prepare_prototypes(
            artifact.head_weight,
            config,
            bias=artifact.head_bias,
            mean_logits=artifact.mean_logits,
        )
        self._gain = Gain(
            self._prototypes, config, update_every=update_every, warmup_frames=warmup_frames
        )
        self._trips = 0
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
    def frozen(self) -> bool:
        """Whether nothing is learned at present."""
        return self._gain.frozen

    @property
    def frames(self) -> int:
        """Frames the state has learned from (pending ones not counted)."""
        return self._gain.frames

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
        started = perf_counter_ns()
        pixel_values = preprocess_batch(images, self.artifact.manifest.preprocess, regions=regions)
        prepared = perf_counter_ns()
        features, logits = self._session.infer(pixel_values)
        inferred = perf_counter_ns()
        prediction = self._gain.predict(features, logits)
        if learn:
            # Learns nothing from a prediction that is not finite, on any device.
            self._gain.update(features, prediction)
            self._report_trips()
        if not _to_host(prediction.finite):
            raise NumericsError(
                f"{self.artifact.path}: features, logits: expected finite values, got NaN or "
                "infinity; the batch was rejected and the state is untouched"
            )
        source_log_probs = _to_host(prediction.source_log_probs)
        probs, log_probs = _to_host(prediction.probs), _to_host(prediction.log_probs)
        strength, gain = _to_host(prediction.strength), _to_host(prediction.gain)
        adapted = perf_counter_ns()
        times = (prepared - started, inferred - prepared, adapted - inferred)
        return AdaptedBatch(
            source_probs=np.exp(source_log_probs),
            source_log_probs=source_log_probs,
            probs=probs,
            log_probs=log_probs,
            strength=strength,
            gain=gain,
            stage_ns=dict(zip(STAGES, times, strict=True)),
        )

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
        return status_of_state(
            self._gain.state, frames=self._gain.frames, guarded=self.config.guard
        )

    def reset(self) -> None:
        """Return to the source: nothing learned, nothing pending."""
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
        loaded = load_state(
            path,
            prototypes=self._prototypes,
            config=self.config,
            artifact_sha256=self.artifact.sha256,
        )
        self._gain.load_state(loaded.state, frames=loaded.frames)

    def _report_trips(self) -> None:
        """Say once that the guard has tripped; a human may want to know why."""
        trips = self._gain.guard_trips
        if trips is None:
            return
        count = int(_to_host(trips))
        if count > self._trips:
            hold = self.status().guard_hold_frames
            logger.warning(
                "guard: the adapted prediction left what the source knows; everything learned was "
                "dropped, the source answers for %d frames (trip %d)",
                hold,
                count,
            )
        self._trips = count


def _to_host(array: Array) -> npt.NDArray[Any]:
    """A NumPy array of the same values; a copy where the array lies on another device."""
    return np.asarray(to_device(array, "cpu"))
