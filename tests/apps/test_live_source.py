"""A test source that plays at its own rate, as a camera does."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from gain_core.errors import ConfigError
from gain_runtime.sources.images import open_images
from gain_runtime.sources.opening import open_source
from gain_runtime.sources.pattern import PatternParams, PatternSource
from gain_scenes.sources import LiveSource, app_schemes


def pattern(*, frames: int = 6, rate: float = 50.0) -> PatternSource:
    return PatternSource(PatternParams(width=16, height=12, frames=frames, rate=rate))


def test_frames_come_at_their_rate_with_the_clocks_time():
    started_ns = time.monotonic_ns()
    with LiveSource(pattern()) as source:
        assert source.info.live
        frames = list(source)
    assert [frame.index for frame in frames] == list(range(6))
    stamps = np.array([frame.timestamp_ns for frame in frames])
    assert started_ns <= stamps[0] < time.monotonic_ns()
    # A busy machine delays frames; it brings none forward.
    assert np.diff(stamps).min() >= 0.9 * 20e6
    np.testing.assert_array_equal(frames[3].image, list(pattern())[3].image)


def test_closing_ends_a_wait(until):
    source = LiveSource(pattern(rate=0.01))
    taken: list[int] = []
    thread = threading.Thread(target=lambda: taken.extend(frame.index for frame in source))
    thread.start()
    until(lambda: taken)
    source.close()
    thread.join(timeout=60.0)
    assert not thread.is_alive()
    source.close()


def test_the_drive_can_be_live():
    uri = "test://drive?resolution=crop&frames=3&conditions=clear&rate=100"
    for live in ("", "&live=0", "&live=1"):
        with open_source(uri + live, schemes=app_schemes()) as source:
            assert source.info.live == (live == "&live=1")
            assert [frame.index for frame in source] == list(range(3))
    with pytest.raises(ConfigError, match="test://drive: live"):
        open_source(uri + "&live=maybe", schemes=app_schemes())


def test_photos_have_no_rate(photo_folder):
    photo = sorted(photo_folder.glob("*.jpg"))[0]
    with open_images([photo]) as source, pytest.raises(ConfigError, match="expected a rate"):
        LiveSource(source)
