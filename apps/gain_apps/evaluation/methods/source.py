"""The frozen network itself."""

from __future__ import annotations

from gain_apps.evaluation.methods.protocol import Batch, Cost, Floats
from gain_apps.evaluation.methods.softmax import log_softmax

__all__ = ["Source"]


class Source:
    """No adaptation: what every method is compared with."""

    @property
    def cost(self) -> Cost:
        """One forward pass."""
        return Cost()

    def predict(self, batch: Batch, /) -> Floats:
        """The log-softmax of the logits, (B, K)."""
        return log_softmax(batch.logits)

    def reset(self) -> None:
        """Nothing to forget."""
