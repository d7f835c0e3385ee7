"""What a GAIN step costs beside the forward pass it follows, as ratios inside one run.

    python benchmarks/step_cost.py --artifact vit_b16.onnx --json benchmarks/results/step_cost.json

Each measurement alternates one ONNX Runtime forward pass with one step on the features it made,
because that is how a stream runs: whatever the forward pass leaves in the caches, and whatever its
thread pool still does, is part of the step's cost. Images are noise (the cost does not depend on
them) and the class evidence is synthetic, with rows that need the bisection among them. BLAS runs
on one thread, as `gain-stream` has it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from threadpoolctl import threadpool_limits

from gain_core import Gain, GainConfig, __version__
from gain_runtime.onnx_session import OnnxSession

MS = 1e-6


@dataclass(frozen=True, slots=True)
class Case:
    """One way to run the stream and the ratio it must stay under."""

    name: str
    batch_size: int
    update_every: int
    target_percent: float


CASES = (
    Case("batch 64", 64, 1, 0.2),
    Case("batch 1", 1, 1, 2.0),
    Case("batch 1, update every 16", 1, 16, 0.8),
)


def main() -> int:
    """Measure every case and print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--artifact", type=Path, required=True, help="ViT-B/16 artifact")
    parser.add_argument("--preset", default="tracked")
    parser.add_argument("--rounds", type=int, default=32, help="steps per case at batch size 1")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    report: dict[str, object] = {
        "command": "python benchmarks/step_cost.py --artifact vit_b16.onnx --preset " + args.preset,
        "versions": {
            "gain-edge": __version__,
            "numpy": np.__version__,
            "onnxruntime": onnxruntime.__version__,
            "python": platform.python_version(),
        },
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
    with threadpool_limits(limits=1, user_api="blas"), OnnxSession(args.artifact) as session:
        manifest = session.artifact.manifest
        report["num_classes"], report["feature_dim"] = manifest.num_classes, manifest.feature_dim
        cases = [measure(case, session, rng=rng, args=args) for case in CASES]
    report["cases"] = cases
    for row in cases:
        print(
            f"{row['name']:26s} forward {row['forward_ms']:9.1f} ms   "
            f"step {row['step_ms']:7.2f} ms   {row['percent']:.3f} % "
            f"(target below {row['target_percent']} %)"
        )
    state = Gain(session.artifact.head_weight, GainConfig.preset(args.preset)).state
    weight_bytes = manifest.num_classes * manifest.feature_dim * 4
    report["state_over_head_weight"] = state.nbytes / weight_bytes
    print(f"state: {state.nbytes / weight_bytes:.3f} x the head's weight in float32")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def measure(
    case: Case, session: OnnxSession, *, rng: np.random.Generator, args: argparse.Namespace
) -> dict[str, object]:
    """Alternate forward passes and steps; the mean step counts, since updates come in between."""
    weight = session.artifact.head_weight
    gain = Gain(weight, GainConfig.preset(args.preset), update_every=case.update_every)
    spec = session.artifact.manifest.preprocess
    shape = (case.batch_size, 3, spec.height_px, spec.width_px)
    pixel_values = rng.standard_normal(shape, dtype=np.float32)
    rounds = args.rounds if case.batch_size == 1 else max(4, args.rounds // 8)
    warm_up = 2 * max(1, case.update_every // case.batch_size)
    forward, step, inner = [], [], []
    for round_index in range(rounds + warm_up):
        begin = time.perf_counter_ns()
        session.infer(pixel_values)
        middle = time.perf_counter_ns()
        features, logits = evidence(weight, case.batch_size, rng=rng)
        start = time.perf_counter_ns()
        prediction = gain.step(features, logits)
        end = time.perf_counter_ns()
        if round_index >= warm_up:
            forward.append((middle - begin) * MS)
            step.append((end - start) * MS)
            inner.append(np.mean((prediction.strength > 0) & (prediction.strength < 1)))
    assert np.isfinite(prediction.probs).all()
    ratio = 100.0 * statistics.fmean(step) / statistics.median(forward)
    return {
        "name": case.name,
        "batch_size": case.batch_size,
        "update_every": case.update_every,
        "rounds": rounds,
        "forward_ms": round(statistics.median(forward), 2),
        "step_ms": round(statistics.fmean(step), 3),
        "step_p50_ms": round(statistics.median(step), 3),
        "percent": round(ratio, 4),
        "target_percent": case.target_percent,
        "rows_bisected": round(float(np.mean(inner)), 3),
    }


def evidence(
    weight: np.ndarray, batch_size: int, *, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Features around the head's own rows, so that predictions are confident and classes vary."""
    num_classes, feature_dim = weight.shape
    rows = weight / np.linalg.norm(weight, axis=1, keepdims=True)
    labels = rng.integers(0, num_classes, batch_size)
    noise = rng.standard_normal((batch_size, feature_dim)) / np.sqrt(feature_dim)
    features = (8.0 * rows[labels] + 4.0 * noise + 0.5).astype(np.float32)
    return features, features @ rows.T.astype(np.float32)


if __name__ == "__main__":
    sys.exit(main())
