"""One stream's adaptation: frames in, adapted predictions in host memory out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gain_core import Config
from gain_runtime.engine import Engine, EngineArtifact
from gain_runtime.files.state import load_state, save_state
from gain_runtime.frames import Closing
from gain_runtime.preprocess import BatchPreprocessor, Region
from gain_runtime.sessions.onnx import CPU_PROVIDER

# What a batch passes through here, in this order; keys of `AdaptedBatch.stage_ns`.
STAGES = ("preprocess", "forward", "adapt")

Floats = npt.NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdaptedBatch:
    """The predictions of one batch, as NumPy arrays that no later batch overwrites.

    Attributes
    ----------
    source_probs, source_log_probs : array, (B, K) float32
        Prediction of the frozen source.
    probs, log_probs : array, (B, K) float32
        Adapted prediction; see `Gain.step`.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptationStatus:
    """The state in a few numbers.

    Attributes
    ----------
    frames : int
        Frames that the state has learned from.
    shift_nats : float
        Root mean square over the classes of the shift of the logits, in nats; 0 for a method
        without a shift.
    draws : float
        Effective number of independent class draws that the shift was estimated from.
    """

    frames: int
    shift_nats: float
    draws: float


class Adapter(Closing):
    """Preprocessing, engine and state files of one stream.

    Parameters
    ----------
    engine : Engine
        Not owned: whoever opened its session closes it.
    frozen : bool, optional
        Start frozen. Without a loaded state every adapted prediction is then the source's own.
    preprocess_threads : int or None, optional
        Threads that preprocess one frame each, with the same bits for any number of them; None is
        one for each core that this process may use.

    Raises
    ------
    ConfigError
        If `preprocess_threads` is below 1.
    """

    def __init__(
        self,
        engine: Engine,
        /,
        *,
        frozen: bool = False,
        preprocess_threads: int | None = 1,
    ) -> None:
        self._engine = engine
        self._learner = engine.learner
        self._preprocessor = BatchPreprocessor(
            engine.artifact.manifest.preprocess, threads=preprocess_threads
        )
        # A device computes while the host prepares the next batch; on the host both need its cores.
        on_host = engine.provider == CPU_PROVIDER
        self._worker = None if on_host else ThreadPoolExecutor(1, thread_name_prefix="adapter")
        if frozen:
            self._learner.freeze()

    @property
    def artifact(self) -> EngineArtifact:
        """The file in use."""
        return self._engine.artifact

    @property
    def config(self) -> Config:
        """The settings in use."""
        config: Config = self._learner.method.config
        return config

    @property
    def provider(self) -> str:
        """The execution provider really in use."""
        return self._engine.provider

    @property
    def update_every(self) -> int:
        """Frames between two updates of the state; may be changed while the stream runs.

        Raises
        ------
        ConfigError
            If it is set below 1, or below the value that an adaptive file fixes.
        """
        return self._learner.update_every

    @update_every.setter
    def update_every(self, frames: int) -> None:
        self._learner.update_every = frames

    @property
    def frozen(self) -> bool:
        """Whether learning is stopped."""
        return self._learner.frozen

    @property
    def frames(self) -> int:
        """Frames the state has learned from (pending ones not counted)."""
        return self._learner.frames

    @property
    def ahead(self) -> int:
        """Batches worth submitting ahead of their results: 1 on a device, 0 on the host."""
        return 0 if self._worker is None else 1

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
            Whether the batch may change the state.

        Returns
        -------
        AdaptedBatch

        Raises
        ------
        ArrayError
            If an image or region cannot be preprocessed, or the network has another fixed batch
            size. No error changes the state.
        EngineError
            If the forward pass fails.
        NumericsError
            If the network returned NaN or infinity.
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
        """As `step`, but without waiting for a device: prepare the next batch meanwhile.

        Parameters
        ----------
        images, regions, learn
            As for `step`.

        Returns
        -------
        callable
            Waits for the batch and returns it, or raises as `step`. Batches are processed in the
            order of submission.

        Raises
        ------
        ArrayError, EngineError, NumericsError
            As `step`. On a device, `submit` itself raises only what preprocessing raises.
        """
        started = perf_counter_ns()
        pixel_values = self._preprocessor(images, regions=regions)
        preprocess_ns = perf_counter_ns() - started

        def work() -> AdaptedBatch:
            return self._adapted(pixel_values, preprocess_ns, learn=learn)

        if self._worker is not None:
            return self._worker.submit(work).result
        batch = work()
        return lambda: batch

    def warm_up(self, batch_size: int = 1, /) -> None:
        """Run the network once on zeros, so that the first frame does not pay for allocations.

        Parameters
        ----------
        batch_size : int, optional
            B, as later batches will have it.

        Raises
        ------
        ArrayError, EngineError
            As `step`.
        """
        size = self.artifact.manifest.preprocess
        shape = (batch_size, 3, size.height_px, size.width_px)
        zeros = np.zeros(shape, dtype=np.float32)
        self._in_turn(lambda: self._engine.warm_up(zeros))

    def status(self) -> AdaptationStatus:
        """The state in a few numbers, once all submitted batches are done.

        Returns
        -------
        AdaptationStatus
        """
        summary = self._in_turn(self._learner.summary)
        numbers = {name: float(np.asarray(value)) for name, value in summary.items()}
        return AdaptationStatus(
            frames=self.frames,
            shift_nats=numbers.get("shift_nats", 0.0),
            draws=numbers.get("draws", 0.0),
        )

    def reset(self) -> None:
        """Return to the source state and drop pending frames."""
        self._in_turn(self._learner.reset)

    def freeze(self) -> None:
        """Stop learning and keep predicting with the current state."""
        self._in_turn(self._learner.freeze)

    def unfreeze(self) -> None:
        """Learn again."""
        self._in_turn(self._learner.unfreeze)

    def save_state(self, path: str | Path, /, *, flush: bool = True) -> None:
        """Write the state; a failure leaves no partial file.

        Parameters
        ----------
        path : str or Path
            Replaced if it exists. The file fits the artifact and adaptive files made from it.
        flush : bool, optional
            Learn from the pending frames first, which changes later predictions.

        Raises
        ------
        ArtifactError
            If it cannot be written or holds NaN or infinity.
        """

        def save() -> None:
            if flush:
                self._learner.flush()
            save_state(
                path,
                self._learner.state,
                config=self.config,
                artifact_sha256=self._engine.artifact_sha256,
                frames=self.frames,
            )

        self._in_turn(save)

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
            path, method=self._learner.method, artifact_sha256=self._engine.artifact_sha256
        )
        self._in_turn(lambda: self._learner.load_state(loaded.state, frames=loaded.frames))

    def close(self) -> None:
        """End its threads; may be called twice. The session stays open."""
        if self._worker is not None:
            self._worker.shutdown()
        self._preprocessor.close()

    def _in_turn(self, work: Callable[[], T]) -> T:
        """Done after the batches submitted before."""
        return work() if self._worker is None else self._worker.submit(work).result()

    def _adapted(self, pixel_values: Floats, preprocess_ns: int, *, learn: bool) -> AdaptedBatch:
        """One batch through network and method."""
        prediction, (forward_ns, adapt_ns) = self._engine.step(pixel_values, learn=learn)
        source_log_probs = np.asarray(prediction.source_log_probs)
        log_probs = np.asarray(prediction.log_probs)
        times = (preprocess_ns, forward_ns, adapt_ns)
        return AdaptedBatch(
            source_probs=np.exp(source_log_probs),
            source_log_probs=source_log_probs,
            # By the same function as the source's: equal logarithms give equal bits.
            probs=np.exp(log_probs),
            log_probs=log_probs,
            strength=np.asarray(prediction.strength),
            gain=np.asarray(prediction.gain),
            stage_ns=dict(zip(STAGES, times, strict=True)),
        )
