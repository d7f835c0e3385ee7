"""Comparing an artifact with the network it was made from, on images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import numpy.typing as npt

from gain_core.errors import ParityError
from gain_export.head import Activation
from gain_runtime.artifact import Artifact
from gain_runtime.onnx_session import OnnxSession
from gain_runtime.preprocess import preprocess_batch

__all__ = [
    "ATOL",
    "BATCH_SIZES",
    "MIN_COSINE",
    "RTOL",
    "Expected",
    "Numbers",
    "Reference",
    "verify",
]

# Two correct float32 networks differ by rounding, which grows with the largest value around; a
# wrong operator or weight shows at 1e-3 of it and above. Correct exports were seen at 2e-6 of it.
ATOL, RTOL = 1e-5, 1e-4
MIN_COSINE = 0.9999
BATCH_SIZES = (1, 3, 8)

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Numbers = dict[str, float | int | str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expected:
    """What the reference network gives for a batch.

    Attributes
    ----------
    features : array, (B, D) float32
    logits : array, (B, K) float32
    output : array, (B, K) float32, or None
        The original's own output where it is not `logits` themselves.
    """

    features: Floats
    logits: Floats
    output: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The network an artifact must agree with.

    Attributes
    ----------
    name : str
        For the record, with its version.
    run : callable
        From `pixel_values` (B, 3, H, W) float32, any B, to `Expected`.
    activation : str
        What lies between its `logits` and its `output`.
    """

    name: str
    run: Callable[[Floats], Expected]
    activation: Activation = "none"


def verify(
    artifact: Artifact,
    reference: Reference,
    /,
    *,
    images: Sequence[npt.NDArray[np.uint8]],
    image_source: str,
) -> Numbers:
    """Run both networks over images and refuse any difference beyond rounding.

    Parameters
    ----------
    artifact : Artifact
        Run on the CPU in batches of 1, 3 and 8 in turn.
    reference : Reference
    images : sequence of arrays, (H, W, 3) uint8 RGB
        Repeated where there are fewer than one round of batches takes.
    image_source : str
        For the record.

    Returns
    -------
    dict
        The numbers measured, as they go into the manifest.

    Raises
    ------
    ParityError
        If `features`, `logits` or the output differ by more than `ATOL + RTOL * max|reference|`
        or in direction, if a predicted class differs, if the logits are not the head applied to
        the features, or if a value is NaN or infinite; all that failed is named.
    EngineError
        If the artifact cannot be run at one of these batch sizes.
    """
    rounds = -(-sum(BATCH_SIZES) // len(images))
    pixel_values = preprocess_batch(list(images) * rounds, artifact.manifest.preprocess)
    features, logits = _run(artifact, pixel_values)
    expected = reference.run(pixel_values)
    numbers: Numbers = {
        "reference": reference.name,
        "image_source": image_source,
        "images": len(images),
        "batch_sizes": ", ".join(str(size) for size in BATCH_SIZES),
        "atol": ATOL,
        "rtol": RTOL,
        "min_cosine": MIN_COSINE,
    }
    pairs = [("features", features, expected.features), ("logits", logits, expected.logits)]
    if expected.output is not None:
        pairs.append(("output", _activate(logits, reference.activation), expected.output))
    failures = []
    for name, got, want in pairs:
        failures += _compare(name, got, want, numbers=numbers)
    if not failures:
        failures += _check_classes(logits, expected.logits, numbers=numbers)
        failures += _check_head(artifact, features, logits, numbers=numbers)
    if failures:
        raise ParityError(
            f"the artifact does not agree with {reference.name} on {len(images)} images "
            f"({image_source}): {'; '.join(failures)}; nothing was written"
        )
    return numbers


def _run(artifact: Artifact, pixel_values: Floats) -> tuple[Floats, Floats]:
    """Features and logits of all images, the batch size changing from call to call."""
    parts = []
    with OnnxSession(artifact) as session:
        start = 0
        for size in cycle(BATCH_SIZES):
            if start >= len(pixel_values):
                break
            parts.append(session.infer(pixel_values[start : start + size]))
            start += size
    features = np.concatenate([np.asarray(part.features) for part in parts])
    logits = np.concatenate([np.asarray(part.logits) for part in parts])
    return features, logits


def _compare(name: str, got: Floats, want: Floats, *, numbers: Numbers) -> list[str]:
    """Largest difference and smallest cosine of one output; the failures among them."""
    if got.shape != want.shape:
        return [f"{name}: expected shape {want.shape}, got {got.shape}"]
    failures = [
        f"{name}: NaN or infinity in {whose}"
        for whose, values in (("the artifact", got), ("the reference", want))
        if not np.isfinite(values).all()
    ]
    if failures:
        return failures
    exact, other = want.astype(np.float64), got.astype(np.float64)
    allowed = ATOL + RTOL * float(np.abs(exact).max())
    difference = float(np.abs(exact - other).max())
    cosine = _cosine(exact, other)
    numbers[f"{name}_max_abs_diff"] = difference
    numbers[f"{name}_allowed_diff"] = allowed
    numbers[f"{name}_cosine_min"] = float(cosine.min())
    numbers[f"{name}_cosine_mean"] = float(cosine.mean())
    if difference > allowed:
        failures.append(f"{name}: largest difference {difference:.3g}, allowed {allowed:.3g}")
    if cosine.min() < MIN_COSINE:
        failures.append(f"{name}: smallest cosine {cosine.min():.6f}, expected {MIN_COSINE}")
    return failures


def _cosine(left: Doubles, right: Doubles) -> Doubles:
    """Cosine per row; rows that are both zero agree."""
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    products = (left * right).sum(axis=1)
    equal = (left == right).all(axis=1)
    cosine = np.where(equal, 1.0, products / np.where(norms > 0.0, norms, 1.0))
    return np.minimum(cosine, 1.0)


def _check_classes(got: Floats, want: Floats, *, numbers: Numbers) -> list[str]:
    """Whether both networks predict the same class; scores closer than rounding are a tie."""
    allowed = ATOL + RTOL * float(np.abs(want).max())
    rows = np.arange(len(want))
    agrees = want[rows, got.argmax(axis=1)] >= want.max(axis=1) - 2.0 * allowed
    numbers["top1_agreement"] = float(agrees.mean())
    if agrees.all():
        return []
    return [f"top-1: the predicted class agrees on {agrees.mean():.1%}, expected 100%"]


def _check_head(
    artifact: Artifact, features: Floats, logits: Floats, *, numbers: Numbers
) -> list[str]:
    """Whether the head the manifest names, applied to the features, gives the logits."""
    weight = artifact.head_weight.astype(np.float64)
    exact = features.astype(np.float64) @ weight.T + artifact.head_bias
    allowed = ATOL + RTOL * float(np.abs(exact).max())
    difference = float(np.abs(exact - logits).max())
    numbers["head_max_abs_diff"] = difference
    if difference <= allowed:
        return []
    return [
        f"head: logits differ from features @ weight.T + bias by {difference:.3g}, "
        f"allowed {allowed:.3g}"
    ]


def _activate(logits: Floats, activation: Activation) -> Floats:
    """The original's last operator, applied to the artifact's logits."""
    if activation == "none":
        return logits
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    chosen: Doubles = log_probs if activation == "log_softmax" else np.exp(log_probs)
    output: Floats = chosen.astype(np.float32)
    return output
