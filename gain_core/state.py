"""The state: everything adaptation may change, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from array_api_compat import array_namespace, is_numpy_namespace

from gain_core._checks import describe, scalar
from gain_core._typing import Array
from gain_core.config import GainConfig
from gain_core.errors import ArrayError
from gain_core.geometry import Geometry, ScaleMemory, derive, initial_geometry
from gain_core.guard import Guard, armed_guard
from gain_core.prototypes import Prototypes, prepare_prototypes
from gain_core.shift import (
    LastFrame,
    Shift,
    ShiftSums,
    empty_sums,
    estimate_shift,
    no_frame,
    no_shift,
)
from gain_core.statistics import Statistics, empty_statistics

__all__ = [
    "GainState",
    "GaussianState",
    "ShiftState",
    "array_like",
    "copy_state",
    "init_state",
    "settled",
    "state_from_arrays",
    "state_to_arrays",
]


# Prefixes of the last frame's and the guard's arrays in a saved state.
_LAST, _GUARD = "last_", "guard_"


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianState:
    """What GAIN with class-conditional Gaussians has learned about the target.

    Attributes
    ----------
    statistics : Statistics
        The sums; merging and saving concern these.
    memory : ScaleMemory
        The anchor regression's remembered numerator and denominator.
    geometry : Geometry
        Derived from the two above at every update; predictions read this only.
    """

    statistics: Statistics
    memory: ScaleMemory
    geometry: Geometry

    @property
    def centers(self) -> Array:
        """Class centres m_k, (K, D), eq:center_posterior; computed on access."""
        return self.geometry.centers + self.geometry.offset

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays of the state."""
        return _total_bytes(self.statistics, self.memory, self.geometry)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftState:
    """What GAIN with a tracked shift has learned about the target.

    Attributes
    ----------
    sums : ShiftSums
        Merging and saving concern these and the guard.
    last : LastFrame
        Saved as well; a merged state has none.
    shift : Shift
        Derived from the sums at every update; predictions read this.
    guard : Guard
        All zeros and without effect where the config has no guard.
    """

    sums: ShiftSums
    last: LastFrame
    shift: Shift
    guard: Guard

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays of the state."""
        return _total_bytes(self.sums, self.last, self.shift, self.guard)


GainState: TypeAlias = GaussianState | ShiftState


def array_like(state: GainState, /) -> Array:
    """An array of K rows in the state's dtype and on its device."""
    return state.shift.vector if isinstance(state, ShiftState) else state.geometry.centers


def init_state(prototypes: Array | Prototypes, config: GainConfig, /) -> GainState:
    """The state before the first frame: the source itself.

    Parameters
    ----------
    prototypes : array, (K, D) floating
        Rows of the classifier head (or a `Prototypes` record).
    config : GainConfig

    Returns
    -------
    GainState
        On the prototypes' device; float32, or float64 where the prototypes are.

    Raises
    ------
    ArrayError
        If the prototypes are no floating (K, D) matrix with K >= 2.
    """
    prepared = prepare_prototypes(prototypes, config)
    num_classes, feature_dim = prepared.shape
    like = prepared.centered
    xp = array_namespace(like)
    if config.proposal == "shift":
        return ShiftState(
            sums=empty_sums(num_classes, like=like),
            last=no_frame(num_classes, like=like),
            shift=no_shift(num_classes, like=like),
            guard=armed_guard(like=like),
        )
    return GaussianState(
        statistics=empty_statistics(num_classes, feature_dim, like=like),
        memory=ScaleMemory(
            numerator=scalar(0.0, like=like, xp=xp), denominator=scalar(0.0, like=like, xp=xp)
        ),
        geometry=initial_geometry(prepared, config=config),
    )


def state_to_arrays(state: GainState, /) -> dict[str, Array]:
    """The arrays from which `state_from_arrays` rebuilds the state, by name.

    What follows from the sums is left out: of Gaussians, half the file.
    """
    if isinstance(state, ShiftState):
        sums = {item.name: getattr(state.sums, item.name) for item in fields(ShiftSums)}
        last = {_LAST + item.name: getattr(state.last, item.name) for item in fields(LastFrame)}
        guard = {_GUARD + item.name: getattr(state.guard, item.name) for item in fields(Guard)}
        return sums | last | guard
    arrays = {item.name: getattr(state.statistics, item.name) for item in fields(Statistics)}
    return arrays | {
        "scale_numerator": state.memory.numerator,
        "scale_denominator": state.memory.denominator,
    }


def state_from_arrays(
    arrays: Mapping[str, Array], /, *, prototypes: Array | Prototypes, config: GainConfig
) -> GainState:
    """Rebuild a state saved by `state_to_arrays`.

    Parameters
    ----------
    arrays : mapping of str to array
        Exactly the names, shapes, dtype and device of a state of this head.
    prototypes : array, (K, D) floating
        The same head rows as when it was saved.
    config : GainConfig
        The same config as when it was saved.

    Returns
    -------
    GainState

    Raises
    ------
    ArrayError
        If an array is missing, unknown, or of another shape or dtype.
    """
    prepared = prepare_prototypes(prototypes, config)
    fresh = init_state(prepared, config)
    expected = state_to_arrays(fresh)
    if set(arrays) != set(expected):
        missing, unknown = set(expected) - set(arrays), set(arrays) - set(expected)
        raise ArrayError(
            f"state: expected the arrays {', '.join(sorted(expected))}; "
            f"missing {', '.join(sorted(missing)) or 'none'}, "
            f"unknown {', '.join(sorted(unknown)) or 'none'}; start from a fresh state"
        )
    for name, like in expected.items():
        array = arrays[name]
        if tuple(array.shape) != tuple(like.shape) or array.dtype != like.dtype:
            raise ArrayError(
                f"state.{name}: expected {describe(like)}, got {describe(array)}; "
                "it was saved for another head"
            )
    if isinstance(fresh, ShiftState):
        sums = ShiftSums(**{item.name: arrays[item.name] for item in fields(ShiftSums)})
        last = LastFrame(**{item.name: arrays[_LAST + item.name] for item in fields(LastFrame)})
        guard = Guard(**{item.name: arrays[_GUARD + item.name] for item in fields(Guard)})
        shift = estimate_shift(sums, prototypes=prepared, config=config)
        return ShiftState(sums=sums, last=last, shift=shift, guard=guard)
    statistics = Statistics(**{item.name: arrays[item.name] for item in fields(Statistics)})
    memory = ScaleMemory(
        numerator=arrays["scale_numerator"], denominator=arrays["scale_denominator"]
    )
    xp = array_namespace(statistics.support)
    nothing = scalar(0.0, like=statistics.support, xp=xp)
    geometry, memory = derive(statistics, memory, prototypes=prepared, added=nothing, config=config)
    geometry = settled(geometry, statistics, fallback=fresh.geometry)
    return GaussianState(statistics=statistics, memory=memory, geometry=geometry)


def settled(geometry: Geometry, statistics: Statistics, /, *, fallback: Geometry) -> Geometry:
    """The geometry, or the one before the first frame where the sums are still empty."""
    xp = array_namespace(statistics.support)
    started = statistics.sample_count > 0
    if is_numpy_namespace(xp):
        return geometry if started else fallback
    chosen = {
        item.name: xp.where(started, getattr(geometry, item.name), getattr(fallback, item.name))
        for item in fields(Geometry)
    }
    return Geometry(**chosen)


def copy_state(state: GainState, /) -> GainState:
    """A state that shares no memory with `state`."""
    xp = array_namespace(array_like(state))

    def copied(record: Any) -> dict[str, Array]:
        return {
            item.name: xp.asarray(getattr(record, item.name), copy=True) for item in fields(record)
        }

    if isinstance(state, ShiftState):
        return ShiftState(
            sums=ShiftSums(**copied(state.sums)),
            last=LastFrame(**copied(state.last)),
            shift=Shift(**copied(state.shift)),
            guard=Guard(**copied(state.guard)),
        )
    return GaussianState(
        statistics=Statistics(**copied(state.statistics)),
        memory=ScaleMemory(**copied(state.memory)),
        geometry=Geometry(**copied(state.geometry)),
    )


def _total_bytes(*records: Any) -> int:
    """Bytes of all arrays of some records."""
    return sum(_nbytes(getattr(record, item.name)) for record in records for item in fields(record))


def _nbytes(array: Array) -> int:
    """Bytes of one array; the standard has no attribute for it."""
    size = 1
    for length in array.shape:
        size *= length
    xp = array_namespace(array)
    bits = 8 if array.dtype == xp.bool else xp.finfo(array.dtype).bits
    return size * int(bits) // 8
