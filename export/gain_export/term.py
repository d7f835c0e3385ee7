"""What one value of a graph adds to the logits, while these are composed into one layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Doubles", "Term", "dense", "merged", "negated", "replaced", "times"]

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """What one value adds to the logits.

    Before the first matrix product class k is `scale[k]` times entry `columns[k]` along
    `class_axis`, summed over all other axes. After it, `weight` has the value's axes behind one of
    classes; an axis of length one stands for equal numbers all along it, as the batch axis always
    does.
    """

    value: str
    batch_axis: int
    scale: Doubles | None = None
    columns: npt.NDArray[np.int64] | None = None
    class_axis: int = -1
    weight: Doubles | None = None


def dense(value: str, batch_axis: int, weight: Doubles) -> Term:
    """What a value adds after the first product, by a weight for each of its entries."""
    return Term(value, batch_axis, weight=weight)


def replaced(
    term: Term,
    value: str,
    *,
    scale: Doubles | None = None,
    columns: npt.NDArray[np.int64] | None = None,
    batch_axis: int | None = None,
    class_axis: int | None = None,
) -> Term:
    """The same on another value."""
    return Term(
        value,
        term.batch_axis if batch_axis is None else batch_axis,
        scale=term.scale if scale is None else scale,
        columns=term.columns if columns is None else columns,
        class_axis=term.class_axis if class_axis is None else class_axis,
        weight=term.weight,
    )


def times(term: Term, factor: float) -> Term:
    """A multiple of it."""
    if term.weight is not None:
        return dense(term.value, term.batch_axis, term.weight * factor)
    assert term.scale is not None
    return replaced(term, term.value, scale=term.scale * factor)


def negated(term: Term, value: str) -> Term:
    """The opposite on another value."""
    return times(replaced(term, value), -1.0)


def merged(terms: Sequence[Term]) -> list[Term]:
    """One term per value: what several roads add to the logits is summed."""
    kept: list[Term] = []
    for term in terms:
        for position, other in enumerate(kept):
            if other.value != term.value or other.batch_axis != term.batch_axis:
                continue
            if other.weight is not None and term.weight is not None:
                kept[position] = dense(term.value, term.batch_axis, other.weight + term.weight)
                break
            if other.scale is not None and term.scale is not None and _same_columns(other, term):
                kept[position] = replaced(term, term.value, scale=other.scale + term.scale)
                break
        else:
            kept.append(term)
    return kept


def _same_columns(left: Term, right: Term) -> bool:
    return left.class_axis == right.class_axis and np.array_equal(
        np.asarray(left.columns), np.asarray(right.columns)
    )
