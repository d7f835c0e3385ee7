"""The fitness report's numbers, as an artifact carries them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

__all__ = ["Fitness"]

_EARLIER = {
    "single_asymmetry": "one_class_skewness",
    "mixed_asymmetry": "mixture_skewness",
    "single_images": "one_class_images",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitness:
    """What unlabelled clean images said about a network.

    Attributes
    ----------
    num_images : int
    num_classes : int
        K.
    confidence : float
        Mean of the largest probability.
    effective_classes : float
        1 / sum of squared shares of the predicted classes.
    one_class_skewness, mixture_skewness : float or None
        Skewness of the logits about their mean over the images of one class, and over all
        images: what a stream of one class is told from a mixture by. None, both, where it was not
        measured.
    one_class_images : int
        Images behind `one_class_skewness`; 0 where no class has enough and it is the default.

    Raises
    ------
    ValueError
        If a number is not finite, or only one skewness is there.
    """

    num_images: int
    num_classes: int
    confidence: float
    effective_classes: float
    one_class_skewness: float | None = None
    mixture_skewness: float | None = None
    one_class_images: int = 0

    def __post_init__(self) -> None:
        numbers = [value for value in asdict(self).values() if isinstance(value, float)]
        if not all(map(math.isfinite, numbers)):
            raise ValueError("fitness: expected finite numbers")
        if (self.one_class_skewness is None) != (self.mixture_skewness is None):
            raise ValueError("fitness: expected the skewness of one class and of all, or neither")

    @property
    def skewness(self) -> tuple[float, float] | None:
        """Of frames of one class, and of all, as `gain_core.make_method` takes it."""
        if self.one_class_skewness is None or self.mixture_skewness is None:
            return None
        return self.one_class_skewness, self.mixture_skewness

    @classmethod
    def from_record(cls, record: Mapping[str, Any], /) -> Fitness:
        """Rebuild it from JSON.

        Raises
        ------
        TypeError, ValueError
            If a key is missing, or a value is none of its kind.
        """
        known = {item.name for item in fields(cls)}
        # Records of earlier versions call the skewness asymmetry, and hold what is not used now.
        values = {_EARLIER.get(key, key): value for key, value in record.items()}
        return cls(**{key: value for key, value in values.items() if key in known})
