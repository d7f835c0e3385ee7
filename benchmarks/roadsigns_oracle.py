"""How much re-centring alone could win on the drive, if conditions and classes were known.

    python benchmarks/roadsigns_oracle.py ARTIFACT --json benchmarks/results/roadsigns_oracle.json

For every condition of a drive the features' mean, each class counting alike by its true label, is
moved to where the same classes lie in clear weather; the frozen head then predicts again. No
method without labels can know these means; what the oracle gains bounds what tracking a shift can.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gain_apps.roadsigns.drive import drive_source
from gain_runtime.onnx_session import OnnxSession
from gain_runtime.preprocess import preprocess_batch

CLEAR = "clear"
BATCH = 64
Floats = npt.NDArray[np.float32]


def main() -> int:
    """Measure every seed, print and write the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--frames", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with OnnxSession(args.artifact) as session:
        drives = [one_drive(session, args.frames, seed) for seed in range(args.seeds)]
    report = {
        "command": "python benchmarks/roadsigns_oracle.py ARTIFACT",
        "frames": args.frames,
        "seeds": args.seeds,
        "accuracy_percent": {
            condition: {
                who: round(statistics.fmean(drive[condition][who] for drive in drives), 2)
                for who in ("source", "oracle")
            }
            for condition in drives[0]
        },
    }
    for condition, row in report["accuracy_percent"].items():
        print(f"{condition:14s} source {row['source']:6.2f}   re-centred {row['oracle']:6.2f}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def one_drive(session: OnnxSession, frames: int, seed: int) -> dict[str, dict[str, float]]:
    """Accuracy of the source and of the oracle per condition, and over conditions."""
    features, truths, conditions = record(session, frames, seed)
    weight, bias = session.artifact.head_weight, session.artifact.head_bias
    clear = conditions == CLEAR
    result = {}
    for condition in dict.fromkeys(conditions.tolist()):
        here = conditions == condition
        shared = np.intersect1d(truths[here], truths[clear])
        moved = features[here]
        if len(shared):
            moved = moved - class_mean(features[here], truths[here], shared)
            moved = moved + class_mean(features[clear], truths[clear], shared)
        result[condition] = {
            "source": correct(features[here] @ weight.T + bias, truths[here]),
            "oracle": correct(moved @ weight.T + bias, truths[here]),
        }
    result["mean over conditions"] = {
        who: statistics.fmean(row[who] for row in result.values()) for who in ("source", "oracle")
    }
    return result


def record(
    session: OnnxSession, frames: int, seed: int
) -> tuple[Floats, npt.NDArray[np.int64], npt.NDArray[np.str_]]:
    """Features, true classes and conditions of a drive."""
    params = {"frames": str(frames), "resolution": "crop", "seed": str(seed)}
    spec = session.artifact.manifest.preprocess
    features, truths, conditions, images, regions = [], [], [], [], []
    for frame in drive_source(params):
        images.append(frame.image)
        regions.append(frame.region)
        truths.append(frame.truth)
        conditions.append(frame.condition)
        if len(images) == BATCH or len(truths) == frames:
            features.append(session.infer(preprocess_batch(images, spec, regions=regions)).features)
            images, regions = [], []
    return np.concatenate(features), np.array(truths), np.array(conditions)


def class_mean(
    features: Floats, truths: npt.NDArray[np.int64], classes: npt.NDArray[np.int64]
) -> Floats:
    """Mean of the class means of `classes`, (D,)."""
    means = [features[truths == index].mean(axis=0) for index in classes]
    return np.mean(means, axis=0, dtype=np.float64).astype(np.float32)


def correct(logits: Floats, truths: npt.NDArray[np.int64]) -> float:
    """Accuracy in per cent."""
    return 100.0 * float((logits.argmax(axis=1) == truths).mean())


if __name__ == "__main__":
    sys.exit(main())
