"""The frozen head, with what uncorrupted images say about it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gain_apps.evaluation.methods.protocol import Floats, Head
from gain_export.skewness import MAX_IMAGES, measure_skewness

__all__ = ["source_head"]


def source_head(weight: Floats, bias: Floats, /, *, clean: Floats | None) -> Head:
    """Put the head and what was measured on the source's own domain together.

    Parameters
    ----------
    weight : array, (K, D) float32
    bias : array, (K,) float32
    clean : array, (N, D) floating, or None
        Features of uncorrupted images; None where there are none.

    Returns
    -------
    Head
    """
    head = Head(weight=weight, bias=bias)
    if clean is None:
        return head
    skewness = measure_skewness(head.logits(_some(clean)))
    return replace(
        head,
        source_mean=clean.mean(axis=0, dtype=np.float64),
        skewness=None if skewness is None else (skewness.one_class, skewness.mixture),
    )


def _some(clean: Floats) -> Floats:
    """At most `MAX_IMAGES` rows, drawn.

    Every n-th of a data set in which the classes take turns would be of a few classes only.
    """
    if len(clean) <= MAX_IMAGES:
        return clean
    rows = np.random.default_rng(0).choice(len(clean), MAX_IMAGES, replace=False)
    return clean[np.sort(rows)]
