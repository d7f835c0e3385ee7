"""The prior on the classes as graph, against `gain_core` under label shift."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graph_state import assert_tensors_close
from numpy.testing import assert_allclose, assert_array_equal
from tailed_world import ASYMMETRY, tailed_world

from gain_core import Gain, GainConfig
from gain_runtime.adaptive_session import AdaptiveSession

# Largest difference of a probability from float64, and of a state tensor over one plus its peak.
FREE_PROBS, FREE_STATE = 1e-4, 1e-4
TRACKED = GainConfig()


def rounded(world):
    """Batches that both precisions see alike."""
    return [(z.astype(np.float32), logits.astype(np.float32)) for z, logits, _ in world.batches]


@pytest.mark.parametrize("update_every", [1, 40])
@pytest.mark.parametrize("seed", [2, 5])
def test_label_shift_stays_with_the_core(make_graph, seed, update_every):
    world = tailed_world(num_batches=90, seed=seed)
    options = {"asymmetry": ASYMMETRY, "update_every": update_every}
    graph = make_graph(world.prototypes, TRACKED, **options)
    double = Gain(world.prototypes, TRACKED, **options)
    for z, raw in rounded(world):
        result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)
    log_prior = graph.state["state.shift_log_prior"]
    assert np.max(np.abs(log_prior)) > 0.5
    assert_allclose(log_prior, double.state.shift.log_prior, rtol=0, atol=1e-3)
    assert graph.state["state.share_count"] > 100


def test_without_a_prior_nothing_is_expected(make_graph):
    world = tailed_world(num_batches=60, seed=5)
    config = replace(TRACKED, class_prior=False)
    graph = make_graph(world.prototypes, config, asymmetry=ASYMMETRY)
    double = Gain(world.prototypes, config, asymmetry=ASYMMETRY)
    for z, raw in rounded(world):
        result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
    assert_array_equal(graph.state["state.shift_log_prior"], np.zeros(10))
    assert_array_equal(graph.state["state.share_count"], 0.0)


def test_a_saved_state_brings_its_prior_along(make_graph):
    world = tailed_world(num_batches=90, seed=5)
    double = Gain(world.prototypes.astype(np.float32), TRACKED, asymmetry=ASYMMETRY)
    batches = rounded(world)
    for z, raw in batches[:80]:
        double.step(z, raw)
    graph = make_graph(world.prototypes, TRACKED, asymmetry=ASYMMETRY)
    with AdaptiveSession(graph.path) as session:
        session.load_state(double.state, frames=double.frames)
        assert_array_equal(session.arrays()["shift_log_prior"], double.state.shift.log_prior)
        for z, raw in batches[80:]:
            result, expected = session.step(z, raw), double.step(z, raw)
            assert_allclose(result.probs, expected.probs, rtol=0, atol=FREE_PROBS)
    assert np.max(np.abs(double.state.shift.log_prior)) > 0.5
