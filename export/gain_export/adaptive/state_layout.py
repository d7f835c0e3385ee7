"""The tensors an adaptive file keeps between frames: names, shapes and what they hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from gain_core.departure import BESIDE_DIMS
from gain_core.guard import GuardSums
from onnx import TensorProto, TypeProto, helper

from gain_core import GainConfig
from gain_core.shift import NUM_WINDOWS, LastFrame, ShiftSums

__all__ = ["NEXT_PREFIX", "STATE_PREFIX", "StateTensor", "state_layout"]

STATE_PREFIX = "state."
NEXT_PREFIX = "next_state."
# The first tensors of a tracked shift are what a batch brings: the sums, its last frame, and three
# sums of the guard's.
_NUM_BROUGHT = len(fields(ShiftSums)) + len(fields(LastFrame)) + len(fields(GuardSums))


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
    *, num_classes: int, feature_dim: int, config: GainConfig, most_awaited: int
) -> tuple[StateTensor, ...]:
    """Every state tensor of a file, in the order of its inputs.

    Parameters
    ----------
    num_classes, feature_dim : int
        K and D.
    config : GainConfig
        Its `proposal` decides what is kept.
    most_awaited : int
        Frames that an update ever waits for: the larger of `update_every` and `warmup_frames`.
        Above 1, what waits to be learned from is part of the state.

    Returns
    -------
    tuple of StateTensor
        What `gain_core.state_to_arrays` names, under its names, then what predictions need and
        follows from it, then the frame count, then what waits.
    """
    if config.proposal == "shift":
        return _shift_layout(num_classes, waits=most_awaited > 1)
    return _gaussian_layout(num_classes, feature_dim, waiting=most_awaited - 1)


def _shift_layout(num_classes: int, *, waits: bool) -> tuple[StateTensor, ...]:
    """Of the tracked shift: what waits are sums, however many frames that is."""
    J, K, M = NUM_WINDOWS, num_classes, BESIDE_DIMS
    tensors = [
        StateTensor(field="window_count", shape=(J,), meaning="sum of 1; 0 means no history"),
        StateTensor(field="window_logits", shape=(J, K), meaning="sum of the centred log s"),
        StateTensor(field="window_powers", shape=(J, K), meaning="sum of its square"),
        StateTensor(field="window_mass", shape=(J, K), meaning="sum of q_0"),
        StateTensor(field="window_lean", shape=(J,), meaning="sum of max y + min y"),
        StateTensor(field="window_range", shape=(J,), meaning="sum of max y - min y"),
        StateTensor(field="share_mass", shape=(K,), meaning="sum of w q_0, by class"),
        StateTensor(field="share_count", shape=(), meaning="sum of w"),
        StateTensor(field="window_beside", shape=(J, M), meaning="sum of u, features beside head"),
        StateTensor(field="window_beside_power", shape=(J,), meaning="sum of |u|^2"),
        StateTensor(field="newest_source", shape=(K,), meaning="sum of s, of the newest frames"),
        StateTensor(field="departure", shape=(), meaning="1 where one class came after many"),
        StateTensor(field="mixed_asymmetry", shape=(), meaning="largest asymmetry of many classes"),
        StateTensor(field="step_power", shape=(), meaning="sum of half a step's squared length"),
        StateTensor(field="step_count", shape=(), meaning="number of these steps"),
        StateTensor(field="scale_numerator", shape=(), meaning="regression for the scale a"),
        StateTensor(field="scale_denominator", shape=(), meaning="regression for the scale a"),
        StateTensor(field="last_logits", shape=(K,), meaning="the last frame's centred log s"),
        StateTensor(field="last_known", shape=(), meaning="1 where there was such a frame"),
        StateTensor(field="guard_count", shape=(), meaning="frames the guard has watched"),
        StateTensor(field="guard_agreement", shape=(), meaning="of these, agreeing with s"),
        StateTensor(field="guard_confidence", shape=(), meaning="sum of the largest s"),
        StateTensor(field="guard_hold", shape=(), meaning="frames the source still answers"),
        StateTensor(field="guard_trips", shape=(), meaning="how often the guard has tripped"),
        StateTensor(field="shift", shape=(K,), meaning="what predictions take out of the logits"),
        StateTensor(
            field="shift_stretch", shape=(K,), meaning="what multiplies them then; 0 means 1"
        ),
        StateTensor(
            field="shift_log_prior", shape=(K,), meaning="what is added to them then, by class"
        ),
        StateTensor(field="shift_variance", shape=(), meaning="variance of one entry of it"),
        StateTensor(field="frames", shape=(), dtype="int64", meaning="frames learned from"),
    ]
    if waits:
        for item in tensors[:_NUM_BROUGHT]:
            shape = (1, *item.shape[1:]) if item.field.startswith("window_") else item.shape
            tensors.append(
                StateTensor(
                    field=f"pending_{item.field}", shape=shape, meaning=f"waiting: {item.meaning}"
                )
            )
    return tuple(tensors)


def _gaussian_layout(
    num_classes: int, feature_dim: int, *, waiting: int
) -> tuple[StateTensor, ...]:
    """Of the class-conditional Gaussians: what waits are rows."""
    K, D = num_classes, feature_dim
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
