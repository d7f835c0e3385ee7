"""In which order the images of one domain are visited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from gain_core.errors import ConfigError

__all__ = ["Order", "image_order", "tail_counts"]

Ints = npt.NDArray[np.int64]
Order = Literal["list", "shuffled", "runs", "sorted", "long-tailed", "one-class"]

# A camera that stays with one object for two to five seconds at 30 Hz.
RUN_FRAMES = (60, 140)
# Frames of the most frequent class for one of the rarest.
IMBALANCE = 100.0


def image_order(
    order: Order,
    labels: npt.NDArray[np.integer[Any]],
    /,
    *,
    rng: np.random.Generator,
    only_class: int | None = None,
    ranking: Ints | None = None,
) -> Ints:
    """Image indices of one visit to a domain.

    Parameters
    ----------
    order : {"list", "shuffled", "runs", "sorted", "long-tailed", "one-class"}
        `list` is the data set's own order. `runs` shows 60 to 140 frames of one class, then of
        another, until every image was shown. `sorted` shows all of one class, then all of the
        next, classes in random order. `long-tailed` shuffles all images of one class, and of the
        others fewer and fewer, down to a hundredth. `one-class` shows a single class.
    labels : array, (N,) integer
    rng : Generator
        Everything random comes from it.
    only_class : int, optional
        The class of `one-class`; by default one is drawn among those present.
    ranking : array, (K,) int64, optional
        The classes of `long-tailed`, the most frequent first; by default in random order.

    Returns
    -------
    array, (M,) int64
        M is N, or the number of images shown of each class.

    Raises
    ------
    ConfigError
        If the order is unknown or the class has no images.
    """
    if order not in get_args(Order):
        raise ConfigError(f"order: expected one of {', '.join(get_args(Order))}, got {order!r}")
    if order == "list":
        return np.arange(len(labels), dtype=np.int64)
    shuffled = rng.permutation(len(labels)).astype(np.int64)
    if order == "shuffled":
        return shuffled
    if order == "one-class":
        return _one_class(shuffled, labels, rng=rng, only_class=only_class)
    if order == "long-tailed":
        ranking = rng.permutation(np.unique(labels)) if ranking is None else ranking
        return _long_tailed(shuffled, labels, ranking)
    classes = rng.permutation(np.unique(labels))
    by_class = [shuffled[labels[shuffled] == label] for label in classes]
    return np.concatenate(by_class if order == "sorted" else _runs(by_class, rng=rng))


def _one_class(
    shuffled: Ints,
    labels: npt.NDArray[np.integer[Any]],
    *,
    rng: np.random.Generator,
    only_class: int | None,
) -> Ints:
    """The images of a single class."""
    present = np.unique(labels)
    if only_class is None:
        only_class = int(rng.choice(present))
    if only_class not in present:
        raise ConfigError(
            f"only-class: expected a class with images, got {only_class}; "
            f"{len(present)} classes from {present[0]} to {present[-1]} have some"
        )
    chosen: Ints = shuffled[labels[shuffled] == only_class]
    return chosen


def _long_tailed(shuffled: Ints, labels: npt.NDArray[np.integer[Any]], ranking: Ints, /) -> Ints:
    """Of every class the share that its rank leaves it, one image at least."""
    shown = labels[shuffled]
    kept = np.zeros(len(shuffled), dtype=bool)
    by_class = [np.flatnonzero(shown == label) for label in ranking]
    counts = tail_counts([len(places) for places in by_class], IMBALANCE)
    for places, count in zip(by_class, counts, strict=True):
        kept[places[:count]] = True
    chosen: Ints = shuffled[kept]
    return chosen


def tail_counts(counts: Sequence[int], ratio: float, /) -> list[int]:
    """How many images of every class a long tail leaves.

    Parameters
    ----------
    counts : sequence of int
        Images of each class, the most frequent class of the tail first.
    ratio : float
        The first class's share over the last one's; in between, shares fall exponentially.

    Returns
    -------
    list of int
        One at least.
    """
    shares = ratio ** -np.linspace(0.0, 1.0, len(counts))
    return [
        max(1, round(float(share) * count)) for share, count in zip(shares, counts, strict=True)
    ]


def _runs(by_class: list[Ints], *, rng: np.random.Generator) -> list[Ints]:
    """Cut each class's images into runs and shuffle the runs."""
    shortest, longest = RUN_FRAMES
    runs: list[Ints] = []
    for images in by_class:
        start = 0
        while start < len(images):
            length = int(rng.integers(shortest, longest + 1))
            runs.append(images[start : start + length])
            start += length
    return [runs[index] for index in rng.permutation(len(runs))]
