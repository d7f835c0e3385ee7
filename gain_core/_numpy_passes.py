"""NumPy versions of the (K, D) passes: block by block, so that every temporary stays in the cache.

Whole-array expressions allocate a fresh (K, D) temporary per operator; the page faults alone cost
several times the arithmetic. `benchmarks/step_cost.py` compares both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

# NumPy arrays; callers know them as `Array` only.
Floats: TypeAlias = Any

# Two scratch blocks of this size and the rows they come from fit a second-level cache of 1 MiB.
BLOCK_BYTES = 1 << 18


def decayed_sum(old: Floats, new: Floats, *, decay: Floats) -> Floats:
    """old * decay + new in place."""
    for rows in _blocks(old):
        old[rows] *= decay
        old[rows] += new[rows]
    return old


def decayed_responsible_sum(
    old: Floats, responsibilities: Floats, rows: Floats, *, decay: Floats
) -> Floats:
    """old * decay + sum of omega z in place."""
    single = len(rows) == 1
    for block in _blocks(old):
        old[block] *= decay
        weights = responsibilities[:, block].T
        old[block] += weights * rows if single else weights @ rows
    return old


def spreads(
    first_moment: Floats,
    centered: Floats,
    *,
    inverse_support: Floats,
    mean: Floats,
    prototype: Floats,
) -> tuple[Floats, Floats]:
    """Per class (U_k / n_k - mean).(c_k - prototype) and |c_k - prototype|^2."""
    covariances, powers = np.empty_like(inverse_support), np.empty_like(inverse_support)
    for rows in _blocks(first_moment):
        spread = centered[rows] - prototype
        # Where one class has nearly all votes its spread is about zero, so this cancels nothing.
        covariance = np.einsum("kd,kd->k", first_moment[rows], spread)
        covariance *= inverse_support[rows]
        np.subtract(covariance, spread @ mean, out=covariances[rows])
        np.einsum("kd,kd->k", spread, spread, out=powers[rows])
    return covariances, powers


def squares_over_support(first_moment: Floats, inverse_support: Floats) -> Floats:
    """Sum over classes of U_k^2 / n_k."""
    total = np.zeros_like(first_moment[0])
    for rows in _blocks(first_moment):
        total += inverse_support[rows] @ (first_moment[rows] * first_moment[rows])
    return total


def class_centers(
    first_moment: Floats,
    centered: Floats,
    *,
    factor: Floats,
    row: Floats,
    mean: Floats,
    inverse_precision: Floats,
    inverse_variance: Floats,
    out: Floats | None,
) -> tuple[Floats, Floats]:
    """(factor c_k + U_k + row) / kappa_k - mean and its weighted squared length."""
    centers = np.empty_like(first_moment) if out is None else out
    norms = np.empty_like(inverse_precision)
    isotropic = bool(np.all(inverse_variance == inverse_variance[0]))
    for rows in _blocks(first_moment):
        block = centers[rows]
        np.multiply(centered[rows], factor, out=block)
        block += first_moment[rows]
        block += row
        block *= inverse_precision[rows, None]
        block -= mean
        if isotropic:
            np.einsum("kd,kd->k", block, block, out=norms[rows])
        else:
            np.matmul(block * block, inverse_variance, out=norms[rows])
    if isotropic:
        norms *= inverse_variance[0]
    return centers, norms


def _blocks(array: Floats) -> Iterator[slice]:
    """Slices of rows of at most `BLOCK_BYTES`."""
    step = max(1, BLOCK_BYTES // max(1, array.shape[1] * array.itemsize))
    for start in range(0, array.shape[0], step):
        yield slice(start, start + step)
