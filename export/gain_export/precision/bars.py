"""How far a network in lower precision may be from its float32 artifact, and measuring it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from gain_core.errors import ParityError
from gain_runtime.files.artifact import Artifact
from gain_runtime.preprocess import preprocess_batch
from gain_runtime.sessions.onnx import OnnxSession
from gain_runtime.sessions.session import Session

Precision = Literal["fp16", "bf16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

Floats = npt.NDArray[np.float32]
# Features (N, D) and logits (N, K).
Outputs = tuple[Floats, Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The least that is accepted without --allow-drift.

    Share of images that get the float32 artifact's class, and cosine of the features and of the
    logits of every single image.
    """

    top1_agreement: float
    cosine: float


# bf16 keeps 8 bits of mantissa where fp16 keeps 11, hence the lower bar.
BARS: dict[Precision, Bar] = {
    "fp16": Bar(top1_agreement=0.99, cosine=0.999),
    "bf16": Bar(top1_agreement=0.98, cosine=0.99),
    "int8": Bar(top1_agreement=0.95, cosine=0.98),
}

# Of an engine, by its artifact's precision; None where the artifact records none. TF32, the
# library's default for float32, keeps as many bits of mantissa as fp16.
ENGINE_BARS: dict[str | None, Bar] = {
    "fp32": BARS["fp16"],
    "fp16": BARS["fp16"],
    "bf16": BARS["bf16"],
    "int8": BARS["int8"],
    None: BARS["int8"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What lower precision changed on some images; cosines are of the image that differs most."""

    images: int
    top1_agreement: float
    features_cosine_min: float
    logits_cosine_min: float
    logits_max_abs_diff: float

    def misses(self, bar: Bar, /) -> list[str]:
        """What is below a bar, one phrase each."""
        found = []
        if self.top1_agreement < bar.top1_agreement:
            found.append(
                f"top-1 agreement {self.top1_agreement:.1%}, expected {bar.top1_agreement:.1%}"
            )
        for name, cosine in (
            ("features", self.features_cosine_min),
            ("logits", self.logits_cosine_min),
        ):
            if cosine < bar.cosine:
                found.append(f"{name}: smallest cosine {cosine:.5f}, expected {bar.cosine:g}")
        return found


def measure_drift(
    candidate: Artifact, reference: Artifact, /, images: Sequence[npt.NDArray[np.uint8]]
) -> Drift:
    """Run the artifact in lower precision and its float32 one over (H, W, 3) uint8 RGB images.

    On the CPU. Raises EngineError if ONNX Runtime cannot run one of them, and ParityError if the
    candidate's features or logits are not finite.
    """
    pixel_values = preprocess_batch(list(images), reference.manifest.preprocess)
    found = []
    for artifact in (candidate, reference):
        with OnnxSession(artifact) as session:
            found.append(run_images(session, pixel_values))
    return compare_outputs(*found, remedy="values overflow: choose bf16, or stay with float32")


def run_images(session: Session, pixel_values: Floats, /, *, batch_size: int = 1) -> Outputs:
    """Run a session over (N, 3, H, W) float32 images, N at least 1, in batches of one size.

    The last batch is filled up with copies of the last image, whose outputs are dropped: an
    artifact may be fixed to one size. Without features the logits stand for them. Raises
    EngineError if the session, whose outputs are on the host, fails.
    """
    found = []
    for start in range(0, len(pixel_values), batch_size):
        batch = pixel_values[start : start + batch_size]
        missing = batch_size - len(batch)
        batch = np.concatenate([batch, np.repeat(batch[-1:], missing, axis=0)])
        # The session may reuse its buffers.
        features, logits = session.infer(batch)
        # Where there are no features, what is asked of them is asked of the logits.
        outputs = (logits if features is None else features, logits)
        found.append([np.array(output) for output in outputs])
    features, logits = (
        np.concatenate(outputs)[: len(pixel_values)] for outputs in zip(*found, strict=True)
    )
    return features, logits


def compare_outputs(candidate: Outputs, reference: Outputs, /, *, remedy: str) -> Drift:
    """How far the candidate's outputs are from the finite ones of the reference on the same images.

    Raises ParityError if the candidate's features or logits are not finite; it ends in `remedy`.
    """
    for name, values in zip(("features", "logits"), candidate, strict=True):
        bad = int(np.sum(~np.isfinite(values).all(axis=1)))
        if bad:
            raise ParityError(
                f"{name}: expected finite values, got NaN or infinity on {bad} of {len(values)} "
                f"images; {remedy}"
            )
    (features, logits), (exact_features, exact_logits) = candidate, reference
    return Drift(
        images=len(logits),
        top1_agreement=float(np.mean(logits.argmax(axis=1) == exact_logits.argmax(axis=1))),
        features_cosine_min=_smallest_cosine(features, exact_features),
        logits_cosine_min=_smallest_cosine(logits, exact_logits),
        logits_max_abs_diff=float(np.abs(logits - exact_logits).max()),
    )


def _smallest_cosine(got: Floats, want: Floats) -> float:
    """The smallest cosine of matching rows; two zero rows agree."""
    a, b = got.astype(np.float64), want.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines = np.sum(a * b, axis=1) / np.where(lengths > 0.0, lengths, 1.0)
    both_zero = (np.abs(a).max(axis=1) == 0.0) & (np.abs(b).max(axis=1) == 0.0)
    return float(np.where(both_zero, 1.0, cosines).min())
