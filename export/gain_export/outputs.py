"""Which output of a model is the classifier: what speaks for each, and never a guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gain_core.errors import ArtifactError, ConfigError
from gain_export.ending import Ending, read_ending
from gain_export.graph import Graph
from gain_export.original import Values

__all__ = ["Candidate", "choose_output", "find_candidates"]

# Sums of float16 probabilities are this far from one.
_SUM_ATOL = 2e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """An output that has one score per class, or the number of the class.

    Attributes
    ----------
    name : str
    num_classes : int
        K; 0 where only the number of the class comes out.
    shape : tuple of int
        Per image.
    ending : Ending
    scores : array
        (N, K), or (N,) class numbers: what the model gave for the images it was tried on.
    """

    name: str
    num_classes: int
    shape: tuple[int, ...]
    ending: Ending
    scores: npt.NDArray[np.generic]

    def __str__(self) -> str:
        size = " x ".join(map(str, self.shape)) or "1"
        return f"'{self.name}' ({size}{', ' + self.evidence if self.evidence else ''})"

    @property
    def evidence(self) -> str:
        """What speaks for it, in words."""
        if self.ending.node:
            return f"ends in {self.ending.node}"
        return "rows sum to one" if self.sums_to_one else "no activation"

    @property
    def sums_to_one(self) -> bool:
        """Whether every row is a distribution."""
        scores = self.scores.astype(np.float64)
        sums = scores.sum(axis=1) if scores.ndim == 2 else np.zeros(1)
        return bool((scores >= 0.0).all() and (np.abs(sums - 1.0) < _SUM_ATOL).all())


def find_candidates(graph: Graph, outputs: Values, /) -> list[Candidate]:
    """The outputs that could be a classifier's, in the graph's order.

    Parameters
    ----------
    graph : Graph
        With the same outputs, by name.
    outputs : dict of str to array
        What the model gave, one row per image.

    Returns
    -------
    list of Candidate
        Several outputs of one head (logits and probabilities) are one, the logits.
    """
    found: dict[str, Candidate] = {}
    for name, values in outputs.items():
        ending = read_ending(graph, name)
        shape = values.shape[1:]
        width = int(np.prod(shape))
        if values.dtype.kind == "f":
            # (B, K), with axes of length one at most behind it.
            if width < 2 or max(shape) != width:
                continue
            scores: npt.NDArray[np.generic] = values.reshape(len(values), width)
            classes = width
        elif ending.activation == "class_number" and width == 1:
            scores, classes = values.reshape(len(values)), 0
        else:
            continue
        candidate = Candidate(
            name=name, num_classes=classes, shape=shape, ending=ending, scores=scores
        )
        # Outputs of one head share the value that its logits pass through.
        key = read_ending(graph, ending.logits).passed[-1] if ending.node else ending.passed[-1]
        kept = found.get(key)
        if kept is None or _rank(candidate) < _rank(kept):
            found[key] = candidate
    return list(found.values())


def choose_output(
    candidates: Sequence[Candidate],
    outputs: Values,
    /,
    *,
    name: str | None,
    all_names: Sequence[str],
    path: str,
) -> Candidate:
    """The one output to adapt.

    Parameters
    ----------
    candidates : sequence of Candidate
    outputs : dict of str to array
    name : str or None
        Which one the user wants.
    all_names : sequence of str
        Every output of the graph.
    path : str
        For messages.

    Returns
    -------
    Candidate

    Raises
    ------
    ArtifactError
        If no output has scores of two classes or more.
    ConfigError
        If there are several and none was named, or the one named is none.
    """
    if name is not None:
        for candidate in candidates:
            if name == candidate.name or name in candidate.ending.passed:
                return candidate
        listed = ", ".join(map(str, candidates)) or "none"
        what = "has no scores of classes" if name in all_names else "is no output"
        raise ConfigError(f"--output-name {name}: {what}; those that have: {listed}")
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise ConfigError(
            f"{path}: expected one classifier, got {len(candidates)} outputs that may be one: "
            f"{', '.join(map(str, candidates))}; choose with --output-name NAME"
        )
    raise ArtifactError(
        f"{path}: no output holds scores of classes: {_why_none(outputs, all_names)}"
    )


def _why_none(outputs: Values, all_names: Sequence[str]) -> str:
    """Every output and what it is instead."""
    said = []
    for name in all_names:
        if name not in outputs:
            said.append(f"'{name}' is no array with a row per image")
            continue
        shape = outputs[name].shape[1:]
        size = " x ".join(map(str, shape)) or "1"
        if outputs[name].dtype.kind == "f" and int(np.prod(shape)) == 1:
            said.append(
                f"'{name}' is one number per image, and two classes need two: give the negative "
                "class the score 0, in torch torch.cat([torch.zeros_like(x), x], dim=1) on the "
                "value before the sigmoid, and export that"
            )
        elif outputs[name].dtype.kind == "f":
            said.append(f"'{name}' is a map or a sequence ({size} per image)")
        else:
            said.append(f"'{name}' holds {outputs[name].dtype} numbers ({size} per image)")
    return "; ".join(said)


def _rank(candidate: Candidate) -> int:
    """Logits before probabilities before class numbers."""
    return ("none", "log_softmax", "softmax", "sigmoid", "class_number").index(
        candidate.ending.activation
    )
