"""The bisection on NumPy: the same halvings, on rows with an inner root only, without temporaries.

On the host a boolean index costs nothing, so rows decided by the endpoint tests are left out;
the array-API path in `intervention` bisects every row and gives the same values.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

# NumPy arrays; callers know them as `Array` only.
Floats: TypeAlias = Any


def interior_root(
    source_log_probs: Floats,
    evidence: Floats,
    *,
    gain: Floats,
    strength: Floats,
    inner: Floats,
    num_iters: int,
) -> Floats:
    """Fill `strength` in at the rows where J' changes sign inside (0, 1)."""
    if not inner.any():
        return strength
    if not inner.all():
        source_log_probs, evidence, gain = source_log_probs[inner], evidence[inner], gain[inner]
    low = np.zeros_like(gain)
    path = np.empty_like(evidence)
    half = 1.0
    for _ in range(num_iters):
        half *= 0.5
        middle = low + gain.dtype.type(half)
        np.multiply(evidence, middle[:, None], out=path)
        path += source_log_probs
        path -= path.max(axis=1, keepdims=True)
        np.exp(path, out=path)
        total = path.sum(axis=1)
        np.multiply(path, evidence, out=path)
        rising = gain * total > path.sum(axis=1)
        low = np.where(rising, middle, low)
    strength[inner] = low + gain.dtype.type(0.5 * half)
    return strength
