"""Normalisation of scores, in log space, along the last axis."""

from __future__ import annotations

import numpy as np

from gain_apps.evaluation.methods.protocol import Floats

__all__ = ["entropy", "log_softmax", "unit_rows"]

LEAST_NORM = 1e-12


def log_softmax(scores: Floats, /) -> Floats:
    """Logarithm of the softmax of each row."""
    shifted = scores - scores.max(axis=-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def entropy(log_probs: Floats, /) -> Floats:
    """Entropy of each row in nats; a probability of zero adds nothing."""
    probs = np.exp(log_probs)
    products = np.where(probs > 0, probs * np.where(probs > 0, log_probs, 0.0), 0.0)
    result: Floats = -products.sum(axis=-1)
    return result


def unit_rows(rows: Floats, /) -> Floats:
    """Rows scaled to unit length; a zero row stays zero."""
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    result: Floats = rows / np.maximum(norms, LEAST_NORM)
    return result
