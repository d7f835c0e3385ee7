"""The classifier head's rows inside the graph, from the weight the network itself uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from onnx import TensorProto

from gain_core import GainConfig, Prototypes
from gain_core._typing import Array
from gain_core.shift import tests_mixtures
from gain_export.adaptive.expressions import (
    PREFIX,
    Tape,
    Value,
    cast,
    sqrt,
    taken,
    total,
    where,
)
from gain_runtime.adaptive_artifact import ASYMMETRY, LOG_LENGTHS, THRESHOLDS

__all__ = ["Head", "prepare_head", "unit_rows"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """What `gain_core.prototypes.Prototypes` holds, as values of the graph.

    Attributes
    ----------
    centered : Value, (K, D)
        c_k minus the mean over classes.
    mean : Value, (1, D)
    column_squares : Value, (1, D)
        Sum over classes of c_k^2.
    row_squares : Value, (K, 1)
        Squared length of every centred row.
    thresholds : Value or None, (K,)
        None where they are zero.
    log_lengths : Value or None, (K,)
        None where the rows are all of one length, and where nothing is matched to them.
    asymmetry : pair of Value or None, (1,)
        Of the source's frames of one class, and what those of all classes have more; None where
        no memory is tested.
    measured : bool
        Whether that was measured on clean images, so that nothing is to be learned of it.
    beside : Value or None, (D, M)
        Projections of the features beside the rows; None where there is no room, and where
        nothing is kept of them.
    num_classes, feature_dim : int
    """

    centered: Value
    mean: Value
    column_squares: Value
    row_squares: Value
    thresholds: Value | None
    log_lengths: Value | None
    asymmetry: tuple[Value, Value] | None
    measured: bool
    beside: Value | None
    num_classes: int
    feature_dim: int


def prepare_head(
    tape: Tape,
    weight: str,
    /,
    *,
    num_classes: int,
    feature_dim: int,
    layout: Literal["KD", "DK"],
    data_type: int,
    config: GainConfig,
    constants: Prototypes,
) -> Head:
    """Nodes from the stored weight to the prototypes; every runtime folds them when it loads.

    Parameters
    ----------
    tape : Tape
    weight : str
        Name of the initializer, which is stored once for the network and for this.
    num_classes, feature_dim : int
        K and D.
    layout : {"KD", "DK"}
        How it is stored; trailing axes of length one are dropped.
    data_type : int
        Its `onnx.TensorProto` type.
    config : GainConfig
        `normalise` scales the rows to unit length.
    constants : Prototypes
        The same head's; what has one value a class is taken from it, and the random projections.

    Returns
    -------
    Head
    """
    rows = tape.value(weight)
    if data_type != TensorProto.FLOAT:
        rows = cast(rows, TensorProto.FLOAT)
    sizes = [num_classes, feature_dim] if layout == "KD" else [feature_dim, num_classes]
    rows = tape.apply("Reshape", rows, tape.constant(np.array(sizes), dtype=np.int64))
    if layout == "DK":
        rows = tape.apply("Transpose", rows, perm=[1, 0])
    if config.normalise:
        rows = unit_rows(rows)
    mean = total(rows, axis=0) / num_classes
    centered = rows - mean
    shifts = config.proposal == "shift"
    tests = shifts and tests_mixtures(config, num_classes=num_classes)
    return Head(
        centered=centered,
        mean=mean,
        column_squares=total(rows * rows, axis=0),
        row_squares=total(centered * centered, axis=1),
        thresholds=_constant(tape, THRESHOLDS, constants.thresholds, used=shifts),
        log_lengths=_constant(
            tape, LOG_LENGTHS, constants.log_lengths, used=shifts and config.match_scale
        ),
        asymmetry=_asymmetry(tape, constants.asymmetry) if tests else None,
        measured=constants.measured,
        beside=_constant(tape, PREFIX + "beside", constants.beside, used=shifts),
        num_classes=num_classes,
        feature_dim=feature_dim,
    )


def _constant(tape: Tape, name: str, values: Array, *, used: bool) -> Value | None:
    """One constant; None where it is zero throughout, or nothing reads it."""
    array = np.asarray(values)
    return tape.named_constant(name, array) if used and np.any(array) else None


def _asymmetry(tape: Tape, pair: Array) -> tuple[Value, Value]:
    """That of one class, and the gap to that of all."""
    values = tape.named_constant(ASYMMETRY, np.asarray(pair))
    single = taken(values, [0])
    return single, taken(values, [1]) - single


def unit_rows(rows: Value) -> Value:
    """Rows scaled to unit length; a zero row stays zero."""
    norms = sqrt(total(rows * rows, axis=1))
    return rows / where(norms > 0.0, norms, 1.0)
