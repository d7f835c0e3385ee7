"""Decoding 1080p H.264 by OpenCV and by what is used here: ``python benchmarks/decode_speed.py``.

Both decode the same file to RGB in turns, with as many threads as they like. The ratio of each
pair is what counts: other programs slow both down.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import av
import cv2
import numpy as np

from gain_runtime.sources.video import VideoSource

OUT = Path(__file__).resolve().parent / "results" / "decode_speed.json"
SIZE = (1920, 1080)


def make_clip(path: Path, *, frames: int) -> None:
    """A textured scene that pans, as a camera's does."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (90, 160, 3), dtype=np.uint8)
    large = cv2.resize(coarse, (SIZE[0] + 4 * frames, SIZE[1]), interpolation=cv2.INTER_CUBIC)
    grain = rng.integers(0, 24, large.shape, dtype=np.uint8)
    large = cv2.add(large, grain)
    with av.open(str(path), "w") as container:
        options = {"preset": "veryfast", "crf": "23"}
        stream = container.add_stream("libx264", rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        for number in range(frames):
            image = np.ascontiguousarray(large[:, 4 * number : 4 * number + SIZE[0]])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))


def by_opencv(path: Path) -> int:
    """Frames that OpenCV decodes, as RGB."""
    capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    count = 0
    while (read := capture.read())[0]:
        cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB)
        count += 1
    capture.release()
    return count


def by_pyav(path: Path) -> int:
    """Frames that `VideoSource` gives."""
    with VideoSource(path) as source:
        return sum(1 for _ in source)


def timed(decode: Callable[[Path], int], path: Path, *, expected: int) -> dict[str, float]:
    """Wall clock and processor time in ms for a frame."""
    wall, cpu = time.perf_counter(), time.process_time()
    count = decode(path)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if count != expected:
        raise RuntimeError(f"{decode.__name__}: {count} of {expected} frames")
    return {"wall_ms": 1e3 * wall / count, "cpu_ms": 1e3 * cpu / count}


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        make_clip(path, frames=arguments.frames)
        pairs = []
        for number in range(arguments.rounds + 1):
            # Whoever is first in a pair meets what the other left in the caches.
            both = (by_opencv, by_pyav) if number % 2 else (by_pyav, by_opencv)
            pair = {each.__name__: timed(each, path, expected=arguments.frames) for each in both}
            # The first pair warms up.
            pairs += [pair] if number else []
    result = {
        "command": "python benchmarks/decode_speed.py",
        "frames": arguments.frames,
        "size_px": SIZE,
        "rounds": arguments.rounds,
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "machine": platform.machine(),
        "opencv": cv2.__version__,
        "pyav": av.__version__,
    }
    for name in ("by_opencv", "by_pyav"):
        result[name] = {
            unit: round(statistics.median(pair[name][unit] for pair in pairs), 2)
            for unit in ("wall_ms", "cpu_ms")
        }
    for unit in ("wall_ms", "cpu_ms"):
        ratios = [pair["by_opencv"][unit] / pair["by_pyav"][unit] for pair in pairs]
        result[f"times_as_fast_{unit}"] = round(statistics.median(ratios), 3)
    print(json.dumps(result, indent=2))
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
