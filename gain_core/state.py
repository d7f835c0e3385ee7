"""The state: everything adaptation may change, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from array_api_compat import array_namespace, is_numpy_namespace

from gain_core._checks import describe, scalar
from gain_core._typing import Array
from gain_core.config import GainConfig
from gain_core.errors import ArrayError
from gain_core.geometry import Geometry, ScaleMemory, derive, initial_geometry
from gain_core.prototypes import Prototypes, prepare_prototypes
from gain_core.statistics import Statistics, empty_statistics

__all__ = [
    "GainState",
    "copy_state",
    "init_state",
    "settled",
    "state_from_arrays",
    "state_to_arrays",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GainState:
    """What GAIN has learned about the target.

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
        records = (self.statistics, self.memory, self.geometry)
        arrays = [getattr(record, item.name) for record in records for item in fields(record)]
        return sum(_nbytes(array) for array in arrays)


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
    return GainState(
        statistics=empty_statistics(num_classes, feature_dim, like=like),
        memory=ScaleMemory(
            numerator=scalar(0.0, like=like, xp=xp), denominator=scalar(0.0, like=like, xp=xp)
        ),
        geometry=initial_geometry(prepared, config=config),
    )


def state_to_arrays(state: GainState, /) -> dict[str, Array]:
    """The arrays from which `state_from_arrays` rebuilds the state, by name.

    The geometry is left out: it follows from the sums, and half the file with it.
    """
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
    statistics = Statistics(**{item.name: arrays[item.name] for item in fields(Statistics)})
    memory = ScaleMemory(
        numerator=arrays["scale_numerator"], denominator=arrays["scale_denominator"]
    )
    xp = array_namespace(statistics.support)
    nothing = scalar(0.0, like=statistics.support, xp=xp)
    geometry, memory = derive(statistics, memory, prototypes=prepared, added=nothing, config=config)
    geometry = settled(geometry, statistics, fallback=fresh.geometry)
    return GainState(statistics=statistics, memory=memory, geometry=geometry)


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
    xp = array_namespace(state.statistics.support)

    def copied(record: Any) -> dict[str, Array]:
        return {
            item.name: xp.asarray(getattr(record, item.name), copy=True) for item in fields(record)
        }

    return GainState(
        statistics=Statistics(**copied(state.statistics)),
        memory=ScaleMemory(**copied(state.memory)),
        geometry=Geometry(**copied(state.geometry)),
    )


def _nbytes(array: Array) -> int:
    """Bytes of one array; the standard has no attribute for it."""
    size = 1
    for length in array.shape:
        size *= length
    xp = array_namespace(array)
    bits = 8 if array.dtype == xp.bool else xp.finfo(array.dtype).bits
    return size * int(bits) // 8
