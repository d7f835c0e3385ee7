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
    num_classes : int
        K.
    feature_norm : float or None
        Mean |z|; None, as the next two, where the network gives logits only.
    common_share : float or None
        |mean z|^2 over mean |z|^2, in [0, 1].
    alignment : float or None
        Mean cosine of z - mean z and the head's row of the predicted class.
    confidence : float
        Mean of the largest probability.
    effective_classes : float
        1 / sum of squared shares of the predicted classes.
    lda_agreement : float or None
        Share of images on which diagonal LDA gives the head's class; None on too few images.
    single_asymmetry, mixed_asymmetry : float or None
        Asymmetry of the logits about their mean over the images of one class, and over all
        images: what a stream of one class is told from a mixture by. None, both, where it was not
        measured or the two do not differ enough.
    single_images : int
        Images behind `single_asymmetry`; 0 where no class has enough and it is the default.

    Raises
    ------
    ValueError
        If a number is not finite, only one asymmetry is there, or the second is not the larger.
    """

    num_images: int
    num_classes: int
    feature_norm: float | None
    common_share: float | None
    alignment: float | None
    confidence: float
    effective_classes: float
    lda_agreement: float | None
    single_asymmetry: float | None = None
    mixed_asymmetry: float | None = None
    single_images: int = 0

    def __post_init__(self) -> None:
        numbers = [value for value in asdict(self).values() if isinstance(value, float)]
        if not all(map(math.isfinite, numbers)):
            raise ValueError("fitness: expected finite numbers")
        single, mixed = self.single_asymmetry, self.mixed_asymmetry
        neither = single is None and mixed is None
        if not (neither or (single is not None and mixed is not None and single < mixed)):
            raise ValueError(
                "fitness: expected the asymmetry of one class below that of all, or neither, "
                f"got {single!r} and {mixed!r}"
            )

    @property
    def asymmetry(self) -> tuple[float, float] | None:
        """Of frames of one class, and of all, as `prepare_prototypes` takes it."""
        if self.single_asymmetry is None or self.mixed_asymmetry is None:
            return None
        return self.single_asymmetry, self.mixed_asymmetry

    @classmethod
    def from_record(cls, record: Mapping[str, Any], /) -> Fitness:
        """Rebuild it from JSON.

        Raises
        ------
        TypeError, ValueError
            If a key is missing or unknown, or a value is none of its kind.
        """
        values = dict(record)
        # What records had before the mean logits were found to be of no use.
        if (mean_logits := values.pop("mean_logits", None)) is not None:
            values["num_classes"] = len(mean_logits)
        for name in ("single_asymmetry", "mixed_asymmetry"):
            # Records of before it was measured lack them.
            if values.get(name) is not None:
                values[name] = float(values[name])
        return cls(**values)
