"""`test://`: the pattern, and sources that others register."""

from __future__ import annotations

import numpy as np
import pytest

from gain_core.errors import ConfigError
from gain_runtime.sources.opening import open_source
from gain_runtime.sources.pattern import PatternParams, PatternSource

URI = "test://pattern?width=64&height=48&frames=5&rate=10"


def test_frames_have_the_requested_size_number_and_times():
    with open_source(URI) as source:
        frames = list(source)
        assert (source.info.width_px, source.info.height_px) == (64, 48)
        assert (source.info.num_frames, source.info.rate_hz, source.info.live) == (5, 10.0, False)
    assert [frame.index for frame in frames] == [0, 1, 2, 3, 4]
    assert [frame.timestamp_ns for frame in frames] == [n * 100_000_000 for n in range(5)]
    assert all(frame.image.shape == (48, 64, 3) for frame in frames)
    assert all(frame.image.dtype == np.uint8 for frame in frames)


def test_frames_move_and_depend_on_the_seed_only():
    first, again, other = (
        np.stack([frame.image for frame in open_source(URI, seed=seed)]) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    assert all(np.any(first[n] != first[n + 1]) for n in range(4))


@pytest.mark.parametrize(
    ("query", "named"),
    [
        pytest.param("width=0", "width", id="zero-width"),
        pytest.param("height=99999", "height", id="huge-height"),
        pytest.param("rate=nan", "rate", id="nan-rate"),
        pytest.param("frames=-1", "frames", id="negative-frames"),
        pytest.param("colour=red", "unknown parameter colour", id="unknown"),
    ],
)
def test_bad_parameters_are_refused(query, named):
    with pytest.raises(ConfigError, match=named):
        open_source(f"test://pattern?{query}")


def test_a_registered_source_gets_its_parameters_and_the_seed():
    calls = []

    def open_drive(params, seed):
        calls.append((params, seed))
        return PatternSource(PatternParams(frames=2), seed=seed)

    with open_source("test://drive?speed=3", schemes={"drive": open_drive}, seed=5) as source:
        assert len(list(source)) == 2
    assert calls == [({"speed": "3"}, 5)]
    for uri in ("test://", "test://nothing?x=1"):
        with pytest.raises(ConfigError, match="test://drive, test://pattern"):
            open_source(uri, schemes={"drive": open_drive})
