"""The tracked shift's graph against the slow float64 oracle and `gain_core`, over long streams.

Free running, the graph's rounding feeds back through the shift exactly as `gain_core`'s own
float32 does: both are held to the same distance from the float64 truth.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from gaussian_world import gaussian_world
from graph_state import assert_tensors_close
from numpy.testing import assert_allclose, assert_array_equal
from shift_oracle import ShiftOracle
from waiting_steps import WaitingOracle

from gain_core import Gain, GainConfig

TRACKED = GainConfig()
CONFIGS = {
    "tracked": TRACKED,
    "short-memory": replace(TRACKED, half_life=40.0),
    "endless": replace(TRACKED, half_life=math.inf),
    "endless-scale": replace(TRACKED, scale_half_life=math.inf),
    "short-scale": replace(TRACKED, scale_half_life=20.0),
    "no-shrinkage": replace(TRACKED, shrinkage=0.0),
    "no-label-draws": replace(TRACKED, label_draws=0.0),
    "many-label-draws": replace(TRACKED, label_draws=100.0),
    "no-mixture-test": replace(TRACKED, mixture_test=False),
    "no-independence-test": replace(TRACKED, independence_test=False),
    "no-match-scale": replace(TRACKED, match_scale=False),
    "unguarded": replace(TRACKED, guard=False),
    "normalised": replace(TRACKED, normalise=True),
}
# Largest difference of a probability from float64, and of a state tensor over one plus its peak.
FREE_PROBS, FREE_STATE = 1e-4, 5e-5
# Largest difference of what predictions read from the float64 oracle.
ORACLE_SHIFT = 1e-4
# Neither shrinkage nor the classes seen hold it back: it takes a run of one class for a shift.
RUNAWAY = replace(TRACKED, shrinkage=0.0, label_draws=0.0, half_life=400.0)


def moved_stream(num_classes=7, *, batch_sizes=(16, 3, 9), num_batches=60, seed=2):
    """A head, and batches in float32 whose logits jump half-way."""
    world = gaussian_world(
        num_classes, 10, num_batches=num_batches, batch_sizes=batch_sizes, seed=seed
    )
    offsets = 2.0 * np.random.default_rng(seed).normal(size=(2, num_classes))
    batches = [
        (z.astype(np.float32), (logits + offsets[2 * i // num_batches]).astype(np.float32))
        for i, (z, logits, _) in enumerate(world.batches)
    ]
    return world.prototypes, batches


@pytest.mark.parametrize("update_every", [1, 16])
@pytest.mark.parametrize("config", [pytest.param(c, id=name) for name, c in CONFIGS.items()])
def test_stream_stays_with_the_oracle_and_the_core(make_graph, config, update_every):
    prototypes, batches = moved_stream()
    graph = make_graph(prototypes, config, update_every=update_every)
    double = Gain(prototypes, config, update_every=update_every)
    oracle, strongest = ShiftOracle(prototypes, config), 0.0
    truth = WaitingOracle(oracle, update_every)
    for z, raw in batches:
        expected = truth.step(raw)
        result, wide = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
        assert_allclose(result["probs"], wide.probs, rtol=0, atol=FREE_PROBS)
        assert_array_equal(result["label"], np.argmax(result["probs"], axis=1))
        strongest = max(strongest, float(np.max(np.abs(expected.evidence))))
        assert graph.state["state.frames"] == oracle.learned
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)
    assert_allclose(graph.state["state.shift"], oracle.beta, rtol=0, atol=ORACLE_SHIFT)
    stretch = graph.state["state.shift_stretch"]
    assert_allclose(stretch, oracle.stretch, rtol=0, atol=ORACLE_SHIFT)
    assert strongest > 0.1, "no correction was ever proposed, so the comparison shows nothing"


@pytest.mark.parametrize("batch_sizes", [(1,), (1, 16, 7, 2)], ids=["B1", "uneven"])
def test_many_classes_and_small_batches(make_graph, batch_sizes):
    prototypes, batches = moved_stream(30, batch_sizes=batch_sizes, num_batches=300, seed=3)
    # With the pair of an artifact that was never measured, these frames would be of one class.
    pair, strengths = (-0.5, 0.0), []
    graph = make_graph(prototypes, TRACKED, asymmetry=pair)
    double = Gain(prototypes, TRACKED, asymmetry=pair)
    for z, raw in batches:
        result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
        strengths.append(expected.strength)
    assert np.mean(np.concatenate(strengths) > 0.0) > 0.5
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)


@pytest.mark.parametrize("update_every", [1, 16])
def test_the_guard_trips_and_holds_with_the_oracle(make_graph, update_every):
    rng = np.random.default_rng(9)
    graph = make_graph(np.eye(4, 6), RUNAWAY, update_every=update_every)
    oracle, held = ShiftOracle(np.eye(4, 6), RUNAWAY), 0
    truth = WaitingOracle(oracle, update_every)
    for size in (3, 1, 4) * 150:
        raw = np.array([4.0, 0.0, 0.0, 0.0]) + 0.5 * rng.normal(size=(size, 4))
        raw = raw.astype(np.float32)
        trips, expected = oracle.trips, truth.step(raw)
        result = graph.step(features=np.zeros((size, 6), np.float32), logits=raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
        # The batch that trips the guard is the first that the source answers.
        if oracle.hold > 0:
            held += 1
            assert_array_equal(result["probs"], result["source_probs"])
            assert_array_equal(result["strength"], 0.0)
        if oracle.trips > trips:
            assert_array_equal(graph.state["state.shift"], 0.0)
            assert_array_equal(graph.state["state.shift_stretch"], 1.0)
            assert_array_equal(graph.state["state.window_range"], 0.0)
            assert graph.state["state.step_count"] == 0.0
            assert graph.state["state.last_known"] == 1.0
        assert graph.state["state.guard_hold"] == oracle.hold
        assert graph.state["state.guard_trips"] == oracle.trips
        counts = [oracle.window_sums(window)[0] for window in range(5)]
        assert_allclose(graph.state["state.window_count"], counts, rtol=1e-4)
    assert oracle.trips == 2
    assert held > 50


def test_one_frame_repeated_is_the_source_to_the_last_bit(make_graph):
    graph = make_graph(moved_stream()[0], TRACKED)
    raw = np.random.default_rng(4).normal(size=(1, 7)).astype(np.float32).repeat(8, axis=0)
    for _ in range(400):
        result = graph.step(features=np.zeros((8, 10), np.float32), logits=raw)
        assert_array_equal(result["probs"], result["source_probs"])
    assert_array_equal(graph.state["state.shift"], 0.0)
    assert_array_equal(graph.state["state.shift_stretch"], 1.0)
    assert graph.state["state.frames"] == 3200
