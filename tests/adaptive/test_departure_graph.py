"""A mixture that gives way to one class, as graph: against `gain_core`, there and back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from changing_world import ASYMMETRY, changing_world
from graph_state import assert_tensors_close, derived
from numpy.testing import assert_allclose, assert_array_equal
from onnx import numpy_helper

from gain_core import Gain, GainConfig, prepare_prototypes, state_to_arrays
from gain_runtime.adaptive_session import AdaptiveSession

# Largest difference of a probability from float64, and of a state tensor over one plus its peak.
FREE_PROBS, FREE_STATE = 1e-4, 1e-4
TRACKED = GainConfig()
# The projections of the features beside the head's rows, in files whose head leaves room.
BESIDE = "gain/beside"
# Batches of all classes, of one, and of all again.
PARTS = (90, 30, 40)


def there_and_back(*, seed=2, feature_dim=40, signal=0.5):
    """A head, and batches in float32: of ten classes, of one, of ten; the features stay."""
    world = changing_world(feature_dim=feature_dim, parts=PARTS, signal=signal, left=1.0, seed=seed)
    batches = [(z.astype(np.float32), raw.astype(np.float32)) for z, raw, _ in world.batches]
    return world.prototypes, batches


def in_one_domain(batches):
    """The same without the other domain that the last part is moved by; halved batches."""
    return [(z[part], raw[part]) for z, raw in batches for part in (slice(5), slice(5, None))]


@pytest.mark.parametrize(
    ("seed", "normalise", "update_every"),
    [(2, False, 1), (2, True, 40), (5, False, 40), (5, True, 1)],
)
def test_a_mixture_leaves_and_comes_back_as_in_the_core(make_graph, seed, normalise, update_every):
    prototypes, batches = there_and_back(seed=seed)
    config = replace(TRACKED, normalise=normalise)
    options = {"asymmetry": ASYMMETRY, "update_every": update_every}
    graph = make_graph(prototypes, config, **options)
    double, blind = Gain(prototypes, config, **options), Gain(prototypes, config, **options)
    departures, told_apart = [], 0.0
    for index, (z, raw) in enumerate(in_one_domain(batches)):
        result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
        assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE, sums_only=True)
        departures.append(float(graph.state["state.departure"]))
        if update_every > 1:
            assert graph.state["state.pending_departure"] == 0.0
        # Features of another number say nothing beside the head.
        unseen = blind.step(np.zeros((len(z), 1)), raw)
        if index < 2 * sum(PARTS[:2]):
            told_apart = max(told_apart, np.max(np.abs(unseen.probs - expected.probs)))
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)
    first, last = 2 * PARTS[0], 2 * sum(PARTS[:2])
    assert max(departures[:first]) < 0.05
    assert max(departures[first:last]) > 0.9
    assert departures[last - 1] > 0.5
    assert departures[-1] < 0.05
    assert told_apart > 0.02


def test_what_waits_is_what_was_seen_beside_the_head(make_graph):
    prototypes, batches = there_and_back()
    graph = make_graph(prototypes, TRACKED, asymmetry=ASYMMETRY, update_every=64)
    sketch = np.asarray(prepare_prototypes(prototypes, TRACKED).beside)
    z, raw = batches[0]
    graph.step(features=z, logits=raw)
    result = graph.step(features=z, logits=raw)
    beside = z @ sketch
    waiting = {
        name: graph.state[f"state.pending_{name}"] for name in ("newest_source", "departure")
    }
    assert_allclose(waiting["newest_source"], 2.0 * result["source_probs"].sum(0), rtol=1e-5)
    assert waiting["departure"] == 0.0
    seen = graph.state["state.pending_window_beside"]
    assert seen.shape == (1, 64)
    assert_allclose(seen[0], 2.0 * beside.sum(0), rtol=0, atol=1e-4)
    power = graph.state["state.pending_window_beside_power"]
    assert_allclose(power, [2.0 * np.sum(beside * beside)], rtol=1e-5)
    assert_array_equal(graph.state["state.window_beside"], 0.0)


@pytest.mark.parametrize("update_every", [1, 24])
def test_without_independence_the_sums_go_on_and_nothing_departs(make_graph, update_every):
    prototypes, batches = there_and_back()
    config = replace(TRACKED, independence_test=False)
    options = {"asymmetry": ASYMMETRY, "update_every": update_every}
    graph, double = make_graph(prototypes, config, **options), Gain(prototypes, config, **options)
    for z, raw in batches[:110]:
        graph.step(features=z, logits=raw)
        double.step(z, raw)
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)
    assert graph.state["state.departure"] == 0.0
    assert np.max(np.abs(graph.state["state.window_beside"])) > 1.0


@pytest.mark.parametrize("length", [1e20, 3e38])
def test_features_whose_squares_overflow_say_nothing(make_graph, length):
    prototypes, batches = there_and_back()
    graph = make_graph(prototypes, TRACKED, asymmetry=ASYMMETRY)
    plain = Gain(prototypes.astype(np.float32), TRACKED, asymmetry=ASYMMETRY)
    for index, (z, raw) in enumerate(batches[:8]):
        features = z.copy()
        if index == 3:
            features[2] *= np.float32(length / np.max(np.abs(features[2])))
        result = graph.step(features=features, logits=raw)
        expected = plain.step(features, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
    assert_tensors_close(graph.state, plain.state, tolerance=FREE_STATE)
    assert np.all(np.isfinite(graph.state["state.window_beside_power"]))
    assert np.min(graph.state["state.window_beside_power"]) > 100.0


@pytest.mark.parametrize("update_every", [1, 24])
def test_a_head_without_room_beside_it_sees_nothing(make_graph, checked, update_every):
    prototypes, batches = there_and_back(feature_dim=20)
    options = {"asymmetry": ASYMMETRY, "update_every": update_every}
    graph = make_graph(prototypes, TRACKED, **options)
    double = Gain(prototypes, TRACKED, **options)
    assert BESIDE not in {tensor.name for tensor in checked(graph.path).graph.initializer}
    for z, raw in batches:
        result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
        for name in ("window_beside", "window_beside_power", "departure"):
            assert_array_equal(graph.state[f"state.{name}"], 0.0)
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)
    assert np.max(graph.state["state.newest_source"]) > 1.0


@pytest.mark.parametrize("feature_dim", [20, 40], ids=["no-room", "room"])
@pytest.mark.parametrize("departure", [0.8, 2.0], ids=["one-state", "two-merged"])
def test_a_departure_that_is_loaded_is_counted_and_let_go(make_graph, feature_dim, departure):
    """Two devices' states, each of which departed, add up to more than one."""
    prototypes, batches = there_and_back(feature_dim=feature_dim)
    graph = make_graph(prototypes, TRACKED, asymmetry=ASYMMETRY)
    weight = prototypes.astype(np.float32)
    double = Gain(prototypes, TRACKED, asymmetry=ASYMMETRY)
    single = Gain(weight, TRACKED, asymmetry=ASYMMETRY)
    for z, raw in batches[: PARTS[0]]:
        double.step(z, raw)
        single.step(z, raw)
    for gain in (double, single):
        sums = gain.state.sums
        held = replace(sums, departure=np.full_like(sums.departure, departure))
        gain.load_state(replace(gain.state, sums=held), frames=gain.frames)
    graph.load(double.state)
    for z, raw in batches[PARTS[0] - 10 : PARTS[0]]:
        result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
        assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)
    assert 0.0 < graph.state["state.departure"] < departure


@pytest.mark.parametrize("feature_dim", [20, 40], ids=["no-room", "room"])
def test_a_guard_that_trips_drops_a_departure(make_graph, feature_dim):
    prototypes, batches = there_and_back(feature_dim=feature_dim)
    graph = make_graph(prototypes, TRACKED, asymmetry=ASYMMETRY)
    double = Gain(prototypes, TRACKED, asymmetry=ASYMMETRY)
    for z, raw in batches[: PARTS[0] + 10]:
        double.step(z, raw)
    state = double.state
    guard = replace(
        state.guard,
        count=np.array(300.0),
        agreement=np.array(0.0),
        confidence=np.array(280.0),
    )
    held = replace(state.sums, departure=np.array(0.8))
    double.load_state(replace(state, guard=guard, sums=held), frames=double.frames)
    graph.load(double.state)
    z, raw = batches[PARTS[0] + 10]
    result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
    assert graph.state["state.guard_trips"] == double.state.guard.trips == 1.0
    assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
    for name in ("window_beside", "window_beside_power", "newest_source", "departure"):
        assert_array_equal(graph.state[f"state.{name}"], 0.0)
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)


@pytest.mark.parametrize("update_every", [1, 24])
def test_the_projections_are_a_constant_of_the_file(make_graph, checked, update_every):
    prototypes, _ = there_and_back()
    graph = make_graph(prototypes, TRACKED, asymmetry=ASYMMETRY, update_every=update_every)
    checked(graph.path)
    initializers = {item.name: item for item in onnx.load(graph.path).graph.initializer}
    weight = prototypes.astype(np.float32)
    expected = prepare_prototypes(weight, TRACKED, asymmetry=ASYMMETRY).beside
    assert_array_equal(numpy_helper.to_array(initializers[BESIDE]), expected)


@pytest.mark.parametrize("update_every", [1, 50])
def test_a_session_goes_on_with_a_departure_and_hands_it_back(make_graph, update_every):
    prototypes, batches = there_and_back()
    weight, settings = prototypes.astype(np.float32), {"asymmetry": ASYMMETRY}
    path = make_graph(prototypes, TRACKED, update_every=update_every, **settings).path
    gain = Gain(weight, TRACKED, **settings)
    for z, raw in batches[: PARTS[0] + 8]:
        gain.step(z, raw)
    assert gain.state.sums.departure > 0.5
    other = Gain(weight, TRACKED, update_every=update_every, **settings)
    other.load_state(gain.state, frames=gain.frames)
    with AdaptiveSession(path, num_threads=1) as session:
        session.load_state(gain.state, frames=gain.frames)
        for z, raw in batches[PARTS[0] + 8 : PARTS[0] + 13]:
            expected = other.step(z, raw)
            assert_allclose(session.step(z, raw).probs, expected.probs, rtol=0, atol=2e-5)
        assert session.pending_frames == other.pending_frames
        session.flush()
        other.flush()
        assert session.state.sums.departure > 0.5
        for name, array in (state_to_arrays(other.state) | derived(other.state)).items():
            peak = 1.0 + np.max(np.abs(array))
            assert_allclose(session.arrays()[name] / peak, array / peak, rtol=0, atol=2e-5)
