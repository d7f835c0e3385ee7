"""Skewness, shift and shrinkage, as a stream and the clean images are measured by them alike."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from array_api_compat import array_namespace

from gain_core._checks import detached
from gain_core._rows import softmax, sum_of
from gain_core._typing import Array, Namespace
from gain_core.errors import ConfigError

__all__ = [
    "DEFAULT_SKEWNESS",
    "MIN_SEPARATION",
    "checked_pair",
    "checked_shift",
    "clean_shift",
    "james_stein",
    "one_over_draws",
    "skewness",
    "skewness_of_head",
]

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
# Divisor floor where the numerator is zero as well.
EPS = 1e-9
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


def clean_shift(centered: Any, /) -> Any:
    """The shift that a network shows on clean frames, as far as it stands out of its error, (K,).

    Where some classes are alike, their logits are high on each other's frames. That is no domain's
    doing, and a shift is counted from it.

    Parameters
    ----------
    centered : array, (N, K) floating
        Logits whose rows have mean 0, of independent frames.
    """
    xp = array_namespace(centered)
    count, num_classes = centered.shape
    labels = softmax(centered, xp=xp)
    weights = 1.0 - labels * labels
    total = xp.sum(weights, axis=0)
    mean = xp.sum(weights * centered, axis=0) / total
    variance = xp.sum(xp.sum(weights * (centered - mean) ** 2, axis=0) / total)
    mean = mean - xp.mean(mean)
    share = xp.mean(labels, axis=0)
    some = xp.ones_like(mean[0]) * EPS
    sharp = xp.maximum(xp.mean(xp.sum(labels * labels, axis=1)) - 1.0 / num_classes, some)
    # Few classes say little of how all of them are alike.
    error = one_over_draws(share, sharp, xp.ones_like(sharp) / count, xp=xp)
    return mean * james_stein(mean, variance * error, some=some, xp=xp)


def one_over_draws(share: Array, sharp: Array, least: Array, /, *, xp: Namespace) -> Array:
    """One over the effective number of draws of a class, at least `least`, of any shape.

    From the classes' mean labels (K,). Labels that are not sharp spread over classes that are not
    there: even two frames of one class agree in them by no more than |q|^2, of which `sharp` is
    what exceeds 1 / K.
    """
    return xp.maximum((xp.sum(share * share) - 1.0 / share.shape[0]) / sharp, least)


def james_stein(move: Array, noise: Array, *, some: Array, xp: Namespace) -> Array:
    """The share of a move (K,) that is kept by James and Stein's shrinkage, in [0, 1]."""
    return xp.maximum(1.0 - noise / xp.maximum(sum_of(move * move, xp=xp), some), 0.0 * noise)


def checked_shift(
    values: Iterable[float] | None, /, *, num_classes: int
) -> tuple[float, ...] | None:
    """The clean shift of K classes.

    Raises
    ------
    ConfigError
        If it is no K finite numbers.
    """
    if values is None:
        return None
    shift = _finite(values, num_classes)
    if shift is None:
        raise ConfigError(
            f"clean_shift: expected {num_classes} finite numbers, one for each class, got "
            f"{values!s:.60}; measure it with gain-export --calibrate"
        )
    return shift


def checked_pair(pair: tuple[float, float], /) -> tuple[float, float]:
    """The skewness of one class and of a mixture.

    Raises
    ------
    ConfigError
        If they are no two finite numbers.
    """
    numbers = _finite(pair, 2)
    if numbers is None:
        raise ConfigError(
            f"skewness: expected two finite numbers, of one class and of a mixture, got {pair!r}; "
            "measure them with gain-export --calibrate"
        )
    one_class, mixture = numbers
    return one_class, mixture


def _finite(values: Iterable[float], count: int) -> tuple[float, ...] | None:
    """The numbers, if they are so many and all finite."""
    try:
        numbers = tuple(map(float, values))
    except (TypeError, ValueError):
        return None
    return numbers if len(numbers) == count and all(map(math.isfinite, numbers)) else None
