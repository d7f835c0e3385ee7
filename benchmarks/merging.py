"""What a camera wins and loses by a state merged from other cameras, of its weather and of others.

    OMP_NUM_THREADS=1 python benchmarks/merging.py ARTIFACT --json benchmarks/results/merging.json

ARTIFACT is `models/roadsigns/roadsigns.onnx` after `gain-export --calibrate test://signs`. Three
cameras drive past the road signs in each weather, every one along a road of its own. Each learns
for the first frames of its drive. The frames after them are then classified again and again, from
each of `STARTS`, and learned from meanwhile as always. Drawing takes most of an hour; what was
drawn is kept in --cache.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from gain_apps.evaluation import InputSettings, open_input
from gain_apps.evaluation.results import versions, write_results
from gain_apps.metrics import calibration
from gain_core import UPDATE_EVERY, WARMUP_FRAMES, Gain, Method, make_method
from gain_runtime.files.adaptive import state_layout
from gain_runtime.files.state import save_state

WEATHERS = ("fog", "rain", "night", "snow", "dirty-lens")
NUM_CAMERAS, LEARNED, SCORED = 3, 1000, 500
# Of the drives; neither those of the suites nor those that anything was tuned on.
FIRST_SEED = 100
STARTS = {
    "source": "nothing, and learns nothing",
    "fresh": "zeros",
    "own": "its own state",
    "others, same weather": "two others, same weather",
    "learned others, same weather": "those of them that had learned",
    "others, other weather": "two others, other weathers",
    "all, same weather": "its own and two, same weather",
    "all, other weather": "its own and two, other weathers",
}
Key = tuple[int, str, int]


class Drive(NamedTuple):
    """What the network says about a drive's frames, and what they show."""

    logits: np.ndarray
    labels: np.ndarray


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact", type=Path, help="the road-sign classifier after gain-export")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cache", type=Path, help="folder for what was drawn")
    parser.add_argument("--json", type=Path, help="result file")
    args = parser.parse_args()
    drives: dict[Key, Drive] = {}
    measured: Mapping[str, Any] = {}
    for seed in range(args.seeds):
        for weather in WEATHERS:
            for camera in range(NUM_CAMERAS):
                key = seed, weather, camera
                drives[key], measured = draw(args, key)
                print(*key, file=sys.stderr)
    method = make_method(next(iter(drives.values())).logits.shape[1], **measured)
    with threadpool_limits(limits=1):
        learned = {key: learn(method, drive) for key, drive in drives.items()}
        cells = []
        for key, drive in drives.items():
            cell = dict(zip(("seed", "weather", "camera"), key, strict=True))
            cell["own_draws"] = round(float(method.summary(learned[key])["draws"]), 1)
            cells.append(cell | {"starts": starts_of(method, key, learned, drive)})
    report = {
        "command": "OMP_NUM_THREADS=1 python benchmarks/merging.py ARTIFACT "
        "--json benchmarks/results/merging.json",
        "versions": versions(),
        "drives": "test://drive?frames=1500&resolution=crop, one weather each",
        "counting": "accuracy and ece in per cent, over the scored frames of one camera",
        "cameras_per_weather": NUM_CAMERAS,
        "learned_frames": LEARNED,
        "scored_frames": SCORED,
        "starts": STARTS,
        "state_bytes_by_classes": {str(count): state_bytes(count) for count in (53, 1000)},
        "summary": summary(cells),
        "cells": cells,
    }
    if args.json:
        write_results(args.json, report)
    return 0


def draw(args: argparse.Namespace, key: Key) -> tuple[Drive, Any]:
    """One drive through the network, and what clean images say of the network."""
    seed, weather, camera = key
    uri = (
        f"test://drive?frames={LEARNED + SCORED}&resolution=crop"
        f"&seed={FIRST_SEED + NUM_CAMERAS * seed + camera}&conditions={weather}"
    )
    settings = InputSettings(cache=args.cache, num_threads=1)
    opened = open_input(args.artifact, (uri,), settings, recorded=True)
    ((outputs,),) = opened.store.outputs.values()
    return Drive(np.asarray(outputs.logits), opened.store.labels), opened.store.head.measured


def run(method: Method[Any], drive: Drive, state: Any | None = None) -> tuple[Any, np.ndarray]:
    """A drive frame by frame from a state; the state at its end and log p*, (N, K)."""
    gain = Gain(method)
    if state is not None:
        gain.load_state(state, frames=LEARNED)
    rows = [np.asarray(gain.step(None, row[None]).log_probs)[0] for row in drive.logits]
    gain.flush()
    return gain.state, np.stack(rows)


def learn(method: Method[Any], drive: Drive) -> Any:
    """What a camera has learned by the first frames of its drive."""
    return run(method, Drive(drive.logits[:LEARNED], drive.labels[:LEARNED]))[0]


def starts_of(
    method: Method[Any], key: Key, learned: Mapping[Key, Any], drive: Drive
) -> dict[str, dict[str, float]]:
    """Scores of the frames that follow, from each start."""
    seed, weather, camera = key
    others = [number for number in range(NUM_CAMERAS) if number != camera]
    same = [learned[seed, weather, number] for number in others]
    useful = [state for state in same if state.draws[-1] > 0]
    at = WEATHERS.index(weather)
    other = [
        learned[seed, WEATHERS[(at + step) % len(WEATHERS)], number]
        for step, number in enumerate(others, start=1)
    ]
    own = learned[key]
    states = {
        "fresh": None,
        "own": own,
        "others, same weather": reduce(method.merge, same),
        "learned others, same weather": reduce(method.merge, useful) if useful else None,
        "others, other weather": reduce(method.merge, other),
        "all, same weather": reduce(method.merge, [own, *same]),
        "all, other weather": reduce(method.merge, [own, *other]),
    }
    rest = Drive(drive.logits[LEARNED:], drive.labels[LEARNED:])
    frozen = method.predict(None, rest.logits, method.init_state()).log_probs
    found = {"source": scores(np.asarray(frozen), rest.labels)}
    return found | {
        name: scores(run(method, rest, state)[1], rest.labels) for name, state in states.items()
    }


def scores(log_probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Accuracy and calibration error in per cent."""
    right = np.argmax(log_probs, axis=1) == labels
    error = calibration(np.exp(log_probs.max(axis=1)), right).error
    return {"accuracy": round(100 * float(right.mean()), 2), "ece": round(100 * float(error), 2)}


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Cameras that had learned by themselves and others; of each start means and worst changes."""
    had = np.array([cell["own_draws"] > 0 for cell in cells])
    starts: dict[str, dict[str, float]] = {}
    for start in STARTS:
        record = starts[start] = {}
        for score, worst in (("accuracy", min), ("ece", max)):
            values = {name: [cell["starts"][name][score] for cell in cells] for name in STARTS}
            of = np.array(values[start])
            record[f"{score}_learned"] = round(float(of[had].mean()), 2)
            record[f"{score}_not_learned"] = round(float(of[~had].mean()), 2)
            for base in ("fresh", "own"):
                change = of - np.array(values[base])
                record[f"worst_{score}_against_{base}"] = round(float(worst(change)), 2)
    return {"cameras_learned": int(had.sum()), "cameras_not": int((~had).sum()), "starts": starts}


def state_bytes(num_classes: int) -> dict[str, int]:
    """Of one camera: in memory, as an adaptive file has it by default, and of a saved state."""
    method = make_method(num_classes)
    layout = state_layout(method, update_every=UPDATE_EVERY, warmup_frames=WARMUP_FRAMES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        state = method.init_state()
        save_state(path, state, config=method.config, artifact_sha256="0" * 64, frames=0)
        saved = path.stat().st_size
    return {"memory": sum(item.size_bytes for item in layout), "file": saved}


if __name__ == "__main__":
    sys.exit(main())
