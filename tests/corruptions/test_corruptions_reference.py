"""Against `imagecorruptions` 1.1.2, pixel by pixel where no chance is involved.

Largest difference in 8-bit levels, and why it is not zero: `imagecorruptions` computes in float64
and cuts to whole numbers; float32 lands on the other side of a whole number now and then. Pixelate
and JPEG are the same 8-bit operations of Pillow; other builds of its JPEG codec may differ by 1.
Elastic transform is not compared: `imagecorruptions` replaced the published constants and shear by
its own. Glass and motion blur are compared with the library's random numbers given to both.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gain_scenes.corruptions import blur, corrupt, image_rng
from gain_scenes.corruptions.blur import line_blur
from gain_scenes.corruptions.constants import constants

SEVERITIES = range(1, 6)
# largest difference, share of the values that may differ at all
PIXELWISE = {
    "defocus_blur": (1, 0.05),
    "zoom_blur": (1, 0.05),  # 0.002 with OpenCV 5; version 4 samples at 32nds of a pixel
    "brightness": (1, 0.05),
    "contrast": (1, 0.005),
    "pixelate": (0, 0.0),
    "jpeg_compression": (1, 0.05),
}
# relative tolerances of mean, deviation, change and step to the right-hand pixel
STATISTICS = {
    "gaussian_noise": (0.005, 0.005, 0.01, 0.01),
    "shot_noise": (0.005, 0.005, 0.01, 0.01),
    "impulse_noise": (0.005, 0.005, 0.01, 0.01),
    "glass_blur": (0.01, 0.01, 0.03, 0.04),
    "motion_blur": (0.015, 0.01, 0.05, 0.05),
    "snow": (0.01, 0.01, 0.02, 0.03),
    "fog": (0.06, 0.06, 0.06, 0.08),
    # Drawn crystals against photographs of some: as bright, as contrasted, as finely structured.
    "frost": (0.05, 0.06, 0.08, 0.12),
}


def cut(values: Any) -> Any:
    """Values in [0, 1] to 8 bits as `corrupt` does it."""
    return np.floor(values * 255 + 2**-10)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", PIXELWISE)
def test_deterministic_corruptions(photo, reference, name, severity):
    largest, share = PIXELWISE[name]
    stored = reference["stored"]
    result = corrupt(photo, name, severity, rng=image_rng(0, 0, name))[np.ix_(stored, stored)]
    difference = np.abs(result.astype(int) - reference[f"{name}_{severity}"])
    assert difference.max() <= largest
    assert (difference > 0).mean() <= share


@pytest.mark.parametrize("severity", SEVERITIES)
def test_motion_blur_at_a_given_angle(photo, reference, severity):
    radius, sigma = constants("motion_blur", severity)
    angle = math.radians(reference["angles"][severity - 1])
    values = photo.astype(np.float32) / np.float32(255)
    stored = reference["stored"]
    result = cut(line_blur(values, angle, radius=radius, sigma=sigma))[np.ix_(stored, stored)]
    difference = np.abs(result - reference[f"motion_blur_{severity}"])
    assert difference.max() <= 1
    assert (difference > 0).mean() <= 0.03


@pytest.mark.parametrize("severity", SEVERITIES)
def test_glass_blur_with_given_offsets(photo, reference, make_reference, monkeypatch, severity):
    """The library cuts to 8 bits before it scatters, which takes half a level off the mean."""
    image = np.ascontiguousarray(photo[make_reference.GLASS_BOX])
    reach, passes = make_reference.GLASS[severity - 1]
    shape = (passes, image.shape[0] - 2 * reach, image.shape[1] - 2 * reach, 2)
    offsets = reference[f"glass_offsets_{severity}"].reshape(shape)[:, ::-1, ::-1]
    draws = iter(offsets.astype(np.int32))

    def draw(shape: tuple[int, int], reach: float, *, rng: Any) -> tuple[Any, Any]:
        right_and_down = next(draws)
        assert right_and_down.shape[:2] == shape
        return right_and_down[..., 1].copy(), right_and_down[..., 0].copy()

    monkeypatch.setattr(blur, "_draw", draw)
    rng = image_rng(0, 0, "glass_blur")
    result = corrupt(image, "glass_blur", severity, rng=rng, pixel_scale=1)
    assert next(draws, None) is None
    difference = result.astype(int) - reference[f"glass_blur_{severity}"]
    assert np.abs(difference).max() <= 1
    assert difference.mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    "severity", [1, 3, 5, *(pytest.param(two, marks=pytest.mark.slow) for two in (2, 4))]
)
@pytest.mark.parametrize("name", STATISTICS)
def test_random_corruptions_in_their_statistics(photo, reference, make_reference, name, severity):
    num_images = 40 if name in ("snow", "fog", "frost", "motion_blur") else 6
    rows = [
        make_reference.statistics(
            photo, corrupt(photo, name, severity, rng=image_rng(0, index, name))
        )
        for index in range(num_images)
    ]
    expected = reference[f"statistics_{name}_{severity}"]
    for ours, theirs, tolerance in zip(
        np.mean(rows, axis=0), expected, STATISTICS[name], strict=True
    ):
        assert ours == pytest.approx(theirs, rel=tolerance)
