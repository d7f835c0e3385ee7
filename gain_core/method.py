"""What every method of adaptation offers: pure functions of arrays and a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from array_api_compat import is_numpy_namespace

from gain_core._rows import all_of, namespace
from gain_core._typing import Array, Namespace
from gain_core.intervention import evidence_path, expected_gain, solve_strength

__all__ = ["Method", "Posteriors", "Prediction", "all_finite", "answer", "quiet"]

# An overflow or NaN is reported by `finite`; NumPy's warnings would say it twice, or raise instead.
quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The adapted prediction of a batch, on the device of the input.

    Attributes
    ----------
    probs, log_probs : array, (B, K)
        p* and log p*, eq:risk_calibrated_intervention.
    strength : array, (B,)
        lambda* in [0, 1].
    gain : array, (B,)
        G in nats, the expected gain of the full correction.
    source_log_probs : array, (B, K)
        log s.
    finite : array, () bool
        False where an input or the result holds NaN or infinity: reject the batch. A method
        ignores such a prediction by itself.
    """

    probs: Array
    log_probs: Array
    strength: Array
    gain: Array
    source_log_probs: Array
    finite: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Posteriors:
    """The distributions of a batch that the gain is made of.

    Attributes
    ----------
    source : array, (B, K)
        log s.
    start : array, (B, K)
        log s as it enters log-ratios: floored, where a method floors it.
    log_proposal, log_evaluator : array, (B, K)
        log q_hat and log q_bar; meaningless where `adapts` is false.
    adapts : array, () bool
        Whether there is a correction at all.
    finite : array, () bool
        Of the inputs.
    """

    source: Array
    start: Array
    log_proposal: Array
    log_evaluator: Array
    adapts: Array
    finite: Array


S = TypeVar("S")


class Method(Protocol[S]):
    """One way to adapt one classifier.

    A state and the evidence of a batch are frozen dataclasses whose every field is an array, so
    that they are saved, copied, merged and traced without knowing the method. No function changes
    what it is given.
    """

    @property
    def config(self) -> Any: ...

    @property
    def num_classes(self) -> int: ...

    @property
    def feature_dim(self) -> int | None:
        """D, or None where features are not read."""
        ...

    @property
    def measured(self) -> dict[str, Any]:
        """What `make_method` was told of the source beside head and config, by keyword."""
        ...

    def init_state(self) -> S:
        """The state before the first frame: the source itself."""
        ...

    def posteriors(self, features: Array | None, logits: Array, state: S, /) -> Posteriors:
        """What is proposed of a batch, (B, D) and (B, K), and who judges it.

        Raises
        ------
        ArrayError
            If a shape, dtype, device or namespace does not fit.
        """
        ...

    def predict(self, features: Array | None, logits: Array, state: S, /) -> Prediction:
        """`answer` to the posteriors; rows do not see each other, and without a correction p* = s.

        Raises
        ------
        ArrayError
            As `posteriors`.
        """
        ...

    def collect(
        self,
        features: Array | None,
        prediction: Prediction,
        state: S,
        waiting: Any | None = None,
        /,
    ) -> Any:
        """What a predicted batch teaches, on top of what waits already.

        A prediction that is not finite adds nothing.
        """
        ...

    def no_evidence(self, capacity: int, /) -> Any:
        """Evidence of no frame, with room for `capacity` frames where it keeps rows."""
        ...

    def hold(self, evidence: Any, capacity: int, /) -> Any:
        """Evidence of at most `capacity` frames in the shapes of `no_evidence(capacity)`."""
        ...

    def count(self, evidence: Any, /) -> Array:
        """Frames in it, ()."""
        ...

    def update(self, evidence: Any, state: S, /) -> S:
        """Learn from evidence; of no frame, the values stay as they are."""
        ...

    def revises(self, after: S, /) -> Array:
        """Whether `revise` may change a prediction, () bool."""
        ...

    def revise(self, prediction: Prediction, before: S, after: S, /) -> Prediction:
        """The prediction of a batch that has been learned from at once."""
        ...

    def merge(self, first: S, second: S, /) -> S:
        """What two devices learned from different frames, as one state.

        Raises
        ------
        ArrayError
            If a state is of another method or network.
        """
        ...

    def summary(self, state: S, /) -> dict[str, Array]:
        """A few numbers (), by name, that tell people what the state says."""
        ...


def answer(posteriors: Posteriors, /) -> Prediction:
    """As much of the correction as the evaluator expects to help."""
    start, source = posteriors.start, posteriors.source
    xp = namespace(start)
    adapts = posteriors.adapts
    if is_numpy_namespace(xp) and not adapts:
        return _source_answer(posteriors, xp=xp)
    evidence, log_evaluator = posteriors.log_proposal - start, posteriors.log_evaluator
    if not is_numpy_namespace(xp):
        # A state of zeros has no evaluator.
        nothing = xp.zeros_like(start)
        evidence = xp.where(adapts, evidence, nothing)
        log_evaluator = xp.where(adapts, log_evaluator, nothing)
    gain = expected_gain(log_evaluator, evidence)
    strength = solve_strength(start, evidence, gain=gain)
    adapted = evidence_path(start, evidence, strength)
    log_probs = xp.where(strength[:, None] > 0, adapted, source)
    return Prediction(
        probs=xp.exp(log_probs),
        log_probs=log_probs,
        strength=strength,
        gain=gain,
        source_log_probs=source,
        finite=posteriors.finite & all_finite(log_probs, gain),
    )


def _source_answer(posteriors: Posteriors, *, xp: Namespace) -> Prediction:
    """What `answer` comes to without a correction."""
    source = posteriors.source
    nothing = xp.zeros(source.shape[:1], dtype=source.dtype)
    return Prediction(
        probs=xp.exp(source),
        log_probs=source,
        strength=nothing,
        gain=nothing,
        source_log_probs=source,
        finite=posteriors.finite & all_finite(source),
    )


def all_finite(*arrays: Array) -> Array:
    """One flag, on the device, for all of them."""
    xp = namespace(arrays[0])
    flag = all_of(xp.isfinite(arrays[0]), xp=xp)
    for array in arrays[1:]:
        flag = flag & all_of(xp.isfinite(array), xp=xp)
    return flag
