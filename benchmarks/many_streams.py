"""Several streams on one session: frames a second with shared forward passes and in turns.

    python benchmarks/many_streams.py --artifact ARTIFACT --json RESULT.json

Each stream is a thread with an adapter and frames of its own, as in `gain-stream A B C`, that gives
its next frame as soon as the last is answered, or at `--rate` frames a second. "In turns" is the
same session with passes of one frame. Both are measured in one run, one after the other, and the
answers of a shared pass are compared with those of its frames alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
from threadpoolctl import threadpool_limits

from gain_core import __version__
from gain_runtime.adapter import Adapter
from gain_runtime.engine import NetworkEngine
from gain_runtime.sessions.session import Session, open_session
from gain_runtime.sessions.shared import MOST_ROWS, SharedSession

NUM_PICTURES = 8


def main() -> int:
    """Measure every number of streams, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, tensorrt or auto")
    parser.add_argument("--threads", type=int, help="CPU threads for the network")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=5.0, help="per measurement")
    parser.add_argument("--rate", type=float, help="frames a second of each stream (default: all)")
    parser.add_argument("--update-every", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    args = parser.parse_args()
    report: dict[str, object] = {
        "command": "python benchmarks/many_streams.py --artifact ARTIFACT "
        f"--device {args.device} --update-every {args.update_every}"
        + ("" if args.rate is None else f" --rate {args.rate:g}"),
        "versions": {"gain-edge": __version__, "onnxruntime": onnxruntime.__version__},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "seconds": args.seconds,
    }
    with (
        threadpool_limits(limits=1, user_api="blas"),
        open_session(args.artifact, device=args.device, num_threads=args.threads) as session,
    ):
        report["provider"] = session.provider
        check(session)
        rows = []
        for num_streams in args.streams:
            for name, most_rows in (("in turns", 1), ("shared", MOST_ROWS)):
                row = measure(session, num_streams, most_rows=most_rows, args=args)
                rows.append({"passes": name, **row})
                print(
                    f"{num_streams:2d} streams, {name:9s} {row['rate_hz']:8.1f} frames/s, "
                    f"{row['frames_per_pass']:.2f} a pass, step p50 {row['step_p50_ms']:.2f} ms, "
                    f"p99 {row['step_p99_ms']:.2f} ms"
                )
    report["rows"] = rows
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def measure(
    session: Session, num_streams: int, *, most_rows: int, args: argparse.Namespace
) -> dict[str, float]:
    """So many streams for a while, after a tenth of it to warm up."""
    shared = SharedSession(session, most_rows=most_rows)
    members = [shared.join() for _ in range(num_streams)]
    adapters = [
        Adapter(NetworkEngine(member, update_every=args.update_every)) for member in members
    ]
    period_s = 0.0 if args.rate is None else 1.0 / args.rate

    def play(adapter: Adapter, seed: int, seconds: float) -> list[float]:
        images = pictures(seed)
        times: list[float] = []
        # Cameras are not in step with each other.
        due_s = time.monotonic() + period_s * seed / num_streams
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(max(due_s - time.monotonic(), 0.0))
            started = time.perf_counter()
            adapter.step([images[len(times) % NUM_PICTURES]])
            times.append(1e3 * (time.perf_counter() - started))
            due_s = max(due_s + period_s, time.monotonic() - period_s)
        return times

    with ThreadPoolExecutor(num_streams) as pool:
        for seconds in (0.1 * args.seconds, args.seconds):
            passes, rows, began = shared.passes, shared.rows, time.monotonic()
            jobs = [pool.submit(play, one, n, seconds) for n, one in enumerate(adapters)]
            times = np.concatenate([job.result() for job in jobs])
            taken_s = time.monotonic() - began
    return {
        "streams": num_streams,
        "rate_hz": round(len(times) / taken_s, 2),
        "frames_per_pass": round((shared.rows - rows) / (shared.passes - passes), 3),
        "step_p50_ms": round(float(np.percentile(times, 50)), 3),
        "step_p99_ms": round(float(np.percentile(times, 99)), 3),
    }


def check(session: Session) -> None:
    """A frame's features are the same in a batch as alone."""
    size = session.artifact.manifest.preprocess
    shape = (3, 3, size.height_px, size.width_px)
    pixel_values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    together = np.asarray(session.infer(pixel_values).logits)
    alone = [np.asarray(session.infer(pixel_values[n : n + 1]).logits) for n in range(3)]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-2, atol=1e-2)


def pictures(seed: int) -> list[np.ndarray]:
    """Frames of a small camera."""
    rng = np.random.default_rng(seed)
    return list(rng.integers(0, 256, size=(NUM_PICTURES, 240, 320, 3), dtype=np.uint8))


if __name__ == "__main__":
    sys.exit(main())
