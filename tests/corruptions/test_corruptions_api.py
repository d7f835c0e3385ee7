"""What holds for every corruption: names, types, sizes, determinism, errors."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from without import OPTIONAL, run_without

from gain_core.errors import ArrayError, ConfigError
from gain_scenes.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    corrupt,
    corrupt_float,
    image_rng,
)

VIDEO = ("h264_crf", "h264_abr", "h265_crf", "h265_abr")
RANDOM = ("gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur", "snow")
RANDOM += ("frost", "fog", "elastic_transform", "low_light", "iso_noise", "bit_error", *VIDEO)
EIGHT_BIT = ("pixelate", "jpeg_compression")
WHOLE_STEPS = ("shot_noise", "impulse_noise")  # of a fifth, and of the pixels as they were
# Those of video need PyAV.
NO_VIDEO = pytest.mark.skipif(find_spec("av") is None, reason="PyAV is not installed")
ALL = [
    pytest.param(name, marks=NO_VIDEO if name in VIDEO else ())
    for name in CORRUPTIONS + EXTRA_CORRUPTIONS
]


def frame(height: int, width: int) -> Any:
    """Smooth colour gradients with a few hard edges."""
    rows, columns = np.mgrid[0:height, 0:width]
    red = 255 * rows / height
    green = 255 * ((columns * 7 // width + rows * 5 // height) % 2)
    blue = 127 + 100 * np.sin(columns / 5.0)
    return np.stack([red, green, blue], axis=2).astype(np.uint8)


def test_names_are_the_fifteen_in_the_order_of_imagenet_c_and_a_group_of_their_own():
    published = """
        gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur snow
        frost fog brightness contrast elastic_transform pixelate jpeg_compression
    """
    assert tuple(published.split()) == CORRUPTIONS
    assert ("low_light", "iso_noise", "color_quant", "bit_error", *VIDEO) == EXTRA_CORRUPTIONS


@pytest.mark.parametrize("name", ALL)
class TestEveryCorruption:
    @pytest.mark.parametrize(
        ("height", "width"),
        [
            pytest.param(32, 32, id="smallest"),
            pytest.param(33, 47, id="odd"),
            pytest.param(64, 301, id="wide"),
            pytest.param(260, 90, id="tall"),
            pytest.param(224, 224, id="published"),
        ],
    )
    def test_any_size_in_and_the_same_size_out(self, name, height, width):
        image = frame(height, width)
        result = corrupt(image, name, 5, rng=image_rng(0, 0, name))
        assert result.shape == image.shape
        assert result.dtype == np.uint8
        assert np.abs(result.astype(float) - image).mean() > 1

    def test_a_frame_of_720p_looks_as_corrupted_as_its_small_version(self, name):
        changes = []
        for height, width in ((216, 384), (720, 1280)):
            image = frame(height, width)
            result = corrupt(image, name, 3, rng=image_rng(0, 0, name))
            changes.append(np.abs(result.astype(float) - image).mean())
        assert changes[1] > 0.2 * changes[0] > 0

    def test_published_px_at_any_size(self, name):
        image = frame(32, 40)
        result = corrupt(image, name, 5, rng=image_rng(0, 0, name), pixel_scale=1)
        assert result.shape == image.shape
        assert np.abs(result.astype(float) - image).mean() > 1

    def test_severity_zero_is_the_image(self, name):
        image = frame(40, 50)
        for severity in (0, 0.0, np.float32(0)):
            result = corrupt(image, name, severity, rng=image_rng(0, 0, name))
            np.testing.assert_array_equal(result, image)
            assert not np.shares_memory(result, image)

    def test_same_seed_same_pixels_and_other_seed_other_pixels(self, name):
        image = frame(48, 64)
        first = corrupt(image, name, 3, rng=image_rng(7, 11, name))
        again = corrupt(image, name, 3, rng=image_rng(7, 11, name))
        other = corrupt(image, name, 3, rng=image_rng(7, 12, name))
        np.testing.assert_array_equal(first, again)
        assert np.array_equal(first, other) == (name not in RANDOM)

    def test_global_random_state_is_neither_read_nor_changed(self, name):
        image = frame(48, 64)
        before = np.random.get_state()[1].copy()  # noqa: NPY002 - the state under test
        corrupt(image, name, 3, rng=image_rng(7, 11, name))
        np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002

    def test_read_only_and_strided_images_are_taken_and_left_alone(self, name):
        image = frame(48, 64)[:, ::-1]
        image.flags.writeable = False
        kept = image.copy()
        strided = corrupt(image, name, 4, rng=image_rng(1, 2, name))
        np.testing.assert_array_equal(image, kept)
        contiguous = corrupt(kept, name, 4, rng=image_rng(1, 2, name))
        np.testing.assert_array_equal(strided, contiguous)

    @pytest.mark.parametrize("value", [0, 255])
    def test_black_and_white_images_stay_in_range(self, name, value):
        image = np.full((40, 40, 3), value, dtype=np.float32) / np.float32(255)
        result = corrupt_float(image, name, 5, rng=image_rng(0, 0, name))
        assert np.isfinite(result).all()
        assert result.min() >= 0
        assert result.max() <= 1


@pytest.mark.parametrize("name", CORRUPTIONS)
class TestEveryPublishedOne:
    def test_float_path_is_the_8_bit_path_before_its_last_cut(self, name):
        image = frame(56, 48)
        values = image.astype(np.float32) / np.float32(255)
        exact = corrupt_float(values, name, 4, rng=image_rng(3, 0, name))
        assert exact.dtype == np.float32
        cut = corrupt(image, name, 4, rng=image_rng(3, 0, name))
        np.testing.assert_array_equal(np.floor(exact * 255 + 2**-10), cut)
        off_the_grid = np.abs(exact * 255 - np.rint(exact * 255)).max()
        if name in EIGHT_BIT:
            assert off_the_grid < 1e-3
        elif name not in WHOLE_STEPS:
            assert off_the_grid > 0.1

    def test_corruptions_chain(self, name):
        values = frame(56, 48).astype(np.float32) / np.float32(255)
        foggy = corrupt_float(values, "fog", 2, rng=image_rng(3, 0, "fog"))
        both = corrupt_float(foggy, name, 2, rng=image_rng(3, 0, name))
        assert both.shape == values.shape
        assert np.abs(both - foggy).mean() > 0.004


class TestErrors:
    def test_unknown_name(self):
        with pytest.raises(ConfigError, match=r"corruption: expected one of .*, got 'mist'"):
            corrupt(frame(32, 32), "mist", 0, rng=image_rng(0, 0, "fog"))

    @pytest.mark.parametrize("severity", [-1, 5.01, 6, float("nan"), True, "3", None])
    def test_severity_out_of_range(self, severity):
        with pytest.raises(ConfigError, match=r"severity: expected a number in \[0, 5\]"):
            corrupt(frame(32, 32), "fog", severity, rng=image_rng(0, 0, "fog"))

    @pytest.mark.parametrize("scale", [0, -1.0, float("inf"), float("nan"), "1"])
    def test_pixel_scale_out_of_range(self, scale):
        with pytest.raises(ConfigError, match="pixel_scale: expected a finite number above 0"):
            corrupt(frame(32, 32), "fog", 1, rng=image_rng(0, 0, "fog"), pixel_scale=scale)

    def test_seed_instead_of_a_generator(self):
        with pytest.raises(ConfigError, match=r"rng: .*Generator, got int; use image_rng"):
            corrupt(frame(32, 32), "fog", 1, rng=3)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "image",
        [
            pytest.param(np.zeros((32, 32), np.uint8), id="grey"),
            pytest.param(np.zeros((32, 32, 4), np.uint8), id="rgba"),
            pytest.param(np.zeros((3, 32, 32), np.uint8), id="channels-first"),
            pytest.param(np.zeros((32, 32, 3), np.float32), id="float"),
            pytest.param(np.zeros((1, 32, 32, 3), np.uint8), id="batch"),
            pytest.param([[[0, 0, 0]]], id="list"),
        ],
    )
    def test_not_an_rgb_frame_of_8_bits(self, image):
        with pytest.raises(ArrayError, match=r"image: expected \(H, W, 3\) uint8 RGB, got"):
            corrupt(image, "fog", 1, rng=image_rng(0, 0, "fog"))

    def test_float_path_wants_float32(self):
        with pytest.raises(ArrayError, match=r"float32 RGB, got \(32, 32, 3\) float64"):
            corrupt_float(np.zeros((32, 32, 3)), "fog", 1, rng=image_rng(0, 0, "fog"))

    @pytest.mark.parametrize("value", [-0.01, 1.01, 200, float("nan")])
    def test_float_path_wants_values_in_0_to_1(self, value):
        image = np.zeros((32, 32, 3), np.float32)
        image[5, 5, 1] = value
        with pytest.raises(ArrayError, match=r"image: expected values in \[0, 1\]"):
            corrupt_float(image, "fog", 1, rng=image_rng(0, 0, "fog"))

    def test_too_small(self):
        with pytest.raises(ArrayError, match=r"sides of at least 32 px, got 31 x 40"):
            corrupt(np.zeros((31, 40, 3), np.uint8), "fog", 1, rng=image_rng(0, 0, "fog"))

    @pytest.mark.parametrize(("seed", "index"), [(-1, 0), (0, -1), (0.5, 0), (True, 0)])
    def test_seed_and_index(self, seed, index):
        with pytest.raises(ConfigError, match=r"(seed|index): expected a whole number"):
            image_rng(seed, index, "fog")


class TestImageRng:
    def test_depends_on_each_of_the_three_and_on_nothing_else(self):
        def first(seed: int, index: int, name: str) -> float:
            return float(image_rng(seed, index, name).random())

        keys = [(0, 0, "fog"), (1, 0, "fog"), (0, 1, "fog"), (0, 0, "snow"), (2**70, 0, "fog")]
        draws = [first(*key) for key in keys]
        assert len(set(draws)) == len(keys)
        assert draws == [first(*key) for key in keys]


def test_all_need_only_the_base_install():
    code = """
import numpy as np
from gain_scenes.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt, image_rng
image = np.full((32, 32, 3), 99, np.uint8)
for name in CORRUPTIONS + EXTRA_CORRUPTIONS:
    corrupt(image, name, 5, rng=image_rng(0, 0, name))
"""
    run = run_without((*OPTIONAL, "skimage", "numba"), code)
    assert run.returncode == 0, run.stderr
