"""The classifier head's rows as anchors, with the constants every step needs of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, is_numpy_namespace

from gain_core._checks import (
    describe,
    detached,
    is_real_floating,
    namespace_of,
    statistics_dtype,
)
from gain_core._typing import Array, Namespace
from gain_core.config import GainConfig
from gain_core.errors import ArrayError, NumericsError

__all__ = ["Prototypes", "prepare_prototypes", "unit_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prototypes:
    """Class prototypes c_k, split into their mean and what is left.

    Attributes
    ----------
    centered : array, (K, D)
        c_k minus the mean over classes. A softmax does not see the common part, but float32 does:
        differences between classes are computed from this.
    mean : array, (D,)
        Mean of the c_k.
    column_squares : array, (D,)
        Sum over classes of c_k^2.
    """

    centered: Array
    mean: Array
    column_squares: Array

    @property
    def shape(self) -> tuple[int, int]:
        """(K, D)."""
        return self.centered.shape[0], self.centered.shape[1]


def unit_rows(array: Array, *, xp: Namespace) -> Array:
    """Rows scaled to unit length; a zero row stays zero."""
    norms = xp.sqrt(xp.sum(array * array, axis=-1, keepdims=True))
    return array / xp.where(norms > 0, norms, xp.ones_like(norms))


def prepare_prototypes(prototypes: Array | Prototypes, config: GainConfig, /) -> Prototypes:
    """Check the head's weight and compute its constants.

    Parameters
    ----------
    prototypes : array, (K, D) floating
        Rows of the classifier head, K >= 2, D >= 1. A `Prototypes` record passes through.
    config : GainConfig
        `normalise` scales the rows to unit length.

    Returns
    -------
    Prototypes
        float32, or float64 where the input is float64.

    Raises
    ------
    ArrayError
        If it is no floating matrix of at least two rows and one column.
    NumericsError
        On NumPy, if it holds NaN or infinity, or overflows in float32.
    """
    if isinstance(prototypes, Prototypes):
        return prototypes
    xp = namespace_of("prototypes", prototypes)
    fits = prototypes.ndim == 2 and prototypes.shape[0] >= 2 and prototypes.shape[1] >= 1
    if not fits or not is_real_floating(prototypes, xp=xp):
        raise ArrayError(
            "prototypes: expected (K, D) floating with K >= 2 and D >= 1, "
            f"got {describe(prototypes)}; pass the head's weight"
        )
    with np.errstate(over="ignore"):
        rows = xp.astype(detached(prototypes, xp=xp), statistics_dtype(prototypes, xp=xp))
    if is_numpy_namespace(xp) and not np.isfinite(rows).all():
        bad = int((~np.isfinite(rows)).any(axis=1).sum())
        raise NumericsError(
            f"prototypes: expected finite {rows.dtype} values, got NaN or infinity in {bad} of "
            f"{rows.shape[0]} rows; check the head's weight or export again"
        )
    if config.normalise:
        rows = unit_rows(rows, xp=xp)
    mean = xp.mean(rows, axis=0)
    return Prototypes(centered=rows - mean, mean=mean, column_squares=xp.sum(rows * rows, axis=0))


def prototypes_namespace(prototypes: Prototypes, /) -> Namespace:
    """The array library behind prepared prototypes."""
    return array_namespace(prototypes.centered)
