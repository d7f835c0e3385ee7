"""The road-sign classifier: a small vision transformer behind a convolutional stem."""

from __future__ import annotations

from itertools import pairwise

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

INPUT_PX = 64
PATCH_PX = 8
MEAN = (0.5, 0.5, 0.5)
STD = (0.5, 0.5, 0.5)


class ConvStem(nn.Module):
    """Three strided convolutions and a projection in place of timm's patch embedding."""

    def __init__(
        self,
        img_size: int = INPUT_PX,
        patch_size: int = PATCH_PX,
        in_chans: int = 3,
        embed_dim: int = 192,
        **_: object,
    ) -> None:
        super().__init__()
        side = img_size // patch_size
        self.img_size = (img_size, img_size)
        self.patch_size = (patch_size, patch_size)
        self.grid_size = (side, side)
        self.num_patches = side * side
        widths = (in_chans, 32, 64, 128)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [
                nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers, nn.Conv2d(widths[-1], embed_dim, 1))

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.layers(pixel_values).flatten(2).transpose(1, 2)

    def feat_ratio(self, as_scalar: bool = True) -> int | tuple[int, int]:
        """Pixels per token, as timm asks for it."""
        return self.patch_size[0] if as_scalar else self.patch_size


def build_network(num_classes: int) -> VisionTransformer:
    """An untrained network: 64 px in, 64 tokens of 192, four pre-norm blocks, mean pooling."""
    return VisionTransformer(
        img_size=INPUT_PX,
        patch_size=PATCH_PX,
        embed_layer=ConvStem,
        embed_dim=192,
        depth=4,
        num_heads=3,
        mlp_ratio=4.0,
        num_classes=num_classes,
        global_pool="avg",
        drop_path_rate=0.05,
    )
