"""What an adaptive file keeps beside the sums, by the names of its tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.testing import assert_allclose

from gain_core import Gain, GainState, ShiftState, state_to_arrays

__all__ = ["assert_goes_on", "assert_tensors_close", "derived"]

# Of tensors that are not told in units of their own.
_UNITS = {
    "window_lean": "window_range",
    "share_mass": "window_count",
    "share_count": "window_count",
}


def derived(state: GainState) -> dict[str, Any]:
    """What predictions read of a state."""
    if isinstance(state, ShiftState):
        shift = state.shift
        return {
            "shift": shift.vector,
            "shift_stretch": shift.stretch,
            "shift_log_prior": shift.log_prior,
            "shift_variance": shift.variance,
        }
    return {name: getattr(state.geometry, name) for name in ("centers", "variance", "center_norms")}


def assert_tensors_close(
    tensors: Mapping[str, Any],
    state: GainState,
    /,
    *,
    tolerance: float,
    sums_only: bool = False,
    apart: Collection[str] = (),
) -> None:
    """Every tensor of the sums and, unless `sums_only`, what predictions read, over 1 + its peak.

    Those named in `apart` are left to the caller.

    `tensors` are a file's, by the names of its inputs. The lean, a difference of two sums, counts
    in units of their sum, the range; the shares, whose weights are such leans on the way through
    a steep ramp, in units of the frames.
    """
    expected = state_to_arrays(state) | ({} if sums_only else derived(state))
    for name in expected.keys() - set(apart):
        unit = expected[_UNITS.get(name, name)]
        difference = np.abs(tensors[f"state.{name}"] - expected[name]) / (
            1.0 + np.max(np.abs(unit))
        )
        assert np.max(difference) <= tolerance, name


def assert_goes_on(session: Any, gain: Gain, batches: Sequence[tuple[Any, Any]], /) -> None:
    """Both predict the batches alike, and have learned the same when nothing waits any more."""
    for features, logits in batches:
        expected = gain.step(features, logits)
        assert_allclose(session.step(features, logits).probs, expected.probs, rtol=0, atol=2e-5)
    assert session.pending_frames == gain.pending_frames
    session.flush()
    gain.flush()
    for name, array in (state_to_arrays(gain.state) | derived(gain.state)).items():
        peak = 1.0 + np.max(np.abs(array))
        assert_allclose(session.arrays()[name] / peak, array / peak, rtol=0, atol=2e-5)
