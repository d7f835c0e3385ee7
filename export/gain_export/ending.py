"""What a graph does between its logits and an output: nothing, or one activation that is undone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx

from gain_export.graph import Graph, attribute

__all__ = ["Activation", "Ending", "activate", "read_ending", "runs_over_classes"]

# `probabilities` is no operator: the output is one already, however it was made, and its logarithm
# are the logits. `class_number` keeps nothing but the class.
Activation = Literal["none", "softmax", "log_softmax", "sigmoid", "probabilities", "class_number"]

Floats = npt.NDArray[np.float32]

# These change neither the classes nor their order.
_PASSED = frozenset({"Cast", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_ACTIVATIONS: dict[str, Activation] = {
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Sigmoid": "sigmoid",
    "ArgMax": "class_number",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The way from the logits to an output.

    Attributes
    ----------
    logits : str
        The value before the activation, or the output itself.
    activation : str
    axis : int or None
        The axis that the activation runs along, as the node states it.
    node : str
        The activation's operator; empty without one.
    passed : tuple of str
        Every value from the output to `logits`.
    """

    logits: str
    activation: Activation
    axis: int | None
    node: str
    passed: tuple[str, ...]


def read_ending(graph: Graph, output: str, /) -> Ending:
    """Walk up from an output over what only passes scores on, to its activation if it has one."""
    value, passed = output, [output]
    while True:
        node = graph.producer(value)
        if node is None or node.domain:
            break
        if node.op_type in _ACTIVATIONS:
            activation = _ACTIVATIONS[node.op_type]
            inner = node.input[0]
            if activation == "class_number":
                # The class of probabilities is that of their logits.
                before = read_ending(graph, inner)
                inner = before.logits if before.activation != "none" else inner
            return Ending(
                logits=inner,
                activation=activation,
                axis=None if activation == "sigmoid" else _axis(node, activation),
                node=str(node.op_type),
                passed=(*passed, inner),
            )
        if node.op_type not in _PASSED:
            break
        value = node.input[0]
        passed.append(value)
    return Ending(logits=output, activation="none", axis=None, node="", passed=tuple(passed))


def runs_over_classes(ending: Ending, shape: tuple[int, ...], /) -> bool:
    """Whether the activation's axis is the one of the classes in a value of that shape."""
    if ending.axis is None:
        return True
    axis = ending.axis % len(shape)
    return axis > 0 and int(np.prod(shape[1:])) == shape[axis]


def activate(logits: Floats, activation: Activation, /) -> Floats:
    """What the original makes of logits (B, K)."""
    if activation in ("none", "class_number"):
        return logits
    exact = logits.astype(np.float64)
    if activation == "sigmoid":
        chosen = 1.0 / (1.0 + np.exp(-exact))
    else:
        exact -= exact.max(axis=1, keepdims=True)
        exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
        chosen = exact if activation == "log_softmax" else np.exp(exact)
    output: Floats = chosen.astype(np.float32)
    return output


def _axis(node: onnx.NodeProto, activation: Activation) -> int:
    axis = attribute(node, "axis", 0 if activation == "class_number" else -1)
    assert isinstance(axis, int)
    return axis
