"""Measure the shipped road-sign classifier on held-out still signs and on drives.

    OMP_NUM_THREADS=1 python models/roadsigns/evaluate.py

Writes `benchmarks/results/roadsigns_model.json`. Needs no torch: the plain ONNX file runs in ONNX
Runtime, drive frames go through the same preprocessing as in `gain-stream`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import onnxruntime

from gain_apps.metrics import accuracy, expected_calibration_error, negative_log_likelihood
from gain_runtime.files.manifest import Preprocess
from gain_runtime.files.paths import write_atomically
from gain_runtime.preprocess import preprocess_batch
from gain_scenes.roadsigns.designs import LABELS
from gain_scenes.roadsigns.sample import render_labelled
from gain_scenes.roadsigns.sources import DriveParams, DriveSource

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Neither the training seed nor the one train.py watches.
CLEAN_SEED = 2_000_003
SPEC = Preprocess(
    height_px=64,
    width_px=64,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    interpolation="bicubic",
    crop_mode="squash",
)
BATCH = 64

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=HERE / "roadsigns.onnx")
    parser.add_argument("--clean-samples", type=int, default=5300)
    parser.add_argument("--frames", type=int, default=6000, help="length of each drive")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / "roadsigns_model.json"
    )
    return parser


def open_model(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def batches(pictures: Iterator[tuple[np.ndarray, int]]) -> Iterator[tuple[list[np.ndarray], Ints]]:
    """Group (picture, truth) pairs."""
    images: list[np.ndarray] = []
    truths: list[int] = []
    for image, truth in pictures:
        images.append(image)
        truths.append(truth)
        if len(images) == BATCH:
            yield images, np.array(truths)
            images, truths = [], []
    if images:
        yield images, np.array(truths)


def log_probs_of(
    session: onnxruntime.InferenceSession, pictures: Iterator[tuple[np.ndarray, int]]
) -> tuple[Floats, Ints]:
    """Log-probabilities (N, K) and truths (N,) of a stream of crops."""
    rows, truths = [], []
    for images, truth in batches(pictures):
        pixel_values = preprocess_batch(images, SPEC)
        (logits,) = session.run(["logits"], {"pixel_values": pixel_values})
        shifted = logits - logits.max(axis=1, keepdims=True)
        rows.append(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
        truths.append(truth)
    return np.concatenate(rows), np.concatenate(truths)


def scores(log_probs: Floats, truths: Ints) -> dict[str, float | int]:
    """Accuracy and ECE in per cent, NLL in nats, and the number of pictures."""
    probs = np.exp(log_probs)
    return {
        "samples": len(truths),
        "accuracy": round(100 * accuracy(probs, truths), 2),
        "ece": round(100 * expected_calibration_error(probs, truths), 2),
        "nll": round(negative_log_likelihood(log_probs, truths), 4),
    }


def clean_pictures(count: int) -> Iterator[tuple[np.ndarray, int]]:
    for index in range(count):
        yield render_labelled(index, seed=CLEAN_SEED, size_px=SPEC.height_px)


def drive(
    session: onnxruntime.InferenceSession, seed: int, frames: int
) -> tuple[Floats, Ints, list[str]]:
    """Log-probabilities, truths and condition names of one drive."""
    conditions: list[str] = []

    def crops() -> Iterator[tuple[np.ndarray, int]]:
        params = DriveParams(frames=frames, seed=seed, resolution="crop")
        with DriveSource(params) as source:
            for frame in source:
                left, top, right, bottom = frame.region
                conditions.append(frame.condition)
                yield frame.image[top:bottom, left:right], frame.truth

    log_probs, truths = log_probs_of(session, crops())
    return log_probs, truths, conditions


def hardest_pairs(log_probs: Floats, truths: Ints, *, count: int = 10) -> list[dict[str, object]]:
    """The most frequent confusions."""
    confusion = np.zeros((len(LABELS), len(LABELS)), int)
    np.add.at(confusion, (truths, log_probs.argmax(axis=1)), 1)
    np.fill_diagonal(confusion, 0)
    worst = np.argsort(confusion, axis=None)[::-1][:count]
    pairs = [np.unravel_index(flat, confusion.shape) for flat in worst]
    return [
        {"truth": LABELS[i], "predicted": LABELS[j], "times": int(confusion[i, j])}
        for i, j in pairs
        if confusion[i, j]
    ]


def main() -> int:
    args = build_parser().parse_args()
    cv2.setNumThreads(1)
    session = open_model(args.model)
    clean = log_probs_of(session, clean_pictures(args.clean_samples))
    record: dict[str, object] = {
        "command": "python models/roadsigns/evaluate.py",
        "model": args.model.name,
        "clean": {"seed": CLEAN_SEED, **scores(*clean), "confusions": hardest_pairs(*clean)},
    }
    sys.stderr.write(f"clean {record['clean']}\n")
    runs = {}
    for seed in args.seeds:
        runs[seed] = drive(session, seed, args.frames)
        sys.stderr.write(f"drive seed {seed}: {scores(*runs[seed][:2])}\n")
    record["drives"] = {
        "frames": args.frames,
        "seeds": {str(seed): scores(*run[:2]) for seed, run in runs.items()},
        "mean": mean_and_spread([scores(*run[:2]) for run in runs.values()]),
        "conditions": by_condition(list(runs.values())),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(args.out, (json.dumps(record, indent=2) + "\n").encode())
    sys.stderr.write(f"{json.dumps(record['drives'], indent=1)}\n")
    return 0


def mean_and_spread(rows: list[dict[str, float | int]]) -> dict[str, float]:
    """Mean and standard deviation of each score over the seeds."""
    result = {}
    for name in ("accuracy", "ece", "nll"):
        values = [row[name] for row in rows]
        result[name] = round(float(np.mean(values)), 2 if name != "nll" else 4)
        result[f"{name}_std"] = round(float(np.std(values)), 2 if name != "nll" else 4)
    return result


def by_condition(
    runs: list[tuple[Floats, Ints, list[str]]],
) -> dict[str, dict[str, float | int]]:
    """Scores of each condition over all drives."""
    log_probs = np.concatenate([run[0] for run in runs])
    truths = np.concatenate([run[1] for run in runs])
    names = np.array([name for run in runs for name in run[2]])
    return {
        name: scores(log_probs[names == name], truths[names == name])
        for name in dict.fromkeys(names.tolist())
    }


if __name__ == "__main__":
    raise SystemExit(main())
