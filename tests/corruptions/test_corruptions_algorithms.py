"""What must hold of the algorithms that chance moves, beyond the statistics of the reference."""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import pytest

from gain_scenes.corruptions import corrupt_float, digital, image_rng
from gain_scenes.corruptions.constants import constants
from gain_scenes.corruptions.weather import frost_texture, plasma_fractal


def flat(value: float, side: int = 128) -> Any:
    """An image of one grey."""
    return np.full((side, side, 3), value, dtype=np.float32)


class TestNoise:
    @pytest.mark.parametrize("severity", [1, 5])
    def test_impulse_noise_hits_each_value_by_itself(self, severity):
        (share,) = constants("impulse_noise", severity)
        noisy = corrupt_float(flat(0.5), "impulse_noise", severity, rng=image_rng(0, 0, "x"))
        margin = 5 * math.sqrt(share / noisy.size)
        assert (noisy == 1).mean() == pytest.approx(share / 2, abs=margin)
        assert (noisy == 0).mean() == pytest.approx(share / 2, abs=margin)
        assert ((noisy == 0) | (noisy == 0.5) | (noisy == 1)).all()
        hit = noisy != 0.5
        assert (hit[..., 0] & hit[..., 1]).mean() == pytest.approx(share**2, rel=0.35)


class TestTextures:
    @pytest.mark.parametrize("decay", [1.4, 2.0])
    def test_plasma_has_the_full_range_and_wraps(self, decay):
        plasma = plasma_fractal(128, decay=decay, rng=np.random.default_rng(0))
        assert plasma.dtype == np.float32
        assert plasma.min() == 0
        assert plasma.max() == 1
        seam = np.abs(plasma[:, 0] - plasma[:, -1]).mean()
        assert seam < 3 * np.abs(np.diff(plasma, axis=1)).mean()

    @pytest.mark.parametrize("decay", [1.4, 2.0])
    def test_each_octave_of_plasma_is_weaker_by_the_square_of_the_decay(self, decay):
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

    def test_fog_keeps_the_brightest_value_as_its_ceiling(self):
        image = flat(0.1, 64)
        image[10, 10] = 0.6
        foggy = corrupt_float(image, "fog", 5, rng=image_rng(0, 0, "fog"))
        assert foggy.max() <= 0.6 + 1e-6
        assert foggy.mean() > 0.15

    def test_frost_varies_from_image_to_image_around_the_published_brightness(self):
        panes = [frost_texture(96, 128, rng=np.random.default_rng(seed)) for seed in range(30)]
        levels = np.array([pane.mean() for pane in panes])
        assert levels.mean() == pytest.approx(0.65, abs=0.06)  # of the five photographs: 0.64
        assert levels.std() > 0.06
        colour = np.mean([pane.mean(axis=(0, 1)) for pane in panes], axis=0)
        assert colour[0] < colour[1] < colour[2]

    def test_snow_flakes_fall_in_streaks_and_only_brighten(self):
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

    def test_snow_never_darkens_a_saturated_colour(self):
        image = flat(0.0, 64)
        image[..., 2] = 1
        snowed = corrupt_float(image, "snow", 5, rng=image_rng(0, 0, "snow"))
        assert (snowed[..., 2] == 1).all()


class TestDigital:
    @pytest.mark.parametrize("sigma", [2.44, 20.0, 170.8])
    def test_smooth_noise_is_the_published_filter(self, sigma):
        ndimage = pytest.importorskip("scipy.ndimage", reason="SciPy is a test-only oracle")
        shape = (120, 96)  # sides the cosine transform takes as they are
        smooth = digital._smooth_noise(shape, sigma, rng=np.random.default_rng(5))
        noise = 2 * np.random.default_rng(5).random(shape, dtype=np.float32).astype(float) - 1
        expected = ndimage.gaussian_filter(noise, sigma, mode="reflect", truncate=3)
        np.testing.assert_allclose(smooth, expected, atol=2e-6)

    def test_elastic_ripples_move_pixels_as_far_as_published(self):
        image = np.repeat(np.linspace(0, 1, 224, dtype=np.float32)[None, :, None], 224, axis=0)
        ramp = np.ascontiguousarray(np.repeat(image, 3, axis=2))
        moved = corrupt_float(ramp, "elastic_transform", 5, rng=image_rng(0, 0, "x"))
        shift_px = (moved - ramp)[24:-24, 24:-24, 0] * 223
        trend = cv2.GaussianBlur(shift_px, (0, 0), 25)
        # A uniform deviate under a gaussian: 1 / sqrt(3) / (2 sqrt(pi) sigma), times 29.28 px.
        expected = 29.28 / math.sqrt(3) / (2 * math.sqrt(math.pi) * 2.44)
        assert (shift_px - trend).std() == pytest.approx(expected, rel=0.1)

    def test_elastic_moves_three_corners_at_random(self):
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
