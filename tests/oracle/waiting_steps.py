"""The shift's oracle as `Gain.step`: some batches wait before they are learned from."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gain_oracle import OracleStep
from shift_oracle import ShiftOracle

__all__ = ["WaitingOracle"]


class WaitingOracle:
    """Steps of `oracle`, which learns once `update_every` frames wait."""

    def __init__(self, oracle: ShiftOracle, update_every: int) -> None:
        self.oracle = oracle
        self.update_every = update_every
        self.waiting: list[OracleStep] = []

    def step(
        self,
        logits: npt.NDArray[np.floating[Any]],
        features: npt.NDArray[np.floating[Any]] | None = None,
    ) -> OracleStep:
        """A batch that waits has its first prediction, one that is learned from its second."""
        rows = sum(len(step.probs) for step in self.waiting) + len(logits)
        if rows < self.update_every:
            self.waiting.append(self.oracle.predict(logits, features))
            return self.waiting[-1]
        result = self.oracle.step(logits, *self.waiting, features=features)
        self.waiting = []
        return result
