"""GAIN with its state kept: the object that sessions and applications hold."""

from __future__ import annotations

import math

from array_api_compat import array_namespace, is_numpy_namespace

from gain_core._checks import describe, refuse_below_one
from gain_core._typing import Array
from gain_core.config import GainConfig
from gain_core.errors import ArrayError, ConfigError, NumericsError
from gain_core.prototypes import Prototypes, prepare_prototypes
from gain_core.state import GainState, GaussianState, ShiftState, copy_state, init_state
from gain_core.statistics import (
    Evidence,
    Statistics,
    absorb,
    accumulate,
    combine,
    concatenate,
)
from gain_core.step import (
    Prediction,
    ShiftAdded,
    add_up,
    advance,
    advance_shift,
    collect,
    predict,
    revise,
)

__all__ = ["Gain"]

# Pending rows are folded into sums beyond this many, so that a long `update_every` holds one
# (K, D) array and not hundreds of rows; below it, rows are cheaper than a (K, D) pass per frame.
MAX_PENDING_ROWS = 64


class Gain:
    """Continual test-time adaptation of one classifier head on one stream.

    Parameters
    ----------
    prototypes : array, (K, D) floating
        Rows of the frozen classifier head. Their library, device and precision (float64 stays,
        anything narrower becomes float32) are those of the state.
    config : GainConfig
        Default: the preset `tracked`.
    update_every : int
        Frames between two updates of the state. Every frame is predicted at once against the
        state as it stands; what it teaches waits until this many frames are pending and is then
        learned in one go, exactly as if they had come as one batch. 1 learns after every batch.
    warmup_frames : int
        Frames that the first update waits for; until then the prediction is the source's. A
        video's first frames show one object, and a target learned from one class is no target:
        the paper's first batch is 64 unrelated images.
    bias : array, (K,) floating
        The head's bias, if it has one. Neither this nor the next goes with a `Prototypes`
        record.
    asymmetry : pair of float
        Of the source's logits on clean frames of one class, and of all classes; see
        `prepare_prototypes`.

    Raises
    ------
    ArrayError
        If the prototypes are no floating (K, D) matrix with K >= 2, or `bias` does not fit it.
    ConfigError
        If `update_every` or `warmup_frames` is below 1, or `asymmetry` is no pair of finite
        numbers, the second the larger.
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
    ) -> None:
        if not isinstance(config, GainConfig | None):
            raise ConfigError(
                f"config: expected a GainConfig, got {config!r}; use GainConfig.preset(name)"
            )
        refuse_below_one("update_every", update_every)
        refuse_below_one("warmup_frames", warmup_frames)
        self._config = config or GainConfig()
        self._prototypes: Prototypes = prepare_prototypes(
            prototypes, self._config, bias=bias, asymmetry=asymmetry
        )
        self._update_every = update_every
        self._warmup_frames = warmup_frames
        self._frozen = False
        self._state = init_state(self._prototypes, self._config)
        self._frames = 0
        self._pending: list[Evidence] = []
        self._pending_rows = 0
        self._folded: Statistics | ShiftAdded | None = None
        self._folded_rows = 0

    @property
    def config(self) -> GainConfig:
        """The settings in use."""
        return self._config

    @property
    def update_every(self) -> int:
        """Frames between two updates of the state; may be changed at any time.

        A new value counts from the next batch on: frames that are pending by then are learned
        from together with it, or wait for more.

        Raises
        ------
        ConfigError
            If it is set to less than 1.
        """
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
        return self._pending_rows + self._folded_rows

    @property
    def state(self) -> GainState:
        """A copy of the state as of the last update; later steps do not change it."""
        return copy_state(self._state)

    @property
    def guard_trips(self) -> Array | None:
        """How often the guard has tripped, () on the state's device; None without a guard."""
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
        NumericsError
            On NumPy, if an input holds NaN or infinity. Elsewhere reading the flag would stall
            the device: read `Prediction.finite` together with the outputs.
        """
        prediction = predict(features, logits, self._state, config=self._config)
        if is_numpy_namespace(array_namespace(prediction.probs)) and not bool(prediction.finite):
            raise NumericsError(_not_finite(features=features, logits=logits))
        return prediction

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
        if self._frozen:
            return
        evidence = collect(features, prediction, self._state, config=self._config)
        self._pending.append(evidence)
        self._pending_rows += evidence.features.shape[0]
        if self.pending_frames >= self._frames_awaited():
            self.flush()
        elif self._pending_rows >= MAX_PENDING_ROWS:
            self._fold()

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
            learned from at once, revised as far as frames are independent (see `revise`).

        Raises
        ------
        ArrayError, NumericsError
            As `predict`; the state is untouched then.
        """
        prediction, before = self.predict(features, logits), self._state
        self.update(features, prediction)
        if self._state is before or not isinstance(before, ShiftState):
            return prediction
        assert isinstance(self._state, ShiftState)
        return revise(prediction, before=before, after=self._state, config=self._config)

    def flush(self) -> None:
        """Learn from the pending frames now, also when frozen: they came before that."""
        rows = self.pending_frames
        if rows == 0:
            return
        if isinstance(self._state, ShiftState):
            self._fold()
            assert isinstance(self._folded, ShiftAdded)
            self._state = advance_shift(
                self._state, self._folded, prototypes=self._prototypes, config=self._config
            )
        else:
            self._state = self._learned_gaussians(self._state)
        self._frames += rows
        self._forget_pending()

    def _learned_gaussians(self, state: GaussianState) -> GaussianState:
        """The state with the pending frames in it; takes the memory of the one given."""
        old, half_life = state.statistics, self._config.half_life
        if self._folded is None:
            evidence = concatenate(self._pending)
            added = array_namespace(evidence.accepted).sum(evidence.accepted)
            statistics = absorb(old, evidence, half_life=half_life, donate=True)
        else:
            self._fold()
            assert isinstance(self._folded, Statistics)
            added = self._folded.sample_count
            statistics = combine(old, self._folded, half_life=half_life, donate=True)
        return advance(
            state,
            statistics,
            added=added,
            prototypes=self._prototypes,
            config=self._config,
            donate=True,
        )

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
            Copied.
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

    def _frames_awaited(self) -> int:
        """Pending frames at which the next update is due."""
        return self._update_every if self._frames else max(self._update_every, self._warmup_frames)

    def _fold(self) -> None:
        """Turn the pending rows into sums."""
        if not self._pending:
            return
        rows = concatenate(self._pending)
        if isinstance(self._state, ShiftState):
            assert not isinstance(self._folded, Statistics)
            self._folded = add_up(
                rows,
                self._state,
                prototypes=self._prototypes,
                config=self._config,
                before=self._folded,
            )
        else:
            assert not isinstance(self._folded, ShiftAdded)
            old, folded = self._state.statistics, self._folded
            added = accumulate(rows, old) if folded is None else accumulate(rows, old, folded)
            self._folded = added if folded is None else combine(folded, added, half_life=math.inf)
        self._folded_rows += self._pending_rows
        self._pending, self._pending_rows = [], 0

    def _forget_pending(self) -> None:
        """Nothing is pending."""
        self._pending, self._pending_rows = [], 0
        self._folded, self._folded_rows = None, 0


def _signature(state: GainState) -> str:
    """What a state must have in common with another to take its place."""
    if isinstance(state, ShiftState):
        return f"a shift {describe(state.shift.vector)}"
    return f"centres {describe(state.geometry.centers)}"


def _not_finite(**arrays: Array) -> str:
    """One line naming the input that is not finite and how many rows of it."""
    for name, array in arrays.items():
        xp = array_namespace(array)
        bad = int(xp.sum(xp.astype(xp.any(~xp.isfinite(array), axis=1), xp.int64)))
        if bad:
            return (
                f"{name}: expected finite values, got NaN or infinity in {bad} of "
                f"{array.shape[0]} rows; the batch was rejected and the state is untouched"
            )
    return (
        "features: expected values whose squares are finite in the state's dtype, got an overflow "
        "in the prediction; the batch was rejected and the state is untouched"
    )
