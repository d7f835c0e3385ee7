"""Composing everything affine before the logits into one linear layer, from the output backwards.

The walk starts with "class k is column k of the logits" and asks of every node on the way up what
the classes are in terms of its inputs. Where all of them are linear in one vector, or in several,
that vector is the features and what was gathered is the head's weight and bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from gain_export.affine import AFFINE, Rules, StopError, Values
from gain_export.graph import Graph, describe
from gain_export.term import Doubles, Term, merged

__all__ = ["Head", "NotLinearError", "Part", "affine_values", "compose_head"]

# How far the walk goes on where several vectors may turn out to be one.
_MAX_STEPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A value of the graph that holds features.

    Attributes
    ----------
    value : str
    width : int
        Numbers per image that it adds to the features.
    mean_axes : tuple of int
        Axes of the value that are averaged first: the head treats all places along them alike.
    places : int
        The number of entries along those.
    cast, flatten : bool
        Whether the value is of another type than float32, and of another shape than (B, width).
    """

    value: str
    width: int
    mean_axes: tuple[int, ...]
    places: int
    cast: bool
    flatten: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """One linear layer that gives the logits: `features @ weight.T + bias`.

    Attributes
    ----------
    parts : tuple of Part
        The features are these values, flattened and put one after the other.
    weight : array, (K, D) float32
    bias : array, (K,) float32, or None
    nodes : tuple of str
        The nodes it stands for, from the first to the last.
    """

    parts: tuple[Part, ...]
    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32] | None
    nodes: tuple[str, ...]


class NotLinearError(Exception):
    """Why the logits are no linear layer on vectors, as a clause."""


def compose_head(graph: Graph, logits: str, /, *, values: Values) -> Head:
    """Find the vectors in which the logits are linear, and the weight and bias with which.

    Parameters
    ----------
    graph : Graph
    logits : str
        A value with one row per image and one column per class; axes of length one may follow.
    values : mapping
        The computed values of `affine_values`, as one run gave them.

    Returns
    -------
    Head

    Raises
    ------
    NotLinearError
        If there are none; the node that stands in the way is named.
    """
    classes = int(values[logits].shape[1])
    rules = Rules(graph, values, num_classes=classes)
    terms = [Term(logits, 0, scale=np.ones(classes), columns=np.arange(classes), class_axis=1)]
    best: tuple[int, list[Term], Doubles, list[onnx.NodeProto]] | None = None
    passed: list[onnx.NodeProto] = []
    stuck: dict[str, str] = {}
    for _ in range(_MAX_STEPS):
        size = _cut_size(terms, values)
        if size is not None and (best is None or size < best[0]):
            best = (size, list(terms), rules.bias, list(passed))
        # What is computed last first: all that reads it has been seen.
        open_terms = [term for term in terms if term.value not in stuck]
        if (size is not None and len(terms) == 1) or not open_terms:
            break
        term = max(open_terms, key=lambda item: graph.position(item.value))
        node = graph.producer(term.value)
        if node is None:
            stuck[term.value] = "is not computed by any node"
            continue
        try:
            made = rules.before(node, term)
        except StopError as err:
            stuck[term.value] = str(err)
            continue
        terms = merged([other for other in terms if other is not term] + made)
        if node not in passed:
            passed.append(node)
    if best is None:
        reason = "; ".join(f"'{name}' {why}" for name, why in list(stuck.items())[:2])
        raise NotLinearError(reason or "too many nodes lie between them")
    _, terms, bias, passed = best
    return _finished(graph, values, terms, bias, passed)


def affine_values(graph: Graph, logits: str, /) -> list[str]:
    """The computed values that `compose_head` may ask for, nearest to the logits first."""
    found = [logits]
    for name in found:
        node = graph.producer(name)
        if node is None or node.domain or node.op_type not in AFFINE or len(found) > _MAX_STEPS:
            continue
        # Every output: a Split counts the parts before the one that is wanted.
        for other in (*node.output, *node.input):
            if other and other not in found and graph.producer(other) and graph.is_computed(other):
                found.append(other)
    return found


def _cut_size(terms: Sequence[Term], values: Values) -> int | None:
    """D if the features may end here; None where a term is no vector yet."""
    size = 0
    for term in terms:
        if term.weight is None or term.value not in values:
            return None
        wide = [length for length in term.weight.shape[1:] if length > 1]
        if len(wide) > 1:
            return None
        size += wide[0] if wide else 1
    return size if terms else None


def _finished(
    graph: Graph,
    values: Values,
    terms: list[Term],
    bias: Doubles,
    passed: list[onnx.NodeProto],
) -> Head:
    """The head of the terms of one cut."""
    terms = sorted(terms, key=lambda term: graph.position(term.value))
    parts, weights = [], []
    for term in terms:
        assert term.weight is not None
        shape, axes = values[term.value].shape, []
        count = 1
        for axis, length in enumerate(term.weight.shape[1:]):
            if axis != term.batch_axis and length == 1 and shape[axis] > 1:
                axes.append(axis)
                count *= shape[axis]
        weights.append(term.weight.reshape(len(bias), -1) * count)
        if term.batch_axis != 0:
            raise NotLinearError(f"'{term.value}' does not have its images in the first axis")
        parts.append(
            Part(
                value=term.value,
                width=weights[-1].shape[1],
                mean_axes=tuple(axes),
                places=count,
                cast=values[term.value].dtype != np.float32,
                flatten=len(shape) != 2,
            )
        )
    weight = np.concatenate(weights, axis=1).astype(np.float32)
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise NotLinearError("its composed weight is not finite")
    return Head(
        parts=tuple(parts),
        weight=np.ascontiguousarray(weight),
        bias=bias.astype(np.float32) if bias.any() else None,
        nodes=tuple(
            describe(node) for node in sorted(passed, key=lambda n: graph.position(n.output[0]))
        ),
    )
