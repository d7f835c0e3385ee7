"""Skewness of logits: what frames of one class and frames of many differ in."""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace

from gain_core._checks import detached
from gain_core.errors import ConfigError

__all__ = ["DEFAULT_SKEWNESS", "MIN_SEPARATION", "checked_pair", "skewness", "skewness_of_head"]

# Of one class and of a mixture, for a network of which nothing is known: of the networks measured,
# the most that one class has and more than most mixtures have, so that blocks are accepted late.
DEFAULT_SKEWNESS = (0.06, 0.5)
# Standard error of the skewness of the sixteen independent frames of a block: where a mixture has
# not this much more than one class, nothing is told, and nothing learned.
MIN_SEPARATION = 0.1
# Of one class, for a network whose head is known: about what most networks show.
ONE_CLASS = 0.05
# Features scatter about the rows of their class, so a mixture is less skewed than the rows are.
SHARE_OF_ROWS, LEAST_OF_ROWS = 0.6, 0.15
# Rows that are as good as all of them; of 20,000 classes, all logits would fill 1.6 GB.
MAX_ROWS = 1000


def skewness(centered: Any, /) -> Any:
    """Of logits (N, K) whose rows have mean 0: mean(max y + min y) / mean(max y - min y), ().

    y is centred over frames as well. Frames of many classes stick out on one side, each in the
    logit of its own class; frames of one class scatter about their mean evenly.
    """
    xp = array_namespace(centered)
    y = centered - xp.mean(centered, axis=0)
    high, low = xp.max(y, axis=1), xp.min(y, axis=1)
    span = xp.mean(high - low)
    return xp.where(span > 0, xp.mean(high + low) / xp.where(span > 0, span, span + 1.0), span)


def skewness_of_head(weight: Any, /) -> tuple[float, float]:
    """A guess from the head's rows alone.

    Parameters
    ----------
    weight : array, (K, D) floating

    Returns
    -------
    pair of float
        Of one class, and of a mixture: that of the rows' own logits, lessened.
    """
    xp = array_namespace(weight)
    rows = detached(weight, xp=xp)
    rows = rows - xp.mean(rows, axis=0)
    every = -(-rows.shape[0] // MAX_ROWS)
    logits = rows[::every, :] @ xp.matrix_transpose(rows)
    return ONE_CLASS, max(LEAST_OF_ROWS, SHARE_OF_ROWS * float(skewness(logits)))


def checked_pair(pair: tuple[float, float], /) -> tuple[float, float]:
    """The skewness of one class and of a mixture.

    Raises
    ------
    ConfigError
        If they are no two finite numbers.
    """
    try:
        one_class, mixture = map(float, pair)
        valid = math.isfinite(one_class) and math.isfinite(mixture)
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise ConfigError(
            f"skewness: expected two finite numbers, of one class and of a mixture, got {pair!r}; "
            "measure them with gain-export --calibrate"
        )
    return one_class, mixture
