"""The designs: every sign is there, is a sign and differs from every other one."""

import itertools

import numpy as np
import pytest

from gain_core.errors import ConfigError
from gain_scenes.roadsigns.designs import LABELS, draw_sign, texture


def test_there_are_between_40_and_60_distinct_names():
    assert 40 <= len(LABELS) <= 60
    assert len(set(LABELS)) == len(LABELS)
    assert all(label.strip() == label and label for label in LABELS)


def test_every_sign_covers_the_middle_and_leaves_the_corners_free():
    for index, label in enumerate(LABELS):
        coverage = draw_sign(index, size_px=64)[..., 3]
        assert coverage[32, 32] == 255, label
        assert coverage[[0, 0, -1, -1], [0, -1, 0, -1]].max() == 0, label
        assert 0.3 < coverage.mean() / 255 < 0.95, label


def test_no_two_signs_look_alike():
    pictures = [draw_sign(index, size_px=48).astype(np.int16) for index in range(len(LABELS))]
    for (i, first), (j, second) in itertools.combinations(enumerate(pictures), 2):
        changed = np.abs(first - second).max(axis=2) > 60
        assert changed.mean() > 0.01, f"{LABELS[i]} and {LABELS[j]}"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param("curve left", "curve right", id="curves"),
        pytest.param("left only", "right only", id="turns"),
        pytest.param("straight or left", "straight or right", id="branches"),
        pytest.param("keep left", "keep right", id="keeps"),
    ],
)
def test_left_and_right_are_mirror_images(left, right):
    first = texture(LABELS.index(left)).astype(float)
    second = texture(LABELS.index(right)).astype(float)
    assert np.abs(first[:, ::-1] - second).mean() < 1.5
    assert np.abs(first - second).mean() > 4.0


@pytest.mark.parametrize("index", [-1, len(LABELS)])
def test_an_unknown_class_is_refused(index):
    with pytest.raises(ConfigError, match="class_index"):
        draw_sign(index)
