"""What a method is given, what it owes, and what it says it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

__all__ = [
    "Batch",
    "Cost",
    "Diagnosing",
    "Diagnosis",
    "Floats",
    "Head",
    "Method",
    "OnPixels",
    "entropy",
    "log_softmax",
    "unit_rows",
]

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """The frozen classifier head, and what clean images said where there are some.

    Attributes
    ----------
    weight : array, (K, D) float32
    bias : array, (K,) float32
    source_mean : array, (D,) float32, or None
        Mean of the features of uncorrupted images.
    measured : dict
        What their logits show, as `gain_core.make_method` takes it; empty also where that tells
        nothing.
    logits_only : bool
        Whether the network gives no features: then its logits stand in their place, D = K.
    """

    weight: Floats
    bias: Floats
    source_mean: Floats | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    logits_only: bool = False

    @property
    def num_classes(self) -> int:
        """K."""
        return int(self.weight.shape[0])

    def logits(self, features: Floats, /) -> Floats:
        """W z + b, (B, K)."""
        result: Floats = features @ self.weight.T + self.bias
        return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """One batch as a method sees it: never its labels or its domain.

    Attributes
    ----------
    features : array, (B, D) float32
    logits : array, (B, K) float32
        Of the frozen source.
    pixel_values : array, (B, 3, H, W) float32, or None
        For methods that run the backbone themselves.
    """

    features: Floats
    logits: Floats
    pixel_values: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a method costs beside storing the network.

    Attributes
    ----------
    num_forward, num_backward : float
        Forward and backward passes of the backbone per batch.
    num_parameters : int
        Trained parameters.
    state_bytes : int
        Everything kept from one batch to the next, as of now.
    """

    num_forward: float = 1.0
    num_backward: float = 0.0
    num_parameters: int = 0
    state_bytes: int = 0

    def to_dict(self) -> dict[str, float | int]:
        """Plain values for a result file."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Diagnosis:
    """What GAIN's parts say about a batch before it is learned from.

    Attributes
    ----------
    strength, gain : array, (B,)
        The strength, and the expected gain in nats.
    evidence : array, (B, K)
        log(proposal / source): at the true class it is the realised gain.
    """

    strength: Floats
    gain: Floats
    evidence: Floats


class Method(Protocol):
    """A classifier that may adapt while it predicts."""

    @property
    def cost(self) -> Cost: ...

    def predict(self, batch: Batch, /) -> Floats:
        """Normalised log-probabilities (B, K) of a batch; adapts when and as its paper says."""
        ...

    def reset(self) -> None:
        """Return to the source."""
        ...


@runtime_checkable
class OnPixels(Protocol):
    """A method that runs the network itself: it is given pixel values, and its time is all of it.

    `uses_pixels` is always true; its presence is the mark.
    """

    uses_pixels: bool


@runtime_checkable
class Diagnosing(Protocol):
    """A method that can say what its state makes of a batch, without changing it."""

    def diagnose(self, batch: Batch, /) -> Diagnosis: ...


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
