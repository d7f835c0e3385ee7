"""GAIN against the methods that train the network or search prompts for it, in one run on a CPU.

    OMP_NUM_THREADS=1 python benchmarks/torch_baselines.py ARTIFACT --json RESULT.json

ARTIFACT is `models/roadsigns/roadsigns.onnx` after `gain-export`; the network in torch is built
anew from the weights in the former. The stream is every second of the fifteen corruptions, in
order, on a few still signs, in batches of the paper's 64, without a reset. They are timed with
their own forward passes, so GAIN's time is its step and the frozen network's pass in torch: the
ratio is `cotta / (torch-source + GAIN)`. CoTTA averages over augmented copies where the source is
unsure; its authors' threshold for a thousand classes (0.1) and for a hundred (0.72) are both run.
EATA's similarity is its authors' for few classes: their other one lets hardly a sample of these
53 classes through.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from threadpoolctl import threadpool_limits

from gain_apps.evaluation import InputSettings, open_input
from gain_apps.evaluation import evaluate as evaluate_methods
from gain_apps.evaluation.methods.protocol import TorchNetwork
from gain_core import PRESETS
from gain_scenes.corruptions import CORRUPTIONS
from gain_scenes.roadsigns.designs import LABELS
from gain_scenes.roadsigns.sample import render_labelled

MODEL = Path(__file__).resolve().parents[1] / "models" / "roadsigns"
# Neither the training's nor the validation's: see models/roadsigns/train.py and evaluate.py.
STILL_SEED = 3_000_017
SOURCE_SEED = 3_000_018
NUM_SOURCE = 512
SCORES = ("accuracy", "ece", "nll")
COTTA = ("cotta", "cotta:threshold=0.72")
GAIN = tuple(PRESETS)
DOMAINS = CORRUPTIONS[::2]
METHODS = (
    *("torch-source", "tent", f"eata:similarity=0.4:num_source={NUM_SOURCE}", "sar", *COTTA),
    *("roid", "foa", *GAIN, "neo"),
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact", type=Path, help="the road-sign classifier after gain-export")
    parser.add_argument("--images", type=int, default=128, help="per corruption (default: 128)")
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--methods", help="for a part of the run", default=",".join(METHODS))
    parser.add_argument("--json", type=Path, help="result file")
    return parser


def main() -> int:
    args = build_parser().parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(limits=1):
        results = evaluate(args, Path(folder))
    rows = {name: row_of(results["methods"][name]) for name in results["methods"]}
    report = {
        "command": "OMP_NUM_THREADS=1 python benchmarks/torch_baselines.py ARTIFACT --json RESULT",
        "threads": 1,
        "images_per_corruption": args.images,
        "severity": args.severity,
        "domains": DOMAINS,
        "batch_size": 64,
        "counting": "per corruption, then averaged; in per cent, nll in nats; ms per batch",
        "versions": results["versions"] | {"torch": torch.__version__},
        "machine": results["machine"],
        "artifact": {key: results["model"][key] for key in ("sha256", "weights_sha256")},
        "methods": rows,
        "speed_over": speeds(rows),
    }
    print_table(report)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def evaluate(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Result of all methods on one stream."""
    signs = folder / "signs.npz"
    pixels, labels = draw_signs(args.images, seed=STILL_SEED)
    np.savez(signs, images=pixels, labels=labels)
    settings = InputSettings(
        domains=DOMAINS, severities=(float(args.severity),), cache=folder, num_threads=1
    )
    opened = open_input(args.artifact, signs, settings)
    source, _ = draw_signs(NUM_SOURCE, seed=SOURCE_SEED)
    values = np.ascontiguousarray(np.moveaxis(source, 3, 1), dtype=np.float32) / 127.5 - 1.0
    network = load_network(MODEL / "roadsigns.onnx")
    in_torch = replace(
        opened,
        network=lambda: TorchNetwork(
            lambda: copy.deepcopy(network), source=lambda count: values[:count]
        ),
    )
    return evaluate_methods(
        in_torch, methods=args.methods.split(","), settings=settings, on_task=announce
    )


def draw_signs(count: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Still signs (N, 64, 64, 3) uint8 as the classifier was trained on, and their labels."""
    pairs = [render_labelled(index, seed=seed, size_px=64, severity=1.0) for index in range(count)]
    images, labels = zip(*pairs, strict=True)
    return np.stack(images), np.array(labels, dtype=np.int64)


def load_network(path: Path) -> torch.nn.Module:
    """The network in torch with an ONNX file's weights.

    Its export kept most names. The matrices of the blocks were transposed and stand in the
    network's order, and each batch norm of the stem was folded into the convolution before it.
    """
    sys.path.insert(0, str(MODEL))
    from network import build_network

    network = build_network(len(LABELS))
    arrays = {
        item.name: torch.from_numpy(numpy_helper.to_array(item).copy())
        for item in onnx.load(path).graph.initializer
    }
    weights = network.state_dict()
    weights |= {name: array for name, array in arrays.items() if name in weights}
    matrices = [array.T for name, array in arrays.items() if name.startswith("onnx::MatMul")]
    parts = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    names = [f"blocks.{i}.{part}.weight" for i in range(len(network.blocks)) for part in parts]
    weights |= dict(zip(names, matrices, strict=True))
    folded = [array for name, array in arrays.items() if name.startswith("onnx::Conv")]
    for number, (kernel, bias) in enumerate(zip(folded[::2], folded[1::2], strict=True)):
        convolution, norm = (f"patch_embed.layers.{3 * number + place}." for place in (0, 1))
        epsilon = network.patch_embed.layers[3 * number + 1].eps
        weights[convolution + "weight"] = kernel
        weights[norm + "weight"] = torch.ones_like(bias)
        weights[norm + "bias"] = bias
        weights[norm + "running_mean"] = torch.zeros_like(bias)
        weights[norm + "running_var"] = torch.ones_like(bias) - epsilon
    network.load_state_dict(weights)
    return network.eval()


def announce(title: str, num_batches: int) -> Any:
    """A line on stderr as each method starts."""
    print(f"{title}: {num_batches} batches", file=sys.stderr, flush=True)
    return lambda: None


def row_of(record: dict[str, Any]) -> dict[str, Any]:
    """What the table needs of a method's record."""
    scores = {score: round(record[score], 3) for score in SCORES}
    return scores | {"step_ms": record["step_ms"], "cost": record["cost"]}


def speeds(rows: dict[str, Any]) -> dict[str, dict[str, float]]:
    """How many times as fast as each method a GAIN preset with its forward pass is."""
    if "torch-source" not in rows:
        return {}
    forward = rows["torch-source"]["step_ms"]["mean"]
    trained = [name for name in rows if name in METHODS and name not in (*GAIN, "neo")]
    return {
        preset: {
            name: round(rows[name]["step_ms"]["mean"] / (forward + row["step_ms"]["mean"]), 2)
            for name in trained
        }
        for preset, row in rows.items()
        if preset in GAIN
    }


def print_table(report: dict[str, Any]) -> None:
    """One line per method, and the speeds."""
    for name, row in report["methods"].items():
        cells = "  ".join(f"{score} {row[score]:7.2f}" for score in SCORES)
        state_kib = row["cost"]["state_bytes"] / 1024
        print(f"{name:40s} {cells}  {row['step_ms']['mean']:9.2f} ms  {state_kib:10.1f} KiB")
    for preset, ratios in report["speed_over"].items():
        print(preset, ratios)


if __name__ == "__main__":
    sys.exit(main())
