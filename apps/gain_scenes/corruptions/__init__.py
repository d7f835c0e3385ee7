"""The fifteen corruptions of ImageNet-C and some of cameras and video, for frames of any size.

Written from the published constants and the description of each corruption (Hendrycks and
Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
ICLR 2019). `EXTRA_CORRUPTIONS` are those of ImageNet-3DCC (Kar, Yeo, Atanov, Zamir, "3D Common
Corruptions and Data Augmentation", CVPR 2022) that need no depth, with constants of our own; they
are no part of a stream unless named. Every random number comes from the generator handed in, so
an image, a name, a severity and a seed give the same pixels every time.

``python -m gain_scenes.corruptions PHOTO --out sheet.jpg`` draws all of them on one sheet; the one
in the documentation, `docs/images/corruptions.jpg`, is that of ``tests/corruptions/photo.png``
with ``--extra --seed 4``.
"""

from __future__ import annotations

from gain_scenes.corruptions.apply import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    corrupt,
    corrupt_float,
    image_rng,
)

__all__ = [
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "corrupt",
    "corrupt_float",
    "image_rng",
]
