"""`test://signs`: clean pictures, each from the seed and its index."""

import numpy as np
import pytest

from gain_core.errors import ConfigError
from gain_runtime.sources.opening import open_source
from gain_scenes.roadsigns.designs import LABELS
from gain_scenes.roadsigns.sample import render_labelled
from gain_scenes.roadsigns.sources import FIRST_SEED, stills_source
from gain_scenes.sources import app_schemes


def test_the_uri_opens_the_pictures():
    with open_source("test://signs?frames=4&seed=2", schemes=app_schemes(), seed=9) as source:
        assert source.info.num_frames == 4
        assert source.info.class_names == LABELS
        assert not source.info.live
        frames = list(source)
    assert source.skipped == 0
    assert stills_source({}).info.num_frames == 20 * len(LABELS)
    assert [frame.index for frame in frames] == [0, 1, 2, 3]
    for frame in frames:
        image, truth = render_labelled(frame.index, seed=FIRST_SEED + 2)
        np.testing.assert_array_equal(frame.image, image)
        assert frame.truth == truth
        assert frame.condition is None


def test_the_seed_of_the_caller_counts_where_the_uri_has_none():
    (first,), (other,) = (stills_source({"frames": "1"}, seed) for seed in (0, 1))
    assert not np.array_equal(first.image, other.image)
    np.testing.assert_array_equal(
        first.image, next(iter(stills_source({"frames": "1", "seed": "0"}, 1))).image
    )


@pytest.mark.parametrize(
    ("values", "named"),
    [
        pytest.param({"lenght": "5"}, "lenght", id="unknown parameter"),
        pytest.param({"frames": "many"}, "frames", id="not a number"),
        pytest.param({"frames": "0"}, "frames", id="no frames"),
        pytest.param({"seed": "-1"}, "seed", id="negative seed"),
    ],
)
def test_bad_parameters_are_named(values, named):
    with pytest.raises(ConfigError, match=rf"^test://signs: .*{named}"):
        stills_source(values)
