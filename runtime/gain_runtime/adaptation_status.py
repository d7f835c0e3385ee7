"""A few numbers and words on what an adaptation is doing, for people and dashboards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from array_api_compat import array_namespace, to_device

from gain_core import GainState, ShiftState
from gain_core._typing import Array

__all__ = ["AdaptationStatus", "status_of_gaussians", "status_of_state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptationStatus:
    """What the state says at this moment.

    Attributes
    ----------
    frames : int
        Learned from.
    guard : {"watching", "holding", "off"}
        `holding` while the source answers after a trip; `off` where the preset has no guard.
    guard_trips : int
        Since the state began.
    guard_hold_frames : int
        Frames for which the source still answers.
    shift_nats : float
        Root mean square of the shift over the classes: how far the domain has moved the logits.
    trust : float
        Share of the observed shift that is believed, in [0, 1].
    """

    frames: int
    guard: Literal["watching", "holding", "off"]
    guard_trips: int
    guard_hold_frames: int
    shift_nats: float
    trust: float


def status_of_gaussians(*, frames: int) -> AdaptationStatus:
    """What there is to say of class-conditional Gaussians, which have neither shift nor guard."""
    return AdaptationStatus(
        frames=frames,
        guard="off",
        guard_trips=0,
        guard_hold_frames=0,
        shift_nats=0.0,
        trust=0.0,
    )


def status_of_state(state: GainState, /, *, frames: int, guarded: bool) -> AdaptationStatus:
    """Read a state on the host.

    Parameters
    ----------
    state : GainState
        On any device; five numbers are copied.
    frames : int
        Frames it was learned from.
    guarded : bool
        Whether its config has a guard.

    Returns
    -------
    AdaptationStatus
    """
    if not isinstance(state, ShiftState):
        return status_of_gaussians(frames=frames)
    xp = array_namespace(state.shift.vector)
    size = xp.sqrt(xp.mean(state.shift.vector * state.shift.vector))
    hold = _number(state.guard.hold)
    watching: Literal["watching", "holding"] = "holding" if hold > 0.0 else "watching"
    return AdaptationStatus(
        frames=frames,
        guard=watching if guarded else "off",
        guard_trips=int(_number(state.guard.trips)),
        guard_hold_frames=int(hold),
        shift_nats=_number(size),
        trust=_number(state.shift.trust),
    )


def _number(array: Array) -> float:
    """A zero-dimensional array as a float."""
    return float(np.asarray(to_device(array, "cpu")))
