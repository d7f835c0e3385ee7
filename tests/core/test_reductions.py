"""`paper` is what it was, and everything that came after it becomes it, or less, when asked to."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from gaussian_world import gaussian_world
from numpy.testing import assert_allclose, assert_array_equal

from gain_core import Gain, GainConfig, Prediction, state_to_arrays
from gain_core.shift import WINDOW_RATIO

TRACKED, BALANCED, PAPER = (GainConfig.preset(name) for name in ("tracked", "balanced", "paper"))
# Settings that the Gaussians do not read, all moved off their values.
UNREAD = {
    "shrinkage": 0.3,
    "label_draws": 2.0,
    "mixture_test": False,
    "independence_test": False,
    "match_scale": False,
    "guard": True,
}
# What makes the class-conditional Gaussians those of the paper, whatever else is set.
LITERAL = {
    "anchor": "prototype",
    "variance": "diagonal",
    "prior_variance": "unit",
    "temper": "none",
    "prior_strength": 3.0,
    "prior_samples": 0.0,
    "half_life": math.inf,
    "variance_floor": 1e-6,
    "variance_floor_ratio": 0.0,
    "prob_floor": 1e-8,
}
# Of the tracked shift, everything off but the shift itself.
PLAIN = {"mixture_test": False, "independence_test": False, "match_scale": False}


def streamed(config: GainConfig, *, num_batches: int = 24) -> tuple[list[Prediction], Gain]:
    world = gaussian_world(6, 8, num_batches=num_batches, batch_sizes=(8,), seed=31)
    gain = Gain(world.prototypes, config)
    return [gain.step(z, logits) for z, logits, _ in world.batches], gain


def assert_the_same(first: GainConfig, second: GainConfig) -> None:
    """Predictions and state, to the last bit."""
    (results, gain), (expected, other) = streamed(first), streamed(second)
    for result, wanted in zip(results, expected, strict=True):
        for item in fields(Prediction):
            assert_array_equal(
                getattr(result, item.name), getattr(wanted, item.name), err_msg=item.name
            )
    wanted_state = state_to_arrays(other.state)
    for name, array in state_to_arrays(gain.state).items():
        assert_array_equal(array, wanted_state[name], err_msg=name)


@pytest.mark.parametrize("name", ["paper", "paper-l2"])
def test_the_paper_is_what_it_was(name):
    with np.load(Path(__file__).with_name("paper_record.npz")) as file:
        record = dict(file)
    gain = Gain(record["prototypes"].astype(np.float64), GainConfig.preset(name))
    for index in range(len(record["features"])):
        z, logits = (record[part][index].astype(np.float64) for part in ("features", "logits"))
        result = gain.step(z, logits)
        # The last bits are the linear algebra library's.
        assert_allclose(result.probs, record[name][index], rtol=0, atol=1e-12)
        assert_allclose(result.strength, record[f"{name}, strength"][index], rtol=0, atol=1e-6)


def test_the_records_presets_differ_and_intervene_in_part():
    with np.load(Path(__file__).with_name("paper_record.npz")) as file:
        record = dict(file)
    assert np.max(np.abs(record["paper"] - record["paper-l2"])) > 0.1
    strength = record["paper, strength"][1:]
    assert np.mean(strength > 0.0) > 0.5
    assert np.any((strength > 0.0) & (strength < 1.0))


@pytest.mark.parametrize("config", [PAPER, BALANCED], ids=["paper", "balanced"])
def test_the_gaussians_read_none_of_the_shifts_settings(config):
    assert all(getattr(config, name) != value for name, value in UNREAD.items())
    assert_the_same(replace(config, **UNREAD), config)


@pytest.mark.parametrize("config", [TRACKED, BALANCED], ids=["tracked", "balanced"])
def test_what_came_after_the_paper_is_the_paper_at_its_values(config):
    literal = {**LITERAL, "proposal": "gaussian", "scale_half_life": 17.0}
    assert_the_same(replace(config, **literal), PAPER)


def test_at_its_own_values_the_balanced_preset_is_another():
    results, expected = streamed(BALANCED)[0], streamed(PAPER)[0]
    assert np.max(np.abs(results[-1].probs - expected[-1].probs)) > 0.1


def test_a_long_half_life_is_nearly_endless():
    results, expected = streamed(replace(PAPER, half_life=1e9))[0], streamed(PAPER)[0]
    for result, wanted in zip(results, expected, strict=True):
        assert_allclose(result.probs, wanted.probs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("half_life", [900.0, 90.0])
def test_without_shrinkage_labels_and_tests_a_shift_is_the_mean_of_the_last_frames(half_life):
    """NEO's continual form: the mean logits, forgotten with a ninth of the half-life, taken out."""
    config = replace(TRACKED, shrinkage=0.0, label_draws=0.0, half_life=half_life, **PLAIN)
    world = gaussian_world(6, 8, num_batches=30, batch_sizes=(8,), seed=31)
    gain = Gain(world.prototypes, config)
    total, count = np.zeros(6), 0.0
    decay = 0.5 ** (8 * WINDOW_RATIO**2 / half_life)
    for z, logits, _ in world.batches:
        gain.step(z, logits)
        total = total * decay + np.sum(logits - logits.mean(axis=1, keepdims=True), axis=0)
        count = count * decay + len(logits)
        assert_allclose(gain.state.shift.vector, total / count, rtol=0, atol=1e-9)
        assert_array_equal(gain.state.shift.stretch, 1.0)
        assert gain.state.shift.independence == 0.0
