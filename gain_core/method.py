"""What every method of adaptation offers: pure functions of arrays and a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from array_api_compat import is_numpy_namespace

from gain_core._arrays import Array, Namespace, all_of, namespace
from gain_core.intervention import evidence_path, expected_gain, solve_strength

# An overflow or NaN is reported by `finite`; NumPy's warnings would say it twice, or raise instead.
quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The adapted prediction of a batch, on the state's device.

    Attributes
    ----------
    probs, log_probs : array, (B, K), dtype of the state
        p* and log p*, eq:risk_calibrated_intervention.
    strength : array, (B,), dtype of the state
        lambda* in [0, 1].
    gain : array, (B,), dtype of the state
        G in nats, the expected gain of the full correction.
    source_log_probs : array, (B, K), dtype of the state
        log s.
    finite : array, () bool
        False if an input or the result holds NaN or infinity: reject the batch. No method learns
        from such a prediction.
    """

    probs: Array
    log_probs: Array
    strength: Array
    gain: Array
    source_log_probs: Array
    finite: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Posteriors:
    """The distributions from which the gain of a batch is computed.

    Attributes
    ----------
    source : array, (B, K), dtype of the state
        log s.
    start : array, (B, K), dtype of the state
        log s as it enters log-ratios: floored, if the method floors it.
    log_proposal, log_evaluator : array, (B, K), dtype of the state
        log q_hat and log q_bar; without meaning if `adapts` is false.
    adapts : array, () bool
        Whether the state proposes a correction.
    finite : array, () bool
        Whether the inputs are finite.
    """

    source: Array
    start: Array
    log_proposal: Array
    log_evaluator: Array
    adapts: Array
    finite: Array


S = TypeVar("S")


class Method(Protocol[S]):
    """Protocol of a test-time adaptation method for one classifier.

    A state, and the evidence of a batch, are frozen dataclasses of arrays, so that code which
    saves, copies or traces them need not know the method. No function changes its arguments.
    """

    @property
    def config(self) -> Any:
        """The settings in use."""
        ...

    @property
    def num_classes(self) -> int:
        """K."""
        ...

    @property
    def feature_dim(self) -> int | None:
        """D, or None if the method does not read features."""
        ...

    @property
    def measured(self) -> dict[str, Any]:
        """Keyword arguments of `make_method` that describe the source, beside head and config."""
        ...

    def init_state(self) -> S:
        """The source state: nothing learned."""
        ...

    def posteriors(self, features: Array | None, logits: Array, state: S, /) -> Posteriors:
        """Proposal and evaluator of a batch.

        Parameters
        ----------
        features : array, (B, D) floating, or None
            Pre-logits features; may be None if `feature_dim` is.
        logits : array, (B, K) floating
            The source's logits.
        state : S

        Returns
        -------
        Posteriors

        Raises
        ------
        ArrayError
            If a shape, dtype, device or namespace does not fit.
        """
        ...

    def predict(self, features: Array | None, logits: Array, state: S, /) -> Prediction:
        """Adapted prediction of a batch, each row independent of the others.

        Parameters
        ----------
        features, logits, state
            As `posteriors`.

        Returns
        -------
        Prediction
            p* = s if the state proposes no correction.

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
        """Evidence of a predicted batch, added to the pending evidence.

        Parameters
        ----------
        features : array, (B, D) floating, or None
            The features `prediction` was made from.
        prediction : Prediction
            One that is not finite adds nothing.
        state : S
            The current state.
        waiting : evidence, optional
            The pending evidence; default: none.

        Returns
        -------
        evidence
            Dataclass of arrays.
        """
        ...

    def no_evidence(self, capacity: int, /) -> Any:
        """Evidence of no frame.

        Parameters
        ----------
        capacity : int
            Frames to have room for, if the method keeps a row for each frame.

        Returns
        -------
        evidence
        """
        ...

    def hold(self, evidence: Any, capacity: int, /) -> Any:
        """Evidence cut to the newest `capacity` frames, if the method keeps a row for each.

        Parameters
        ----------
        evidence : evidence
            Collected on top of `no_evidence(capacity)`.
        capacity : int

        Returns
        -------
        evidence
            In the shapes of `no_evidence(capacity)`.
        """
        ...

    def count(self, evidence: Any, /) -> Array:
        """Number of frames in the evidence.

        Parameters
        ----------
        evidence : evidence

        Returns
        -------
        array, (), dtype of the state
        """
        ...

    def update(self, evidence: Any, state: S, /) -> S:
        """The state after learning from the evidence.

        Parameters
        ----------
        evidence : evidence
            Evidence of no frame changes no value.
        state : S

        Returns
        -------
        S
        """
        ...

    def merge(self, first: S, second: S, /) -> S:
        """One state from two that learned from different frames.

        Parameters
        ----------
        first, second : S

        Returns
        -------
        S

        Raises
        ------
        ArrayError
            If a state is of another method or network.
        """
        ...

    def summary(self, state: S, /) -> dict[str, Array]:
        """The state in a few numbers, for people to read.

        Parameters
        ----------
        state : S

        Returns
        -------
        dict of str to array, () floating
            Empty if the method has none.
        """
        ...


def answer(posteriors: Posteriors, /) -> Prediction:
    """The prediction with the optimal strength, eq:risk_calibrated_intervention.

    Parameters
    ----------
    posteriors : Posteriors

    Returns
    -------
    Prediction
        p* = s, bit for bit, where the strength is 0.
    """
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
    """`answer` without a correction: p* = s."""
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
    """Whether all arrays are finite.

    Parameters
    ----------
    *arrays : array, any shape, floating
        At least one; all of one library and device.

    Returns
    -------
    array, () bool
        On their device; the host does not wait for it.
    """
    xp = namespace(arrays[0])
    flag = all_of(xp.isfinite(arrays[0]), xp=xp)
    for array in arrays[1:]:
        flag = flag & all_of(xp.isfinite(array), xp=xp)
    return flag
