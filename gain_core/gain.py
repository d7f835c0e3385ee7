"""A method together with its state, as sessions and applications use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from array_api_compat import array_namespace, is_numpy_namespace

from gain_core._arrays import Array, namespace, refuse_below_one
from gain_core.config import Config, make_method
from gain_core.errors import NumericsError
from gain_core.method import Method, Prediction
from gain_core.records import copy_record, refuse_foreign

# An update costs several predictions, and nothing worth learning comes in a sixteenth of it.
UPDATE_EVERY = 16
# A video's first frames show one object, and a target learned from one class is no target.
WARMUP_FRAMES = 64
# Batches that are put aside at most, so that they take little memory however long the wait.
MAX_ASIDE = 64


class Gain:
    """Continual test-time adaptation of one classifier on one stream.

    Parameters
    ----------
    head_or_num_classes : array, (K, D) floating, or int, or a `Method`
        The head's weight, or K. The default method reads logits only, so K is enough.
    config : Config, optional
        Default: the preset `shift`.
    update_every : int, optional
        Frames between two updates of the state. Every frame is predicted at once with the current
        state. Once this many frames are pending, one update learns from all of them, exactly as
        from one batch.
    warmup_frames : int, optional
        Frames before the first update; until then the prediction is the source's.
    skewness : pair of float, optional
        See `make_method`.
    clean_moments : sequence of float, (2, K), optional
        See `make_method`.
    like : array, any shape and floating dtype, optional
        See `make_method`.

    Raises
    ------
    ArrayError, ConfigError, NumericsError
        As `make_method`; ConfigError also if `update_every` or `warmup_frames` is below 1.
    """

    def __init__(
        self,
        head_or_num_classes: Array | int | Method[Any],
        config: Config | None = None,
        *,
        update_every: int = UPDATE_EVERY,
        warmup_frames: int = WARMUP_FRAMES,
        skewness: tuple[float, float] | None = None,
        clean_moments: Sequence[Sequence[float]] | None = None,
        like: Array | None = None,
    ) -> None:
        refuse_below_one("update_every", update_every)
        refuse_below_one("warmup_frames", warmup_frames)
        self._method: Method[Any] = (
            head_or_num_classes  # type: ignore[assignment]
            if hasattr(head_or_num_classes, "init_state")
            else make_method(
                head_or_num_classes,
                config,
                skewness=skewness,
                clean_moments=clean_moments,
                like=like,
            )
        )
        self._update_every = update_every
        self._warmup_frames = warmup_frames
        self._frozen = False
        self._state: Any = self._method.init_state()
        self._frames = 0
        # Batches that were predicted and not yet collected, and the evidence of those before them.
        self._aside: list[Prediction] = []
        self._waiting: Any | None = None
        self._waiting_frames = 0

    @property
    def method(self) -> Method[Any]:
        """The method in use."""
        return self._method

    @property
    def config(self) -> Config:
        """The settings in use."""
        return self._method.config

    @property
    def update_every(self) -> int:
        """Frames between two updates of the state; may be changed at any time.

        A new value counts from the next batch on; pending frames count towards it.

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
        """Frames that were predicted and not yet learned from."""
        return self._waiting_frames

    @property
    def state(self) -> Any:
        """A copy of the state as of the last update; later steps do not change it."""
        return copy_record(self._state)

    def summary(self) -> dict[str, Array]:
        """The state in a few numbers; see `Method.summary`.

        Returns
        -------
        dict of str to array, () floating
        """
        return self._method.summary(self._state)

    def predict(self, features: Array | None, logits: Array, /) -> Prediction:
        """Predict a batch; the state does not change.

        Parameters
        ----------
        features : array, (B, D) floating, or None
            Pre-logits features; read by the paper's method only.
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
        prediction = self._method.predict(features, logits, self._state)
        if is_numpy_namespace(namespace(prediction.probs)) and not bool(prediction.finite):
            raise NumericsError(_not_finite(features=features, logits=logits))
        return prediction

    def update(self, features: Array | None, prediction: Prediction, /) -> None:
        """Learn from a predicted batch, now or once `update_every` frames are pending.

        Parameters
        ----------
        features : array, (B, D) floating, or None
            The features `prediction` was made from.
        prediction : Prediction
            Result of `predict` on them. One that is not finite is ignored.

        Raises
        ------
        ArrayError
            With the paper's method: if a shape, dtype, device or namespace does not fit the state,
            or `features` is None.
        """
        if self._frozen:
            return
        # A frame alone costs as many calls as a batch, so where that counts it waits for others.
        if self._method.feature_dim is None and _is_finite_on_host(prediction):
            self._aside.append(prediction)
        else:
            self._collect()
            self._waiting = self._method.collect(features, prediction, self._state, self._waiting)
        self._waiting_frames += prediction.probs.shape[0]
        if len(self._aside) >= MAX_ASIDE:
            self._collect()
        awaited = self._update_every
        if not self._frames:
            awaited = max(awaited, self._warmup_frames)
        if self._waiting_frames >= awaited:
            self.flush()

    def step(self, features: Array | None, logits: Array, /) -> Prediction:
        """`predict`, then `update`: one batch of Algorithm 1.

        Parameters
        ----------
        features : array, (B, D) floating, or None
        logits : array, (B, K) floating

        Returns
        -------
        Prediction
            Made before the update.

        Raises
        ------
        ArrayError, NumericsError
            As `predict`; the state does not change then.
        """
        prediction = self.predict(features, logits)
        self.update(features, prediction)
        return prediction

    def flush(self) -> None:
        """Learn from the pending frames now, also if frozen: they came before the freeze."""
        self._collect()
        if self._waiting is None:
            return
        self._state = self._method.update(self._waiting, self._state)
        self._frames += self._waiting_frames
        self._waiting, self._waiting_frames = None, 0

    def reset(self) -> None:
        """Return to the source state and drop pending frames."""
        self.load_state(self._method.init_state())

    def freeze(self) -> None:
        """Stop learning and keep predicting with the current state; pending frames are kept."""
        self._frozen = True

    def unfreeze(self) -> None:
        """Learn again."""
        self._frozen = False

    def load_state(self, state: Any, /, *, frames: int = 0) -> None:
        """Continue from a state of the same method and network; pending frames are dropped.

        Parameters
        ----------
        state : dataclass of arrays
            A `ShiftState` or `PaperState`; copied.
        frames : int
            Frames that `state` has learned from.

        Raises
        ------
        ArrayError
            If it belongs to another method or network.
        """
        refuse_foreign(self._method.init_state(), state)
        self._state = copy_record(state)
        self._frames = frames
        self._aside.clear()
        self._waiting, self._waiting_frames = None, 0

    def _collect(self) -> None:
        """Add what was put aside to the evidence, as one batch."""
        aside, self._aside = self._aside, []
        if aside:
            joined = _joined(aside) if len(aside) > 1 else aside[0]
            self._waiting = self._method.collect(None, joined, self._state, self._waiting)


def _is_finite_on_host(prediction: Prediction) -> bool:
    """Whether that can be told at once, and is so."""
    return is_numpy_namespace(namespace(prediction.probs)) and bool(prediction.finite)


def _joined(predictions: list[Prediction]) -> Prediction:
    """Batches of NumPy's, all of them finite, as one."""
    first, xp = predictions[0], namespace(predictions[0].probs)
    names = ("probs", "log_probs", "strength", "gain", "source_log_probs")
    arrays = {name: xp.concat([getattr(item, name) for item in predictions]) for name in names}
    return Prediction(**arrays, finite=first.finite)


def _not_finite(**arrays: Array | None) -> str:
    """One line naming the input that is not finite and how many rows of it."""
    for name, array in arrays.items():
        if array is None:
            continue
        xp = array_namespace(array)
        bad = int(xp.sum(xp.astype(xp.any(~xp.isfinite(array), axis=1), xp.int64)))
        if bad:
            return (
                f"{name}: expected finite values, got NaN or infinity in {bad} of "
                f"{array.shape[0]} rows; the batch was rejected and the state is untouched"
            )
    return (
        "logits, features: expected values whose squares are finite in the state's dtype, got an "
        "overflow in the prediction; the batch was rejected and the state is untouched"
    )
