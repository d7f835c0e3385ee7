"""Train the road-sign classifier from scratch on pictures drawn on the fly.

Run from the repository root; stop it at any time and start it again with the same arguments to go
on where the last checkpoint was written:

    OMP_NUM_THREADS=2 python models/roadsigns/train.py --out out/roadsigns
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
import torch
from network import INPUT_PX, MEAN, STD, build_network
from torch import nn

from gain_scenes.roadsigns.designs import LABELS
from gain_scenes.roadsigns.sample import render_labelled

VALIDATION_SEED = 1_000_003
VALIDATION_SAMPLES = 1024
AVERAGE_DECAY = 0.995

Chunk = tuple[np.ndarray, np.ndarray]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and log")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--chunk", type=int, default=4096, help="samples drawn at a time")
    parser.add_argument("--reuse", type=int, default=2, help="times each sample is shown")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--smoothing", type=float, default=0.05)
    parser.add_argument("--warmup", type=int, default=150, help="steps")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    return parser


def render_chunk(seed: int, start: int, count: int) -> Chunk:
    """Draw consecutive samples of a data set: (N, H, W, 3) uint8 and (N,) int64."""
    cv2.setNumThreads(1)
    images = np.empty((count, INPUT_PX, INPUT_PX, 3), np.uint8)
    truths = np.empty(count, np.int64)
    for offset in range(count):
        images[offset], truths[offset] = render_labelled(
            start + offset, seed=seed, size_px=INPUT_PX
        )
    return images, truths


def to_pixel_values(images: np.ndarray) -> torch.Tensor:
    """Normalise (N, H, W, 3) uint8 to the network's input."""
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(255.0)
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    return (pixels - mean) / std


class Batches:
    """Turns a step number into a batch; draws the next chunk while the present one is used."""

    def __init__(self, args: argparse.Namespace, executor: ProcessPoolExecutor) -> None:
        self._args = args
        self._executor = executor
        self._per_pass = args.chunk // args.batch_size
        self._number = -1
        self._chunk: Chunk | None = None
        self._next: Future[Chunk] | None = None

    def _submit(self, number: int) -> Future[Chunk]:
        count = self._args.chunk
        return self._executor.submit(render_chunk, self._args.seed, number * count, count)

    def _load(self, number: int) -> Chunk:
        if self._chunk is None or number != self._number:
            ready = self._next if self._next and number == self._number + 1 else None
            self._chunk = (ready or self._submit(number)).result()
            self._number = number
            self._next = self._submit(number + 1)
        return self._chunk

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Pixel values and class indices of one step; the same for the same seed and step."""
        passed, position = divmod(step, self._per_pass)
        images, truths = self._load(passed // self._args.reuse)
        order = np.random.default_rng([self._args.seed, passed]).permutation(len(truths))
        size = self._args.batch_size
        picked = order[position * size : (position + 1) * size]
        shifted = shift(images[picked], np.random.default_rng([self._args.seed, 1, step]))
        return to_pixel_values(shifted), torch.from_numpy(truths[picked])


def shift(images: np.ndarray, rng: np.random.Generator, *, reach_px: int = 3) -> np.ndarray:
    """Move every picture by a few pixels, repeating its edge."""
    size = images.shape[1]
    pads = ((0, 0), (reach_px, reach_px), (reach_px, reach_px), (0, 0))
    padded = np.pad(images, pads, mode="edge")
    offsets = rng.integers(0, 2 * reach_px + 1, (len(images), 2))
    return np.stack(
        [
            picture[top : top + size, left : left + size]
            for picture, (top, left) in zip(padded, offsets, strict=True)
        ]
    )


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Linear warm-up, then half a cosine down to one per cent."""
    if step < args.warmup:
        return args.learning_rate * (step + 1) / args.warmup
    done = (step - args.warmup) / max(args.steps - args.warmup, 1)
    return args.learning_rate * (0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * done)))


def parameter_groups(network: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Weight decay on matrices and kernels only."""
    decayed = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]


@torch.inference_mode()
def validate(network: nn.Module, data: Chunk) -> float:
    """Accuracy on held-out samples, in [0, 1]."""
    network.eval()
    images, truths = data
    hits = 0
    for start in range(0, len(truths), 128):
        logits = network(to_pixel_values(images[start : start + 128]))
        hits += int((logits.argmax(1).numpy() == truths[start : start + 128]).sum())
    network.train()
    return hits / len(truths)


def save(path: Path, record: dict[str, object]) -> None:
    """Write a checkpoint so that an interruption leaves the old one."""
    temporary = path.with_suffix(".tmp")
    torch.save(record, temporary)
    temporary.replace(path)


def average_into(average: nn.Module, network: nn.Module, step: int) -> None:
    """Move the running average of the weights towards the weights."""
    decay = min(AVERAGE_DECAY, (1.0 + step) / (10.0 + step))
    with torch.no_grad():
        for kept, new in zip(
            average.state_dict().values(), network.state_dict().values(), strict=True
        ):
            if kept.dtype.is_floating_point:
                kept.lerp_(new, 1.0 - decay)
            else:
                kept.copy_(new)


def train(args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    network, average = build_network(len(LABELS)), build_network(len(LABELS))
    average.load_state_dict(network.state_dict())
    optimizer = torch.optim.AdamW(parameter_groups(network, args.weight_decay))
    checkpoint, first = args.out / "checkpoint.pt", 0
    if checkpoint.exists():
        record = torch.load(checkpoint, weights_only=True)
        network.load_state_dict(record["network"])
        average.load_state_dict(record["average"])
        optimizer.load_state_dict(record["optimizer"])
        first = record["step"]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        held_out = executor.submit(render_chunk, VALIDATION_SEED, 0, VALIDATION_SAMPLES).result()
        batches = Batches(args, executor)
        began, losses = time.monotonic(), []
        for step in range(first, args.steps):
            losses.append(train_step(network, optimizer, batches.batch(step), step=step, args=args))
            average_into(average, network, step)
            if (step + 1) % args.every == 0 or step + 1 == args.steps:
                accuracy = validate(average, held_out)
                report(step + 1, first, began, loss=float(np.mean(losses)), accuracy=accuracy,
                       args=args)  # fmt: skip
                losses = []
                save(checkpoint, {"network": network.state_dict(), "step": step + 1,
                                  "average": average.state_dict(), "validation": accuracy,
                                  "optimizer": optimizer.state_dict()})  # fmt: skip


def train_step(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: tuple[torch.Tensor, torch.Tensor],
    /,
    *,
    step: int,
    args: argparse.Namespace,
) -> float:
    """One step of AdamW; returns the loss."""
    # Dropped paths must be the same whether or not the run was interrupted.
    torch.manual_seed(args.seed * 1_000_003 + step)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, args)
    network.train()
    with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
        logits = network(batch[0])
    loss = nn.functional.cross_entropy(logits.float(), batch[1], label_smoothing=args.smoothing)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def report(
    step: int, first: int, began: float, *, loss: float, accuracy: float, args: argparse.Namespace
) -> None:
    """One line on the screen and one in `log.jsonl`."""
    rate = (step - first) / (time.monotonic() - began)
    left_min = (args.steps - step) / rate / 60.0
    sys.stderr.write(
        f"step {step}/{args.steps}  loss {loss:.3f}  held-out {100 * accuracy:.1f} %  "
        f"{rate * args.batch_size:.0f} samples/s  {left_min:.0f} min left\n"
    )
    with (args.out / "log.jsonl").open("a") as log:
        log.write(json.dumps({"step": step, "loss": loss, "accuracy": accuracy}) + "\n")


def stop(signal_number: int, _: object) -> None:
    """Unwind on SIGTERM, so that the drawing process ends with this one."""
    raise SystemExit(128 + signal_number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    train(build_parser().parse_args())
