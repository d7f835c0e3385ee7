"""Frames per second of `test://drive` on one core: ``python benchmarks/drive_speed.py``.

Each condition is driven alone, at crop resolution and at 720p, with one OpenCV thread. The rate by
the thread's own CPU time is what one free core gives; the wall clock is what other programs left.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import cv2
import numpy as np

from gain_scenes.roadsigns.conditions import CONDITIONS
from gain_scenes.roadsigns.sources import DriveParams, DriveSource

OUT = Path(__file__).resolve().parent / "results" / "drive_speed.json"
LIMIT_HZ = 60.0
WARMUP = 5


def measure(condition: str, resolution: str, frames: int) -> dict[str, float]:
    """Frames per second of one condition, by CPU time and by the wall clock."""
    params = DriveParams(frames=WARMUP + frames, conditions=condition, resolution=resolution)
    with DriveSource(params) as source:
        for index in range(WARMUP):
            source.frame(index)
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        for index in range(WARMUP, WARMUP + frames):
            frame = source.frame(index)
        cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
    if frame.image.std() == 0.0:
        raise RuntimeError(f"{condition}: the last frame is empty")
    return {"cpu_hz": round(frames * 1e9 / cpu, 1), "wall_hz": round(frames * 1e9 / wall, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=400, help="per condition at crop resolution")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    cv2.setNumThreads(1)
    rates = {
        resolution: {name: measure(name, resolution, frames) for name in CONDITIONS}
        for resolution, frames in (("crop", args.frames), ("720p", max(args.frames // 10, 10)))
    }
    slowest = min(rate["cpu_hz"] for rate in rates["crop"].values())
    record = {
        "command": "python benchmarks/drive_speed.py",
        "opencv_threads": 1,
        "machine": platform.machine(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "opencv": cv2.__version__,
        "frames_per_condition": {"crop": args.frames, "720p": max(args.frames // 10, 10)},
        "slowest_crop_cpu_hz": slowest,
        "limit_hz": LIMIT_HZ,
        "rates": rates,
    }
    args.out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))
    if slowest < LIMIT_HZ:
        sys.stderr.write(f"slower than {LIMIT_HZ:g} frames per second\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
