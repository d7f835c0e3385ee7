"""Time of each corruption on one core: ``python benchmarks/corruptions_speed.py``.

The photograph of the tests at 224 px, severity 5 and the slowest of 1 to 5, one OpenCV thread. The
median of the wall clock is what a user waits for; the median of the thread's own CPU time is what
it costs when other programs hold the machine.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import PIL

from gain_scenes.corruptions import CORRUPTIONS, corrupt, image_rng
from gain_scenes.corruptions.contact_sheet import read_photo

HERE = Path(__file__).resolve().parent
PHOTO = HERE.parent / "tests" / "corruptions" / "photo.png"
OUT = HERE / "results" / "corruptions_speed.json"
LIMIT_MS = 30.0
WARMUP = 3


def measure(
    photo: npt.NDArray[np.uint8], name: str, severity: int, *, runs: int
) -> dict[str, float]:
    """Median wall and CPU time in ms of one corruption, another seed each run."""
    wall_ms, cpu_ms = [], []
    for index in range(WARMUP + runs):
        rng = image_rng(0, index, name)
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        result = corrupt(photo, name, severity, rng=rng)
        cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
        if np.array_equal(result, photo):
            raise RuntimeError(f"{name}: the image came back unchanged")
        wall_ms.append(wall / 1e6)
        cpu_ms.append(cpu / 1e6)
    medians = (statistics.median(times[WARMUP:]) for times in (wall_ms, cpu_ms))
    return dict(zip(("wall_ms", "cpu_ms"), (round(value, 2) for value in medians), strict=True))


def environment(runs: int, side: int) -> dict[str, object]:
    """What the numbers depend on."""
    return {
        "command": "python benchmarks/corruptions_speed.py",
        "image_px": side,
        "runs": runs,
        "opencv_threads": cv2.getNumThreads(),
        "machine": platform.machine(),
        "processor": _processor(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "opencv": cv2.__version__,
        "pillow": PIL.__version__,
    }


def _processor() -> str:
    """Model name of the processor where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table and write the JSON; exit status 1 if a corruption is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30, help="timed runs per corruption")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args(argv)
    cv2.setNumThreads(1)
    photo = read_photo(PHOTO)
    results = {}
    for name in CORRUPTIONS:
        by_severity = [measure(photo, name, level, runs=arguments.runs) for level in range(1, 6)]
        slowest = max(range(5), key=lambda level: by_severity[level]["cpu_ms"])
        results[name] = {
            **by_severity[-1],
            "slowest_severity": slowest + 1,
            "slowest_cpu_ms": by_severity[slowest]["cpu_ms"],
        }
        row = results[name]
        print(
            f"{name:18} severity 5: {row['wall_ms']:6.2f} ms wall, {row['cpu_ms']:6.2f} ms CPU; "
            f"slowest: {row['slowest_cpu_ms']:6.2f} ms CPU at {row['slowest_severity']}"
        )
    report = {**environment(arguments.runs, photo.shape[0]), "corruptions": results}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=2) + "\n")
    over = [name for name, row in results.items() if row["slowest_cpu_ms"] > LIMIT_MS]
    if over:
        print(f"over {LIMIT_MS:g} ms: {', '.join(over)}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
