"""Still samples: repeatable, varied, and painted where they should be."""

from __future__ import annotations

import numpy as np
import pytest

from gain_scenes.roadsigns.designs import LABELS, draw_sign, texture
from gain_scenes.roadsigns.sample import (
    corners,
    mip,
    paint,
    render_labelled,
    render_sample,
)
from gain_scenes.roadsigns.scenery import weathered


def test_a_sample_depends_on_seed_and_index_only():
    first, truth = render_labelled(7, seed=3)
    again, same = render_labelled(7, seed=3)
    np.testing.assert_array_equal(first, again)
    assert truth == same
    assert not np.array_equal(first, render_labelled(8, seed=3)[0])
    assert not np.array_equal(first, render_labelled(7, seed=4)[0])


@pytest.mark.parametrize("size_px", [32, 64, 72])
def test_every_class_renders_at_the_size_asked_for(size_px):
    for index in range(0, len(LABELS), 5):
        image = render_sample(index, np.random.default_rng(index), size_px=size_px)
        assert image.shape == (size_px, size_px, 3)
        assert image.dtype == np.uint8
        assert image.std() > 5.0


def test_classes_are_drawn_evenly():
    truths = [render_labelled(index, seed=0, size_px=16)[1] for index in range(530)]
    counts = np.bincount(truths, minlength=len(LABELS))
    assert counts.min() >= 1
    assert counts.max() <= 25


def test_severity_scales_what_happens_to_a_sign():
    def spread_of_blue(severity: float) -> float:
        # The middle of "no vehicles" is plain white: light and wear alone move it.
        index = LABELS.index("no vehicles")
        images = [
            render_sample(index, np.random.default_rng([1, i]), severity=severity)[29:35, 29:35]
            for i in range(30)
        ]
        return float(np.stack(images)[..., 2].mean(axis=(1, 2)).std())

    assert spread_of_blue(0.0) < 6.0
    assert spread_of_blue(1.0) > 20.0


def test_wear_changes_the_plate_but_not_the_shared_texture():
    before = texture(12).copy()
    worn = [weathered(texture(12), np.random.default_rng(i)) for i in range(4)]
    np.testing.assert_array_equal(texture(12), before)
    assert all(not np.array_equal(plate, before) for plate in worn)


def test_painting_puts_the_picture_between_the_corners():
    sign = draw_sign(LABELS.index("no entry"), size_px=64)
    image = np.full((64, 64, 3), 100, np.uint8)
    square = np.array([[0, 0], [64, 0], [64, 64], [0, 64]], np.float32)
    paint(image, sign, square)
    np.testing.assert_array_equal(image[0, 0], [100, 100, 100])
    assert np.abs(image[10:54, 10:54].astype(int) - sign[10:54, 10:54, :3]).max() <= 2


@pytest.mark.parametrize("center", [(-8.0, 20.0), (20.0, 47.0), (44.0, -6.0), (400.0, 400.0)])
def test_parts_outside_the_picture_are_cut(center):
    large = np.full((80 + 480, 80 + 480, 3), 100, np.uint8)
    small = np.full((40, 40, 3), 100, np.uint8)
    plate = mip(0, 32)
    paint(small, plate, corners(center, 16.0, yaw=10.0, pitch=5.0, roll=3.0))
    shifted = (center[0] + 60.0, center[1] + 60.0)
    paint(large, plate, corners(shifted, 16.0, yaw=10.0, pitch=5.0, roll=3.0))
    difference = np.abs(small.astype(int) - large[60:100, 60:100])
    assert difference.max() <= 12
