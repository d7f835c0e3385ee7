"""A feature dump of a small CNN with batch norm, trained on 20,000 real 32 x 32 photographs.

    python benchmarks/cifar_cnn.py TRAIN.npz TEST.npz --out cifar_cnn.npz

No part of the default method was chosen on it. The dump holds features of 2,000 test photographs,
clean and under the fifteen corruptions at severity 2. Some five minutes on an idle core; a seed
fixes the network on one machine only.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from gain_scenes.corruptions import CORRUPTIONS, corrupt, image_rng

WIDTH, EPOCHS, BATCH, SEVERITY, NUM_TEST = 24, 6, 128, 2, 2000


def main() -> int:
    """Train, then write the dump."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    with np.load(args.train) as data:
        pixels, labels = scaled(data["images"]), torch.from_numpy(data["labels"].astype(np.int64))
    mean = pixels.mean((0, 2, 3), keepdim=True)
    deviation = pixels.std((0, 2, 3), keepdim=True)
    network = train((pixels - mean) / deviation, labels)
    with np.load(args.test) as data:
        images, truths = data["images"][:NUM_TEST], data["labels"][:NUM_TEST].astype(np.int64)
    head = network[-1]
    weight, bias = head.weight.detach().numpy(), head.bias.detach().numpy()
    arrays = {"weight": weight, "bias": bias, "labels": truths}
    for name in ("clean", *CORRUPTIONS):
        seen = images
        if name != "clean":
            seen = np.stack(
                [
                    corrupt(image, name, SEVERITY, rng=image_rng(0, index, name))
                    for index, image in enumerate(images)
                ]
            )
        arrays[name] = features_of(network[:-1], (scaled(seen) - mean) / deviation)
        found = arrays[name].astype(np.float32) @ weight.T + bias
        print(f"{name}: {100.0 * np.mean(found.argmax(1) == truths):.1f} %", file=sys.stderr)
    np.savez(args.out, **arrays)
    return 0


def scaled(images: np.ndarray) -> Tensor:
    """(N, H, W, 3) uint8 as (N, 3, H, W) in [0, 1]."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255.0


def build_network(num_classes: int) -> nn.Sequential:
    """Five convolutions with batch norm, the mean over the picture, and a linear head."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, stride in ((1, 1), (2, 2), (2, 1), (4, 2), (4, 1)):
        convolution = nn.Conv2d(inputs, outputs * WIDTH, 3, stride, 1, bias=False)
        layers += [nn.Sequential(convolution, nn.BatchNorm2d(outputs * WIDTH), nn.ReLU())]
        inputs = outputs * WIDTH
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, pooled, nn.Linear(inputs, num_classes))


def train(pixels: Tensor, labels: Tensor) -> nn.Sequential:
    """SGD with a one-cycle rate; batches drawn with repetition, cropped and flipped as one."""
    network = build_network(int(labels.max()) + 1).to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(network.parameters(), 0.1, 0.9, weight_decay=5e-4, nesterov=True)
    steps = EPOCHS * len(pixels) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.2, total_steps=steps + 1)
    for _ in range(steps):
        rows = torch.randint(len(pixels), (BATCH,))
        batch = pixels[rows]
        if torch.rand(1) < 0.5:
            batch = batch.flip(3)
        batch = nn.functional.pad(batch, (2, 2, 2, 2), mode="reflect")
        top, left = torch.randint(0, 5, (2,)).tolist()
        batch = batch[:, :, top : top + 32, left : left + 32]
        loss = nn.functional.cross_entropy(
            network(batch.contiguous(memory_format=torch.channels_last)), labels[rows]
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return network.eval()


@torch.inference_mode()
def features_of(body: nn.Sequential, pixels: Tensor) -> np.ndarray:
    """Features (N, D) float16."""
    return torch.cat([body(part) for part in pixels.split(250)]).numpy().astype(np.float16)


if __name__ == "__main__":
    raise SystemExit(main())
