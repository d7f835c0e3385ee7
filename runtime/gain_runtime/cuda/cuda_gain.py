"""`gain_core.Gain` with its predictions and sums by fused kernels."""

from __future__ import annotations

import math

from array_api_compat import array_namespace

from gain_core import (
    ArrayError,
    ConfigError,
    GainConfig,
    GainState,
    Prediction,
    ShiftState,
    init_state,
    state_to_arrays,
)
from gain_core._typing import Array
from gain_core.prototypes import Prototypes, prepare_prototypes
from gain_core.state import GaussianState, array_like, copy_state
from gain_core.statistics import Statistics, combine
from gain_core.step import ShiftAdded, advance_shift, commit, on_top
from gain_runtime.cuda.fused_step import fused_predict, gaussian_added, shift_added
from gain_runtime.cuda.kernels import CupyKernels, Kernels

__all__ = ["CudaGain"]


class CudaGain:
    """Continual test-time adaptation on a CUDA device: the methods of `gain_core.Gain`.

    Nothing is read on the host, so a rejected batch raises nothing: read `Prediction.finite`
    together with the outputs. The geometry and the shift are derived by `gain_core` on CuPy.
    For the array-API path choose `gain_core.Gain`; nothing falls back to it. Pending frames wait
    as sums, not as rows, so that before the first update the origin of the sums is the mean of
    the first batch rather than of all pending frames.

    Parameters
    ----------
    prototypes : cupy array, (K, D) floating
        Rows of the frozen classifier head.
    config : GainConfig
        Default: the preset `tracked`.
    update_every, warmup_frames : int
        As for `Gain`.
    bias, mean_logits : cupy array, (K,) floating
        As for `Gain`.
    kernels : Kernels
        What runs the kernels; default: CuPy.

    Raises
    ------
    ArrayError
        If the prototypes are no floating (K, D) matrix with K >= 2, or `bias` or `mean_logits`
        do not fit it.
    ConfigError
        If `config` is no `GainConfig`, or `update_every` or `warmup_frames` is below 1.
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
        mean_logits: Array | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        if not isinstance(config, GainConfig | None):
            raise ConfigError(
                f"config: expected a GainConfig, got {config!r}; use GainConfig.preset(name)"
            )
        for name, frames in (("update_every", update_every), ("warmup_frames", warmup_frames)):
            if frames < 1:
                raise ConfigError(f"{name}: expected at least 1 frame, got {frames}")
        self._config = config or GainConfig()
        self._kernels: Kernels = kernels or CupyKernels()
        self._prototypes = prepare_prototypes(
            prototypes, self._config, bias=bias, mean_logits=mean_logits
        )
        self._update_every = update_every
        self._warmup_frames = warmup_frames
        self._frozen = False
        self._state = init_state(self._prototypes, self._config)
        self._frames = 0
        self._pending_frames = 0
        self._added: Statistics | ShiftAdded | None = None

    @property
    def config(self) -> GainConfig:
        """The settings in use."""
        return self._config

    @property
    def update_every(self) -> int:
        """Frames between two updates of the state."""
        return self._update_every

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
        return copy_state(self._state)

    @property
    def guard_trips(self) -> Array | None:
        """How often the guard has tripped, () on the device; None without a guard."""
        if not isinstance(self._state, ShiftState) or not self._config.guard:
            return None
        return self._state.guard.trips

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
        return fused_predict(
            features, logits, self._state, config=self._config, kernels=self._kernels
        )

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
        if isinstance(self._state, ShiftState):
            self._added = self._more_shift(features, prediction, self._state)
        else:
            self._added = self._more_statistics(features, prediction, self._state)
        self._pending_frames += features.shape[0]
        awaited = max(self._update_every, 1 if self._frames else self._warmup_frames)
        if self._pending_frames >= awaited:
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
            Made before the batch was learned from.

        Raises
        ------
        ArrayError
            As `predict`; the state is untouched then.
        """
        prediction = self.predict(features, logits)
        self.update(features, prediction)
        return prediction

    def flush(self) -> None:
        """Learn from the pending frames now, also when frozen: they came before that."""
        if self._added is None:
            return
        if isinstance(self._state, ShiftState):
            assert isinstance(self._added, ShiftAdded)
            self._state = advance_shift(
                self._state, self._added, prototypes=self._prototypes, config=self._config
            )
        else:
            assert isinstance(self._added, Statistics)
            self._state = commit(
                self._state, self._added, prototypes=self._prototypes, config=self._config
            )
        self._frames += self._pending_frames
        self._forget_pending()

    def reset(self) -> None:
        """Return to the source: nothing learned, nothing pending."""
        self._state = init_state(self._prototypes, self._config)
        self._frames = 0
        self._forget_pending()

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
        expected, given = _signature(self._state), _signature(state)
        if given != expected:
            raise ArrayError(
                f"state: expected {expected}, got {given}; it was made for another head or config"
            )
        self._state = copy_state(state)
        self._frames = frames
        self._forget_pending()

    def _more_shift(self, features: Array, prediction: Prediction, state: ShiftState) -> ShiftAdded:
        """The pending sums with one more batch in them."""
        if prediction.probs.shape[0] != features.shape[0]:
            raise ArrayError(
                f"prediction.probs: expected {features.shape[0]} rows, as the features have, "
                f"got {prediction.probs.shape[0]}; give the features it was made from"
            )
        added = shift_added(
            prediction,
            state,
            prototypes=self._prototypes,
            config=self._config,
            kernels=self._kernels,
        )
        before = self._added
        assert not isinstance(before, Statistics)
        return on_top(added, before)

    def _more_statistics(
        self, features: Array, prediction: Prediction, state: GaussianState
    ) -> Statistics:
        """The pending sums with one more batch in them."""
        before = self._added
        assert not isinstance(before, ShiftAdded)
        added = gaussian_added(
            features, prediction, state, config=self._config, kernels=self._kernels, before=before
        )
        return added if before is None else combine(before, added, half_life=math.inf)

    def _forget_pending(self) -> None:
        """Nothing is pending."""
        self._added, self._pending_frames = None, 0


def _signature(state: GainState) -> str:
    """What a state must have in common with another to take its place."""
    like = array_like(state)
    arrays = state_to_arrays(state)
    shapes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in sorted(arrays.items()))
    return f"{array_namespace(like).__name__} {like.dtype} with {shapes}"
