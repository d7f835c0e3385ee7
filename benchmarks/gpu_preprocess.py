"""Preprocessing on the device beside the CPU's path, for the GPU script.

    PYTHONPATH=.:runtime python benchmarks/gpu_preprocess.py

prints one JSON object per size of frame and batch.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from gain_runtime.cuda.cuda_preprocess import CudaPreprocessor
from gain_runtime.manifest import Preprocess
from gain_runtime.preprocess import preprocess_batch

__all__ = ["measure_preprocess"]

SIZES = ((1080, 1920), (375, 500))
BATCH_SIZES = (1, 8, 64)
SPEC = Preprocess(
    height_px=224,
    width_px=224,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    crop_fraction=0.9,
)
WARM_UP = 3
# The CPU takes seconds for a large batch; its median needs no more.
MAX_CPU_ROUNDS = 5


def measure_preprocess(rounds: int) -> list[dict[str, Any]]:
    """Median milliseconds per image of both paths, and whether their results are equal.

    Parameters
    ----------
    rounds : int
        Timed repetitions of each; the CPU's are at most five.

    Returns
    -------
    list of dict
        One per size of frame and batch. `cpu_ms`: the CPU path. `call_ms`: until the call returns,
        the copy into pinned memory within. `host_ms`: until the result is there. `device_ms`: on
        the current stream, which waits for the copy. `resident_ms`: as that, of frames that are on
        the device already. `equal`: to the last bit.
    """
    rows = []
    for height, width in SIZES:
        for batch_size in BATCH_SIZES:
            rng = np.random.default_rng(0)
            images = list(rng.integers(0, 256, (batch_size, height, width, 3), dtype=np.uint8))
            row: dict[str, Any] = {"frame": f"{width}x{height}", "batch_size": batch_size}
            row.update(_measured(images, rounds))
            rows.append(row)
    return rows


def _measured(images: list[np.ndarray], rounds: int) -> dict[str, Any]:
    """One row's numbers."""
    run = CudaPreprocessor(SPEC)
    shape = (len(images), 3, SPEC.height_px, SPEC.width_px)
    out = cupy.empty(shape, dtype=np.float32)
    cpu_ms = []
    for _ in range(min(rounds, MAX_CPU_ROUNDS)):
        began = time.perf_counter()
        expected = preprocess_batch(images, SPEC)
        cpu_ms.append(1e3 * (time.perf_counter() - began))
    uploaded = _timed(lambda: run(images, out=out), rounds)
    equal = bool(np.array_equal(cupy.asnumpy(out), expected))
    moved = [cupy.asarray(image) for image in images]
    resident = _timed(lambda: run(moved, out=out), rounds)
    equal = equal and bool(np.array_equal(cupy.asnumpy(out), expected))
    times = {
        "cpu_ms": statistics.median(cpu_ms),
        **uploaded,
        "resident_ms": resident["device_ms"],
    }
    return {
        **{name: round(spent / len(images), 4) for name, spent in times.items()},
        "equal": equal,
    }


def _timed(action: Callable[[], object], rounds: int) -> dict[str, float]:
    """Median milliseconds of a call by the host's clock and by the stream's."""
    stream = cupy.cuda.get_current_stream()
    for _ in range(WARM_UP):
        action()
    spent: dict[str, list[float]] = {"call_ms": [], "host_ms": [], "device_ms": []}
    for _ in range(rounds):
        stream.synchronize()
        first, last = cupy.cuda.Event(), cupy.cuda.Event()
        began = time.perf_counter()
        first.record()
        action()
        spent["call_ms"].append(1e3 * (time.perf_counter() - began))
        last.record()
        last.synchronize()
        spent["host_ms"].append(1e3 * (time.perf_counter() - began))
        spent["device_ms"].append(cupy.cuda.get_elapsed_time(first, last))
    return {name: statistics.median(values) for name, values in spent.items()}


def main() -> int:
    """Print one row a line; 1 if a result is not the host's."""
    rows = measure_preprocess(rounds=30)
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
