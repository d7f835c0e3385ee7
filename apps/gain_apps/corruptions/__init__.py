"""The fifteen corruptions of ImageNet-C at severities 0 to 5, for frames of any size.

Written from the published constants and the description of each corruption (Hendrycks and
Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
ICLR 2019). Every random number comes from the generator handed in, so an image, a name, a
severity and a seed give the same pixels every time.

``python -m gain_apps.corruptions PHOTO --out sheet.jpg`` draws all of them on one sheet; the one in
the documentation, `docs/images/corruptions.jpg`, is that of ``tests/corruptions/photo.png`` with
``--seed 4``.
"""

from __future__ import annotations

from gain_apps.corruptions.apply import CORRUPTIONS, corrupt, corrupt_float, image_rng

__all__ = ["CORRUPTIONS", "corrupt", "corrupt_float", "image_rng"]
