"""Each algorithm against a slow version of it or against what must hold of it."""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import pytest

from gain_scenes.corruptions import corrupt, corrupt_float, digital, image_rng
from gain_scenes.corruptions.blur import displaced, line_blur
from gain_scenes.corruptions.constants import constants, fit, reference_shape
from gain_scenes.corruptions.weather import frost_texture, plasma_fractal


def flat(value: float, side: int = 128) -> Any:
    """An image of one grey."""
    return np.full((side, side, 3), value, dtype=np.float32)


class TestNoise:
    @pytest.mark.parametrize("severity", [1, 2, 3])
    def test_gaussian_deviation(self, severity: int) -> None:
        (deviation,) = constants("gaussian_noise", severity)
        noisy = corrupt_float(flat(0.5), "gaussian_noise", severity, rng=image_rng(0, 0, "x"))
        clipped = math.erf(0.5 / deviation / math.sqrt(2))  # share inside [0, 1]
        assert clipped > 0.99
        assert noisy.std() == pytest.approx(deviation, rel=0.02)
        assert noisy.mean() == pytest.approx(0.5, abs=4 * deviation / math.sqrt(noisy.size))
        channels = np.corrcoef(noisy.reshape(-1, 3).T)
        assert np.abs(channels - np.eye(3)).max() < 0.03

    @pytest.mark.parametrize(("severity", "photons"), list(enumerate((60, 25, 12, 5, 3), 1)))
    def test_shot_noise_is_poisson(self, severity: int, photons: int) -> None:
        noisy = corrupt_float(flat(0.2), "shot_noise", severity, rng=image_rng(0, 0, "x"))
        counts = noisy * photons
        np.testing.assert_allclose(counts[noisy < 1], np.rint(counts[noisy < 1]), atol=1e-4)
        mean = 0.2 * photons
        for count in range(3):
            expected = math.exp(-mean) * mean**count / math.factorial(count)
            seen = (np.rint(counts) == count).mean()
            assert seen == pytest.approx(expected, abs=5 * math.sqrt(expected / noisy.size) + 1e-6)

    @pytest.mark.parametrize("severity", [1, 5])
    def test_impulse_noise_hits_each_value_by_itself(self, severity: int) -> None:
        (share,) = constants("impulse_noise", severity)
        noisy = corrupt_float(flat(0.5), "impulse_noise", severity, rng=image_rng(0, 0, "x"))
        margin = 5 * math.sqrt(share / noisy.size)
        assert (noisy == 1).mean() == pytest.approx(share / 2, abs=margin)
        assert (noisy == 0).mean() == pytest.approx(share / 2, abs=margin)
        assert ((noisy == 0) | (noisy == 0.5) | (noisy == 1)).all()
        hit = noisy != 0.5
        assert (hit[..., 0] & hit[..., 1]).mean() == pytest.approx(share**2, rel=0.35)


class TestBlur:
    @pytest.mark.parametrize("name", ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur"])
    def test_a_grey_image_is_left_as_it_is(self, name: str) -> None:
        blurred = corrupt_float(flat(0.3, 96), name, 5, rng=image_rng(0, 0, name))
        np.testing.assert_allclose(blurred, 0.3, atol=2e-6)

    def test_defocus_makes_a_disc_of_a_point(self) -> None:
        image = flat(0.0, 224)
        image[100, 100] = 1
        blurred = corrupt_float(image, "defocus_blur", 3, rng=image_rng(0, 0, "x"))[..., 0]
        rows, columns = np.nonzero(blurred > 0.5 / (math.pi * 36))
        assert np.hypot(rows - 100, columns - 100).max() == pytest.approx(6, abs=0.5)
        assert blurred.sum() == pytest.approx(1, abs=1e-5)

    def test_line_blur_of_a_point_is_half_a_normal_curve_on_one_side(self) -> None:
        image = np.zeros((41, 41), dtype=np.float32)
        image[20, 30] = 1
        blurred = line_blur(image, 0.0, radius=5, sigma=3)
        weights = np.exp(-(np.arange(11) ** 2) / 18)
        np.testing.assert_allclose(blurred[20, 30:19:-1], weights / weights.sum(), atol=1e-6)
        assert blurred.sum() == pytest.approx(1, abs=1e-5)

    def test_line_blur_follows_its_angle(self) -> None:
        image = np.zeros((61, 61), dtype=np.float32)
        image[30, 30] = 1
        blurred = line_blur(image, math.radians(30), radius=10, sigma=8)
        rows, columns = np.nonzero(blurred > 1e-4)
        off_the_line = (rows - 30) * math.cos(math.radians(30)) - (columns - 30) * 0.5
        assert np.abs(off_the_line).max() < 0.75
        assert columns.min() == 30 - math.ceil(20 * math.cos(math.radians(30)) - 0.5)
        assert rows.min() == 30 - 10

    def test_zoom_blur_keeps_the_centre_and_smears_the_rim(self) -> None:
        rows, columns = np.mgrid[0:224, 0:224]
        board = ((rows // 4 + columns // 4) % 2).astype(np.float32)
        image = np.repeat(board[..., None], 3, axis=2)
        blurred = corrupt_float(image, "zoom_blur", 5, rng=image_rng(0, 0, "x"))
        assert blurred[104:120, 104:120].std() > 3 * blurred[:24, 96:128].std()

    @pytest.mark.parametrize(("shape", "reach"), [((17, 23), 1), ((20, 16), 3), ((12, 40), 4)])
    def test_displaced_is_the_loop_from_the_last_pixel_to_the_first(
        self, shape: tuple[int, int], reach: int
    ) -> None:
        rng = np.random.default_rng(reach)
        image = rng.random((*shape, 3), dtype=np.float32)
        inner = (shape[0] - 2 * reach, shape[1] - 2 * reach)
        down, right = rng.integers(-reach, reach, (2, *inner), dtype=np.int32)
        expected = image.copy()
        for row in range(shape[0] - reach, reach, -1):
            for column in range(shape[1] - reach, reach, -1):
                place = row - reach - 1, column - reach - 1
                expected[row, column] = expected[row + down[place], column + right[place]]
        np.testing.assert_array_equal(displaced(image, down, right), expected)


class TestTextures:
    @pytest.mark.parametrize("decay", [1.4, 2.0])
    def test_plasma_has_the_full_range_and_wraps(self, decay: float) -> None:
        plasma = plasma_fractal(128, decay=decay, rng=np.random.default_rng(0))
        assert plasma.dtype == np.float32
        assert plasma.min() == 0
        assert plasma.max() == 1
        seam = np.abs(plasma[:, 0] - plasma[:, -1]).mean()
        assert seam < 3 * np.abs(np.diff(plasma, axis=1)).mean()

    @pytest.mark.parametrize("decay", [1.4, 2.0])
    def test_each_octave_of_plasma_is_weaker_by_the_square_of_the_decay(self, decay: float) -> None:
        plasma = plasma_fractal(512, decay=decay, rng=np.random.default_rng(1))
        fine = self._centre_offsets(plasma)
        coarse = self._centre_offsets(plasma[::2, ::2])
        assert coarse / fine == pytest.approx(decay**2, rel=0.05)

    @staticmethod
    def _centre_offsets(plasma: Any) -> float:
        """Deviation of the square centres from the mean of their corners."""
        corners = plasma[0::2, 0::2]
        across = corners + np.roll(corners, -1, axis=1)
        mean = (across + np.roll(across, -1, axis=0)) / 4
        return float((plasma[1::2, 1::2] - mean).std())

    def test_fog_keeps_the_brightest_value_as_its_ceiling(self) -> None:
        image = flat(0.1, 64)
        image[10, 10] = 0.6
        foggy = corrupt_float(image, "fog", 5, rng=image_rng(0, 0, "fog"))
        assert foggy.max() <= 0.6 + 1e-6
        assert foggy.mean() > 0.15

    def test_frost_varies_from_image_to_image_around_the_published_brightness(self) -> None:
        panes = [frost_texture(96, 128, rng=np.random.default_rng(seed)) for seed in range(30)]
        levels = np.array([pane.mean() for pane in panes])
        assert levels.mean() == pytest.approx(0.65, abs=0.06)  # of the five photographs: 0.64
        assert levels.std() > 0.06
        colour = np.mean([pane.mean(axis=(0, 1)) for pane in panes], axis=0)
        assert colour[0] < colour[1] < colour[2]

    def test_frost_is_made_of_crystals_and_not_of_noise(self) -> None:
        pane = frost_texture(224, 224, rng=np.random.default_rng(3)).mean(axis=2)
        shrunk = fit(pane, (56, 56))
        assert shrunk.std() > 0.6 * pane.std()
        edges = np.abs(np.diff(pane, axis=1))
        assert np.percentile(edges, 99) > 6 * np.median(edges)

    def test_snow_flakes_fall_in_streaks_and_only_brighten(self) -> None:
        image = flat(0.2, 224)
        ratios = []
        for seed in range(6):
            snowed = corrupt_float(image, "snow", 4, rng=image_rng(seed, 0, "snow"))
            assert snowed.min() >= 0.2
            grey = snowed.mean(axis=2)
            down, across = (np.abs(np.diff(grey, axis=axis)).mean() for axis in (0, 1))
            ratios.append(across / down)
        assert min(ratios) > 0.9  # a fall at 45 degrees
        assert np.mean(ratios) > 1.5

    def test_snow_never_darkens_a_saturated_colour(self) -> None:
        image = flat(0.0, 64)
        image[..., 2] = 1
        snowed = corrupt_float(image, "snow", 5, rng=image_rng(0, 0, "snow"))
        assert (snowed[..., 2] == 1).all()

    def test_texture_scale(self) -> None:
        assert reference_shape((720, 1280, 3), 720 / 224) == (224, 398)
        assert reference_shape((224, 224, 3), 1.0) == (224, 224)
        texture = np.arange(16, dtype=np.float32).reshape(4, 4)
        assert fit(texture, (4, 4, 3)) is texture
        np.testing.assert_allclose(fit(texture, (2, 2)), [[2.5, 4.5], [10.5, 12.5]])


class TestDigital:
    def test_brightness_is_that_of_hsv(self) -> None:
        rng = np.random.default_rng(0)
        image = rng.random((32, 40, 3), dtype=np.float32)
        brighter = corrupt_float(image, "brightness", 2, rng=image_rng(0, 0, "x"))
        before = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
        before[..., 2] = np.minimum(before[..., 2] + 0.2, 1)
        expected = cv2.cvtColor(before, cv2.COLOR_HSV2RGB)
        np.testing.assert_allclose(brighter, expected, atol=2e-5)

    def test_brightness_makes_black_grey(self) -> None:
        brighter = corrupt(
            np.zeros((32, 32, 3), np.uint8), "brightness", 5, rng=image_rng(0, 0, "x")
        )
        assert (brighter == 127).all()

    @pytest.mark.parametrize("sigma", [2.44, 20.0, 170.8])
    def test_smooth_noise_is_the_published_filter(self, sigma: float) -> None:
        ndimage = pytest.importorskip("scipy.ndimage", reason="SciPy is a test-only oracle")
        shape = (120, 96)  # sides the cosine transform takes as they are
        smooth = digital._smooth_noise(shape, sigma, rng=np.random.default_rng(5))
        noise = 2 * np.random.default_rng(5).random(shape, dtype=np.float32).astype(float) - 1
        expected = ndimage.gaussian_filter(noise, sigma, mode="reflect", truncate=3)
        np.testing.assert_allclose(smooth, expected, atol=2e-6)

    def test_elastic_ripples_move_pixels_as_far_as_published(self) -> None:
        image = np.repeat(np.linspace(0, 1, 224, dtype=np.float32)[None, :, None], 224, axis=0)
        ramp = np.ascontiguousarray(np.repeat(image, 3, axis=2))
        moved = corrupt_float(ramp, "elastic_transform", 5, rng=image_rng(0, 0, "x"))
        shift_px = (moved - ramp)[24:-24, 24:-24, 0] * 223
        trend = cv2.GaussianBlur(shift_px, (0, 0), 25)
        # A uniform deviate under a gaussian: 1 / sqrt(3) / (2 sqrt(pi) sigma), times 29.28 px.
        expected = 29.28 / math.sqrt(3) / (2 * math.sqrt(math.pi) * 2.44)
        assert (shift_px - trend).std() == pytest.approx(expected, rel=0.1)

    def test_elastic_moves_three_corners_at_random(self) -> None:
        rows, columns = np.mgrid[0:224, 0:224].astype(np.float32)
        image = np.stack([columns, rows, rows], axis=2) / np.float32(223)
        places = np.stack([columns, rows, np.ones_like(rows)], axis=2)[60:164, 60:164]
        shifts = []
        for seed in range(40):
            moved = corrupt_float(image, "elastic_transform", 5, rng=image_rng(seed, 0, "x"))
            origins = moved[60:164, 60:164, :2].reshape(-1, 2) * 223
            affine = np.linalg.lstsq(places.reshape(-1, 3), origins, rcond=None)[0].T
            corners = np.array([[186, 186], [186, 38], [38, 38]])
            landed = np.linalg.solve(affine[:, :2], (corners - affine[:, 2]).T).T
            shifts.append(landed - corners)
        assert np.abs(shifts).max() < 4.88 + 1  # the ripples blur the fit
        assert np.std(shifts) == pytest.approx(4.88 / math.sqrt(3), rel=0.12)
        assert np.mean(shifts) == pytest.approx(0, abs=0.6)

    def test_pixelate_has_as_many_blocks_as_its_share(self) -> None:
        rows, columns = np.mgrid[0:96, 0:96]
        image = np.stack([rows * 2, columns * 2, rows + columns], axis=2).astype(np.uint8)
        coarse = corrupt(image, "pixelate", 5, rng=image_rng(0, 0, "x"))
        assert len(np.unique(coarse[:, 0, 0])) == 24
        blocks = coarse.reshape(24, 4, 24, 4, 3)
        assert (blocks == blocks[:, :1, :, :1]).all()

    def test_contrast_keeps_the_mean_of_each_channel(self) -> None:
        image = np.random.default_rng(0).random((40, 40, 3), dtype=np.float32)
        image[..., 1] *= 0.5
        flatter = corrupt_float(image, "contrast", 5, rng=image_rng(0, 0, "x"))
        np.testing.assert_allclose(flatter.mean(axis=(0, 1)), image.mean(axis=(0, 1)), atol=1e-6)
        ratio = flatter.std(axis=(0, 1)) / image.std(axis=(0, 1))
        np.testing.assert_allclose(ratio, 0.05, rtol=1e-4)
