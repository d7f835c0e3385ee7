"""The step's graph against `gain_core` and the float64 oracle, over long streams.

Tolerances. Free running, the graph's rounding feeds back through the statistics exactly as
`gain_core`'s own float32 does: both are held to the same distance from the float64 truth. From
one and the same state, one step differs by its own rounding only.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx
import pytest
from gain_oracle import Oracle
from gaussian_world import gaussian_world
from graph_state import assert_tensors_close
from numpy.testing import assert_allclose, assert_array_equal

from gain_core import PRESETS, Gain, init_state, predict, update

# Largest difference of a probability from float64, and of a state tensor over one plus its peak.
FREE_PROBS, FREE_STATE = 1e-4, 5e-5
STEP = 2e-5

WORLDS = {
    "K2-D1": {"num_classes": 2, "feature_dim": 1, "batch_sizes": (8,)},
    "B1": {"num_classes": 6, "feature_dim": 9, "batch_sizes": (1,)},
    "K5-D3-uneven": {"num_classes": 5, "feature_dim": 3, "batch_sizes": (1, 16, 7, 2)},
    "K12-D20": {"num_classes": 12, "feature_dim": 20, "batch_sizes": (16,)},
    "K30-D40": {"num_classes": 30, "feature_dim": 40, "batch_sizes": (8,)},
}

# Of the few and noisy frames of small worlds a shift is learned only where a mixture looks so.
ASYMMETRY = (-0.5, 0.0)
BALANCED, PAPER, PAPER_L2 = (PRESETS[name] for name in ("balanced", "paper", "paper-l2"))
GAUSSIANS = ("balanced", "paper", "paper-l2")
MIXES = {
    "balanced-light-prior": replace(BALANCED, prior_strength=4.0, prior_samples=0.0),
    "balanced-short-memory": replace(BALANCED, half_life=40.0),
    "balanced-endless": replace(BALANCED, half_life=math.inf, prior_samples=0.0),
    "balanced-l2": replace(BALANCED, normalise=True),
    "balanced-at-prototypes": replace(BALANCED, anchor="prototype"),
    "balanced-endless-scale": replace(BALANCED, scale_half_life=math.inf),
    "balanced-diagonal": replace(BALANCED, variance="diagonal"),
    "balanced-diagonal-ratio": replace(
        BALANCED, variance="diagonal", variance_floor_ratio=0.9, prior_strength=1.0, prior_samples=0
    ),
    "balanced-unit-prior": replace(BALANCED, prior_variance="unit", prior_strength=20.0),
    "balanced-variance-floor": replace(BALANCED, variance_floor=1.5),
    "balanced-untempered": replace(BALANCED, temper="none"),
    "balanced-prob-floor": replace(BALANCED, prob_floor=1e-3),
    "paper-light-prior": replace(PAPER, prior_strength=0.3),
    "paper-forgets": replace(PAPER, half_life=100.0),
    "paper-balanced": replace(PAPER, anchor="balanced"),
    "paper-isotropic": replace(PAPER, variance="isotropic"),
    "paper-head-temper": replace(PAPER, temper="head"),
    "paper-no-floor": replace(PAPER, prob_floor=0.0),
    "paper-six-halvings": replace(PAPER, num_iters=6),
    "paper-l2-balanced-temper": replace(PAPER_L2, anchor="balanced", temper="head"),
}


def narrow(*arrays):
    return [array.astype(np.float32) for array in arrays]


def assert_corrected(strengths, *, share):
    """More than this share of the frames, or there was nothing to compare."""
    corrected = np.mean(np.concatenate(strengths) > 0.0)
    assert corrected > share, f"only {corrected:.0%} of the frames were corrected"


@pytest.mark.parametrize("world", [pytest.param(size, id=name) for name, size in WORLDS.items()])
@pytest.mark.parametrize("preset", GAUSSIANS)
def test_long_stream_stays_with_the_oracle_and_both_precisions(make_graph, preset, world):
    world = gaussian_world(**world, num_batches=64, seed=1)
    config = PRESETS[preset]
    graph = make_graph(world.prototypes, config)
    double, single = Gain(world.prototypes, config), Gain(*narrow(world.prototypes), config)
    oracle = Oracle(world.prototypes, config)
    for features, logits, _ in world.batches:
        z, raw = narrow(features, logits)
        result = graph.step(features=z, logits=raw)
        truth, wide = oracle.step(features, logits), double.step(features, logits)
        own = single.step(z, raw)
        assert_allclose(result["probs"], truth.probs, rtol=0, atol=FREE_PROBS)
        assert_allclose(result["probs"], wide.probs, rtol=0, atol=FREE_PROBS)
        assert_allclose(result["probs"], own.probs, rtol=0, atol=FREE_PROBS)
        assert_allclose(result["source_probs"], np.exp(wide.source_log_probs), rtol=0, atol=1e-6)
        assert_array_equal(result["label"], np.argmax(result["probs"], axis=1))
        assert result["finite"]
        assert np.all((result["strength"] >= 0.0) & (result["strength"] <= 1.0))
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)
    assert graph.state["state.frames"] == double.frames == sum(len(z) for z, _, _ in world.batches)


@pytest.mark.parametrize("name", [*GAUSSIANS, *MIXES])
def test_one_step_from_a_common_state(make_graph, name):
    """Every field of the config, without the feedback of free running."""
    config = (PRESETS | MIXES)[name]
    world = gaussian_world(7, 10, num_batches=30, batch_sizes=(16, 3, 9), seed=2)
    prototypes = world.prototypes.astype(np.float32)
    graph, state = make_graph(prototypes, config), init_state(prototypes, config)
    for features, logits, _ in world.batches:
        z, raw = narrow(features, logits)
        expected = predict(z, raw, state, config=config)
        if state.statistics.sample_count > 0:
            graph.load(state)
        result = graph.step(features=z, logits=raw)
        state = update(z, expected, state, prototypes=prototypes, config=config)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=STEP)
        assert_allclose(result["gain"], expected.gain, rtol=STEP, atol=STEP)
        peak = 1.0 + np.abs(expected.log_probs)
        assert_allclose(result["log_probs"] / peak, expected.log_probs / peak, rtol=0, atol=STEP)
        assert_tensors_close(graph.state, state, tolerance=STEP)


def test_strengths_of_all_three_kinds_agree(make_graph):
    """A weak prior and many classes: some frames refuse, some take all, some lie inside."""
    config = replace(PAPER_L2, prior_strength=0.3)
    world = gaussian_world(100, 30, num_batches=15, batch_sizes=(8,), seed=1)
    graph = make_graph(world.prototypes, config)
    state = init_state(world.prototypes.astype(np.float32), config)
    kinds = np.zeros(3, dtype=np.int64)
    for features, logits, _ in world.batches:
        z, raw = narrow(features, logits)
        expected = predict(z, raw, state, config=config)
        if state.statistics.sample_count > 0:
            graph.load(state)
        strength = graph.step(features=z, logits=raw)["strength"]
        assert_allclose(strength, expected.strength, rtol=0, atol=2e-3)
        inner = (strength > 0) & (strength < 1)
        kinds += [np.sum(strength == 0), np.sum(inner), np.sum(strength == 1)]
        state = update(
            z, expected, state, prototypes=world.prototypes.astype(np.float32), config=config
        )
    assert np.all(kinds > 0), kinds


def test_far_from_the_origin_float32_holds(make_graph):
    world = gaussian_world(12, 20, num_batches=60, offset=200.0, seed=4)
    graph, single = (
        make_graph(world.prototypes, BALANCED),
        Gain(*narrow(world.prototypes), BALANCED),
    )
    for features, logits, _ in world.batches:
        z, raw = narrow(features, logits)
        result, expected = graph.step(features=z, logits=raw), single.step(z, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=2e-3)


@pytest.mark.parametrize("preset", PRESETS)
def test_classes_never_seen_and_a_run_of_one_class(make_graph, preset):
    config = PRESETS[preset]
    world = gaussian_world(9, 12, num_batches=64, batch_sizes=(16,), seed=6)
    graph = make_graph(world.prototypes, config, asymmetry=ASYMMETRY)
    double, strengths = Gain(world.prototypes, config, asymmetry=ASYMMETRY), []
    for index, (features, logits, labels) in enumerate(world.batches):
        kept = labels < (1 if index < 32 else 4)
        if not kept.any():
            continue
        z, raw = narrow(features[kept], logits[kept])
        result = graph.step(features=z, logits=raw)
        expected = double.step(features[kept], logits[kept])
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
        strengths.append(expected.strength)
    assert_corrected(strengths, share=0.2)
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)


@pytest.mark.parametrize("update_every", [1, 5])
@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize(
    ("where", "bad"),
    [
        *(("features", bad) for bad in (np.nan, np.inf, -np.inf, 1e30)),
        *(("logits", bad) for bad in (np.nan, np.inf, -np.inf)),
    ],
)
@pytest.mark.parametrize("preset", ["balanced", "tracked"])
def test_a_batch_that_is_not_finite_leaves_the_state_as_it_was(
    make_graph, preset, where, bad, history, update_every
):
    if preset == "tracked" and bad == 1e30:
        pytest.skip("a shift squares no feature where the head leaves no room beside it")
    world = gaussian_world(6, 8, num_batches=4, batch_sizes=(3,), seed=3)
    graph = make_graph(
        world.prototypes, PRESETS[preset], asymmetry=ASYMMETRY, update_every=update_every
    )
    *before, (features, logits, _) = world.batches
    for z, raw, _ in before if history else ():
        graph.step(features=z.astype(np.float32), logits=raw.astype(np.float32))
    # A zero with a sign: adding zero to it would lose the sign.
    signed = "state.feature_sum" if preset == "balanced" else "state.shift"
    graph.state[signed][0] = -0.0
    kept = {name: array.tobytes() for name, array in graph.state.items()}
    inputs = {"features": features.astype(np.float32), "logits": logits.astype(np.float32)}
    intact = {name: array.copy() for name, array in inputs.items()}
    inputs[where][1, 2] = bad
    result = graph.step(**inputs)
    assert not result["finite"]
    assert {name: array.tobytes() for name, array in graph.state.items()} == kept
    assert graph.step(**intact)["finite"]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_stream_with_bad_batches_equals_one_without_them(make_graph, preset):
    world = gaussian_world(5, 6, num_batches=60, batch_sizes=(4,), seed=8)
    graph = make_graph(world.prototypes, PRESETS[preset], asymmetry=ASYMMETRY)
    single = Gain(*narrow(world.prototypes), PRESETS[preset], asymmetry=ASYMMETRY)
    strengths = []
    for index, (features, logits, _) in enumerate(world.batches):
        z, raw = narrow(features, logits)
        if index % 7 == 3:
            broken = z.copy()
            broken[0, 0] = np.nan
            assert not graph.step(features=broken, logits=raw)["finite"]
        expected = single.step(z, raw)
        assert_allclose(
            graph.step(features=z, logits=raw)["probs"], expected.probs, rtol=0, atol=FREE_PROBS
        )
        strengths.append(expected.strength)
    assert_corrected(strengths, share=0.4)
    assert graph.state["state.frames"] == single.frames


@pytest.mark.parametrize("update_every", [2, 6, 16])
@pytest.mark.parametrize("preset", PRESETS)
def test_update_every_is_gain_cores(make_graph, preset, update_every):
    config = PRESETS[preset]
    world = gaussian_world(6, 9, num_batches=90, batch_sizes=(1, 3, 2, 1, 8, 1), seed=9)
    # What is learned of the asymmetry goes through three ramps, which magnify a rounding.
    options = {"asymmetry": ASYMMETRY, "update_every": update_every}
    graph = make_graph(world.prototypes, config, **options)
    double, strengths = Gain(world.prototypes, config, **options), []
    for features, logits, _ in world.batches:
        z, raw = narrow(features, logits)
        result = graph.step(features=z, logits=raw)
        expected = double.step(features, logits)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
        strengths.append(expected.strength)
        assert graph.state["state.frames"] == double.frames
        waiting = "window_count" if preset == "tracked" else "accepted"
        assert graph.state[f"state.pending_{waiting}"].sum() == double.pending_frames
        if double.frames:
            assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)
    assert_corrected(strengths, share=0.4)


@pytest.mark.parametrize("preset", PRESETS)
def test_without_update_nothing_changes_but_predictions_are_the_same(make_graph, preset):
    world = gaussian_world(6, 9, num_batches=20, batch_sizes=(4,), seed=10)
    moved = 2.0 * np.random.default_rng(3).normal(size=6)
    # What a batch taught revises its own prediction, where frames may be independent.
    config = replace(PRESETS[preset], independence_test=False)
    graph = make_graph(world.prototypes, config, asymmetry=ASYMMETRY, update_every=3)
    strengths = []
    for features, logits, _ in world.batches:
        z, raw = narrow(features, logits + moved)
        kept = {name: array.tobytes() for name, array in graph.state.items()}
        frozen = graph.step(update=False, features=z, logits=raw)
        assert {name: array.tobytes() for name, array in graph.state.items()} == kept
        learning = graph.step(features=z, logits=raw)
        for name in ("probs", "strength", "gain"):
            assert_array_equal(frozen[name], learning[name])
        strengths.append(learning["strength"])
    assert_corrected(strengths, share=0.5)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_state_of_zeros_gives_the_source_to_the_last_bit(make_graph, preset):
    world = gaussian_world(6, 9, num_batches=1, seed=11)
    features, logits, _ = world.batches[0]
    result = make_graph(world.prototypes, PRESETS[preset]).step(
        features=features.astype(np.float32), logits=logits.astype(np.float32)
    )
    assert_array_equal(result["probs"], result["source_probs"])
    assert_array_equal(result["strength"], 0.0)
    assert_array_equal(result["gain"], 0.0)


@pytest.mark.parametrize("feature_dim", [6, 24], ids=["no-room", "room"])
@pytest.mark.parametrize("update_every", [1, 16])
def test_few_ways_lead_through_arithmetic_alone(make_graph, update_every, feature_dim):
    """TensorRT for RTX 1.7 follows every one; where halvings multiply them a build never ends."""
    weight = np.eye(4, feature_dim)
    graph = make_graph(weight, PRESETS["tracked"], update_every=update_every)
    model = onnx.load(graph.path)
    revise = next(item.g for item in model.graph.node[-1].attribute if item.name == "then_branch")
    arithmetic = {"Add", "Sub", "Mul", "Div", "Where", "Greater", "GreaterOrEqual", "And", "Not"}
    for nodes in (model.graph.node, revise.node):
        ways: dict[str, int] = {}
        for node in nodes:
            reads = sum(ways.get(name, 1) for name in node.input)
            ways |= dict.fromkeys(node.output, reads if node.op_type in arithmetic else 1)
        assert 1 < max(ways.values()) < 50
