"""Frames that teach nothing, and frames that look a little like them."""

from __future__ import annotations

import io

import cv2
import numpy as np
import pytest
from PIL import Image, ImageFile

from gain_runtime.frames import FrameHealth


def street(seed: int = 0, *, level: float = 110.0) -> np.ndarray:
    """A smooth picture with a sensor's noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.normal(level, level / 3, size=(6, 8, 3)).clip(0, 255).astype(np.uint8)
    smooth = cv2.resize(coarse, (160, 120), interpolation=cv2.INTER_CUBIC)
    return np.clip(smooth + rng.normal(0, 2, smooth.shape), 0, 255).astype(np.uint8)


def cut_short(fraction: float) -> np.ndarray:
    """What a decoder makes of a JPEG whose end is missing."""
    data = cv2.imencode(".jpg", street())[1].tobytes()
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        with Image.open(io.BytesIO(data[: int(len(data) * fraction)])) as opened:
            return np.array(opened)
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


def lens_cap() -> np.ndarray:
    return np.random.default_rng(1).poisson(3, size=(120, 160, 3)).astype(np.uint8)


def night() -> np.ndarray:
    image = lens_cap()
    image[20:30, 30:50] = 200
    return image


def letterbox() -> np.ndarray:
    image = street()
    image[:20] = image[-20:] = 16
    return image


def sunlit_floor() -> np.ndarray:
    image = street()
    image[70:] = 255
    return image


@pytest.mark.parametrize(
    ("image", "fault"),
    [
        pytest.param(street(), None, id="street"),
        pytest.param(street(level=45.0), None, id="dusk"),
        pytest.param(night(), None, id="one lamp at night"),
        pytest.param(letterbox(), None, id="letterbox"),
        pytest.param(sunlit_floor(), None, id="overexposed floor"),
        pytest.param(np.zeros((120, 160, 3), np.uint8), "black", id="no signal"),
        pytest.param(lens_cap(), "black", id="lens cap"),
        pytest.param(np.full((120, 160, 3), (0, 135, 0), np.uint8), "corrupt", id="green"),
        pytest.param(np.full((120, 160, 3), 255, np.uint8), "corrupt", id="white"),
        pytest.param(cut_short(0.5), "corrupt", id="JPEG cut in half"),
        pytest.param(cut_short(0.75), "corrupt", id="JPEG cut at three quarters"),
    ],
)
def test_single_frames(image, fault):
    assert FrameHealth().check(image) == fault


def test_a_repeated_frame_is_frozen_until_it_changes():
    health = FrameHealth()
    frames = [street(0), street(0), street(0), street(1), street(0)]
    assert [health.check(frame) for frame in frames] == [None, "frozen", "frozen", None, None]


def test_a_change_of_size_is_no_fault():
    health = FrameHealth()
    assert health.check(street()) is None
    assert health.check(cv2.resize(street(), (320, 240))) is None


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 9, 3), (9, 1, 3), (2, 2, 3)])
def test_tiny_frames_are_looked_at_too(shape):
    image = np.random.default_rng(3).integers(60, 255, shape, dtype=np.uint8)
    assert FrameHealth().check(image) in (None, "corrupt")


def test_the_picture_itself_is_not_kept_alive():
    health = FrameHealth()
    image = street()
    health.check(image)
    assert not np.shares_memory(image, health._last)
