"""Feature dumps: what clean images say of a head, and that a method adapts by it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gain_apps.evaluation import feature_dump, open_input
from gain_apps.evaluation.feature_dump import load_dump, measured_head
from gain_apps.evaluation.methods.registry import make_method
from gain_core.errors import ArtifactError
from gain_export.images import measure_fitness


@pytest.fixture
def clean(world):
    """Features of the world's classes without its shifts."""
    rng = np.random.default_rng(2)
    labels = np.arange(600) % 6
    noise = rng.normal(size=(600, 8)) * 0.3
    return (2.0 * world.head.weight[labels] + noise).astype(np.float32)


def test_head_has_what_clean_images_say(world, clean):
    head = measured_head(world.head.weight, world.head.bias, clean=clean)
    assert_allclose(head.source_mean, clean.mean(axis=0, dtype=np.float64))
    found = measure_fitness(clean @ head.weight.T + head.bias)
    assert head.measured == found.measured
    assert np.shape(head.measured["clean_moments"]) == (2, 6)


def test_what_the_artifact_says_comes_first(world, clean):
    told = {"skewness": (0.1, 0.4)}
    head = measured_head(world.head.weight, world.head.bias, clean=clean, measured=told)
    assert head.measured == told
    assert measured_head(world.head.weight, world.head.bias, clean=None).measured == {}


def test_many_images_are_thinned_out_to_some_of_every_class(world, clean, monkeypatch):
    everything = measured_head(world.head.weight, world.head.bias, clean=clean).measured["skewness"]
    monkeypatch.setattr(feature_dump, "MAX_IMAGES", 250)
    few = measured_head(world.head.weight, world.head.bias, clean=clean).measured["skewness"]
    assert_allclose(few, everything, atol=0.05)
    assert few != everything


@pytest.mark.parametrize("measured", ["true", "false"])
def test_the_default_adapts_by_what_was_measured_unless_told_otherwise(world, clean, measured):
    told = {"skewness": (0.6, 0.9)}
    head = measured_head(world.head.weight, world.head.bias, clean=clean, measured=told)
    method = make_method(f"shift:measured={measured}", head)
    assert (method._gain.method.skewness == (0.6, 0.9)) == (measured == "true")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bias": None}, "bias missing"),
        ({"bias": np.zeros(2)}, r"bias: expected \(3,\) floating, got \(2,\)"),
        ({"fog": np.zeros((90, 5))}, r"fog: expected \(90, 6\) floating"),
        ({"fog": np.full((90, 6), np.nan)}, "fog: expected finite values"),
        ({"labels": np.full(90, 3)}, r"labels: expected class indices in \[0, 3\)"),
    ],
)
def test_bad_dumps_are_refused(colour_dump, change, message):
    with np.load(colour_dump) as dump:
        arrays = {**dump, **change}
    np.savez(colour_dump, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(ArtifactError, match=message):
        load_dump(colour_dump)


def test_truncated_dump_is_refused(colour_dump):
    colour_dump.write_bytes(colour_dump.read_bytes()[:-200])
    with pytest.raises(ArtifactError, match="cannot be read"):
        open_input(colour_dump)
