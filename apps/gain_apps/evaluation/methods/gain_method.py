"""GAIN behind the methods' protocol, on `gain_core.Gain` itself."""

from __future__ import annotations

import numpy as np

from gain_apps.evaluation.methods.protocol import Batch, Cost, Diagnosis, Floats, Head
from gain_core import Gain, GainConfig, posteriors

__all__ = ["GainMethod"]


class GainMethod:
    """GAIN as a session runs it.

    Parameters
    ----------
    head : Head
    config : GainConfig
    update_every : int
        See `Gain`.
    """

    def __init__(self, head: Head, config: GainConfig, /, *, update_every: int = 1) -> None:
        self._gain = Gain(head.weight, config, update_every=update_every)

    @property
    def cost(self) -> Cost:
        """One forward pass and the statistics."""
        return Cost(state_bytes=self._gain.state.nbytes)

    def predict(self, batch: Batch, /) -> Floats:
        """log p*, predicted before the batch is learned from, (B, K)."""
        prediction = self._gain.step(batch.features, batch.logits)
        result: Floats = np.asarray(prediction.log_probs)
        return result

    def reset(self) -> None:
        """Nothing learned."""
        self._gain.reset()

    def diagnose(self, batch: Batch, /) -> Diagnosis:
        """Strength, expected gain and evidence of a batch against the state as it is."""
        prediction = self._gain.predict(batch.features, batch.logits)
        source = np.asarray(prediction.source_log_probs)
        evidence = np.zeros_like(source)
        state = self._gain.state
        if bool(state.geometry.has_history):
            proposal, _ = posteriors(batch.features, state, config=self._gain.config)
            evidence = np.asarray(proposal) - source
        return Diagnosis(
            strength=np.asarray(prediction.strength),
            gain=np.asarray(prediction.gain),
            evidence=evidence,
        )
