"""What a frame costs before the network: decoding 1080p, and preprocessing 720p.

    python benchmarks/frame_speed.py --artifact ARTIFACT

ARTIFACT is `models/roadsigns/roadsigns.onnx` after `gain-export`; `make demo` leaves one. OpenCV
and what is used here decode the same H.264 file to RGB in turns, with as many threads as they like;
then a frame is preprocessed by one thread, as the tools do it, scaled by Pillow alone, and
classified by all cores, in turns. The ratios within a turn are what counts: other programs slow all
of them down. Sharing a frame's rows out among threads was tried and won nothing beside a network
that uses all cores.
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
from PIL import Image

from gain_runtime.files.artifact import load_artifact
from gain_runtime.preprocess import preprocess_batch, resized_crop
from gain_runtime.sessions.onnx import OnnxSession
from gain_runtime.sources.video import VideoSource

OUT = Path(__file__).resolve().parent / "results" / "frame_speed.json"
SIZE, PREPROCESSED = (1920, 1080), (1280, 720)


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


def decoding(*, frames: int, rounds: int) -> dict[str, object]:
    """Both decoders, and how many times as fast as OpenCV's this one is."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        make_clip(path, frames=frames)
        pairs = []
        for number in range(rounds + 1):
            # Whoever is first in a pair meets what the other left in the caches.
            both = (by_opencv, by_pyav) if number % 2 else (by_pyav, by_opencv)
            pair = {each.__name__: timed(each, path, expected=frames) for each in both}
            # The first pair warms up.
            pairs += [pair] if number else []
    found: dict[str, object] = {"frames": frames, "size_px": SIZE, "rounds": rounds}
    for name in ("by_opencv", "by_pyav"):
        found[name] = {
            unit: round(statistics.median(pair[name][unit] for pair in pairs), 2)
            for unit in ("wall_ms", "cpu_ms")
        }
    for unit in ("wall_ms", "cpu_ms"):
        ratios = [pair["by_opencv"][unit] / pair["by_pyav"][unit] for pair in pairs]
        found[f"times_as_fast_{unit}"] = round(statistics.median(ratios), 3)
    return found


def preprocessing(artifact: Path, *, turns: int) -> dict[str, object]:
    """One frame preprocessed, scaled by Pillow, and classified, in wall clock ms."""
    spec = load_artifact(artifact).manifest.preprocess
    shape = (PREPROCESSED[1], PREPROCESSED[0], 3)
    frame = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    pillow, crop = Image.Resampling[spec.interpolation.upper()], resized_crop(*shape[:2], spec)
    size = crop.width_px, crop.height_px
    with OnnxSession(artifact) as session:
        pixel_values = preprocess_batch([frame], spec)
        calls: dict[str, Callable[[], object]] = {
            "preprocess": lambda: preprocess_batch([frame], spec),
            "pillow_resize": lambda: Image.fromarray(frame).resize(size, pillow),
            "forward": lambda: session.infer(pixel_values),
        }
        spent: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(turns + 10):
            for name, call in calls.items():
                started = time.perf_counter()
                call()
                # The first ten turns warm up.
                spent[name] += [1e3 * (time.perf_counter() - started)] if number >= 10 else []
    found: dict[str, object] = {"network": artifact.name, "size_px": PREPROCESSED, "turns": turns}
    for name, values in spent.items():
        ratios = [a / b for a, b in zip(values, spent["forward"], strict=True)]
        found[name] = {
            "median_ms": round(statistics.median(values), 2),
            "least_ms": round(min(values), 2),
            "over_forward": round(statistics.median(ratios), 3),
        }
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the numbers and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--frames", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(argv)
    result = {
        "command": "python benchmarks/frame_speed.py --artifact ARTIFACT",
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "machine": platform.machine(),
        "opencv": cv2.__version__,
        "pyav": av.__version__,
        "decoding": decoding(frames=args.frames, rounds=args.rounds),
        "preprocessing": preprocessing(args.artifact, turns=args.turns),
    }
    print(json.dumps(result, indent=2))
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
