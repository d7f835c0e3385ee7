"""Algorithm 1 as functions of a state: predict a batch, learn from it, merge two states."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_numpy_namespace

from gain_core._arrays import (
    Array,
    Namespace,
    describe,
    detached,
    floored,
    is_real_floating,
    log_softmax,
    matrix_like,
    namespace_of,
    scalar,
    statistics_dtype,
)
from gain_core.errors import ArrayError, NumericsError
from gain_core.method import Posteriors, Prediction, all_finite, answer, quiet
from gain_core.paper.config import PaperConfig
from gain_core.paper.statistics import (
    Geometry,
    Rows,
    Statistics,
    add_rows,
    combine,
    concatenate,
    derive_geometry,
    log_posteriors,
)
from gain_core.records import arrays_of, refuse_foreign


@dataclass(frozen=True, kw_only=True)
class PaperState(Statistics, Geometry):
    """The sums over all frames (`Statistics`), and the geometry derived from them (`Geometry`).

    All zero before the first frame.
    """


_AXES = {
    "support": "K",
    "predicted_mass": "K",
    "squared_support": "K",
    "first_moment": "KD",
    "second_moment": "D",
    "sample_count": "",
    "feature_sum": "D",
    "origin": "D",
    "centers": "KD",
    "offset": "D",
    "variance": "D",
    "center_norms": "K",
    "precision": "K",
    "log_prior": "K",
}


class Paper:
    """Class-conditional Gaussians about the head's rows (Algorithm 1).

    Parameters
    ----------
    head : array, (K, D) floating
        Rows of the frozen classifier head, c_k, K >= 2, D >= 1. The state gets their library,
        device and precision (float64 stays, anything narrower becomes float32).
    config : PaperConfig, optional

    Raises
    ------
    ArrayError
        If the head is no floating matrix of at least two rows and one column.
    NumericsError
        On NumPy, if it holds NaN or infinity, or its squares overflow.
    """

    def __init__(self, head: Array, config: PaperConfig | None = None, /) -> None:
        self.config = config or PaperConfig()
        rows = _checked_head(head)
        xp = array_namespace(rows)
        if self.config.normalise:
            rows = _unit_rows(rows, xp=xp)
        self._mean = xp.mean(rows, axis=0)
        # A softmax does not see the rows' common part, but float32 does.
        self._centered = rows - self._mean

    @property
    def num_classes(self) -> int:
        """K."""
        return self._centered.shape[0]

    @property
    def feature_dim(self) -> int:
        """D."""
        return self._centered.shape[1]

    @property
    def measured(self) -> dict[str, Any]:
        """Empty: the head is all there is."""
        return {}

    def init_state(self) -> PaperState:
        """All zero; predictions are then the source's."""
        like = self._centered
        xp = array_namespace(like)
        sizes = {"K": self.num_classes, "D": self.feature_dim}

        def zeros(axes: str) -> Array:
            shape = tuple(sizes[axis] for axis in axes)
            return xp.zeros(shape, dtype=like.dtype, device=device(like))

        return PaperState(**{name: zeros(axes) for name, axes in _AXES.items()})

    @quiet
    def posteriors(self, features: Array | None, logits: Array, state: PaperState, /) -> Posteriors:
        """Posterior mean and posterior predictive of the target Gaussians.

        eq:target_posterior and eq:posterior_predictive_target.

        Parameters
        ----------
        features : array, (B, D) floating
            Pre-logits features, z.
        logits : array, (B, K) floating
        state : PaperState

        Returns
        -------
        Posteriors

        Raises
        ------
        ArrayError
            If a shape, dtype, device or namespace does not fit the state, or `features` is None.
        """
        like = state.centers
        xp = array_namespace(like)
        rows = self._rows(features, state)
        count, columns = rows.shape[0], self.num_classes
        logits = matrix_like("logits", logits, num_rows=count, num_columns=columns, like=like)
        source = log_softmax(detached(logits, xp=xp), xp=xp)
        floor = scalar(math.log(self.config.prob_floor), like=source, xp=xp)
        log_proposal, log_evaluator = log_posteriors(rows, state)
        return Posteriors(
            source=source,
            start=floored(source, floor=floor, xp=xp),
            log_proposal=floored(log_proposal, floor=floor, xp=xp),
            log_evaluator=log_evaluator,
            adapts=state.sample_count > 0,
            # The sums hold squares, which overflow before the features do.
            finite=all_finite(xp.sum(rows * rows, axis=1), logits),
        )

    @quiet
    def predict(self, features: Array | None, logits: Array, state: PaperState, /) -> Prediction:
        """See `Method`."""
        return answer(self.posteriors(features, logits, state))

    @quiet
    def collect(
        self,
        features: Array | None,
        prediction: Prediction,
        state: PaperState,
        waiting: Rows | None = None,
        /,
    ) -> Rows:
        """Rows of the batch: z, p* and zeta, the source's probability of the adapted class.

        Parameters and result as `Method.collect`.

        Raises
        ------
        ArrayError
            If a shape, dtype, device or namespace does not fit the state, or `features` is None.
        """
        rows = self._rows(features, state)
        like = state.centers
        xp = array_namespace(like)
        columns, count = self.num_classes, rows.shape[0]
        probs = matrix_like(
            "prediction.probs", prediction.probs, num_rows=count, num_columns=columns, like=like
        )
        chosen = xp.argmax(probs, axis=1)
        source = xp.take_along_axis(prediction.source_log_probs, chosen[:, None], axis=1)
        keep, reliability = prediction.finite, xp.exp(source[:, 0])
        reliability = xp.where(keep, reliability, xp.zeros_like(reliability))
        batch = Rows(
            features=xp.where(keep, rows, xp.zeros_like(rows)),
            probs=xp.where(keep, probs, xp.zeros_like(probs)),
            reliability=reliability,
            accepted=xp.where(keep, xp.ones_like(reliability), xp.zeros_like(reliability)),
        )
        return batch if waiting is None else concatenate(waiting, batch)

    def no_evidence(self, capacity: int, /) -> Rows:
        """`capacity` empty rows."""
        like = self._centered
        xp = array_namespace(like)

        def zeros(*shape: int) -> Array:
            return xp.zeros((capacity, *shape), dtype=like.dtype, device=device(like))

        return Rows(
            features=zeros(self.feature_dim),
            probs=zeros(self.num_classes),
            reliability=zeros(),
            accepted=zeros(),
        )

    def hold(self, evidence: Rows, capacity: int, /) -> Rows:
        """The newest `capacity` rows."""
        return Rows(**{name: rows[-capacity:, ...] for name, rows in arrays_of(evidence).items()})

    def count(self, evidence: Rows, /) -> Array:
        """See `Method.count`."""
        return array_namespace(evidence.accepted).sum(evidence.accepted)

    @quiet
    def update(self, evidence: Rows, state: PaperState, /) -> PaperState:
        """Add the rows to the sums and derive the geometry (app:continual_statistics)."""
        return self._state(add_rows(evidence, state))

    def merge(self, first: PaperState, second: PaperState, /) -> PaperState:
        """Add the sums of both; see `Method.merge`.

        Raises
        ------
        ArrayError
            If a state is of another method or head.
        """
        fresh = self.init_state()
        refuse_foreign(fresh, first, name="first state")
        refuse_foreign(fresh, second, name="second state")
        return self._state(combine(first, second))

    def summary(self, state: PaperState, /) -> dict[str, Array]:
        """Empty."""
        return {}

    def _state(self, sums: Statistics) -> PaperState:
        """The sums with what follows from them."""
        geometry = derive_geometry(
            sums, centered=self._centered, mean=self._mean, config=self.config
        )
        names = Statistics.__dataclass_fields__
        own = {name: getattr(sums, name) for name in names}
        return PaperState(**own, **arrays_of(geometry))

    def _rows(self, features: Array | None, state: PaperState) -> Array:
        """Features checked, cast to the state's dtype and normalised if the config says so."""
        like = state.centers
        xp = array_namespace(like)
        if features is None:
            raise ArrayError(
                f"features: expected (B, {self.feature_dim}), got none; the paper's method reads "
                "them, so use an artifact that has features, or the preset shift"
            )
        rows = matrix_like("features", features, num_columns=self.feature_dim, like=like)
        rows = detached(rows, xp=xp)
        return _unit_rows(rows, xp=xp) if self.config.normalise else rows


def _checked_head(head: Array) -> Array:
    """The rows in the precision of the statistics."""
    xp = namespace_of("head", head)
    fits = head.ndim == 2 and head.shape[0] >= 2 and head.shape[1] >= 1
    if not fits or not is_real_floating(head, xp=xp):
        raise ArrayError(
            "head: expected (K, D) floating with K >= 2 and D >= 1, "
            f"got {describe(head)}; pass the head's weight"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        rows = xp.astype(detached(head, xp=xp), statistics_dtype(head, xp=xp))
        squares = xp.sum(rows * rows, axis=1)
    if is_numpy_namespace(xp) and not np.isfinite(squares).all():
        bad = int((~np.isfinite(squares)).sum())
        raise NumericsError(
            f"head: expected finite {rows.dtype} rows with finite squares, got NaN, infinity or an "
            f"overflow in {bad} of {rows.shape[0]} rows; check the head's weight or export again"
        )
    return rows


def _unit_rows(array: Array, *, xp: Namespace) -> Array:
    """Rows scaled to unit length; a zero row stays zero."""
    norms = xp.sqrt(xp.sum(array * array, axis=-1, keepdims=True))
    return array / xp.where(norms > 0, norms, xp.ones_like(norms))
