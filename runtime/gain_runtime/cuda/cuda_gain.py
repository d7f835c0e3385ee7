"""`gain_core.Gain` with its predictions and sums by fused kernels."""

from __future__ import annotations

from array_api_compat import array_namespace

from gain_core import (
    ArrayError,
    ConfigError,
    GainConfig,
    GainState,
    Prediction,
    state_to_arrays,
)
from gain_core._checks import refuse_below_one
from gain_core._typing import Array
from gain_core.prototypes import Prototypes, prepare_prototypes
from gain_core.state import array_like
from gain_runtime.cuda.device_step import DeviceStep
from gain_runtime.cuda.gaussian_step import GaussianStep
from gain_runtime.cuda.kernels import CupyKernels, Kernels
from gain_runtime.cuda.shift_step import ShiftStep

__all__ = ["CudaGain"]


class CudaGain:
    """Continual test-time adaptation on a CUDA device: the methods of `gain_core.Gain`.

    Nothing is read on the host, so a rejected batch raises nothing: read `Prediction.finite`
    together with the outputs. The tracked shift is kernels throughout, replayed as one CUDA graph
    a step; of the Gaussians the predictions and sums are, and the geometry is derived by
    `gain_core` on CuPy. For the array-API path choose `gain_core.Gain`; nothing falls back to it.

    Parameters
    ----------
    prototypes : cupy array, (K, D) floating
        Rows of the frozen classifier head.
    config : GainConfig
        Default: the preset `tracked`.
    update_every, warmup_frames : int
        As for `Gain`.
    bias : cupy array, (K,) floating
        As for `Gain`.
    asymmetry : pair of float
        As for `Gain`.
    kernels : Kernels
        What runs the kernels; default: CuPy.

    Raises
    ------
    ArrayError
        If the prototypes are no floating (K, D) matrix with K >= 2, or `bias` does not fit it.
    ConfigError
        If `config` is no `GainConfig`, `update_every` or `warmup_frames` is below 1, or `asymmetry`
        is no pair of finite numbers, the second the larger.
    BackendUnavailableError
        If CuPy is not installed.
    """

    def __init__(
        self,
        prototypes: Array | Prototypes,
        config: GainConfig | None = None,
        *,
        update_every: int = 1,
        warmup_frames: int = 1,
        bias: Array | None = None,
        asymmetry: tuple[float, float] | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        if not isinstance(config, GainConfig | None):
            raise ConfigError(
                f"config: expected a GainConfig, got {config!r}; use GainConfig.preset(name)"
            )
        refuse_below_one("update_every", update_every)
        refuse_below_one("warmup_frames", warmup_frames)
        self._config = config or GainConfig()
        prepared = prepare_prototypes(prototypes, self._config, bias=bias, asymmetry=asymmetry)
        self._update_every = update_every
        self._warmup_frames = warmup_frames
        make = ShiftStep if self._config.proposal == "shift" else GaussianStep
        self._step: DeviceStep = make(prepared, self._config, kernels or CupyKernels())
        self._frozen = False
        self._frames = 0
        self._pending_frames = 0

    @property
    def config(self) -> GainConfig:
        """The settings in use."""
        return self._config

    @property
    def update_every(self) -> int:
        """Frames between two updates of the state; may be changed, see `Gain.update_every`."""
        return self._update_every

    @update_every.setter
    def update_every(self, frames: int) -> None:
        refuse_below_one("update_every", frames)
        self._update_every = frames

    @property
    def frozen(self) -> bool:
        """Whether updates are ignored."""
        return self._frozen

    @property
    def frames(self) -> int:
        """Frames the state has learned from (pending ones not counted)."""
        return self._frames

    @property
    def pending_frames(self) -> int:
        """Frames that were predicted and wait to be learned from."""
        return self._pending_frames

    @property
    def state(self) -> GainState:
        """A copy of the state as of the last update; later steps do not change it."""
        return self._step.state

    @property
    def guard_trips(self) -> Array | None:
        """How often the guard has tripped, () on the device; None without a guard."""
        if not isinstance(self._step, ShiftStep) or not self._config.guard:
            return None
        return self._step.guard_trips

    def predict(self, features: Array, logits: Array, /) -> Prediction:
        """Predict a batch; the state does not change.

        Parameters
        ----------
        features : array, (B, D) floating
            Pre-logits features on the prototypes' device.
        logits : array, (B, K) floating
            The source's logits.

        Returns
        -------
        Prediction

        Raises
        ------
        ArrayError
            If a shape, dtype, device or namespace does not fit.
        """
        return self._step.predict(features, logits)

    def update(self, features: Array, prediction: Prediction, /) -> None:
        """Learn from a predicted batch, now or once `update_every` frames are pending.

        Parameters
        ----------
        features : array, (B, D) floating
            The features `prediction` was made from.
        prediction : Prediction
            Result of `predict` on them. One that is not finite is ignored.

        Raises
        ------
        ArrayError
            If the shapes do not fit each other or the state.
        """
        if self._frozen or features.shape[0] == 0:
            return
        self._step.add(features, prediction)
        self._pending_frames += features.shape[0]
        if self._pending_frames >= self._frames_awaited():
            self.flush()

    def step(self, features: Array, logits: Array, /) -> Prediction:
        """`predict`, then `update`: one batch of Algorithm 1.

        Parameters
        ----------
        features : array, (B, D) floating
        logits : array, (B, K) floating

        Returns
        -------
        Prediction
            Made before the batch was learned from; with a tracked shift, and where the batch was
            learned from at once, revised as `Gain.step` revises it.

        Raises
        ------
        ArrayError
            As `predict`; the state is untouched then.
        """
        if self._frozen or features.shape[0] == 0:
            return self.predict(features, logits)
        due = self._pending_frames + features.shape[0] >= self._frames_awaited()
        prediction = self._step.step(features, logits, flush=due)
        self._pending_frames += features.shape[0]
        if due:
            self._note_learned()
        return prediction

    def flush(self) -> None:
        """Learn from the pending frames now, also when frozen: they came before that."""
        if self._pending_frames == 0:
            return
        self._step.flush()
        self._note_learned()

    def reset(self) -> None:
        """Return to the source: nothing learned, nothing pending."""
        self._step.reset()
        self._frames = self._pending_frames = 0

    def freeze(self) -> None:
        """Keep predicting with the state as it is, and stop learning; pending frames are kept."""
        self._frozen = True

    def unfreeze(self) -> None:
        """Learn again."""
        self._frozen = False

    def load_state(self, state: GainState, /, *, frames: int = 0) -> None:
        """Continue from a state of the same head and config; pending frames are dropped.

        Parameters
        ----------
        state : GainState
            Copied; of `CudaGain` or of `Gain` on CuPy.
        frames : int
            Frames it was learned from.

        Raises
        ------
        ArrayError
            If it belongs to another head.
        """
        expected, given = _signature(self._step.state), _signature(state)
        if given != expected:
            raise ArrayError(
                f"state: expected {expected}, got {given}; it was made for another head or config"
            )
        self._step.load(state)
        self._frames, self._pending_frames = frames, 0

    def _frames_awaited(self) -> int:
        """Pending frames at which the next update is due."""
        return max(self._update_every, 1 if self._frames else self._warmup_frames)

    def _note_learned(self) -> None:
        """The pending frames are in the state now."""
        self._frames += self._pending_frames
        self._pending_frames = 0


def _signature(state: GainState) -> str:
    """What a state must have in common with another to take its place."""
    like = array_like(state)
    arrays = state_to_arrays(state)
    shapes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in sorted(arrays.items()))
    return f"{array_namespace(like).__name__} {like.dtype} with {shapes}"
