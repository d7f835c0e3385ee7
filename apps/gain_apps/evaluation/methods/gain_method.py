"""GAIN behind the methods' protocol, on `gain_core.Gain` itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from gain_apps.evaluation.methods.protocol import Batch, Cost, Diagnosis, Floats
from gain_core import UPDATE_EVERY, WARMUP_FRAMES, Gain
from gain_core.method import Method
from gain_core.records import nbytes

__all__ = ["GainMethod"]


class GainMethod:
    """GAIN as a stream runs it.

    Parameters
    ----------
    method : gain_core.Method
    update_every, warmup_frames : int, optional
        See `Gain`.
    """

    def __init__(
        self,
        method: Method[Any],
        /,
        *,
        update_every: int = UPDATE_EVERY,
        warmup_frames: int = WARMUP_FRAMES,
    ) -> None:
        self._gain = Gain(method, update_every=update_every, warmup_frames=warmup_frames)

    @property
    def cost(self) -> Cost:
        """One forward pass and the statistics."""
        return Cost(state_bytes=nbytes(self._gain.state))

    def predict(self, batch: Batch, /) -> Floats:
        """log p*, as `Gain.step` has it, (B, K)."""
        prediction = self._gain.step(batch.features, batch.logits)
        result: Floats = np.asarray(prediction.log_probs)
        return result

    def reset(self) -> None:
        """Nothing learned."""
        self._gain.reset()

    def diagnose(self, batch: Batch, /) -> Diagnosis:
        """Strength, expected gain and evidence of a batch against the state as it is, unrevised."""
        method, state = self._gain.method, self._gain.state
        prediction = method.predict(batch.features, batch.logits, state)
        found = method.posteriors(batch.features, batch.logits, state)
        evidence = np.zeros_like(np.asarray(found.source))
        if found.adapts:
            evidence = np.asarray(found.log_proposal) - np.asarray(found.source)
        return Diagnosis(
            strength=np.asarray(prediction.strength),
            gain=np.asarray(prediction.gain),
            evidence=evidence,
        )
