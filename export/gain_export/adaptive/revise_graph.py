"""A batch's second answer as graph, with what it taught: `gain_core.step.revise`."""

from __future__ import annotations

from collections.abc import Mapping

from gain_core import GainConfig
from gain_export.adaptive.expressions import Value, body
from gain_export.adaptive.predict_graph import PredictionValues, answer_shift, answer_types
from gain_export.adaptive.shift_graph import between

__all__ = ["write_revision"]


def write_revision(
    prediction: PredictionValues,
    before: Mapping[str, Value],
    after: Mapping[str, Value],
    /,
    *,
    independence: Value,
    config: GainConfig,
    shape: tuple[str | int, int],
) -> None:
    """Write the answer's outputs: the second one where it differs, and else the first.

    A conditional of its own, behind the one that learns: not every runtime takes one in another.

    Parameters
    ----------
    prediction : PredictionValues
        The first, whose answer has free names.
    before, after : mapping of str to Value
        The state that the batch was predicted with, and the one that this call leaves.
    independence : Value, ()
        iota; zero where nothing was learned.
    config : GainConfig
    shape : pair of str or int, and int
        (B, K).
    """
    tape, types = independence.tape, answer_types(shape)
    differs = independence > 0.0
    if config.guard:
        # A guard that has tripped, or let go, answers otherwise, independent frames or not.
        held, holds = (state["guard_hold"] > 0.0 for state in (before, after))
        differs = differs | tape.apply("Xor", held, holds)
    with tape.branch() as nodes:
        moved = between(before, after, independence)
        second = answer_shift(prediction, moved, num_classes=shape[1], config=config)
        revise = body("revise", nodes, second, types)
    with tape.branch() as nodes:
        stay = body("stay", nodes, prediction.answer, types)
    tape.choose(differs, then_branch=revise, else_branch=stay, names=list(types))
