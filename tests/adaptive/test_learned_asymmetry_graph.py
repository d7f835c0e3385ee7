"""The asymmetry learned from frames of many classes, as graph: against `gain_core`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from changing_world import ASYMMETRY, changing_world
from graph_state import assert_goes_on, assert_tensors_close
from numpy.testing import assert_allclose, assert_array_equal

from gain_core import Gain, GainConfig
from gain_core.prototypes import DEFAULT_ASYMMETRY
from gain_core.shift import LEARNED_RAMP
from gain_runtime.adaptive_artifact import load_adaptive
from gain_runtime.adaptive_session import AdaptiveSession

# Largest difference of a probability from float64, and of a state tensor over one plus its peak.
FREE_PROBS, FREE_STATE = 1e-4, 1e-4
TRACKED = GainConfig()
MIXED = "state.mixed_asymmetry"


def mixture(*, signal=0.8, seed=2, batches=70, num_classes=10):
    """A head, and batches in float32: shuffled frames of all classes under one shift."""
    return of_world(parts=(batches, 0, 0), signal=signal, seed=seed, num_classes=num_classes)


def one_class(*, signal):
    """The same of one class only."""
    return of_world(parts=(0, 120, 0), signal=signal, num_classes=20, seed=3)


def of_world(*, num_classes, **settings):
    world = changing_world(num_classes, 2 * num_classes, **settings)
    batches = [(z.astype(np.float32), raw.astype(np.float32)) for z, raw, _ in world.batches]
    return world.prototypes, batches


@pytest.mark.parametrize("update_every", [1, 40])
@pytest.mark.parametrize(
    ("signal", "seed", "surely"),
    [pytest.param(0.8, 2, True, id="surely"), pytest.param(0.6, 9, False, id="partly")],
)
def test_what_mixtures_have_is_learned_as_in_the_core(
    make_graph, signal, seed, surely, update_every
):
    prototypes, batches = mixture(signal=signal, seed=seed)
    waits = {"update_every": update_every}
    graph = make_graph(prototypes, TRACKED, asymmetry=None, **waits)
    double = Gain(prototypes, TRACKED, **waits)
    guess = Gain(prototypes, TRACKED, asymmetry=DEFAULT_ASYMMETRY, **waits)
    learned, told_apart = [], 0.0
    for z, raw in batches:
        result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
        assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE, sums_only=True)
        learned.append(float(graph.state[MIXED]))
        if update_every > 1:
            assert graph.state["state.pending_mixed_asymmetry"] == 0.0
        told_apart = max(told_apart, np.max(np.abs(guess.step(z, raw).probs - expected.probs)))
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)
    assert np.all(np.diff(learned) >= 0.0)
    assert learned[0] == 0.0
    assert (learned[-1] > LEARNED_RAMP[1]) == surely
    assert learned[-1] > LEARNED_RAMP[0]
    assert told_apart > 0.05


@pytest.mark.parametrize("update_every", [1, 40])
@pytest.mark.parametrize("signal", [0.3, 0.8], ids=["often-wrong", "mostly-right"])
def test_one_class_teaches_nothing_and_is_the_source(make_graph, signal, update_every):
    prototypes, batches = one_class(signal=signal)
    graph = make_graph(prototypes, TRACKED, asymmetry=None, update_every=update_every)
    double = Gain(prototypes, TRACKED, update_every=update_every)
    for z, raw in batches:
        result, _ = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_array_equal(result["probs"], result["source_probs"])
        assert graph.state[MIXED] < LEARNED_RAMP[0]
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)


@pytest.mark.parametrize("update_every", [1, 40])
def test_where_it_was_measured_nothing_reads_what_was_learned(make_graph, update_every):
    prototypes, batches = mixture()
    rng = np.random.default_rng(0)
    graph = make_graph(prototypes, TRACKED, asymmetry=ASYMMETRY, update_every=update_every)
    double = Gain(prototypes, TRACKED, asymmetry=ASYMMETRY, update_every=update_every)
    expected = []
    for z, raw in batches:
        expected.append(graph.step(features=z, logits=raw))
        double.step(z, raw)
    # It goes on all the same: the state is one that an artifact without a measurement can have.
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)
    assert graph.state[MIXED] > LEARNED_RAMP[1]
    graph.reset()
    for (z, raw), wanted in zip(batches, expected, strict=True):
        graph.state[MIXED] = np.array(rng.uniform(0.0, 0.9), np.float32)
        result = graph.step(features=z, logits=raw)
        for name in result.keys() - {"next_" + MIXED}:
            assert_array_equal(result[name], wanted[name])


@pytest.mark.parametrize(
    ("settings", "num_classes", "learns"),
    [
        pytest.param({"independence_test": False}, 10, True, id="no-independence-test"),
        pytest.param({"class_prior": False}, 10, True, id="no-class-prior"),
        pytest.param({"mixture_test": False}, 10, False, id="no-mixture-test"),
        pytest.param({}, 2, False, id="two-classes"),
    ],
)
def test_it_is_learned_wherever_mixtures_are_tested(make_graph, settings, num_classes, learns):
    prototypes, batches = mixture(num_classes=num_classes, batches=40)
    config = replace(TRACKED, **settings)
    graph, double = make_graph(prototypes, config, asymmetry=None), Gain(prototypes, config)
    for z, raw in batches:
        result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)
    assert (graph.state[MIXED] > LEARNED_RAMP[0]) == learns
    # What a state brings along stays, also where nothing is learned.
    graph.state[MIXED] = np.array(0.75, np.float32)
    z, raw = batches[0]
    graph.step(features=z, logits=raw)
    assert graph.state[MIXED] == 0.75


def test_of_what_is_no_number_nothing_is_learned(make_graph):
    prototypes, batches = mixture(batches=20)
    graph = make_graph(prototypes, TRACKED, asymmetry=None)
    for z, raw in batches:
        graph.step(features=z, logits=raw)
    learned = graph.state[MIXED]
    assert learned > LEARNED_RAMP[0]
    graph.state["state.window_lean"] = np.full(5, np.nan, np.float32)
    z, raw = batches[-1]
    graph.step(features=z, logits=raw)
    assert_array_equal(graph.state[MIXED], learned)


def test_a_guard_that_trips_forgets_it(make_graph):
    prototypes, batches = mixture(batches=40)
    graph = make_graph(prototypes, TRACKED, asymmetry=None)
    double = Gain(prototypes, TRACKED)
    for z, raw in batches[:-1]:
        double.step(z, raw)
    state = double.state
    assert state.sums.mixed_asymmetry > LEARNED_RAMP[1]
    seen = {"count": 300.0, "agreement": 0.0, "confidence": 280.0}
    guard = replace(state.guard, **{name: np.array(value) for name, value in seen.items()})
    double.load_state(replace(state, guard=guard), frames=double.frames)
    graph.load(double.state)
    z, raw = batches[-1]
    result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
    assert graph.state["state.guard_trips"] == double.state.guard.trips == 1.0
    assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
    assert graph.state[MIXED] == double.state.sums.mixed_asymmetry == 0.0
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)


@pytest.mark.parametrize("update_every", [1, 50])
def test_a_session_goes_on_with_what_was_learned_and_hands_it_back(make_graph, update_every):
    """What waits is learned from on the host, with the pair that the file's graph has."""
    prototypes, batches = mixture(signal=0.6, seed=9)
    weight = prototypes.astype(np.float32)
    path = make_graph(prototypes, TRACKED, asymmetry=None, update_every=update_every).path
    assert not load_adaptive(path).prototypes.measured
    gain = Gain(weight, TRACKED)
    for z, raw in batches[:40]:
        gain.step(z, raw)
    assert gain.state.sums.mixed_asymmetry > LEARNED_RAMP[0]
    assert np.max(np.abs(gain.state.shift.vector)) > 0.5
    other = Gain(weight, TRACKED, update_every=update_every)
    other.load_state(gain.state, frames=gain.frames)
    with AdaptiveSession(path, num_threads=1) as session:
        session.load_state(gain.state, frames=gain.frames)
        assert_allclose(session.state.shift.vector, gain.state.shift.vector, rtol=1e-5, atol=1e-5)
        assert_goes_on(session, other, batches[40:45])
