"""Train the second test network, a ViT on 20,000 real 32 x 32 photographs, and dump its features.

Another architecture than the road-sign model, so that nothing is tuned to one network: pre-norm
blocks, four register tokens, mean pooling, head with bias. The dump is an `.npz` for `gain-eval`:
frozen features of 2,000 test photographs, clean and under the fifteen corruptions. Some 45 minutes
on two idle cores. A seed fixes the network on one machine only: another rounds otherwise, and its
dump has scores of its own, by a point or two.

    python benchmarks/cifar_vit.py TRAIN.npz TEST.npz --out cifar_vit.npz
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from gain_scenes.corruptions import CORRUPTIONS, corrupt, image_rng

WIDTH, DEPTH, HEADS, REGISTERS, PATCH_PX, SIZE_PX = 128, 6, 4, 4, 4, 32
MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1)
STD = torch.tensor([0.2470, 0.2435, 0.2616]).view(1, 3, 1, 1)


class PhotoViT(nn.Module):
    """Pre-norm ViT with register tokens; the patch tokens' mean is the feature."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        patches = (SIZE_PX // PATCH_PX) ** 2
        self.emdump = nn.Conv2d(3, WIDTH, PATCH_PX, PATCH_PX)
        self.position = nn.Parameter(0.02 * torch.randn(1, patches, WIDTH))
        self.registers = nn.Parameter(0.02 * torch.randn(1, REGISTERS, WIDTH))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH,
                HEADS,
                2 * WIDTH,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(DEPTH)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, num_classes)

    def features(self, images: Tensor) -> Tensor:
        """Pre-logits features (B, D) of normalised (B, 3, 32, 32) images."""
        tokens = self.emdump(images).flatten(2).transpose(1, 2) + self.position
        tokens = torch.cat([self.registers.expand(len(images), -1, -1), tokens], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)[:, REGISTERS:].mean(1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K)."""
        logits: Tensor = self.head(self.features(images))
        return logits


def main(argv: list[str] | None = None) -> int:
    """Train, then write the dump."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument("--num-images", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)
    with np.load(args.train) as data:
        images, labels = data["images"], data["labels"].astype(np.int64)
    network = train(images, labels, epochs=args.epochs)
    with np.load(args.test) as data:
        images, labels = data["images"][: args.num_images], data["labels"].astype(np.int64)
    write_dump(network, images, labels[: args.num_images], severity=args.severity, path=args.out)
    return 0


def train(images: np.ndarray, labels: np.ndarray, *, epochs: int) -> PhotoViT:
    """AdamW with one-cycle rate; random crop and flip."""
    network = PhotoViT(int(labels.max()) + 1)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    targets = torch.from_numpy(labels)
    steps = epochs * (len(pixels) // 128)
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 1e-3, total_steps=steps, pct_start=0.2
    )
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)
    started = time.monotonic()
    for epoch in range(epochs):
        order = torch.randperm(len(pixels))
        right = 0
        for start in range(0, len(pixels) - 127, 128):
            rows = order[start : start + 128]
            logits = network(augmented(pixels[rows]))
            loss = loss_of(logits, targets[rows])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
            right += int((logits.argmax(1) == targets[rows]).sum())
        seconds = time.monotonic() - started
        print(
            f"epoch {epoch}: train {right / len(pixels):.3f}, {seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    return network.eval()


def augmented(pixels: Tensor) -> Tensor:
    """Normalised pixels, shifted by up to 4 px and flipped, one draw for each image."""
    count = len(pixels)
    padded = nn.functional.pad(pixels.float(), (4, 4, 4, 4), mode="replicate")
    top, left = torch.randint(0, 9, (2, count))
    rows = top[:, None] + torch.arange(SIZE_PX)
    columns = left[:, None] + torch.arange(SIZE_PX)
    flip = torch.rand(count) < 0.5
    columns = torch.where(flip[:, None], columns.flip(1), columns)
    picked = padded[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return (picked.permute(0, 3, 1, 2) / 255.0 - MEAN) / STD


@torch.inference_mode()
def features_of(network: PhotoViT, images: np.ndarray) -> np.ndarray:
    """Features (N, D) float16 of (N, 32, 32, 3) uint8 images."""
    rows = []
    for start in range(0, len(images), 256):
        pixels = torch.from_numpy(images[start : start + 256]).permute(0, 3, 1, 2).float() / 255.0
        rows.append(network.features((pixels - MEAN) / STD).numpy().astype(np.float16))
    return np.concatenate(rows)


def write_dump(
    network: PhotoViT, images: np.ndarray, labels: np.ndarray, *, severity: int, path: Path
) -> None:
    """Write head, labels and features, clean and of every corruption."""
    weight, bias = network.head.weight.detach().numpy(), network.head.bias.detach().numpy()
    arrays = {"weight": weight, "bias": bias, "labels": labels}
    for name in ("clean", *CORRUPTIONS):
        seen = images
        if name != "clean":
            seen = np.stack(
                [
                    corrupt(image, name, severity, rng=image_rng(0, i, name))
                    for i, image in enumerate(images)
                ]
            )
        arrays[name] = features_of(network, seen)
        logits = arrays[name].astype(np.float32) @ weight.T + bias
        accuracy = 100.0 * np.mean(logits.argmax(1) == labels)
        print(f"{name}: {accuracy:.1f} %", file=sys.stderr, flush=True)
    np.savez(path, **arrays)


if __name__ == "__main__":
    raise SystemExit(main())
