"""What the guard costs a frame, beside the step it is part of.

    python benchmarks/guard_cost.py --json benchmarks/results/guard_cost.json

For each number of classes, at batch size 1: the guard's sums and its judgement on a frame, timed by
themselves, and `Gain.step`, which they are part of. Logits are noise, on which the cost does not
depend; BLAS runs on one thread, as `gain-stream` has it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from gain_core import Gain, GainConfig, ShiftState, __version__
from gain_core.guard import observe, watch
from gain_core.step import collect

MS = 1e-6
NUM_CLASSES = (10, 1000, 20_000)
FEATURE_DIM = 64
WARM_UP_FRAMES = 20
TARGET_MS = 0.1


def main() -> int:
    """Measure every number of classes; exit 1 where the guard's own part is above its target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    args = parser.parse_args()
    with threadpool_limits(limits=1, user_api="blas"):
        cases = [measure(num_classes, frames=args.frames) for num_classes in NUM_CLASSES]
    report = {
        "command": "python benchmarks/guard_cost.py",
        "versions": {
            "gain-edge": __version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "target_ms": TARGET_MS,
        "cases": cases,
    }
    for row in cases:
        print(
            f"K = {row['num_classes']:6d}   guard {row['guard_ms']:.4f} ms (target below "
            f"{TARGET_MS} ms)   step {row['step_ms']:.3f} ms"
        )
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(any(row["guard_ms"] >= TARGET_MS for row in cases))


def measure(num_classes: int, *, frames: int) -> dict[str, float]:
    """Medians over frames."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((num_classes, FEATURE_DIM), dtype=np.float32)
    config = GainConfig()
    gain = Gain(weight, config)
    own: list[float] = []
    steps: list[float] = []
    for number in range(WARM_UP_FRAMES + frames):
        features = rng.standard_normal((1, FEATURE_DIM), dtype=np.float32)
        logits = features @ weight.T / np.float32(FEATURE_DIM**0.5)
        state = gain.state
        assert isinstance(state, ShiftState)
        evidence = collect(features, gain.predict(features, logits), state, config=config)
        begin = time.perf_counter_ns()
        watch(state.guard, observe(evidence), num_classes=num_classes)
        middle = time.perf_counter_ns()
        gain.step(features, logits)
        end = time.perf_counter_ns()
        if number >= WARM_UP_FRAMES:
            own.append((middle - begin) * MS)
            steps.append((end - middle) * MS)
    return {
        "num_classes": num_classes,
        "frames": frames,
        "guard_ms": round(statistics.median(own), 4),
        "step_ms": round(statistics.median(steps), 4),
    }


if __name__ == "__main__":
    sys.exit(main())
