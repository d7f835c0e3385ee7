"""What the step costs as ONNX nodes, against the NumPy step.

    python benchmarks/adaptive_cost.py --json benchmarks/results/adaptive_cost.json

All are timed in one process, alternating, on the same logits: `numpy, predict` and `numpy, step`
of `gain_core.Gain`; `graph, predict` and `graph, step` of `AdaptiveSession`, without a network,
`step` over whole cycles of `--update-every` frames. CPU time is that of the whole process, for
machines that others use meanwhile; it says something about one thread only (`--threads 1`, and
`OPENBLAS_NUM_THREADS=1` for NumPy).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from gain_core import DEFAULT_PRESET, UPDATE_EVERY, Gain, __version__, preset
from gain_export.adaptive import add_adaptation
from gain_runtime.adaptive_session import AdaptiveSession
from gain_runtime.artifact import write_metadata
from gain_runtime.manifest import HeadLocation, Manifest, Preprocess

NUM_CLASSES, FEATURE_DIM, SIZE_PX = 1000, 768, 8


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default=DEFAULT_PRESET)
    parser.add_argument("--update-every", type=int, default=UPDATE_EVERY)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--scene-frames", type=int, default=1, help="frames that show one thing: a video's"
    )
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((NUM_CLASSES, FEATURE_DIM), dtype=np.float32) / 9.0
    cases = [measure(weight, batch_size, rng=rng, args=args) for batch_size in (1, 64)]
    report = {
        "arguments": {key: value for key, value in vars(args).items() if key != "json"},
        "openblas_num_threads": os.environ.get("OPENBLAS_NUM_THREADS"),
        "num_classes": NUM_CLASSES,
        "feature_dim": FEATURE_DIM,
        "cores": os.cpu_count(),
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "versions": {
            "gain-edge": __version__,
            "numpy": np.__version__,
            "onnxruntime": onnxruntime.__version__,
            "python": platform.python_version(),
        },
        "cases": cases,
    }
    for case in cases:
        print(f"batch {case['batch_size']}")
        for name, row in case["ms"].items():
            print(f"  {name:15s} CPU least {row['cpu_least']:7.3f}   p50 {row['cpu_p50']:7.3f} ms")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def measure(
    weight: np.ndarray, batch_size: int, *, rng: np.random.Generator, args: argparse.Namespace
) -> dict[str, Any]:
    """Every way of one batch size, in milliseconds a batch."""
    cycle = max(1, args.update_every // batch_size)
    batches = stream(weight, rng=rng, size=batch_size, count=8 * cycle, scene=args.scene_frames)
    config = preset(args.preset)
    # Noise has no skewness; with this pair that is what a mixture of classes looks like.
    gain = Gain(weight, config, skewness=(-0.5, 0.0), update_every=args.update_every)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.adaptive.onnx"
        artifact = write_artifact(Path(folder) / "artifact.onnx", weight)
        add_adaptation(
            artifact, path, config=config, update_every=args.update_every, features_only=True
        )
        with AdaptiveSession(path, num_threads=args.threads) as session:
            names = session.artifact.input_names
            reads = [batch[-len(names) :] for batch in batches]
            ways: dict[str, Callable[[int], object]] = {
                "numpy, predict": lambda index: gain.predict(*batches[index]),
                "numpy, step": lambda index: gain.step(*batches[index]),
                "graph, predict": lambda index: session.predict(*reads[index]),
                "graph, step": lambda index: session.step(*reads[index]),
            }
            times = alternate(ways, rounds=args.rounds, cycle=cycle, count=len(batches))
    return {"batch_size": batch_size, "ms": {name: summary(row) for name, row in times.items()}}


def stream(
    weight: np.ndarray, *, rng: np.random.Generator, size: int, count: int, scene: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features and logits of frames whose domain has moved."""
    shift = 0.4 * rng.standard_normal(FEATURE_DIM, dtype=np.float32)
    scenes = rng.integers(0, NUM_CLASSES, size * count // scene + 1)
    labels = np.repeat(scenes, scene)[: size * count]
    features = 1.2 * weight[labels] + shift
    features += 0.5 * rng.standard_normal(features.shape, dtype=np.float32)
    logits = features @ weight.T
    return list(zip(np.split(features, count), np.split(logits, count), strict=True))


def write_artifact(path: Path, weight: np.ndarray) -> Path:
    """An artifact of the head behind a network that is never run."""
    nodes = [
        helper.make_node("Conv", ["pixel_values", "maps"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
        helper.make_node("Gemm", ["features", "head.weight"], ["logits"], transB=1),
    ]
    maps = np.zeros((FEATURE_DIM, 3, SIZE_PX, SIZE_PX), dtype=np.float32)
    kind = onnx.TensorProto.FLOAT
    shapes = {"features": ["B", FEATURE_DIM], "logits": ["B", NUM_CLASSES]}
    graph = helper.make_graph(
        nodes,
        "head",
        [helper.make_tensor_value_info("pixel_values", kind, ["B", 3, SIZE_PX, SIZE_PX])],
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()],
        [numpy_helper.from_array(maps, "maps"), numpy_helper.from_array(weight, "head.weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    half = (0.5, 0.5, 0.5)
    manifest = Manifest(
        source="head",
        weights_sha256="0" * 64,
        input_name="pixel_values",
        features_name="features",
        logits_name="logits",
        num_classes=NUM_CLASSES,
        feature_dim=FEATURE_DIM,
        labels=tuple(f"class {index}" for index in range(NUM_CLASSES)),
        head=HeadLocation(weight="head.weight", layout="KD", bias=None),
        preprocess=Preprocess(height_px=SIZE_PX, width_px=SIZE_PX, mean=half, std=half),
    )
    write_metadata(model, manifest)
    path.write_bytes(model.SerializeToString())
    return path


def alternate(
    ways: dict[str, Callable[[int], object]], *, rounds: int, cycle: int, count: int
) -> dict[str, list[tuple[float, float]]]:
    """Wall and CPU time in ms a batch, of whole cycles; the first five turns warm up."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(rounds + 5):
        for name, run in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for index in range(cycle):
                run((turn * cycle + index) % count)
            spent = time.perf_counter() - wall, time.process_time() - cpu
            if turn >= 5:
                times[name].append((1e3 * spent[0] / cycle, 1e3 * spent[1] / cycle))
    return times


def summary(times: list[tuple[float, float]]) -> dict[str, float]:
    """Least and median of wall and CPU time."""
    wall, cpu = zip(*times, strict=True)
    return {
        "least": round(min(wall), 3),
        "p50": round(statistics.median(wall), 3),
        "cpu_least": round(min(cpu), 3),
        "cpu_p50": round(statistics.median(cpu), 3),
    }


if __name__ == "__main__":
    raise SystemExit(main())
