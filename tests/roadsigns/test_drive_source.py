"""The drive: repeatable frames, truthful regions, conditions that change the picture."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gain_core.errors import ConfigError
from gain_runtime.frames import Frame
from gain_runtime.sources.opening import open_source
from gain_scenes.roadsigns.atmosphere import (
    CONDITIONS,
    DEFAULT_ROUTE,
    Route,
    Weather,
    transmittance,
)
from gain_scenes.roadsigns.designs import LABELS
from gain_scenes.roadsigns.sources import CROP_PX, DriveParams, DriveSource, drive_source

FOG = CONDITIONS["fog"]


def crop_drive(**values: object) -> DriveSource:
    return DriveSource(DriveParams(**{"resolution": "crop", "frames": 120, **values}))


def sign_of(frame: Frame) -> np.ndarray:
    """The region of a frame."""
    assert frame.region is not None
    left, top, right, bottom = frame.region
    return frame.image[top:bottom, left:right].astype(float)


def test_every_frame_depends_on_parameters_and_index_only():
    with crop_drive(seed=3) as source:
        frames = list(itertools.islice(source, 12))
    with crop_drive(seed=3) as source:
        again = source.frame(11)
    np.testing.assert_array_equal(frames[11].image, again.image)
    assert (frames[11].region, frames[11].truth) == (again.region, again.truth)
    with crop_drive(seed=4) as source:
        assert not np.array_equal(source.frame(11).image, again.image)


def test_frames_are_numbered_and_timed():
    with crop_drive(frames=12, rate=25.0) as source:
        frames = list(source)
        assert source.info.num_frames == len(frames) == 12
        assert source.info.rate_hz == 25.0
        assert source.info.class_names == LABELS
        assert source.skipped == 0
    assert [frame.index for frame in frames] == list(range(12))
    assert frames[11].timestamp_ns == 440_000_000


def test_closing_ends_the_drive():
    source = crop_drive()
    frames = iter(source)
    next(frames)
    source.close()
    source.close()
    assert next(frames, None) is None


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_regions_are_squares_inside_the_frame_that_grow_as_the_sign_comes_nearer(seed):
    with crop_drive(seed=seed) as source:
        frames = list(source)
    sides = []
    for frame in frames:
        assert frame.region is not None
        left, top, right, bottom = frame.region
        assert 0 <= left < right <= CROP_PX
        assert 0 <= top < bottom <= CROP_PX
        assert right - left == bottom - top
        sides.append(right - left)
    runs = [list(run) for _, run in itertools.groupby(range(120), lambda i: frames[i].truth)]
    for run in runs[1:-1]:
        assert 24 <= len(run) <= 42
        assert sides[run[-1]] > 1.6 * sides[run[0]]


def test_the_crop_is_a_window_of_the_full_frame():
    small, full = crop_drive(seed=2), DriveSource(DriveParams(frames=120, seed=2))
    for index in (3, 60):
        part, whole = small.frame(index), full.frame(index)
        assert part.truth == whole.truth
        # Only the sensor's noise, about 2 levels in each, differs.
        assert np.abs(sign_of(part) - sign_of(whole)).mean() < 4.0


@pytest.mark.parametrize("resolution", ["crop", "720p"])
def test_centre_mode_zooms_on_the_sign(resolution):
    values = {"frames": "60", "mode": "centre", "resolution": resolution}
    with drive_source(values) as zoomed, crop_drive(frames=60) as source:
        frame = next(iter(zoomed))
        height, width = zoomed.info.height_px, zoomed.info.width_px
        plain = source.frame(0)
    assert frame.region is None
    assert frame.image.shape == (height, width, 3)
    assert frame.truth == plain.truth
    aside = (width - height) // 2
    middle = frame.image[:, aside : width - aside].astype(float)
    expected = sign_of(plain).mean(axis=(0, 1))
    np.testing.assert_allclose(middle.mean(axis=(0, 1)), expected, atol=4.0)


@pytest.fixture(scope="module")
def clear() -> Frame:
    """A frame of a clear drive."""
    with crop_drive(frames=60, conditions="clear") as source:
        return source.frame(30)


@pytest.mark.parametrize("name", [name for name in CONDITIONS if name != "clear"])
def test_every_condition_changes_the_sign(clear, name):
    with crop_drive(frames=60, conditions=name) as source:
        frame = source.frame(30)
    assert frame.condition == name
    assert frame.region == clear.region
    assert np.abs(sign_of(frame) - sign_of(clear)).mean() > 6.0


def test_fog_hides_far_things_more_than_near_ones():
    near, far, clear = (
        float(transmittance(depth, weather))
        for depth, weather in ((10.0, FOG), (35.0, FOG), (35.0, Weather()))
    )
    assert far < 0.4 * near
    assert clear > 0.95


def test_full_fog_takes_the_contrast_of_the_sign():
    def contrast(conditions: str) -> float:
        with crop_drive(frames=60, conditions=conditions) as source:
            return float(sign_of(source.frame(30)).std())

    assert contrast("fog") < 0.6 * contrast("clear")


def test_slow_conditions_roll_in_and_sudden_ones_jump():
    route = Route(("clear", "fog", "low-sun", "clear"), 4000, seed=0)
    fog = np.array([route.weather(index).fog for index in range(4000)])
    sun = np.array([route.weather(index).sun for index in range(4000)])
    assert np.abs(np.diff(fog[:1990])).max() < 0.02
    assert fog[1500:1990].min() > 0.5
    assert np.abs(np.diff(sun)).max() > 0.5
    assert route.name(999) == "clear"
    assert route.name(1000) == "fog"


def test_the_default_route_meets_every_condition_and_comes_back():
    assert set(DEFAULT_ROUTE) == set(CONDITIONS)
    assert DEFAULT_ROUTE[0] == DEFAULT_ROUTE[-1] == "clear"


def test_the_uri_opens_the_drive():
    uri = "test://drive?frames=30&resolution=crop&conditions=fog,night&speed=50&seed=9"
    with open_source(uri, schemes={"drive": drive_source}, seed=1) as source:
        frames = list(source)
    assert [frames[0].condition, frames[-1].condition] == ["fog", "night"]
    with crop_drive(frames=30, conditions="fog,night", speed=50.0, seed=9) as expected:
        np.testing.assert_array_equal(frames[5].image, expected.frame(5).image)


def test_the_seed_of_the_caller_counts_where_the_uri_has_none():
    values = {"frames": "30", "resolution": "crop"}
    with drive_source(values, 9) as source, crop_drive(frames=30, seed=9) as expected:
        np.testing.assert_array_equal(next(iter(source)).image, expected.frame(0).image)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        pytest.param({"lenght": "5"}, "lenght", id="unknown parameter"),
        pytest.param({"frames": "many"}, "frames", id="not a number"),
        pytest.param({"frames": "0"}, "frames", id="no frames"),
        pytest.param({"frames": "3"}, "frames", id="fewer frames than conditions"),
        pytest.param({"speed": "nan"}, "speed", id="nan"),
        pytest.param({"rate": "0"}, "rate", id="zero rate"),
        pytest.param({"mode": "center"}, "mode", id="unknown mode"),
        pytest.param({"resolution": "4k"}, "resolution", id="unknown resolution"),
        pytest.param({"conditions": "clear,hail"}, "hail", id="unknown condition"),
        pytest.param({"conditions": ","}, "conditions", id="no condition"),
        pytest.param({"seed": "-1"}, "seed", id="negative seed"),
    ],
)
def test_a_wrong_parameter_is_named(values, named):
    with pytest.raises(ConfigError, match=named):
        drive_source(values)


def test_a_strength_out_of_range_is_refused():
    with pytest.raises(ConfigError, match="fog"):
        Weather(fog=1.2)
