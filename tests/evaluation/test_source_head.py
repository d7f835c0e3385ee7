"""What clean images say about a head, and that `measured=true` adapts by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_apps.evaluation import source_head as module
from gain_apps.evaluation.beds import load_bed
from gain_apps.evaluation.methods.gain_method import GainMethod
from gain_apps.evaluation.source_head import source_head
from gain_core import Gain, GainConfig
from gain_export.asymmetry import measure_asymmetry

CONFIG = GainConfig.preset("tracked")


@pytest.fixture
def clean(world):
    """Features of the world's classes without its shifts."""
    rng = np.random.default_rng(2)
    labels = np.arange(600) % 6
    noise = rng.normal(size=(600, 8)) * 0.3
    return (2.0 * world.head.weight[labels] + noise).astype(np.float32)


def test_head_has_the_mean_and_the_exports_asymmetry(world, clean):
    head = source_head(world.head.weight, world.head.bias, clean=clean)
    assert_allclose(head.source_mean, clean.mean(axis=0, dtype=np.float64))
    found = measure_asymmetry(clean @ head.weight.T + head.bias)
    assert head.asymmetry == (found.single, found.mixed)
    assert head.asymmetry[0] + 0.1 < head.asymmetry[1]


def test_without_clean_images_nothing_is_known(world):
    head = source_head(world.head.weight, world.head.bias, clean=None)
    assert head.source_mean is None
    assert head.asymmetry is None


def test_many_images_are_thinned_out_to_some_of_every_class(world, clean, monkeypatch):
    monkeypatch.setattr(module, "MAX_IMAGES", 250)
    head = source_head(world.head.weight, world.head.bias, clean=clean)
    assert_allclose(head.source_mean, clean.mean(axis=0, dtype=np.float64))
    few = np.array(head.asymmetry)
    monkeypatch.undo()
    everything = source_head(world.head.weight, world.head.bias, clean=clean).asymmetry
    assert_allclose(few, everything, atol=0.05)
    assert not np.array_equal(few, everything)


def test_bed_measures_it_on_its_clean_features(colour_bed):
    arrays = np.load(colour_bed)
    head = load_bed(colour_bed).store.head
    found = measure_asymmetry(arrays["clean"] @ arrays["weight"].T + arrays["bias"])
    assert head.asymmetry == (found.single, found.mixed)


@pytest.mark.parametrize("measured", [True, False])
def test_measured_adapts_by_it(world, clean, measured):
    head = source_head(world.head.weight, world.head.bias, clean=clean)
    # So far from the default that it alone changes what is predicted.
    head = replace(head, asymmetry=(0.6, 0.9))
    gain = Gain(head.weight, CONFIG, bias=head.bias, asymmetry=head.asymmetry if measured else None)
    method = GainMethod(head, CONFIG, measured=measured)
    default = Gain(head.weight, CONFIG, bias=head.bias)
    differs = False
    for batch in world.batches:
        expected = gain.step(batch.features, batch.logits).log_probs
        other = default.step(batch.features, batch.logits).log_probs
        assert_array_equal(method.predict(batch), expected)
        differs |= not np.array_equal(expected, other)
    assert differs == measured
