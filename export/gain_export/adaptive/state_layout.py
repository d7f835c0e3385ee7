"""The tensors an adaptive file keeps between frames: names, shapes and what they hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from onnx import TensorProto, TypeProto, helper

__all__ = ["NEXT_PREFIX", "STATE_PREFIX", "StateTensor", "state_layout"]

STATE_PREFIX = "state."
NEXT_PREFIX = "next_state."


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTensor:
    """One tensor of the state; it starts as zeros.

    Attributes
    ----------
    field : str
        Name without prefix: input `state.<field>`, output `next_state.<field>`.
    shape : tuple of int
    dtype : {"float32", "int64"}
    meaning : str
        One line for the file's metadata.
    """

    field: str
    shape: tuple[int, ...]
    meaning: str
    dtype: Literal["float32", "int64"] = "float32"

    @property
    def input_name(self) -> str:
        """Name of the graph's input."""
        return STATE_PREFIX + self.field

    @property
    def output_name(self) -> str:
        """Name of the graph's output that feeds the input at the next frame."""
        return NEXT_PREFIX + self.field

    @property
    def size_bytes(self) -> int:
        """Of one copy."""
        return math.prod(self.shape) * (8 if self.dtype == "int64" else 4)

    @property
    def type_proto(self) -> TypeProto:
        """ONNX's type of both."""
        kind = TensorProto.FLOAT if self.dtype == "float32" else TensorProto.INT64
        return helper.make_tensor_type_proto(kind, self.shape)


def state_layout(
    *, num_classes: int, feature_dim: int, update_every: int
) -> tuple[StateTensor, ...]:
    """Every state tensor of a file, in the order of its inputs.

    Parameters
    ----------
    num_classes, feature_dim : int
        K and D.
    update_every : int
        Above 1, rows of the frames that wait to be learned from are part of the state.

    Returns
    -------
    tuple of StateTensor
        Sums and regression memory under `gain_core.state_to_arrays`'s names, then what
        predictions need of the geometry, then the frame count, then pending rows.
    """
    K, D, waiting = num_classes, feature_dim, update_every - 1
    tensors = [
        StateTensor(field="support", shape=(K,), meaning="sum of omega"),
        StateTensor(field="predicted_mass", shape=(K,), meaning="sum of p*"),
        StateTensor(field="squared_support", shape=(K,), meaning="sum of omega^2"),
        StateTensor(field="first_moment", shape=(K, D), meaning="sum of omega (z - origin)"),
        StateTensor(field="second_moment", shape=(D,), meaning="sum of zeta (z - origin)^2"),
        StateTensor(field="sample_count", shape=(), meaning="sum of 1; 0 means no history"),
        StateTensor(field="feature_sum", shape=(D,), meaning="sum of z - origin"),
        StateTensor(field="feature_square_sum", shape=(D,), meaning="sum of (z - origin)^2"),
        StateTensor(field="origin", shape=(D,), meaning="mean of the first frames"),
        StateTensor(field="scale_numerator", shape=(), meaning="anchor regression's memory"),
        StateTensor(field="scale_denominator", shape=(), meaning="anchor regression's memory"),
        StateTensor(field="centers", shape=(K, D), meaning="class centres less the feature mean"),
        StateTensor(field="variance", shape=(D,), meaning="shared diagonal covariance"),
        StateTensor(field="center_norms", shape=(K,), meaning="sum of centers^2 / variance"),
        StateTensor(field="frames", shape=(), dtype="int64", meaning="frames learned from"),
    ]
    if waiting:
        tensors += [
            StateTensor(
                field="pending_features", shape=(waiting, D), meaning="their z, row by row"
            ),
            StateTensor(field="pending_probs", shape=(waiting, K), meaning="their p*"),
            StateTensor(field="pending_reliability", shape=(waiting, 1), meaning="their zeta"),
            StateTensor(field="pending_accepted", shape=(waiting, 1), meaning="1 where one waits"),
        ]
    return tuple(tensors)
