"""Whether a mixture has given way to frames of one class.

A domain moves features in all directions, a class only in those that the head reads. Where the
newest frames' mean logits have moved and their features beside the head's rows have not, it is the
classes that changed. Labels then say which way: few classes have come, or many have come back.
The features beside the head's rows are kept as `BESIDE_DIMS` random projections, which leave the
ratio of a move to a scatter what it is, whatever D.
"""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace, device

from gain_core._checks import scalar
from gain_core._ramp import along
from gain_core._typing import Array

__all__ = ["BESIDE_DIMS", "LEAST_SCATTER", "MOST_POWER", "beside_head", "departed", "squared_move"]

TINY = 1e-9
# Of so many projections, a squared length has a standard error of a sixth.
BESIDE_DIMS = 64
# A space with fewer dimensions than these beside K - 1 for the head says nothing of a domain.
LEAST_ROOM = 16
# Ridge of the projection on the head's rows, in units of their mean square: rows that depend on one
# another have no inverse.
RIDGE = 1e-9
# The squared move of the newest mean logits, in units of the frames' scatter, where it begins to
# count and where it does: a domain's or a class's is 0.1 to 5, chance leaves 1/N.
MOVE_RAMP = (0.1, 0.2)
# The same, in units of the move beside the head's rows. Of domains it is 0.2 to 2, of a class in
# one domain 1 to 10.
BESIDE_RAMP = (1.6, 2.0)
# A scatter beside the head's rows that is less than this share of their squared mean is rounding's.
LEAST_SCATTER = 1e-4
# No network's features are this long; the squares of float32 end at 3e38.
MOST_POWER = 1e30
# How many times fewer than `mixed` classes the source has to show before one class may have gone.
HOLD = 3.0


def beside_head(centered: Array, /) -> Array:
    """S (D, M): random projections of the features, without what the head's rows span.

    Parameters
    ----------
    centered : array, (K, D)
        The head's rows less their mean.

    Returns
    -------
    array, (D, M)
        M = `BESIDE_DIMS`. Zeros where less than `LEAST_ROOM` dimensions are left.

    Notes
    -----
    S = (1 - C^T (C C^T)^-1 C) R / sqrt(M), R of signs that are the same everywhere.
    """
    xp = array_namespace(centered)
    num_classes, feature_dim = centered.shape
    where = device(centered)
    if feature_dim - (num_classes - 1) < LEAST_ROOM:
        return xp.zeros((feature_dim, BESIDE_DIMS), dtype=centered.dtype, device=where)
    # The generator whose stream NumPy has frozen: a saved state holds its projections.
    signs = np.random.RandomState(0).randint(0, 2, size=(feature_dim, BESIDE_DIMS)) * 2.0 - 1.0
    drawn = xp.asarray(signs / np.sqrt(BESIDE_DIMS), dtype=xp.float64, device=where)
    rows = xp.astype(centered, xp.float64)
    gram = rows @ xp.matrix_transpose(rows)
    scale = xp.mean(xp.linalg.diagonal(gram))
    scale = xp.where(scale > 0, scale, xp.ones_like(scale))
    # The rows sum to zero, so that all ones are in the null space: this much there changes nothing.
    gram = gram / scale + 1.0 / num_classes
    gram = gram + RIDGE * xp.eye(num_classes, dtype=xp.float64, device=where)
    inside = xp.matrix_transpose(rows) @ xp.linalg.solve(gram, (rows @ drawn) / scale)
    return xp.astype(drawn - inside, centered.dtype)


def squared_move(first: Array, second: Array, /, *, scatter: Array, count: Array) -> Array:
    """Squared distance () of two means in units of the scatter, less what chance leaves.

    Parameters
    ----------
    first, second : array, (N,)
        Means of a shorter and of a longer memory.
    scatter : array, ()
        Variance of the frames, summed over entries.
    count : array, ()
        Frames in the shorter memory.
    """
    xp = array_namespace(first)
    tiny = scalar(TINY, like=scatter, xp=xp)
    step = first - second
    return xp.sum(step * step) / xp.maximum(scatter, tiny) - 1.0 / xp.maximum(count, tiny)


def departed(
    before: Array,
    /,
    *,
    move: Array,
    beside: Array,
    known: Array,
    concentration: Array,
    mixed: Array,
    counted: Array,
    release: Array,
) -> Array:
    """How surely a mixture has given way to one class, (), after some frames.

    Parameters
    ----------
    before : array, ()
        The same before them.
    move, beside : array, ()
        `squared_move` of the newest mean logits, and of the features beside the head's rows.
    known : array, () bool
        Whether there are any such features.
    concentration : array, ()
        |q|^2 - 1/K of the source's newest labels q.
    mixed : array, ()
        What that is of a mixture.
    counted : array, ()
        How far a mixture is known that could give way.
    release : array, ()
        What is left of it after these frames where the labels are of many classes.
    """
    xp = array_namespace(before)
    tiny = scalar(TINY, like=before, xp=xp)
    changed = along(move, MOVE_RAMP) * along(move / xp.maximum(beside, tiny), BESIDE_RAMP)
    changed = xp.where(known, changed, xp.zeros_like(changed))
    few = xp.clip(HOLD * concentration / mixed - 1.0, 0.0, 1.0)
    kept = before * (1.0 - changed * (1.0 - few)) * xp.maximum(few, release)
    return xp.maximum(changed * few * counted, kept)
