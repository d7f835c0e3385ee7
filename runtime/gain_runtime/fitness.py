"""The fitness report's numbers, as an artifact carries them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Fitness"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitness:
    """What unlabelled clean images said about a network.

    Attributes
    ----------
    num_images : int
    feature_norm : float
        Mean |z|.
    common_share : float
        |mean z|^2 over mean |z|^2, in [0, 1].
    alignment : float
        Mean cosine of z - mean z and the head's row of the predicted class.
    confidence : float
        Mean of the largest probability.
    effective_classes : float
        1 / sum of squared shares of the predicted classes.
    lda_agreement : float or None
        Share of images on which diagonal LDA gives the head's class; None on too few images.
    mean_logits : tuple of K floats
        Centred mean logits, shrunk by their noise: what the shift is measured from.

    Raises
    ------
    ValueError
        If a number is not finite.
    """

    num_images: int
    feature_norm: float
    common_share: float
    alignment: float
    confidence: float
    effective_classes: float
    lda_agreement: float | None
    mean_logits: tuple[float, ...]

    def __post_init__(self) -> None:
        numbers = [value for value in asdict(self).values() if isinstance(value, float)]
        if not all(map(math.isfinite, (*numbers, *self.mean_logits))):
            raise ValueError("fitness: expected finite numbers")

    @classmethod
    def from_record(cls, record: Mapping[str, Any], /) -> Fitness:
        """Rebuild it from JSON.

        Raises
        ------
        TypeError, ValueError
            If a key is missing or unknown, or a value is none of its kind.
        """
        values = dict(record)
        values["mean_logits"] = tuple(float(value) for value in values["mean_logits"])
        return cls(**values)
