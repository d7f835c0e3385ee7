"""What an adaptive file keeps beside the sums, by the names of its tensors."""

from __future__ import annotations

from typing import Any

from gain_core import GainState, ShiftState

__all__ = ["derived"]


def derived(state: GainState) -> dict[str, Any]:
    """What predictions read of a state."""
    if isinstance(state, ShiftState):
        return {"shift": state.shift.vector, "shift_variance": state.shift.variance}
    return {name: getattr(state.geometry, name) for name in ("centers", "variance", "center_norms")}
