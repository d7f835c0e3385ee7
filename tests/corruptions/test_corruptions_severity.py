"""A higher severity changes more, and a severity between two integers changes an amount between."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gain_scenes.corruptions import CORRUPTIONS, corrupt, image_rng
from gain_scenes.corruptions.constants import constants

# Steps at which the published constants themselves go down or stand still: three passes over 2 px
# move more than two over 3 px; snow trades many small flakes for few large ones; frost and fog
# take light from the image and add none; elastic passes from shears of 49 px to ripples.
EXCEPTIONS = {
    ("glass_blur", 1),
    ("glass_blur", 3),
    ("snow", 2),
    ("frost", 3),
    ("fog", 3),
    ("elastic_transform", 2),
}
STEPS = [(name, below) for name in CORRUPTIONS for below in range(5)]
NUM_IMAGES = 3


@cache
def change(name: str, severity: float) -> float:
    """Mean absolute change of the photograph in 8-bit levels."""
    with Image.open(Path(__file__).parent / "photo.png") as picture:
        photo = np.asarray(picture)
    results = (
        corrupt(photo, name, severity, rng=image_rng(0, index, name)) for index in range(NUM_IMAGES)
    )
    return float(np.mean([np.abs(result.astype(float) - photo).mean() for result in results]))


@pytest.mark.parametrize(("name", "below"), [step for step in STEPS if step not in EXCEPTIONS])
def test_change_grows_with_severity(name, below):
    assert change(name, below + 1) > change(name, below)


@pytest.mark.parametrize(("name", "below"), sorted(EXCEPTIONS - {("elastic_transform", 2)}))
def test_where_the_published_constants_stand_still_so_does_the_change(name, below):
    assert change(name, below + 1) == pytest.approx(change(name, below), rel=0.06)


@pytest.mark.parametrize(
    "fraction", [0.5, *(pytest.param(part, marks=pytest.mark.slow) for part in (0.25, 0.75))]
)
@pytest.mark.parametrize(("name", "below"), STEPS)
def test_a_severity_between_two_changes_an_amount_between(name, below, fraction):
    low, high = sorted((change(name, below), change(name, below + 1)))
    # Blocks that do not divide the side are uneven, which changes more than their size does.
    slack = high * (0.08 if name == "pixelate" else 0.03 if (name, below) in EXCEPTIONS else 0)
    if (name, below) == ("elastic_transform", 2):
        high = max(high, change(name, 2.25))  # smaller shears, but ripples of two pixels
    assert low - slack <= change(name, below + fraction) <= high + slack


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name != "jpeg_compression"])
def test_a_ramp_starts_at_the_image_without_a_jump(name):
    assert change(name, 0.02) < 0.12 * change(name, 1)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_ramp_has_no_jump_at_an_integer(name):
    for severity in range(1, 5):
        before, after = change(name, severity - 0.01), change(name, severity + 0.01)
        assert after == pytest.approx(before, rel=0.06)


@pytest.mark.parametrize(
    "name",
    ["gaussian_noise", "impulse_noise", "motion_blur", "snow", "frost", "fog", "elastic_transform"],
)
def test_a_ramp_keeps_its_flakes_and_clouds(photo, name):
    """With the same generator, the next frame of a ramp is nearly the last one."""
    frames = [
        corrupt(photo, name, severity, rng=image_rng(0, 0, name)).astype(float)
        for severity in (3.40, 3.44)
    ]
    step = np.abs(frames[1] - frames[0]).mean()
    assert 0 < step < 0.1 * np.abs(frames[0] - photo).mean()


@pytest.mark.parametrize(
    ("name", "severity", "expected"),
    [
        pytest.param("gaussian_noise", 5, (0.38,), id="published-row"),
        pytest.param("gaussian_noise", 1.5, (0.10,), id="half-way"),
        pytest.param("contrast", 0, (1.0,), id="nothing"),
        pytest.param("glass_blur", 4.5, (1.3, 3.5, 2.0), id="every-constant"),
        pytest.param("jpeg_compression", 0.5, (62.5,), id="towards-nothing"),
        pytest.param("shot_noise", 0.5, (0.5 / 60**0.5,), id="the-noise-and-not-the-photons"),
    ],
)
def test_constants(name, severity, expected):
    assert constants(name, severity) == pytest.approx(expected)
