"""In which order the images of one domain are visited."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from gain_core.errors import ConfigError

__all__ = ["Order", "image_order"]

Ints = npt.NDArray[np.int64]
Order = Literal["list", "shuffled", "runs", "sorted", "one-class"]

# A camera that stays with one object for two to five seconds at 30 Hz.
RUN_FRAMES = (60, 140)


def image_order(
    order: Order,
    labels: npt.NDArray[np.integer[Any]],
    /,
    *,
    rng: np.random.Generator,
    only_class: int | None = None,
) -> Ints:
    """Image indices of one visit to a domain.

    Parameters
    ----------
    order : {"list", "shuffled", "runs", "sorted", "one-class"}
        `list` is the data set's own order. `runs` shows 60 to 140 frames of one class, then of
        another, until every image was shown. `sorted` shows all of one class, then all of the
        next, classes in random order. `one-class` shows a single class.
    labels : array, (N,) integer
    rng : Generator
        Everything random comes from it.
    only_class : int, optional
        The class of `one-class`; by default one is drawn among those present.

    Returns
    -------
    array, (M,) int64
        M is N, or the number of images of the class.

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
