"""The settings of Algorithm 1 that the paper names or leaves open."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gain_core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperConfig:
    """Settings of Algorithm 1; the defaults are its literal reading.

    Attributes
    ----------
    prior_strength : float
        kappa_0, the pseudo-count of the source-centred prior, in samples.
    normalise : bool
        Scale features and prototypes to unit length first. The paper does not say; true is the
        reading that survives real features.
    variance_floor : float
        eps_Sigma of eq. app:continual_statistics.
    prob_floor : float
        eps_p: probabilities entering log-ratios are floored here and renormalised.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    """

    prior_strength: float = 3.0
    normalise: bool = False
    variance_floor: float = 1e-6
    prob_floor: float = 1e-8

    def __post_init__(self) -> None:
        # Each bound is written so that NaN fails it.
        checks = (
            ("prior_strength", "a finite number > 0", 0.0 < self.prior_strength < math.inf),
            ("normalise", "true or false", isinstance(self.normalise, bool)),
            ("variance_floor", "a finite number > 0", 0.0 < self.variance_floor < math.inf),
            ("prob_floor", "above 0, at most 1e-2", 0.0 < self.prob_floor <= 1e-2),
        )
        for name, expected, holds in checks:
            if not holds:
                raise ConfigError(f"{name}: expected {expected}, got {getattr(self, name)!r}")
