"""A state's sums taken of z itself, whatever origin the state keeps them about."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["plain_sums"]


def plain_sums(state: Any) -> dict[str, npt.NDArray[np.floating[Any]]]:
    """Every sum of a NumPy `GainState` by its name, moved to the origin of the features."""
    sums, origin = state.statistics, state.statistics.origin
    U, z_sum = np.sum(sums.first_moment, axis=0), sums.feature_sum
    return {
        "support": sums.support,
        "predicted_mass": sums.predicted_mass,
        "squared_support": sums.squared_support,
        "sample_count": sums.sample_count,
        "first_moment": sums.first_moment + sums.support[:, None] * origin,
        "feature_sum": z_sum + sums.sample_count * origin,
        "second_moment": sums.second_moment + 2.0 * origin * U + np.sum(sums.support) * origin**2,
        "feature_square_sum": sums.feature_square_sum
        + 2.0 * origin * z_sum
        + sums.sample_count * origin**2,
    }
