"""What the GPU script measures: how much of it, and on which network."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["CARD", "DRY", "Network", "PlainViT", "Scale", "build", "optional", "synchronise"]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured; `device` is torch's name of where."""

    device: str
    batch_sizes: tuple[int, ...]
    class_counts: tuple[int, ...]
    image_px: int
    patch_px: int
    width: int
    depth: int
    heads: int
    rounds: int
    suite: tuple[str, ...]
    suite_timeout_s: int


CARD = Scale(
    device="cuda",
    batch_sizes=(1, 8, 64),
    class_counts=(1000, 21_843),
    image_px=224,
    patch_px=16,
    width=768,
    depth=12,
    heads=12,
    rounds=40,
    suite=("tests/core", "tests/cuda", "-k", "cupy or cuda"),
    suite_timeout_s=300,
)
DRY = Scale(
    device="cpu",
    batch_sizes=(1, 4),
    class_counts=(10, 33),
    image_px=32,
    patch_px=16,
    width=32,
    depth=2,
    heads=2,
    rounds=3,
    suite=("tests/core/test_namespaces.py", "-k", "every_public_function and not cuda"),
    suite_timeout_s=120,
)


class PlainViT(torch.nn.Module):
    """A vision transformer with random weights, for machines without timm."""

    def __init__(self, scale: Scale, num_classes: int) -> None:
        super().__init__()
        side = scale.image_px // scale.patch_px
        self.patches = torch.nn.Conv2d(3, scale.width, scale.patch_px, stride=scale.patch_px)
        self.token = torch.nn.Parameter(torch.randn(1, 1, scale.width) * 0.02)
        self.position = torch.nn.Parameter(torch.randn(1, side**2 + 1, scale.width) * 0.02)
        block = torch.nn.TransformerEncoderLayer(
            scale.width,
            scale.heads,
            4 * scale.width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.blocks = torch.nn.TransformerEncoder(block, scale.depth, enable_nested_tensor=False)
        self.norm = torch.nn.LayerNorm(scale.width)
        self.head = torch.nn.Linear(scale.width, num_classes)

    def features(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Pre-logits features, (B, D)."""
        tokens = self.patches(pixel_values).flatten(2).transpose(1, 2)
        token = self.token.expand(tokens.shape[0], -1, -1)
        tokens = torch.cat([token, tokens], dim=1) + self.position
        return self.norm(self.blocks(tokens))[:, 0]


@dataclass(frozen=True, kw_only=True)
class Network:
    """A backbone with its head: (B, 3, H, W) to features (B, D) and logits (B, K)."""

    name: str
    head: torch.nn.Linear
    features: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.features(pixel_values)
        return features, self.head(features)


def build(scale: Scale, num_classes: int, dtype: torch.dtype) -> Network:
    """ViT-B/16 with random weights, of timm where it is there and the sizes are the card's."""
    timm = optional("timm") if scale is CARD else None
    if timm is None:
        model: Any = PlainViT(scale, num_classes)
        name, features = "plain torch ViT", model.features
    else:
        model = timm.create_model("vit_base_patch16_224", num_classes=num_classes)
        name = "timm vit_base_patch16_224"

        def features(pixel_values: torch.Tensor) -> torch.Tensor:
            return model.forward_head(model.forward_features(pixel_values), pre_logits=True)

    model.eval().to(scale.device, dtype)
    return Network(name=name, head=model.head, features=features)


def optional(name: str) -> Any:
    """A library that may be missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def synchronise(scale: Scale) -> None:
    """Wait for the device."""
    if scale.device == "cuda":
        torch.cuda.synchronize()
