"""Skewness, shift and shrinkage, as a stream and the clean images are measured by them alike."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from array_api_compat import array_namespace

from gain_core._arrays import Array, Namespace, detached, softmax, sum_of
from gain_core.errors import ConfigError

# Of one class and of a mixture, for a network of which nothing is known: of the networks measured,
# the most that one class has and more than most mixtures have, so that blocks are accepted late.
DEFAULT_SKEWNESS = (0.06, 0.5)
# Where a mixture has not this much more than one class, nothing is told, and nothing learned: two
# standard errors of the sixteen independent frames of a block.
MIN_SEPARATION = 0.1
# Of one class, for a network whose head is known: about what most networks show.
ONE_CLASS = 0.05
# Features scatter about the rows of their class, so a mixture is less skewed than the rows are.
SHARE_OF_ROWS, LEAST_OF_ROWS = 0.6, 0.15
# A class's variance counts as at least this share of the classes' mean.
MIN_VARIANCE = 1e-6
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


def clean_moments(centered: Any, /) -> Any:
    """Mean and log deviation of each class's logit on clean frames of others, (2, K).

    Each about the classes' mean, and as far as it stands out of its error. Where some classes are
    alike, their logits are high on each other's frames. That is no domain's doing, so shift and
    scale are counted from it.

    Parameters
    ----------
    centered : array, (N, K) floating
        Logits whose rows have mean 0, of independent frames.
    """
    xp = array_namespace(centered)
    count, num_classes = centered.shape
    labels = softmax(centered, xp=xp)
    weights = 1.0 - labels
    total = xp.sum(weights, axis=0)
    mean = xp.sum(weights * centered, axis=0) / total
    square = xp.sum(weights * (centered - mean) ** 2, axis=0) / total
    share = xp.mean(labels, axis=0)
    some = xp.ones_like(mean[0]) * EPS
    squared = xp.mean(xp.sum(labels * labels, axis=1))
    # Few classes say little of how all of them are alike.
    least = xp.ones_like(squared) / count
    error, log_error = one_over_draws(share, squared, least, some=some, xp=xp)
    found = mean - xp.mean(mean), log_deviations(square[None, :], xp=xp)[0, :]
    noise = xp.sum(square) * error, 0.5 * num_classes * log_error
    return xp.stack(
        [row * james_stein(row, n, some=some, xp=xp) for row, n in zip(found, noise, strict=True)]
    )


def log_deviations(square: Array, /, *, xp: Namespace) -> Array:
    """Logarithms of deviations less their mean, (J, K), from variances (J, K)."""
    least = MIN_VARIANCE * xp.mean(square, axis=1, keepdims=True) + EPS * EPS
    logs = 0.5 * xp.log(xp.maximum(square, least))
    return logs - xp.mean(logs, axis=1, keepdims=True)


def one_over_draws(
    share: Array, squared: Array, least: Array, /, *, some: Array, xp: Namespace
) -> tuple[Array, Array]:
    """One over the effective number of draws of a class, at least `least`, of any shape.

    From the mean of the labels, (K,), and of |q|^2, (). Labels that are not sharp spread over
    classes that are not there: even two frames of one class agree in them by no more than |q|^2;
    `sharp` is what exceeds 1 / K. Calibrated ones are right as often, so that two frames of two
    classes agree by its square: what a scale's error takes, the second. A shift's, the first,
    takes it once, since the part of the logits' variance that lies within classes averages out.
    """
    by_chance = 1.0 / share.shape[0]
    sharp = xp.maximum(squared - by_chance, some)
    excess = xp.sum(share * share) - by_chance
    return xp.maximum(excess / sharp, least), xp.maximum(excess / (sharp * sharp), least)


def james_stein(move: Array, noise: Array, *, some: Array, xp: Namespace) -> Array:
    """The share of a move (K,) that is kept by James and Stein's shrinkage, in [0, 1]."""
    return xp.maximum(1.0 - noise / xp.maximum(sum_of(move * move, xp=xp), some), 0.0 * noise)


def checked_moments(
    values: Iterable[Iterable[float]] | None, /, *, num_classes: int
) -> tuple[tuple[float, ...], ...] | None:
    """The clean moments of K classes.

    Raises
    ------
    ConfigError
        If they are no two rows of K finite numbers.
    """
    if values is None:
        return None
    rows = None
    with suppress(TypeError):
        rows = tuple(_finite(row, num_classes) for row in values)
    if rows is None or len(rows) != 2 or None in rows:
        raise ConfigError(
            f"clean_moments: expected two rows of {num_classes} finite numbers, one for each "
            f"class, got {values!s:.60}; measure them with gain-export --calibrate"
        )
    return rows  # type: ignore[return-value]


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
