"""Random label-preserving changes of a batch of pixel values."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["augmented"]

MAX_DEGREES = 15.0
MAX_SHIFT = 1.0 / 16.0
SCALE = (0.9, 1.1)
CONTRAST = (0.7, 1.3)
BRIGHTNESS = 0.3
NOISE = 0.02


def augmented(pixel_values: Any, /, *, torch: Any, random: Any) -> Any:
    """Flip, turn, shift, scale, change contrast and brightness, and add noise, image by image.

    Parameters
    ----------
    pixel_values : tensor, (B, 3, H, W)
        Normalised; contrast, brightness and noise are in its units.
    torch : module
    random : torch.Generator

    Returns
    -------
    tensor, (B, 3, H, W)

    Notes
    -----
    CoTTA's and ROID's own lists are longer (blur, saturation, hue) and work on [0, 1] pixels.
    """
    size = len(pixel_values)

    def uniform(low: float, high: float) -> Any:
        return torch.rand(size, generator=random) * (high - low) + low

    angle = uniform(-MAX_DEGREES, MAX_DEGREES) * (math.pi / 180.0)
    scale = uniform(*SCALE)
    mirror = torch.where(torch.rand(size, generator=random) < 0.5, -1.0, 1.0)
    cos, sin = scale * torch.cos(angle), scale * torch.sin(angle)
    turn = torch.stack(
        [
            torch.stack([cos * mirror, -sin, uniform(-2 * MAX_SHIFT, 2 * MAX_SHIFT)], dim=1),
            torch.stack([sin * mirror, cos, uniform(-2 * MAX_SHIFT, 2 * MAX_SHIFT)], dim=1),
        ],
        dim=1,
    )
    functional = torch.nn.functional
    grid = functional.affine_grid(turn, list(pixel_values.shape), align_corners=False)
    moved = functional.grid_sample(
        pixel_values, grid, padding_mode="reflection", align_corners=False
    )
    contrast = uniform(*CONTRAST)[:, None, None, None]
    brightness = uniform(-BRIGHTNESS, BRIGHTNESS)[:, None, None, None]
    noise = torch.randn(moved.shape, generator=random) * NOISE
    return moved * contrast + brightness + noise
