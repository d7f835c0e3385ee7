"""Comparing an artifact with the model's own output, on images."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle

import numpy as np
import numpy.typing as npt

from gain_core.errors import ParityError
from gain_export.outputs import Activation, activate
from gain_runtime.files.artifact import Artifact
from gain_runtime.sessions.onnx import OnnxSession

# Two correct float32 networks differ by rounding, which grows with the largest value around; a
# wrong operator or weight shows at 1e-3 of it and above. Correct exports were seen at 2e-6 of it.
ATOL, RTOL = 1e-5, 1e-4
# A network that computes in half precision rounds at 1e-3 itself, and otherwise in other batches.
HALF_RTOL = 1e-2
MIN_COSINE = 0.9999
BATCH_SIZES = (1, 3, 8)
# The logarithms of smaller probabilities are of numbers that float32 holds with few digits.
_SMALL = 1e-30

_SAME = (
    "the model's own output is the same for every image it was tried on, so that agreement says "
    "nothing; check --mean and --std, or give photographs with --verify-images"
)
# What differs between images must be this many times what differs between the networks.
_SIGNAL = 10.0

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Numbers = dict[str, float | int | str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """What an artifact must agree with: the model's own output for the images it is tried on.

    `output` holds (N, K) scores, or (N,) numbers of classes; it is None where the model has no
    output that says anything about these classes, and `why_not` says why.
    """

    name: str  # for the record, with its version
    pixel_values: Floats  # (N, 3, H, W)
    images: int  # how many different ones are in it, for the record
    image_source: str  # for the record
    output: npt.NDArray[np.generic] | None
    activation: Activation = "none"  # between the artifact's logits and this output
    output_name: str = ""
    why_not: str = ""
    half: bool = False  # the model computes in half precision


def verify(artifact: Artifact, reference: Reference, /) -> Numbers:
    """Run an artifact over images and refuse any difference from the model's own output.

    On the CPU in batches of 1, 3 and 8 in turn. Returns the numbers measured, as they go into the
    manifest: `verified` is "yes", "class" where the model tells the class only, or "no" with the
    `reason`. Raises ParityError if logits, probabilities or class differ by more than rounding, if
    the logits are not the head applied to the features, or if a value is NaN or infinite, naming
    all that failed; and EngineError if the artifact cannot be run at one of these batch sizes.
    """
    features, logits = _run(artifact, reference.pixel_values)
    numbers: Numbers = {
        "verified": "yes",
        "reference": reference.name,
        "image_source": reference.image_source,
        "images": reference.images,
        "batch_sizes": ", ".join(str(size) for size in BATCH_SIZES),
        "atol": ATOL,
        "rtol": HALF_RTOL if reference.half else RTOL,
        "min_cosine": MIN_COSINE,
    }
    failures = _finite("the artifact", logits)
    if not failures:
        failures = _compare_output(logits, reference, numbers=numbers)
    if not failures and features is not None:
        failures = _check_head(artifact, features, logits, numbers=numbers)
    if failures:
        raise ParityError(
            f"the artifact does not agree with {reference.name} on {reference.images} images "
            f"({reference.image_source}): {'; '.join(failures)}; nothing was written"
        )
    return numbers


def _run(artifact: Artifact, pixel_values: Floats) -> tuple[Floats | None, Floats]:
    """Features, if it has any, and logits of all images, the batch size changing every time."""
    parts = []
    with OnnxSession(artifact) as session:
        start = 0
        for size in cycle(BATCH_SIZES):
            if start >= len(pixel_values):
                break
            parts.append(session.infer(pixel_values[start : start + size]))
            start += size
    logits = np.concatenate([np.asarray(part.logits) for part in parts])
    if artifact.head_weight is None:
        return None, logits
    return np.concatenate([np.asarray(part.features) for part in parts]), logits


def _compare_output(logits: Floats, reference: Reference, *, numbers: Numbers) -> list[str]:
    """The artifact's logits against the model's own output; the failures."""
    if reference.output is None:
        numbers |= {"verified": "no", "reason": reference.why_not}
        return []
    if reference.activation == "class_number":
        numbers["verified"] = "class"
        classes = reference.output.astype(np.int64)
        failures = _check_classes(logits, classes, rtol=RTOL, numbers=numbers)
        numbers["classes_seen"] = len(np.unique(classes))
        if numbers["classes_seen"] == 1:
            numbers |= {"verified": "no", "reason": _SAME}
        return failures
    want = reference.output.astype(np.float32)
    got = activate(logits, reference.activation)
    failures = _finite(reference.name, want)
    if failures:
        return failures
    rtol = HALF_RTOL if reference.half else RTOL
    failures = _compare("output", got, want, rtol=rtol, numbers=numbers)
    pairs = [(got, want)]
    if reference.activation in ("softmax", "probabilities"):
        # Of saturated probabilities only the logarithm tells the logits apart.
        seen = want > _SMALL
        logs = [np.log(np.where(seen, values, 1.0)) for values in (np.maximum(got, _SMALL), want)]
        failures += _compare("log_output", *logs, rtol=rtol, numbers=numbers)
        pairs.append((logs[0], logs[1]))
    if not failures and not any(_tells_images_apart(*pair) for pair in pairs):
        numbers |= {"verified": "no", "reason": _SAME}
    if not failures:
        failures = _check_classes(want, got.argmax(axis=1), rtol=rtol, numbers=numbers)
        numbers["classes_seen"] = len(np.unique(want.argmax(axis=1)))
        _note_calibration(got, want, reference.activation, numbers=numbers)
    return failures


def _tells_images_apart(got: Floats, want: Floats) -> bool:
    """Whether agreement says anything: images change the output by far more than rounding does."""
    exact, other = want.astype(np.float64), got.astype(np.float64)
    rounding = max(float(np.abs(exact - other).max()), 1e-7 * float(np.abs(exact).max()))
    return float(np.ptp(exact, axis=0).max()) > _SIGNAL * rounding


def _finite(whose: str, values: npt.NDArray[np.generic]) -> list[str]:
    return [] if np.isfinite(values).all() else [f"NaN or infinity in {whose}"]


def _compare(name: str, got: Floats, want: Floats, *, rtol: float, numbers: Numbers) -> list[str]:
    """Largest difference and smallest cosine of one output; the failures among them."""
    if got.shape != want.shape:
        return [f"{name}: expected shape {want.shape}, got {got.shape}"]
    exact, other = want.astype(np.float64), got.astype(np.float64)
    allowed = ATOL + rtol * float(np.abs(exact).max())
    difference = float(np.abs(exact - other).max())
    cosine = _cosine(exact, other)
    numbers[f"{name}_max_abs_diff"] = difference
    numbers[f"{name}_allowed_diff"] = allowed
    numbers[f"{name}_cosine_min"] = float(cosine.min())
    failures = []
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


def _check_classes(
    scores: Floats, named: npt.NDArray[np.int64], *, rtol: float, numbers: Numbers
) -> list[str]:
    """Whether the classes named have the highest scores; closer than rounding is a tie."""
    allowed = ATOL + rtol * float(np.abs(scores).max())
    agrees = scores[np.arange(len(scores)), named] >= scores.max(axis=1) - 2.0 * allowed
    numbers["top1_agreement"] = float(agrees.mean())
    if agrees.all():
        return []
    return [f"top-1: the predicted class agrees on {agrees.mean():.1%}, expected 100%"]


def _note_calibration(
    got: Floats, want: Floats, activation: Activation, *, numbers: Numbers
) -> None:
    """The mean confidence of both: what calibration is measured on."""
    for name, scores in (("confidence", got), ("reference_confidence", want)):
        probs = activate(scores, "softmax") if activation == "none" else scores
        probs = np.exp(probs) if activation == "log_softmax" else probs
        numbers[name] = float(probs.max(axis=1).mean())


def _check_head(
    artifact: Artifact, features: Floats, logits: Floats, *, numbers: Numbers
) -> list[str]:
    """Whether the head the manifest names, applied to the features, gives the logits."""
    assert artifact.head_weight is not None
    assert artifact.head_bias is not None
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
