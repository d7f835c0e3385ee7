"""T3A: class templates made of the surest features seen so far."""

from __future__ import annotations

import numpy as np

from gain_apps.evaluation.methods.protocol import Batch, Cost, Floats, Head
from gain_apps.evaluation.methods.softmax import entropy, log_softmax, unit_rows
from gain_core.errors import ConfigError

__all__ = ["T3A"]


class T3A:
    """Test-time templates adjuster.

    Every class keeps its `num_supports` lowest-entropy supports. They start as the head's rows,
    each filed under the class the head gives it; every batch adds its features under the classes
    the source gives them. The classifier is the normalised sum of normalised supports.

    Parameters
    ----------
    head : Head
    num_supports : int
        M, per class.

    Raises
    ------
    ConfigError
        If M is below 1.
    """

    def __init__(self, head: Head, /, *, num_supports: int = 20) -> None:
        if num_supports < 1:
            raise ConfigError(f"num_supports: expected at least 1, got {num_supports}")
        self._head = head
        self._num_supports = num_supports
        self.reset()

    @property
    def cost(self) -> Cost:
        """One forward pass, and the supports."""
        kept = sum(rows.nbytes for rows in self._supports)
        entropies = sum(values.nbytes for values in self._entropies)
        return Cost(state_bytes=kept + entropies + self._templates.nbytes)

    def predict(self, batch: Batch, /) -> Floats:
        """Add the batch to the supports, then log-softmax of z A, (B, K)."""
        self._add(batch.features, batch.logits)
        return log_softmax(batch.features @ self._templates.T)

    def reset(self) -> None:
        """The head's rows are the only supports."""
        num_classes, feature_dim = self._head.weight.shape
        nothing = np.zeros((0, feature_dim), dtype=self._head.weight.dtype)
        self._supports: list[Floats] = [nothing] * num_classes
        self._entropies: list[Floats] = [np.zeros(0)] * num_classes
        self._templates: Floats = np.zeros_like(self._head.weight)
        self._add(self._head.weight, self._head.logits(self._head.weight))

    def _add(self, rows: Floats, logits: Floats) -> None:
        """File rows under their predicted class, and drop the least sure of each class."""
        chosen = logits.argmax(axis=1)
        uncertainty = entropy(log_softmax(logits))
        directions = unit_rows(rows)
        for label in np.unique(chosen):
            new = chosen == label
            supports = np.concatenate([self._supports[label], directions[new]])
            entropies = np.concatenate([self._entropies[label], uncertainty[new]])
            surest = np.argsort(entropies, kind="stable")[: self._num_supports]
            self._supports[label] = supports[surest]
            self._entropies[label] = entropies[surest]
            self._templates[label] = unit_rows(self._supports[label].sum(axis=0))
