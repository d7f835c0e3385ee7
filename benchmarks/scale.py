"""What a cluster costs and gains: python benchmarks/scale.py [--json benchmarks/results/scale.json]

Every number is of one run on one machine, and the ratios are between parts of that run. Needs the
extras `ray` and `serve`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
from PIL import Image
from ray import serve

import gain_runtime
from gain_apps.evaluation import InputSettings, evaluate
from gain_apps.evaluation.datasets import open_test_source
from gain_apps.evaluation.executor import Executor
from gain_apps.evaluation.ray_executor import RayExecutor
from gain_apps.evaluation.results import versions
from gain_apps.export import main as export
from gain_apps.serving import ServingSettings, app
from gain_core import Gain
from gain_runtime.files.images import decode_image
from gain_runtime.files.state import save_state
from gain_scenes.corruptions import CORRUPTIONS

ROOT = Path(__file__).resolve().parents[1]
IMAGES = 1060
DOMAINS = CORRUPTIONS
SIZES = (2, 10)
METHODS = ("shift", "paper", "neo")
PORT, REQUESTS, WARM_UP = 8766, 300, 80
WORKERS = 2
EXPECTED: dict[int, list[float]] = {}


def artifact(folder: Path) -> Path:
    """The road-sign network, exported."""
    path, models = folder / "roadsigns.gain.onnx", ROOT / "models" / "roadsigns"
    flags = "--mean 0.5 0.5 0.5 --std 0.5 0.5 0.5 --crop-pct 1 --crop-mode squash"
    given = [str(models / "roadsigns.onnx"), "--output", str(path), *flags.split()]
    export([*given, "--labels", str(models / "labels.txt"), "--interpolation", "bicubic"])
    return path


def draw_signs(folder: Path) -> None:
    """Clean signs as JPEGs in class folders, drawn once: drawing is no part of what is measured."""
    source = f"test://signs?frames={IMAGES}"
    data = open_test_source(source, num_classes=53, cache=folder)
    for index, label in enumerate(data.labels):
        path = folder / "signs" / str(label) / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.load(index, "clean", 0)).save(path)


def seconds(model: Path, folder: Path, domains: tuple[str, ...], executor: Executor) -> float:
    """Of an evaluation with nothing in its cache; its result must not depend on the executor."""
    name = f"{type(executor).__name__}-{len(domains)}"
    settings = InputSettings(domains=domains, cache=folder / name, num_threads=1)
    started = time.perf_counter()
    found = evaluate(
        model, folder / "signs", methods=METHODS, seeds=2, settings=settings, executor=executor
    )
    elapsed = time.perf_counter() - started
    scores = [found["methods"][method]["nll"] for method in METHODS]
    assert EXPECTED.setdefault(len(domains), scores) == scores, (EXPECTED, scores)
    return elapsed


def evaluation(model: Path, folder: Path) -> dict[str, Any]:
    """One process against two workers of a cluster that runs already, at two sizes."""
    on_ray = RayExecutor(ray.get_runtime_context().gcs_address)
    times = {
        name: [seconds(model, folder, DOMAINS[:count], executor) for count in SIZES]
        for name, executor in (("one_process_s", Executor()), ("two_workers_s", on_ray))
    }
    local, remote = (second - first for first, second in times.values())
    return {
        "what": f"{IMAGES} JPEGs of road signs, {SIZES[0]} and {SIZES[1]} domains, "
        f"{', '.join(METHODS)}, 2 seeds, one thread each; equal scores; the cluster runs already, "
        "its actors and tasks start. The speed-up is of the domains added, without the start",
        **{name: [round(each, 1) for each in found] for name, found in times.items()},
        "speedup_of_added_domains": round(local / remote, 2),
    }


def median_ms(step: Callable[[bytes], object], jpegs: list[bytes]) -> float:
    """Median milliseconds of a call, after some that are not counted."""
    times = []
    for number in range(WARM_UP + REQUESTS):
        started = time.perf_counter()
        step(jpegs[number % len(jpegs)])
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[WARM_UP:])


def serving(model: Path, folder: Path) -> dict[str, Any]:
    """A frame through HTTP and three replicas, against the same in one process."""
    jpegs = [path.read_bytes() for path in sorted((folder / "signs").glob("*/*.jpg"))[:60]]
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    settings = ServingSettings(artifact=str(model), snapshots=str(folder / "states"))
    serve.run(app(settings), name="cameras")

    def request(jpeg: bytes) -> object:
        url = f"http://127.0.0.1:{PORT}/cameras/bench/frames"
        with urllib.request.urlopen(urllib.request.Request(url, data=jpeg)) as reply:
            return json.load(reply)

    with gain_runtime.load(model, num_threads=1) as direct:
        called = median_ms(lambda jpeg: direct.step(decode_image(jpeg, shown="frame")), jpegs)
    served = median_ms(request, jpegs)
    serve.shutdown()
    return {
        "what": f"one client, {REQUESTS} JPEGs of road signs one after the other, medians; the "
        "wait for a batch (5 ms) is in it",
        "direct_ms": round(called, 2),
        "served_ms": round(served, 2),
        "ratio": round(served / called, 1),
        "overhead_ms": round(served - called, 2),
    }


def states(folder: Path) -> dict[str, Any]:
    """Bytes of a camera's snapshot, by the number of classes."""
    found = {}
    for num_classes in (53, 1000):
        gain = Gain(num_classes)
        rng = np.random.default_rng(0)
        for _ in range(6):
            gain.step(None, rng.normal(size=(16, num_classes)).astype(np.float32))
        path = folder / f"{num_classes}.safetensors"
        save_state(
            path, gain.state, config=gain.config, artifact_sha256="0" * 64, frames=gain.frames
        )
        found[f"K={num_classes}"] = path.stat().st_size
    return {"what": "one camera's snapshot, preset shift, bytes", **found}


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/scale.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = artifact(folder)
        results: dict[str, Any] = {
            "command": "python benchmarks/scale.py",
            "versions": {**versions(), "ray": ray.__version__},
            # Above the number of cores others were at work, and only the ratios say something.
            "load_average": [round(load, 1) for load in os.getloadavg()],
            "num_cpus": os.cpu_count(),
            "state_bytes": states(folder),
        }
        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
        draw_signs(folder)
        results["serving"] = serving(model, folder)
        results["evaluation"] = evaluation(model, folder)
        ray.shutdown()
    args.json.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
