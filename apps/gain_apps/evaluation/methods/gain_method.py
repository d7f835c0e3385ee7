"""GAIN behind the methods' protocol, on `gain_core.Gain` itself."""

from __future__ import annotations

import numpy as np

from gain_apps.evaluation.methods.protocol import Batch, Cost, Diagnosis, Floats, Head
from gain_core import Gain, GainConfig, posteriors
from gain_core.errors import ConfigError
from gain_core.step import may_adapt

__all__ = ["GainMethod"]


class GainMethod:
    """GAIN as a session runs it.

    Parameters
    ----------
    head : Head
    config : GainConfig
    update_every : int
        See `Gain`.
    measured : bool
        Tell frames of one class from frames of many by the asymmetry of clean images' logits.

    Raises
    ------
    ConfigError
        If `measured` and the head comes without clean images.
    """

    def __init__(
        self,
        head: Head,
        config: GainConfig,
        /,
        *,
        update_every: int = 1,
        measured: bool = False,
    ) -> None:
        if measured and head.source_mean is None:
            raise ConfigError("measured: needs features of uncorrupted images; add --source-data")
        self._gain = Gain(
            head.weight,
            config,
            update_every=update_every,
            bias=head.bias,
            asymmetry=head.asymmetry if measured else None,
        )

    @property
    def cost(self) -> Cost:
        """One forward pass and the statistics."""
        return Cost(state_bytes=self._gain.state.nbytes)

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
        prediction = self._gain.predict(batch.features, batch.logits)
        source = np.asarray(prediction.source_log_probs)
        evidence = np.zeros_like(source)
        state = self._gain.state
        if bool(may_adapt(state)):
            proposal, _ = posteriors(batch.features, batch.logits, state, config=self._gain.config)
            evidence = np.asarray(proposal) - source
        return Diagnosis(
            strength=np.asarray(prediction.strength),
            gain=np.asarray(prediction.gain),
            evidence=evidence,
        )
