"""The classifier head's rows as anchors, with the constants every step needs of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device, is_numpy_namespace

from gain_core._checks import (
    describe,
    detached,
    is_real_floating,
    matrix_like,
    namespace_of,
    statistics_dtype,
)
from gain_core._typing import Array, Namespace
from gain_core.config import GainConfig
from gain_core.departure import beside_head
from gain_core.errors import ArrayError, ConfigError, NumericsError

__all__ = ["DEFAULT_ASYMMETRY", "Prototypes", "prepare_prototypes", "unit_rows"]

# Asymmetry of frames of one class, and of all classes, where the source's own was not measured:
# a guess, until the stream has shown what its mixtures have, see `known_asymmetry`. The first is
# less where labels are of many classes. In between nothing is certain, and the shift waits: with
# these, no network lost half a point on one class.
DEFAULT_ASYMMETRY = (0.06, 0.5)
# The two must differ by this much: a network whose mixtures look like single classes tells nothing.
LEAST_ASYMMETRY_GAP = 0.02


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
    row_squares : array, (K,)
        Squared length of every centred row.
    thresholds : array, (K,)
        What the head's bias owes to the length of its rows, see `_thresholds`; zeros where the
        bias is not known.
    log_lengths : array, (K,)
        Logarithm of every centred row's length, less its mean: how the logits' deviations differ
        by class where features scatter alike in all directions.
    asymmetry : array, (2,)
        Of the source's frames of one class, and of all classes; see `ShiftSums`.
    measured : bool
        Whether that was measured on clean images, so that nothing is to be learned of it.
    beside : array, (D, M)
        Projections of the features beside the head's rows, see `beside_head`.
    """

    centered: Array
    mean: Array
    column_squares: Array
    row_squares: Array
    thresholds: Array
    log_lengths: Array
    asymmetry: Array
    measured: bool
    beside: Array

    @property
    def shape(self) -> tuple[int, int]:
        """(K, D)."""
        return self.centered.shape[0], self.centered.shape[1]


def unit_rows(array: Array, *, xp: Namespace) -> Array:
    """Rows scaled to unit length; a zero row stays zero."""
    norms = xp.sqrt(xp.sum(array * array, axis=-1, keepdims=True))
    return array / xp.where(norms > 0, norms, xp.ones_like(norms))


def prepare_prototypes(
    prototypes: Array | Prototypes,
    config: GainConfig,
    /,
    *,
    bias: Array | None = None,
    asymmetry: tuple[float, float] | None = None,
) -> Prototypes:
    """Check the head's weight and compute its constants.

    Parameters
    ----------
    prototypes : array, (K, D) floating
        Rows of the classifier head, K >= 2, D >= 1. A `Prototypes` record passes through.
    config : GainConfig
        `normalise` scales the rows to unit length.
    bias : array, (K,), optional
        The head's bias. Read by the shift only. Neither this nor the next is for a `Prototypes`
        record, which has its own.
    asymmetry : pair of float, optional
        Of the source's clean frames of one class, and of all classes; `DEFAULT_ASYMMETRY` where
        they were not measured.

    Returns
    -------
    Prototypes
        float32, or float64 where the input is float64.

    Raises
    ------
    ArrayError
        If it is no floating matrix of at least two rows and one column, or `bias` does not fit
        it.
    ConfigError
        If `asymmetry` is no pair of finite numbers, the second the larger.
    NumericsError
        On NumPy, if it holds NaN or infinity, or its squares overflow in float32.
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
    known_bias = _centered_bias(bias, rows=rows)
    pair = _asymmetry(asymmetry, like=rows)
    with np.errstate(over="ignore", invalid="ignore"):
        prepared = _constants(rows, bias=known_bias, asymmetry=pair, measured=asymmetry is not None)
    squares = (prepared.row_squares, prepared.column_squares, prepared.thresholds)
    if is_numpy_namespace(xp) and not all(bool(xp.all(xp.isfinite(array))) for array in squares):
        raise NumericsError(
            f"prototypes: expected rows whose squares are finite in {rows.dtype}, got values up to "
            f"{float(xp.max(xp.abs(rows))):.3g}; check the head's weight or export again"
        )
    return prepared


def _constants(rows: Array, *, bias: Array, asymmetry: Array, measured: bool) -> Prototypes:
    """Everything that follows from the rows."""
    xp = array_namespace(rows)
    mean = xp.mean(rows, axis=0)
    centered = rows - mean
    row_squares = xp.sum(centered * centered, axis=1)
    return Prototypes(
        centered=centered,
        mean=mean,
        column_squares=xp.sum(rows * rows, axis=0),
        row_squares=row_squares,
        thresholds=_thresholds(bias, row_squares),
        log_lengths=_log_lengths(row_squares),
        asymmetry=asymmetry,
        measured=measured,
        beside=beside_head(centered),
    )


def _log_lengths(row_squares: Array) -> Array:
    """Centred logarithms of the rows' lengths; a row of zeros counts as a very short one."""
    xp = array_namespace(row_squares)
    floor = 1e-6 * xp.mean(row_squares)
    floor = xp.where(floor > 0, floor, xp.ones_like(floor))
    lengths = 0.5 * xp.log(xp.maximum(row_squares, floor))
    return lengths - xp.mean(lengths)


def _asymmetry(pair: tuple[float, float] | None, *, like: Array) -> Array:
    """The two as an array, the second at least `LEAST_ASYMMETRY_GAP` above the first."""
    try:
        single, mixed = map(float, DEFAULT_ASYMMETRY if pair is None else pair)
        valid = math.isfinite(single) and math.isfinite(mixed) and single < mixed
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise ConfigError(
            "asymmetry: expected two finite numbers, of one class and of all, the second the "
            f"larger, got {pair!r}; measure it with gain-export --calibrate"
        )
    xp = array_namespace(like)
    values = [single, max(mixed, single + LEAST_ASYMMETRY_GAP)]
    return xp.asarray(values, dtype=like.dtype, device=device(like))


def _thresholds(bias: Array, row_squares: Array) -> Array:
    """The part of a centred bias along -|c_k|^2 / 2, if it points that way.

    Where class k is a Gaussian about u + a c_k, Bayes' own head has the bias -a |c_k|^2 / 2, and
    that is also its mean logit on the source's domain: no shift. Heads that were trained as
    classifiers have next to none of it.
    """
    xp = array_namespace(bias)
    direction = -0.5 * (row_squares - xp.mean(row_squares))
    power = xp.sum(direction * direction)
    along = xp.sum(bias * direction) / xp.where(power > 0, power, xp.ones_like(power))
    return xp.maximum(along, xp.zeros_like(along)) * direction


def _centered_bias(bias: Array | None, *, rows: Array) -> Array:
    """The bias (K,) beside the head's rows, less its mean; zeros where there is none."""
    xp = array_namespace(rows)
    if bias is None:
        return xp.zeros((rows.shape[0],), dtype=rows.dtype, device=device(rows))
    row = detached(xp.reshape(bias, (1, -1)), xp=xp)
    row = matrix_like("bias", row, num_rows=1, num_columns=rows.shape[0], like=rows)
    return row[0, :] - xp.mean(row)


def prototypes_namespace(prototypes: Prototypes, /) -> Namespace:
    """The array library behind prepared prototypes."""
    return array_namespace(prototypes.centered)
