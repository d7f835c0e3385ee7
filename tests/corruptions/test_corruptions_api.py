"""What holds for every corruption: names, types, sizes, determinism, errors."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

from gain_core.errors import ArrayError, ConfigError
from gain_scenes.corruptions import CORRUPTIONS, corrupt, corrupt_float, image_rng

RANDOM = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "glass_blur",
    "motion_blur",
    "snow",
    "frost",
    "fog",
    "elastic_transform",
)
EIGHT_BIT = ("pixelate", "jpeg_compression")
WHOLE_STEPS = ("shot_noise", "impulse_noise")  # of a fifth, and of the pixels as they were


def frame(height: int, width: int) -> Any:
    """Smooth colour gradients with a few hard edges."""
    rows, columns = np.mgrid[0:height, 0:width]
    red = 255 * rows / height
    green = 255 * ((columns * 7 // width + rows * 5 // height) % 2)
    blue = 127 + 100 * np.sin(columns / 5.0)
    return np.stack([red, green, blue], axis=2).astype(np.uint8)


def test_names_are_the_fifteen_in_the_order_of_imagenet_c() -> None:
    assert CORRUPTIONS == (
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "defocus_blur",
        "glass_blur",
        "motion_blur",
        "zoom_blur",
        "snow",
        "frost",
        "fog",
        "brightness",
        "contrast",
        "elastic_transform",
        "pixelate",
        "jpeg_compression",
    )


@pytest.mark.parametrize("name", CORRUPTIONS)
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
    def test_any_size_in_and_the_same_size_out(self, name: str, height: int, width: int) -> None:
        image = frame(height, width)
        result = corrupt(image, name, 5, rng=image_rng(0, 0, name))
        assert result.shape == image.shape
        assert result.dtype == np.uint8
        assert np.abs(result.astype(float) - image).mean() > 1

    def test_a_frame_of_720p_looks_as_corrupted_as_its_small_version(self, name: str) -> None:
        changes = []
        for height, width in ((216, 384), (720, 1280)):
            image = frame(height, width)
            result = corrupt(image, name, 3, rng=image_rng(0, 0, name))
            changes.append(np.abs(result.astype(float) - image).mean())
        assert changes[1] > 0.2 * changes[0] > 0

    def test_published_px_at_any_size(self, name: str) -> None:
        image = frame(32, 40)
        result = corrupt(image, name, 5, rng=image_rng(0, 0, name), pixel_scale=1)
        assert result.shape == image.shape
        assert np.abs(result.astype(float) - image).mean() > 1

    def test_severity_zero_is_the_image(self, name: str) -> None:
        image = frame(40, 50)
        for severity in (0, 0.0, np.float32(0)):
            result = corrupt(image, name, severity, rng=image_rng(0, 0, name))
            np.testing.assert_array_equal(result, image)
            assert not np.shares_memory(result, image)

    def test_same_seed_same_pixels_and_other_seed_other_pixels(self, name: str) -> None:
        image = frame(48, 64)
        first = corrupt(image, name, 3, rng=image_rng(7, 11, name))
        again = corrupt(image, name, 3, rng=image_rng(7, 11, name))
        other = corrupt(image, name, 3, rng=image_rng(7, 12, name))
        np.testing.assert_array_equal(first, again)
        assert np.array_equal(first, other) == (name not in RANDOM)

    def test_global_random_state_is_neither_read_nor_changed(self, name: str) -> None:
        image = frame(48, 64)
        before = np.random.get_state()[1].copy()  # noqa: NPY002 - the state under test
        corrupt(image, name, 3, rng=image_rng(7, 11, name))
        np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002

    def test_read_only_and_strided_images_are_taken_and_left_alone(self, name: str) -> None:
        image = frame(48, 64)[:, ::-1]
        image.flags.writeable = False
        kept = image.copy()
        strided = corrupt(image, name, 4, rng=image_rng(1, 2, name))
        np.testing.assert_array_equal(image, kept)
        contiguous = corrupt(kept, name, 4, rng=image_rng(1, 2, name))
        np.testing.assert_array_equal(strided, contiguous)

    @pytest.mark.parametrize("value", [0, 255])
    def test_black_and_white_images_stay_in_range(self, name: str, value: int) -> None:
        image = np.full((40, 40, 3), value, dtype=np.float32) / np.float32(255)
        result = corrupt_float(image, name, 5, rng=image_rng(0, 0, name))
        assert np.isfinite(result).all()
        assert result.min() >= 0
        assert result.max() <= 1

    def test_float_path_is_the_8_bit_path_before_its_last_cut(self, name: str) -> None:
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

    def test_corruptions_chain(self, name: str) -> None:
        values = frame(56, 48).astype(np.float32) / np.float32(255)
        foggy = corrupt_float(values, "fog", 2, rng=image_rng(3, 0, "fog"))
        both = corrupt_float(foggy, name, 2, rng=image_rng(3, 0, name))
        assert both.shape == values.shape
        assert np.abs(both - foggy).mean() > 0.004


class TestErrors:
    def test_unknown_name(self) -> None:
        with pytest.raises(ConfigError, match=r"corruption: expected one of .*, got 'mist'"):
            corrupt(frame(32, 32), "mist", 0, rng=image_rng(0, 0, "fog"))

    @pytest.mark.parametrize("severity", [-1, 5.01, 6, float("nan"), True, "3", None])
    def test_severity_out_of_range(self, severity: Any) -> None:
        with pytest.raises(ConfigError, match=r"severity: expected a number in \[0, 5\]"):
            corrupt(frame(32, 32), "fog", severity, rng=image_rng(0, 0, "fog"))

    @pytest.mark.parametrize("scale", [0, -1.0, float("inf"), float("nan"), "1"])
    def test_pixel_scale_out_of_range(self, scale: Any) -> None:
        with pytest.raises(ConfigError, match="pixel_scale: expected a finite number above 0"):
            corrupt(frame(32, 32), "fog", 1, rng=image_rng(0, 0, "fog"), pixel_scale=scale)

    def test_seed_instead_of_a_generator(self) -> None:
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
    def test_not_an_rgb_frame_of_8_bits(self, image: Any) -> None:
        with pytest.raises(ArrayError, match=r"image: expected \(H, W, 3\) uint8 RGB, got"):
            corrupt(image, "fog", 1, rng=image_rng(0, 0, "fog"))

    def test_float_path_wants_float32(self) -> None:
        with pytest.raises(ArrayError, match=r"float32 RGB, got \(32, 32, 3\) float64"):
            corrupt_float(np.zeros((32, 32, 3)), "fog", 1, rng=image_rng(0, 0, "fog"))

    @pytest.mark.parametrize("value", [-0.01, 1.01, 200, float("nan")])
    def test_float_path_wants_values_in_0_to_1(self, value: float) -> None:
        image = np.zeros((32, 32, 3), np.float32)
        image[5, 5, 1] = value
        with pytest.raises(ArrayError, match=r"image: expected values in \[0, 1\]"):
            corrupt_float(image, "fog", 1, rng=image_rng(0, 0, "fog"))

    def test_too_small(self) -> None:
        with pytest.raises(ArrayError, match=r"sides of at least 32 px, got 31 x 40"):
            corrupt(np.zeros((31, 40, 3), np.uint8), "fog", 1, rng=image_rng(0, 0, "fog"))

    @pytest.mark.parametrize(("seed", "index"), [(-1, 0), (0, -1), (0.5, 0), (True, 0)])
    def test_seed_and_index(self, seed: Any, index: Any) -> None:
        with pytest.raises(ConfigError, match=r"(seed|index): expected a whole number"):
            image_rng(seed, index, "fog")

    def test_every_message_is_one_line(self) -> None:
        calls = ((np.zeros((9, 9, 3), np.uint8), "fog", 1), (frame(32, 32), "x\ny", 1))
        for image, name, severity in calls:
            with pytest.raises((ArrayError, ConfigError)) as raised:
                corrupt(image, name, severity, rng=image_rng(0, 0, "fog"))
            assert "\n" not in str(raised.value)


class TestImageRng:
    def test_depends_on_each_of_the_three_and_on_nothing_else(self) -> None:
        def first(seed: int, index: int, name: str) -> float:
            return float(image_rng(seed, index, name).random())

        keys = [(0, 0, "fog"), (1, 0, "fog"), (0, 1, "fog"), (0, 0, "snow"), (2**70, 0, "fog")]
        draws = [first(*key) for key in keys]
        assert len(set(draws)) == len(keys)
        assert draws == [first(*key) for key in keys]

    def test_numpy_integers_are_integers(self) -> None:
        first = image_rng(int(np.int64(3)), int(np.uint8(4)), "fog").random()
        assert image_rng(np.int64(3), np.uint8(4), "fog").random() == first  # type: ignore[arg-type]


def test_import_needs_only_the_base_install() -> None:
    code = textwrap.dedent(
        """
        import sys
        for name in ("torch", "timm", "scipy", "skimage", "matplotlib", "numba", "cupy"):
            sys.modules[name] = None
        import numpy as np
        from gain_scenes.corruptions import CORRUPTIONS, corrupt, image_rng
        image = np.full((32, 32, 3), 99, np.uint8)
        for name in CORRUPTIONS:
            corrupt(image, name, 5, rng=image_rng(0, 0, name))
        """
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
