"""What an adaptive session takes: checked before anything is bound or run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gain_core.errors import ArrayError
from gain_runtime.adaptive_artifact import AdaptiveArtifact
from gain_runtime.session import check_input

__all__ = ["check_inputs"]


def check_inputs(
    inputs: Sequence[Any],
    artifact: AdaptiveArtifact,
    /,
    *,
    fixed_batch: int | None = None,
) -> int:
    """Refuse a batch that the graph cannot read.

    Parameters
    ----------
    inputs : sequence of objects
        What was given; expected is one C-contiguous float32 array for each of the artifact's
        inputs, all of one batch size.
    artifact : AdaptiveArtifact
    fixed_batch : int, optional
        The only batch size the network takes.

    Returns
    -------
    int
        The batch size.

    Raises
    ------
    ArrayError
        If the number of arrays, or an array's library, shape, dtype or layout is another.
    """
    names = artifact.input_names
    if len(inputs) != len(names):
        raise ArrayError(
            f"{artifact.path}: expected {len(names)} arrays ({', '.join(names)}), got {len(inputs)}"
        )
    batch_size = fixed_batch
    for name, array, shape in zip(names, inputs, artifact.input_shapes, strict=True):
        batch_size = check_input(name, array, (batch_size, *shape))
    assert batch_size is not None
    return batch_size
