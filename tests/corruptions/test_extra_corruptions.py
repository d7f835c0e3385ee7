"""Those of cameras and video: what holds for each, and what each does to values one can follow."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gain_scenes.corruptions import EXTRA_CORRUPTIONS, corrupt, corrupt_float, image_rng
from gain_scenes.corruptions import digital as video

VIDEO = ("h264_crf", "h264_abr", "h265_crf", "h265_abr")


def jpeg(photo: Any) -> io.BytesIO:
    """As `bit_error` writes it."""
    written = io.BytesIO()
    Image.fromarray(photo).save(written, "JPEG", quality=90, restart_marker_rows=1)
    return written


def distance(image: Any, name: str, severity: float, *, index: int = 0) -> float:
    corrupted = corrupt(image, name, severity, rng=image_rng(0, index, name))
    return float(np.abs(corrupted.astype(float) - image).mean())


@pytest.mark.parametrize("name", EXTRA_CORRUPTIONS)
def test_each_severity_is_worse_than_the_one_below(photo, name):
    changes = [
        np.mean([distance(photo, name, severity, index=index) for index in range(3)])
        for severity in range(6)
    ]
    assert changes[0] == 0
    assert all(above > 1.05 * below for below, above in pairwise(changes))


def test_low_light_is_a_share_of_the_light():
    image = np.full((64, 64, 3), 0.8, dtype=np.float32)
    dark = corrupt_float(image, "low_light", 3, rng=image_rng(0, 0, "low_light"))
    light = (dark.astype(float) ** 2.2).mean()
    assert light == pytest.approx(0.10 * 0.8**2.2, rel=0.02)


def test_iso_noise_keeps_the_light_and_is_strongest_in_the_shadows():
    deviations = []
    for value in (0.2, 0.9):
        image = np.full((96, 96, 3), value, dtype=np.float32)
        noisy = corrupt_float(image, "iso_noise", 1, rng=image_rng(0, 0, "iso_noise"))
        light = noisy.astype(float) ** 2.2
        if value < 0.5:  # nothing of the noise is cut off at white
            assert light.mean() == pytest.approx(value**2.2, rel=0.1)
        deviations.append(noisy.std())
    assert deviations[0] > 1.5 * deviations[1]


@pytest.mark.parametrize(("severity", "levels"), [(1, 32), (3, 8), (5, 2)])
def test_color_quant_leaves_so_many_levels(photo, severity, levels):
    result = corrupt(photo, "color_quant", severity, rng=image_rng(0, 0, "color_quant"))
    values = np.unique(result)
    assert len(values) == levels
    assert (values[0], values[-1]) == (0, 255)


def test_bit_errors_stay_in_the_rows_they_fall_on(photo):
    """One flipped bit: what lies above is the JPEG's, and the next row of blocks is right again."""
    values = photo.astype(np.float32) / np.float32(255)
    with Image.open(jpeg(photo)) as picture:
        clean = np.asarray(picture, dtype=np.float32) / np.float32(255)
    hit = 0
    for index in range(8):
        damaged = video.bit_error(values, 0.18, rng=image_rng(0, index, "bit"), scale=1.0)
        rows = np.flatnonzero(np.abs(damaged - clean).max(axis=(1, 2)) > 0)
        hit += len(rows) > 0
        assert len(np.unique(rows // 16)) <= 3
    assert hit >= 4


def test_a_higher_share_flips_the_same_bits_and_more(photo):
    raw = np.frombuffer(jpeg(photo).getvalue(), dtype=np.uint8)
    few, many = (video._places(raw, share, rng=image_rng(0, 0, "x")) for share in (1e-4, 5e-4))
    assert 0 < len(few) < len(many)
    np.testing.assert_array_equal(few, many[: len(few)])


def test_damage_never_raises_and_never_touches_a_marker(photo):
    small = photo[::4, ::4].astype(np.float32) / np.float32(255)
    for index in range(60):
        damaged = video.bit_error(small, 5, rng=image_rng(1, index, "bit"), scale=1.0)
        assert damaged.shape == small.shape
    clean = np.array([1, 0xFF, 0xD0, 2, 3, 0xFF, 0x00], dtype=np.uint8)
    damaged = np.array([0xFF, 0x7F, 0xD1, 2, 1, 0xFF, 0x08], dtype=np.uint8)
    video._restore_markers(damaged, clean)
    np.testing.assert_array_equal(damaged, [1, 0xFF, 0xD0, 2, 1, 0xFF, 0x00])


def test_a_decoder_that_gives_up_gets_less_damage(photo, monkeypatch):
    opened, original = [], Image.open

    def stubborn(file: Any) -> Any:
        opened.append(file)
        if len(opened) < 3:
            raise OSError("broken data stream")
        return original(file)

    monkeypatch.setattr(Image, "open", stubborn)
    values = photo.astype(np.float32) / np.float32(255)
    damaged = video.bit_error(values, 5, rng=image_rng(0, 0, "bit"), scale=1.0)
    assert len(opened) == 3
    assert damaged.shape == values.shape


@pytest.mark.parametrize("name", VIDEO)
def test_the_last_frame_stands_where_the_image_stands(photo, name):
    """The clip's panning ends on the image: at good quality the two lie on each other."""
    nearly = corrupt(photo, name, 0.02, rng=image_rng(0, 0, name)).astype(float)
    errors = [np.abs(np.roll(nearly, shift, axis=1) - photo).mean() for shift in (-1, 0, 1)]
    assert errors[1] < 0.5 * min(errors[0], errors[2])
    assert errors[1] < 5


def test_the_clip_pans_towards_the_image():
    image = np.zeros((64, 64, 3), np.uint8)
    image[30:34, 30:34] = 255
    moved = video._moved(image, np.array([6.0, -4.0]))
    rows, columns = np.nonzero(moved[..., 0] > 128)
    assert (rows.min(), columns.min()) == (26, 36)
