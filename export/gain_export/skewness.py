"""How frames of one class are told from frames of many: by the skewness of their logits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gain_core.shift.skewness import ONE_CLASS, skewness

__all__ = [
    "CLASS_IMAGES",
    "LEAST_IMAGES",
    "MAX_IMAGES",
    "Skewness",
    "measure_skewness",
]

Doubles = npt.NDArray[np.float64]

# Images of a class from which it counts: their own mean is taken out of them.
CLASS_IMAGES = 8
# Images from which the mixture's skewness is less than a few hundredths off.
LEAST_IMAGES = 32
# More are thinned out: by then the noise of what is measured is below use.
MAX_IMAGES = 5000


class Skewness(NamedTuple):
    """Skewness of the logits on clean images.

    Attributes
    ----------
    one_class : float
        Over images of one class, mean over classes; `ONE_CLASS` where none has enough.
    mixture : float
        Over all images.
    one_class_images : int
        Images behind `one_class`, 0 where it is not measured.
    """

    one_class: float
    mixture: float
    one_class_images: int


def measure_skewness(logits: npt.NDArray[np.floating], /) -> Skewness | None:
    """Measure what a stream of one class is told from a mixture by.

    Parameters
    ----------
    logits : array, (N, K) floating
        Logits or log-probabilities of unlabelled clean images; the classes are those predicted.

    Returns
    -------
    Skewness or None
        None for two classes, whose centred logits are symmetric always, and for fewer than
        `LEAST_IMAGES` images.

    Notes
    -----
    As `gain_core.shift.skewness` has it of a stream's frames.
    """
    num_images, num_classes = logits.shape
    if num_classes < 3 or num_images < LEAST_IMAGES:
        return None
    raw = logits.astype(np.float64)
    centered = raw - raw.mean(axis=1, keepdims=True)
    predicted = np.argmax(raw, axis=1)
    counts = np.bincount(predicted, minlength=num_classes)
    known = np.flatnonzero(counts >= CLASS_IMAGES)
    one_class = ONE_CLASS
    if len(known):
        values = [float(skewness(centered[predicted == k])) for k in known]
        # Six digits are far below the noise, and keep the metadata readable.
        one_class = round(float(np.average(values, weights=counts[known])), 6)
    mixture = round(float(skewness(centered)), 6)
    return Skewness(one_class=one_class, mixture=mixture, one_class_images=int(counts[known].sum()))
