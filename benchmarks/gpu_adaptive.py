"""The adaptive file on CUDA beside the plain artifact, for the GPU script.

    PYTHONPATH=.:export:runtime:apps python benchmarks/gpu_adaptive.py

prints one JSON object per batch size and one with the agreement; `--cpu-dry-run` does the same with
the shipped road signs on the CPU, whose times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gain_core import Gain, GainConfig
from gain_export import PreprocessOverrides, export_onnx
from gain_export.adaptive import adaptive_path, add_adaptation
from gain_runtime.adaptive_session import AdaptiveSession
from gain_runtime.onnx_native import CPU_PROVIDER, CUDA_PROVIDER
from gain_runtime.onnx_session import OnnxSession

__all__ = ["measure_adaptive"]

BATCH_SIZES = (1, 8, 64)
WARM_UP = 5
NETWORK = "vit_base_patch16_224.augreg2_in21k_ft_in1k"
ROAD_SIGNS = Path(__file__).resolve().parent.parent / "models" / "roadsigns" / "roadsigns.onnx"
# Largest difference of a probability from the float64 step.
AGREEMENT = 1e-4
AGREEMENT_BATCHES = 6


def measure_adaptive(rounds: int, *, provider: str = CUDA_PROVIDER) -> list[dict[str, Any]]:
    """The adaptive graph against the plain one on inputs that are on the device.

    Every call ends with its answer in host memory: features and logits of the plain file, the
    prediction of the adaptive one. The ways alternate in one process.

    Parameters
    ----------
    rounds : int
        Timed calls of each.
    provider : str, optional
        ONNX Runtime's name of the execution provider.

    Returns
    -------
    list of dict
        One per batch size: medians `plain_ms`, `step_ms`, `predict_ms` (without an update),
        `alone_ms` (the step without the network) and `step_percent`, `predict_percent`, by how much
        the adaptive file takes longer. Then one with `agreement`, the largest difference of a
        probability from NumPy's float64 step on the same features, and `ok`.
    """
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        artifact = _export(Path(folder), provider)
        seconds = round(time.perf_counter() - began, 1)
        config = GainConfig.preset("tracked")
        whole, bare = adaptive_path(artifact), artifact.with_name("step.adaptive.onnx")
        add_adaptation(artifact, whole, config=config)
        add_adaptation(artifact, bare, config=config, features_only=True)
        with (
            OnnxSession(artifact, provider=provider) as plain,
            AdaptiveSession(whole, provider=provider) as adaptive,
            AdaptiveSession(bare, provider=provider) as step,
        ):
            rows = [_measured(plain, adaptive, step, size, rounds) for size in BATCH_SIZES]
            rows.append({**_agreement(step), "export_seconds": seconds})
    return rows


def _export(folder: Path, provider: str) -> Path:
    """ViT-B/16 with random weights; in a dry run the shipped road signs."""
    path = folder / "network.onnx"
    if provider == CPU_PROVIDER:
        return _road_signs(path)
    # Late: a dry run needs neither torch nor timm.
    from gain_export import export_timm

    return export_timm(NETWORK, path, random_seed=0).path


def _road_signs(path: Path) -> Path:
    """The shipped network as an artifact."""
    overrides = PreprocessOverrides(
        img_size=(64, 64),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        crop_fraction=1.0,
        interpolation="bicubic",
    )
    return export_onnx(ROAD_SIGNS, output=path, preprocess=overrides).path


def _measured(
    plain: OnnxSession, adaptive: AdaptiveSession, step: AdaptiveSession, size: int, rounds: int
) -> dict[str, Any]:
    """One batch size."""
    preprocess = plain.artifact.manifest.preprocess
    rng = np.random.default_rng(size)
    shape = (size, 3, preprocess.height_px, preprocess.width_px)
    pixel_values = _placed(rng.standard_normal(shape, dtype=np.float32), plain.provider)
    features, logits = (
        _placed(np.asarray(array), plain.provider) for array in plain.infer(pixel_values)
    )
    spent = _alternating(
        {
            "plain_ms": lambda: plain.infer(pixel_values),
            "step_ms": lambda: adaptive.step(pixel_values),
            "predict_ms": lambda: adaptive.predict(pixel_values),
            "alone_ms": lambda: step.step(features, logits),
        },
        rounds,
    )
    extra = {
        name.replace("_ms", "_percent"): round(100.0 * (spent[name] / spent["plain_ms"] - 1.0), 2)
        for name in ("step_ms", "predict_ms")
    }
    return {
        "network": plain.artifact.manifest.source,
        "batch_size": size,
        **{name: round(value, 4) for name, value in spent.items()},
        **extra,
    }


def _alternating(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for index in range(WARM_UP + rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if index >= WARM_UP:
                times[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in times.items()}


def _agreement(step: AdaptiveSession) -> dict[str, Any]:
    """A stream around the head's own rows, in float32 on the device and in float64 in NumPy."""
    step.reset()
    weight = step.artifact.head_weight
    num_classes, feature_dim = weight.shape
    rows = weight / np.linalg.norm(weight, axis=1, keepdims=True)
    gain = Gain(weight.astype(np.float64), step.config)
    rng = np.random.default_rng(0)
    worst, corrected = 0.0, 0
    for _ in range(AGREEMENT_BATCHES):
        labels = rng.integers(0, num_classes, 32)
        noise = rng.standard_normal((32, feature_dim)) / np.sqrt(feature_dim)
        features = (8.0 * rows[labels] + 4.0 * noise + 0.5).astype(np.float32)
        logits = features @ rows.T
        expected = gain.step(features.astype(np.float64), logits.astype(np.float64))
        got = step.step(*(_placed(array, step.provider) for array in (features, logits)))
        error = float(np.max(np.abs(np.asarray(got.probs) - expected.probs)))
        worst = max(worst, error if np.isfinite(error) else 1e300)
        corrected += int(np.sum(np.asarray(got.strength) > 0.0))
    # A stream that needs no correction would show nothing.
    return {"agreement": worst, "corrected": corrected, "ok": worst <= AGREEMENT and corrected > 0}


def _placed(array: np.ndarray, provider: str) -> Any:
    """On the device of the provider."""
    if provider != CUDA_PROVIDER:
        return array
    import cupy

    return cupy.asarray(array)


def main() -> int:
    """Print one row a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--cpu-dry-run", action="store_true", help="the road signs on the CPU")
    args = parser.parse_args()
    provider = CPU_PROVIDER if args.cpu_dry_run else CUDA_PROVIDER
    rows = measure_adaptive(args.rounds, provider=provider)
    for row in rows:
        print(json.dumps(row))
    return 0 if rows[-1]["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
