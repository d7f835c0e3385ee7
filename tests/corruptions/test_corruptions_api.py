"""What holds for every corruption: names, types, sizes, determinism, errors."""

from __future__ import annotations

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


@pytest.mark.parametrize("name", CORRUPTIONS + EXTRA_CORRUPTIONS)
class TestEveryCorruption:
    @pytest.mark.parametrize(
        ("height", "width", "pixel_scale"),
        [
            pytest.param(32, 32, None, id="smallest"),
            pytest.param(33, 47, None, id="odd"),
            pytest.param(64, 301, None, id="wide"),
            pytest.param(260, 90, None, id="tall"),
            pytest.param(224, 224, None, id="published"),
            pytest.param(32, 40, 1, id="published-px"),
        ],
    )
    def test_any_size_in_and_the_same_size_out(self, name, height, width, pixel_scale):
        image = frame(height, width)
        result = corrupt(image, name, 5, rng=image_rng(0, 0, name), pixel_scale=pixel_scale)
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

    def test_severity_zero_is_the_image(self, name):
        image = frame(40, 50)
        for severity in (0, 0.0, np.float32(0)):
            result = corrupt(image, name, severity, rng=image_rng(0, 0, name))
            np.testing.assert_array_equal(result, image)
            assert not np.shares_memory(result, image)

    def test_same_seed_same_pixels_and_other_seed_other_pixels(self, name):
        image = frame(48, 64)
        before = np.random.get_state()[1].copy()  # noqa: NPY002 - neither read nor changed
        first = corrupt(image, name, 3, rng=image_rng(7, 11, name))
        again = corrupt(image, name, 3, rng=image_rng(7, 11, name))
        other = corrupt(image, name, 3, rng=image_rng(7, 12, name))
        np.testing.assert_array_equal(first, again)
        assert np.array_equal(first, other) == (name not in RANDOM)
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


def zeros(*shape: int, dtype: type = np.uint8) -> Any:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("name", ["mist"], r"corruption: expected one of .*, got 'mist'"),
        (
            "severity",
            [-1, 5.01, 6, float("nan"), True, "3", None],
            r"severity: expected a number in \[0, 5\]",
        ),
        (
            "pixel_scale",
            [0, -1.0, float("inf"), float("nan"), "1"],
            "pixel_scale: expected a finite number above 0",
        ),
        ("rng", [3], r"rng: .*Generator, got int; use image_rng"),
    ],
)
def test_a_wrong_request_is_refused(field, values, message):
    request = {"name": "fog", "severity": 0, "rng": image_rng(0, 0, "fog")}
    for value in values:
        with pytest.raises(ConfigError, match=message):
            corrupt(frame(32, 32), **{**request, field: value})


@pytest.mark.parametrize(
    ("image", "message"),
    [
        pytest.param(zeros(32, 32), "got", id="grey"),
        pytest.param(zeros(32, 32, 4), "got", id="rgba"),
        pytest.param(zeros(3, 32, 32), "got", id="channels-first"),
        pytest.param(zeros(32, 32, 3, dtype=np.float32), "see corrupt_float", id="float"),
        pytest.param(zeros(1, 32, 32, 3), "got", id="batch"),
        pytest.param([[[0, 0, 0]]], "got list", id="list"),
    ],
)
def test_what_is_no_rgb_frame_of_8_bits_is_refused(image, message):
    with pytest.raises(ArrayError, match=rf"image: expected \(H, W, 3\) uint8 RGB, .*{message}"):
        corrupt(image, "fog", 1, rng=image_rng(0, 0, "fog"))


def test_an_image_that_is_too_small_is_refused():
    with pytest.raises(ArrayError, match=r"sides of at least 32 px, got 31 x 40"):
        corrupt(zeros(31, 40, 3), "fog", 1, rng=image_rng(0, 0, "fog"))


def test_the_float_path_wants_float32_in_0_to_1():
    rng = image_rng(0, 0, "fog")
    with pytest.raises(ArrayError, match=r"float32 RGB, got \(32, 32, 3\) float64"):
        corrupt_float(zeros(32, 32, 3, dtype=np.float64), "fog", 1, rng=rng)
    for value in (-0.01, 1.01, 200, float("nan")):
        image = zeros(32, 32, 3, dtype=np.float32)
        image[5, 5, 1] = value
        with pytest.raises(ArrayError, match=r"image: expected values in \[0, 1\]"):
            corrupt_float(image, "fog", 1, rng=rng)


@pytest.mark.parametrize(("seed", "index"), [(-1, 0), (0, -1), (0.5, 0), (True, 0)])
def test_seed_and_index_are_whole_numbers(seed, index):
    with pytest.raises(ConfigError, match=r"(seed|index): expected a whole number"):
        image_rng(seed, index, "fog")


def test_a_generator_depends_on_each_of_the_three_and_on_nothing_else():
    keys = [(0, 0, "fog"), (1, 0, "fog"), (0, 1, "fog"), (0, 0, "snow"), (2**70, 0, "fog")]
    draws = [image_rng(*key).random() for key in keys]
    assert len(set(draws)) == len(keys)
    assert draws == [image_rng(*key).random() for key in keys]


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
