"""How frames of one class are told from frames of many: by the asymmetry of their logits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gain_core.prototypes import LEAST_ASYMMETRY_GAP

__all__ = [
    "CLASS_IMAGES",
    "LEAST_IMAGES",
    "MAX_IMAGES",
    "UNKNOWN_SINGLE",
    "Asymmetry",
    "measure_asymmetry",
]

Doubles = npt.NDArray[np.float64]

# Images of a class from which it counts: their own mean is taken out of them.
CLASS_IMAGES = 8
# Taken for frames of one class where none has so many images: about what most networks show.
UNKNOWN_SINGLE = 0.03
# Images from which the mixture's asymmetry is less than a few hundredths off.
LEAST_IMAGES = 32
# More are thinned out: by then the noise of what is measured is below use.
MAX_IMAGES = 5000


class Asymmetry(NamedTuple):
    """Asymmetry of the logits on clean images.

    Attributes
    ----------
    single : float
        Over images of one class, mean over classes; `UNKNOWN_SINGLE` where none has enough.
    mixed : float
        Over all images.
    single_images : int
        Images behind `single`, 0 where it is not measured.
    """

    single: float
    mixed: float
    single_images: int


def measure_asymmetry(logits: npt.NDArray[np.floating], /) -> Asymmetry | None:
    """Measure what a stream of one class is told from a mixture by.

    Parameters
    ----------
    logits : array, (N, K) floating
        Logits or log-probabilities of unlabelled clean images; the classes are those predicted.

    Returns
    -------
    Asymmetry or None
        None for two classes, whose centred logits are symmetric always; for fewer than
        `LEAST_IMAGES` images; and where a mixture is no more asymmetric than a single class.

    Notes
    -----
    Of a group of images with centred logits x and y = x - mean x it is mean(max_k y + min_k y) /
    mean(max_k y - min_k y), as `gain_core.shift` has it of a stream's frames.
    """
    num_images, num_classes = logits.shape
    if num_classes < 3 or num_images < LEAST_IMAGES:
        return None
    raw = logits.astype(np.float64)
    centered = raw - raw.mean(axis=1, keepdims=True)
    predicted = np.argmax(raw, axis=1)
    counts = np.bincount(predicted, minlength=num_classes)
    known = np.flatnonzero(counts >= CLASS_IMAGES)
    single = UNKNOWN_SINGLE
    if len(known):
        values = [_asymmetry(centered[predicted == k]) for k in known]
        # Six digits are far below the noise, and keep the metadata readable.
        single = round(float(np.average(values, weights=counts[known])), 6)
    mixed = round(_asymmetry(centered), 6)
    if mixed <= single + LEAST_ASYMMETRY_GAP:
        return None
    return Asymmetry(single=single, mixed=mixed, single_images=int(counts[known].sum()))


def _asymmetry(centered: Doubles) -> float:
    """Of one group of centred logits (N, K); 0 where all are the same."""
    y = centered - centered.mean(axis=0)
    highest, lowest = y.max(axis=1), y.min(axis=1)
    reach = float(np.mean(highest - lowest))
    return float(np.mean(highest + lowest)) / reach if reach > 0.0 else 0.0
