"""The mixture test and the scale match as graph, against `gain_core` over long streams."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from changing_world import ASYMMETRY, changing_world
from gaussian_world import gaussian_world
from graph_state import assert_goes_on, assert_tensors_close, derived
from numpy.testing import assert_allclose, assert_array_equal

from gain_core import (
    Gain,
    GainConfig,
    init_state,
    predict,
    prepare_prototypes,
    state_from_arrays,
    update,
)
from gain_core.departure import BESIDE_DIMS
from gain_core.shift import (
    NEWEST_WINDOW,
    SCALE_RAMP,
    SHIFT_RAMP,
    ShiftSums,
    asymmetry_of,
    estimate_shift,
)
from gain_core.step import revise
from gain_runtime.adaptive_session import AdaptiveSession

# Largest difference of a probability from float64, and of a state tensor over one plus its peak.
FREE_PROBS, FREE_STATE = 1e-4, 5e-5
# The same for sums, and for what they say where rounding them moves it little.
SUMS = 3e-6
# Beyond that, what they say may differ by what this many roundings of every sum make of it.
ROUNDINGS = 2.0
NUM_BATCHES = 90
MIDDLE = range(NUM_BATCHES // 3, 2 * NUM_BATCHES // 3)

TRACKED = GainConfig()
SWITCHES = {
    "tracked": TRACKED,
    "no-mixture-test": replace(TRACKED, mixture_test=False),
    "no-independence-test": replace(TRACKED, independence_test=False),
    "no-match-scale": replace(TRACKED, match_scale=False),
    "neither": replace(TRACKED, mixture_test=False, match_scale=False),
}


def make_stream(kind, num_classes, *, feature_dim=10, seed=2):
    """A head, and batches in float32 whose logits have moved.

    `unequal` deviations have other ratios than the source's; `one-class` shows nothing else in its
    middle third.
    """
    world = gaussian_world(
        num_classes, feature_dim, num_batches=NUM_BATCHES, batch_sizes=(16, 3, 9), seed=seed
    )
    rng = np.random.default_rng(seed)
    offset = 2.0 * rng.normal(size=num_classes)
    ratios = 0.7 * np.exp(0.7 * rng.normal(size=num_classes))
    batches = []
    for index, (z, logits, _) in enumerate(world.batches):
        if kind == "unequal":
            logits = ratios * (logits - np.mean(logits, axis=1, keepdims=True))
        elif index in MIDDLE:
            center = 1.2 * world.prototypes[0]
            z = center + 0.8 * rng.normal(size=z.shape)
            logits = z @ world.prototypes.T
        batches.append((z.astype(np.float32), (logits + offset).astype(np.float32)))
    return world.prototypes, batches


def said(state, *, first, before):
    """What predictions read of a state, and the probabilities of its last batch, revised."""
    probs = revise(first, before=before, after=state, config=TRACKED).probs
    return derived(state) | {"probs": probs}


def rounded(sums, rng):
    """Every sum moved by one float32 rounding, up or down at random."""
    moved = {}
    for item in fields(ShiftSums):
        array = np.asarray(getattr(sums, item.name))
        unit = sums.window_range if item.name == "window_lean" else array
        moved[item.name] = array + 2.0**-24 * rng.choice([-1.0, 1.0], size=array.shape) * unit
    return ShiftSums(**moved)


def assert_as_close_as_the_sums_allow(result, tensors, state, *, z, first, before, prototypes):
    """A file's step against float64, as close as float32 can know it from these sums.

    A memory's variance is its mean square less its squared mean, the lean a difference of two
    sums, and both go through ramps up to thirty times as steep, into a shrinkage that may be
    steeper still where it begins: a sum that is rounded in its last digit moves the shift, its
    deviations and the revised probabilities by hundreds of roundings in one state, by none in
    another. How far is found here by rounding every sum of the state, up or down at random.
    """
    assert_tensors_close(tensors, state, tolerance=SUMS, sums_only=True, apart=["departure"])
    departed = tensors["state.departure"]
    assert_departed_as_the_sums_allow(departed, state, z, first, before, prototypes=prototypes)
    expected = said(state, first=first, before=before)
    moved = dict.fromkeys(expected, 0.0)
    rng = np.random.default_rng(0)
    for _ in range(16):
        shift = estimate_shift(rounded(state.sums, rng), prototypes=prototypes, config=TRACKED)
        for name, array in said(replace(state, shift=shift), first=first, before=before).items():
            moved[name] = max(moved[name], np.max(np.abs(array - expected[name])))
    for name, array in expected.items():
        found = result["probs"] if name == "probs" else tensors[f"state.{name}"]
        bound = SUMS * (1.0 + np.max(np.abs(array))) + ROUNDINGS * moved[name]
        assert np.max(np.abs(found - array)) <= bound, name


def assert_departed_as_the_sums_allow(departed, state, z, first, before, *, prototypes):
    """The same of the departure, no sum but the end of ramps: what rounding makes of the sums."""
    expected, rng = state.sums.departure, np.random.default_rng(1)
    bound, difference = SUMS * (1.0 + expected), np.abs(departed - expected)
    if difference <= bound:
        return
    moved = 0.0
    for _ in range(16):
        other = replace(before, sums=rounded(before.sums, rng))
        other = update(z, first, other, prototypes=prototypes, config=TRACKED)
        moved = max(moved, np.abs(other.sums.departure - expected))
    assert difference <= bound + ROUNDINGS * moved


@pytest.mark.parametrize("update_every", [1, 16])
@pytest.mark.parametrize("config", [pytest.param(c, id=name) for name, c in SWITCHES.items()])
@pytest.mark.parametrize("num_classes", [2, 3, 7, 30])
@pytest.mark.parametrize("kind", ["unequal", "one-class"])
def test_stream_stays_with_the_core(make_graph, kind, num_classes, config, update_every):
    prototypes, batches = make_stream(kind, num_classes, seed=4)
    pair, strengths = (-0.1, 0.2), []
    graph = make_graph(prototypes, config, asymmetry=pair, update_every=update_every)
    double = Gain(prototypes, config, asymmetry=pair, update_every=update_every)
    for z, raw in batches:
        result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
        assert graph.state["state.frames"] == double.frames
        strengths.append(expected.strength)
    assert np.mean(np.concatenate(strengths) > 0.0) > 0.2
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)
    if not config.match_scale:
        assert_array_equal(graph.state["state.shift_stretch"], 1.0)


@pytest.mark.parametrize("parts", [(70, 40, 0), (100, 0, 20)], ids=["one", "hidden"])
def test_the_newest_labels_say_what_they_say_in_the_core(make_graph, parts):
    """One class after many, and a mixture which a corruption hides."""
    world = changing_world(parts=parts, seed=2)
    graph = make_graph(world.prototypes, TRACKED, asymmetry=ASYMMETRY)
    double = Gain(world.prototypes, TRACKED, asymmetry=ASYMMETRY)
    for z, raw, _ in world.batches:
        z, raw = z.astype(np.float32), raw.astype(np.float32)
        result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
    assert (double.state.shift.trust < 0.01) == (parts[1] > 0)
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)


@pytest.mark.parametrize(
    ("kind", "num_classes", "pair", "ramp", "stretches"),
    [
        pytest.param("unequal", 7, (0.0, 0.2), SCALE_RAMP, True, id="scale-7"),
        pytest.param("unequal", 30, (-0.1, 0.2), SCALE_RAMP, True, id="scale-30"),
        pytest.param("one-class", 30, (0.0, 0.35), SHIFT_RAMP, False, id="shift-30"),
    ],
)
def test_on_the_way_from_one_class_to_a_mixture(
    make_graph, kind, num_classes, pair, ramp, stretches
):
    """Between the ends of a ramp, where the asymmetry itself counts; both parts switched on."""
    prototypes, batches = make_stream(kind, num_classes)
    graph = make_graph(prototypes, TRACKED, asymmetry=pair)
    double = Gain(prototypes, TRACKED, asymmetry=pair)
    plain = Gain(prototypes, SWITCHES["no-mixture-test"])
    single, mixed = pair
    begins, ends = (single + share * (mixed - single) for share in ramp)
    prepared = prepare_prototypes(prototypes, TRACKED, asymmetry=pair)
    between, furthest, told_apart, strengths = 0, 0.0, 0.0, []
    for index, (z, raw) in enumerate(batches):
        before, first = double.state, double.predict(z, raw)
        result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_as_close_as_the_sums_allow(
            result, graph.state, double.state, z=z, first=first, before=before, prototypes=prepared
        )
        asymmetry = asymmetry_of(double.state.sums)
        # Where one class follows many the source answers.
        if kind != "one-class" or index not in MIDDLE:
            strengths.append(expected.strength)
        between += int(np.any((asymmetry > begins) & (asymmetry < ends)))
        furthest = max(furthest, np.max(np.abs(graph.state["state.shift_stretch"] - 1.0)))
        told_apart = max(told_apart, np.max(np.abs(plain.step(z, raw).probs - expected.probs)))
    assert between >= 6
    assert np.mean(np.concatenate(strengths) > 0.0) > 0.4
    assert told_apart > 0.05
    assert (furthest > 0.15) == stretches


def draw_sums(rng, num_classes, *, room):
    """Sums such as streams leave, of memories that have nothing to do with each other."""
    counts = np.array([90.0, 180.0, 370.0, 740.0, 1400.0])
    mean = rng.normal(size=(5, num_classes)) * rng.choice([0.3, 1.0, 3.0])
    deviations = np.exp(rng.normal(size=(5, num_classes)) * rng.choice([0.3, 0.7]))
    deviations *= rng.choice([0.3, 1.0, 2.0])
    frame = rng.normal(size=num_classes)
    share = rng.dirichlet(np.full(num_classes, rng.choice([0.1, 3.0, 30.0])), size=5)
    reach = rng.uniform(1.0, 3.0, size=5)
    counted = rng.choice([0.0, 30.0, 3000.0, 3000.0, 3000.0])
    # Beside the head's rows, of features whose variance there is about one in each direction.
    beside = rng.normal(size=(5, BESIDE_DIMS)) * rng.choice([0.03, 0.1, 0.3]) * room
    newest = rng.dirichlet(np.full(num_classes, rng.choice([0.1, 3.0, 30.0])))
    arrays = {
        "window_count": counts,
        "window_logits": counts[:, None] * (mean - np.mean(mean, axis=1, keepdims=True)),
        "window_powers": counts[:, None] * (mean**2 + deviations**2),
        "window_mass": counts[:, None] * share,
        "window_lean": counts * reach * rng.uniform(-0.1, 0.4, size=5),
        "window_range": counts * reach,
        "share_mass": counted * share[-1],
        "share_count": np.array(counted),
        "window_beside": counts[:, None] * beside,
        "window_beside_power": counts * (BESIDE_DIMS * 0.8 * room + np.sum(beside**2, axis=1)),
        "newest_source": counts[NEWEST_WINDOW] * newest,
        "departure": np.array(rng.choice([0.0, 0.0, 0.0, rng.uniform()])),
        "mixed_asymmetry": np.array(0.15 * (reach[0] - 1.0)),
        "step_power": np.array(1000.0 * rng.uniform(0.4, 1.0) * np.sum(deviations[-1] ** 2)),
        "step_count": np.array(1000.0),
        "last_logits": frame - np.mean(frame),
        "last_known": np.array(rng.choice([0.0, 1.0])),
        "scale_numerator": np.array(rng.uniform(0.5, 1.5)),
        "scale_denominator": np.array(1.0),
        "guard_count": np.array(100.0),
        "guard_agreement": np.array(90.0),
        "guard_confidence": np.array(60.0),
        "guard_hold": np.array(0.0),
        "guard_trips": np.array(0.0),
    }
    return {name: array.astype(np.float32).astype(np.float64) for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("pair", "num_classes", "feature_dim"),
    [
        pytest.param((0.0, 0.3), 3, 10, id="measured-few-no-room"),
        pytest.param((0.0, 0.3), 3, 40, id="measured-few-room"),
        pytest.param((0.0, 0.3), 12, 10, id="measured-many-no-room"),
        pytest.param((0.0, 0.3), 12, 40, id="measured-many-room"),
        pytest.param(None, 3, 10, id="learned-few-no-room"),
        pytest.param(None, 12, 40, id="learned-many-room"),
    ],
)
def test_one_step_from_any_sums(make_graph, pair, num_classes, feature_dim):
    rng = np.random.default_rng(num_classes)
    prototypes, batches = make_stream("unequal", num_classes, feature_dim=feature_dim)
    graph = make_graph(prototypes, TRACKED, asymmetry=pair)
    prepared = prepare_prototypes(prototypes, TRACKED, asymmetry=pair)
    stretched, moved, partly, expected, changed = 0, 0, 0, 0, 0
    for index in range(200):
        state = state_from_arrays(
            draw_sums(rng, num_classes, room=feature_dim > 30), prototypes=prepared, config=TRACKED
        )
        z, raw = (array.astype(np.float64) for array in batches[index % NUM_BATCHES])
        graph.load(state)
        result = graph.step(features=z.astype(np.float32), logits=raw.astype(np.float32))
        first, before = predict(z, raw, state, config=TRACKED), state
        state = update(z, first, state, prototypes=prepared, config=TRACKED)
        assert_as_close_as_the_sums_allow(
            result, graph.state, state, z=z, first=first, before=before, prototypes=prepared
        )
        stretched += int(np.max(np.abs(state.shift.stretch - 1.0)) > 0.1)
        moved += int(np.max(np.abs(state.shift.vector)) > 0.1)
        partly += int(0.0 < state.shift.independence < 1.0)
        expected += int(np.max(np.abs(state.shift.log_prior)) > 0.1)
        changed += int(0.0 < state.sums.departure < 1.0)
    assert 20 < stretched < 180
    assert 20 < moved < 180
    assert partly > 10
    # Where nothing was measured, fewer of these are surely mixtures.
    assert (20 if pair else 10) < expected < 180
    assert changed > 20


def test_deviations_alone_are_matched_and_held_back_by_the_guard(make_graph):
    prototypes, batches = make_stream("unequal", 7)
    weight = prototypes.astype(np.float32)
    graph, state = make_graph(prototypes, TRACKED), init_state(weight, TRACKED)
    stretch = np.geomspace(0.5, 2.0, 7, dtype=np.float32)
    state = replace(state, shift=replace(state.shift, stretch=stretch))
    z, raw = batches[0]
    graph.load(state)
    result = graph.step(update=False, features=z, logits=raw)
    expected = predict(z, raw, state, config=TRACKED)
    assert_allclose(result["probs"], expected.probs, rtol=0, atol=1e-5)
    assert np.max(result["strength"]) > 0.0
    graph.state["state.guard_hold"] = np.array(5.0, np.float32)
    held = graph.step(update=False, features=z, logits=raw)
    assert_array_equal(held["probs"], held["source_probs"])


@pytest.mark.parametrize("update_every", [1, 50])
def test_a_session_takes_the_state_and_hands_it_back(make_graph, update_every):
    """What follows from the sums, and from what waits, is derived with the file's constants."""
    prototypes, batches = make_stream("unequal", 30)
    weight, pair = prototypes.astype(np.float32), (-0.1, 0.2)
    path = make_graph(prototypes, TRACKED, asymmetry=pair, update_every=update_every).path
    gain = Gain(weight, TRACKED, asymmetry=pair)
    for z, raw in batches[:60]:
        gain.step(z, raw)
    assert np.max(np.abs(gain.state.shift.stretch - 1.0)) > 0.5
    other = Gain(weight, TRACKED, asymmetry=pair, update_every=update_every)
    other.load_state(gain.state, frames=gain.frames)
    with AdaptiveSession(path, num_threads=1) as session:
        session.load_state(gain.state, frames=gain.frames)
        assert_array_equal(session.arrays()["shift_stretch"], gain.state.shift.stretch)
        assert_allclose(session.state.shift.stretch, gain.state.shift.stretch, rtol=1e-6)
        assert_goes_on(session, other, batches[60:65])
