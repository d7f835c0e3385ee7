"""The tracked shift and its guard against the slow float64 one, over long streams.

float64 runs the bisection to 2^-61, so that only rounding is left: 1e-9. float32 is measured
free running and led, where every update takes the oracle's prediction.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from compared_steps import Tolerance, assert_scaled, assert_step_matches
from gaussian_world import World, gaussian_world
from numpy.testing import assert_allclose
from shift_oracle import DEVIATIONS, MEANS, ShiftOracle
from waiting_steps import WaitingOracle

from gain_core import (
    Gain,
    GainConfig,
    ShiftState,
    init_state,
    posteriors,
    predict,
    prepare_prototypes,
    update,
)

TRACKED = GainConfig(num_iters=60)
CONFIGS = {
    "tracked": TRACKED,
    "short-memory": replace(TRACKED, half_life=40.0),
    "endless": replace(TRACKED, half_life=math.inf),
    "endless-scale": replace(TRACKED, scale_half_life=math.inf),
    "short-scale": replace(TRACKED, scale_half_life=20.0),
    "no-shrinkage": replace(TRACKED, shrinkage=0.0),
    "high-shrinkage": replace(TRACKED, shrinkage=20.0, half_life=100.0),
    "no-label-draws": replace(TRACKED, label_draws=0.0),
    "many-label-draws": replace(TRACKED, label_draws=100.0),
    "unguarded": replace(TRACKED, guard=False),
    "prob-floor": replace(TRACKED, prob_floor=1e-3),
    "normalised": replace(TRACKED, normalise=True),
    "no-mixture-test": replace(TRACKED, mixture_test=False),
    "no-independence-test": replace(TRACKED, independence_test=False),
    "no-match-scale": replace(TRACKED, match_scale=False),
    "no-class-prior": replace(TRACKED, class_prior=False),
    "earlier-form": replace(TRACKED, mixture_test=False, match_scale=False),
}
IDS = [pytest.param(config, id=name) for name, config in CONFIGS.items()]
# These worlds' mixtures lean by about a tenth.
LEANS = (0.0, 0.2)
FLOAT64 = Tolerance(probs=1e-9, scores=1e-9, sums=1e-9)
FLOAT32 = Tolerance(probs=1e-4, scores=3e-4, sums=1e-4)
# Scores are of proposals fifteen nats from the source, where a strength is rounded that much.
FLOAT32_LED = Tolerance(probs=8e-5, scores=3e-4, sums=2e-5)


def hostile(world: World, *, seed: int = 7) -> World:
    """The same with an offset of the logits that jumps half-way, to labels the head gets wrong.

    The classes' deviations differ by more than their rows' lengths.
    """
    rng = np.random.default_rng(seed)
    num_classes = len(world.prototypes)
    offsets = rng.normal(size=(2, num_classes)) * 2.0
    widths = np.exp(0.6 * rng.normal(size=num_classes))
    batches = []
    for index, (features, logits, labels) in enumerate(world.batches):
        moved = widths * logits + offsets[2 * index // len(world.batches)]
        batches.append((features, _rounded(moved), labels))
    return World(world.prototypes, tuple(batches))


def _rounded(array: np.ndarray) -> np.ndarray:
    """The nearest float32 values, as float64."""
    return array.astype(np.float32).astype(np.float64)


def assert_close(result, expected, tolerance, name) -> None:
    """Equal to `tolerance` times one plus the largest magnitude."""
    peak = 1.0 + np.max(np.abs(expected), initial=0.0)
    assert_allclose(result / peak, expected / peak, rtol=0, atol=tolerance, err_msg=name)


def assert_state_matches(state: ShiftState, oracle: ShiftOracle, tolerance: float) -> None:
    """Every sum of every window, the shift made of them, and the guard."""
    for window in range(5):
        sums = oracle.window_sums(window)
        expected = {
            "window_count": sums.count,
            "window_logits": sums.x,
            "window_powers": sums.powers,
            "window_mass": sums.mass,
            "window_lean": sums.lean,
            "window_range": sums.range,
            "window_beside": sums.beside,
            "window_beside_power": sums.beside_power,
        }
        for name, wanted in expected.items():
            assert_close(getattr(state.sums, name)[window], wanted, tolerance, name)
    numerator, denominator = oracle.scale_sums()
    assert_close(state.sums.scale_numerator, numerator, tolerance, "scale_numerator")
    assert_close(state.sums.scale_denominator, denominator, tolerance, "scale_denominator")
    power, count = oracle.step_sums()
    assert_close(state.sums.step_power, power, tolerance, "step_power")
    assert_close(state.sums.step_count, count, tolerance, "step_count")
    assert_close(state.sums.newest_source, oracle.source_sums(), tolerance, "newest_source")
    # Where the move beside the head is small, the quotient of the two is as steep as it is large.
    assert_close(state.sums.departure, oracle.departure, 100.0 * tolerance, "departure")
    assert bool(state.last.known) == (oracle.last is not None)
    last = np.zeros(oracle.K) if oracle.last is None else oracle.last
    assert_close(state.last.logits, last, tolerance, "last frame")
    # The ramp is seven times as steep as the quotient.
    assert_close(state.shift.independence, oracle.iota, 10.0 * tolerance, "independence")
    assert_close(state.shift.vector, oracle.beta, tolerance, "vector")
    assert_close(state.shift.stretch, oracle.stretch, tolerance, "stretch")
    assert_close(state.shift.log_prior, oracle.log_prior, tolerance, "log_prior")
    assert_close(state.shift.variance, oracle.v, tolerance, "variance")
    assert_close(state.shift.trust, oracle.trust, tolerance, "trust")
    count, agreement, confidence = oracle.guard_sums()
    assert_close(state.guard.count, count, tolerance, "guard count")
    assert_close(state.guard.agreement, agreement, tolerance, "guard agreement")
    assert_close(state.guard.confidence, confidence, tolerance, "guard confidence")
    assert (state.guard.hold, state.guard.trips) == (oracle.hold, oracle.trips)


def run(
    world, config, *, dtype=np.float64, tolerance=FLOAT64, led=False, asymmetry=LEANS, bias=None
):
    """Stream a world through both; `led` gives each update the oracle's prediction."""
    prototypes = prepare_prototypes(
        world.prototypes.astype(dtype),
        config,
        asymmetry=asymmetry,
        bias=None if bias is None else bias.astype(dtype),
    )
    state = init_state(prototypes, config)
    oracle = ShiftOracle(world.prototypes, config, asymmetry=asymmetry, bias=bias)
    strengths = []
    for index, (features, logits, _) in enumerate(world.batches):
        z, raw = features.astype(dtype), logits.astype(dtype)
        result, expected = predict(z, raw, state, config=config), oracle.predict(logits, features)
        assert result.probs.dtype == dtype
        assert_step_matches(result, expected, tolerance, prob_floor=config.prob_floor)
        if led:
            names = ("probs", "log_probs", "source_log_probs")
            result = replace(result, **{n: getattr(expected, n).astype(dtype) for n in names})
        state = update(z, result, state, prototypes=prototypes, config=config)
        oracle.update(expected)
        if index % 5 == 0:
            assert_state_matches(state, oracle, tolerance.sums)
        strengths.append(expected.strength)
    assert_state_matches(state, oracle, tolerance.sums)
    return oracle, np.concatenate(strengths)


@pytest.mark.parametrize(
    ("num_classes", "batch_sizes"),
    [
        pytest.param(2, (8,), id="K2"),
        pytest.param(3, (8, 3), id="K3"),
        pytest.param(6, (1,), id="B1"),
        pytest.param(5, (1, 16, 7, 2), id="K5-uneven"),
        pytest.param(40, (16,), id="K40"),
    ],
)
def test_float64_is_the_oracle(num_classes, batch_sizes):
    world = gaussian_world(num_classes, 12, num_batches=60, batch_sizes=batch_sizes, seed=1)
    run(hostile(world), TRACKED)


@pytest.mark.parametrize("config", IDS)
def test_float64_is_the_oracle_whatever_the_config(config):
    world = hostile(gaussian_world(7, 10, num_batches=80, batch_sizes=(16, 3, 9), seed=2))
    oracle, strengths = run(world, config)
    if config.shrinkage < 20.0 and math.isfinite(config.half_life):
        assert np.any(strengths > 0.0), "no correction was ever applied"
        assert oracle.trust > 0.1
        stretched = np.max(np.abs(oracle.stretch - 1.0))
        assert stretched > 0.01 if config.match_scale else stretched == 0.0


@pytest.mark.parametrize("shrinkage", [1.25, 0.2])
def test_views_of_one_thing_are_one_draw(shrinkage):
    """Half-way the camera stops at one scene, whose frames differ by noise only."""
    rng = np.random.default_rng(6)
    world = gaussian_world(7, 10, num_batches=60, batch_sizes=(4,), seed=6)
    row = rng.normal(size=7)
    still = [
        (z, _rounded(row + 0.2 * rng.normal(size=logits.shape)), labels)
        for z, logits, labels in world.batches[30:]
    ]
    config = replace(TRACKED, half_life=40.0, shrinkage=shrinkage)
    run(World(world.prototypes, (*world.batches[:30], *still)), config)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_asymmetries_between_a_class_and_all(dtype):
    """Both ramps are climbed in part, down to a gap that is widened; each pair gives its own."""
    world = hostile(gaussian_world(7, 10, num_batches=60, batch_sizes=(16, 3), seed=8))
    tolerance = FLOAT64 if dtype == np.float64 else FLOAT32_LED
    settings = {"dtype": dtype, "tolerance": tolerance, "led": dtype == np.float32}
    plain, _ = run(world, TRACKED, **settings)
    here = plain.asymmetry(4)
    for pair in ((here - 0.15, here + 0.85), (here - 0.4, here + 0.6), (here - 0.007, here)):
        oracle, _ = run(world, TRACKED, asymmetry=pair, **settings)
        partly = [oracle.single_class(4, *ramp) for ramp in (MEANS, DEVIATIONS)]
        assert any(0.0 < share < 1.0 for share in partly)
        assert np.max(np.abs(oracle.beta - plain.beta)) > 1e-4


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_runs_of_one_class_between_mixtures(dtype):
    """Shorter memories hold one class while longer ones hold all."""
    rng = np.random.default_rng(10)
    batches = []
    for index in range(120):
        labels = rng.integers(0, 6, 8) if index // 20 % 2 == 0 else np.full(8, index // 40)
        logits = 4.0 * np.eye(6)[labels] + rng.normal(size=(8, 6)) + np.linspace(-1.5, 1.5, 6)
        batches.append((np.zeros((8, 3)), _rounded(logits), labels))
    config = replace(TRACKED, half_life=200.0)
    tolerance = FLOAT64 if dtype == np.float64 else FLOAT32_LED
    world = World(_rounded(rng.normal(size=(6, 9))), tuple(batches))
    oracle, _ = run(world, config, dtype=dtype, tolerance=tolerance, led=dtype == np.float32)
    assert oracle.asymmetry(0) < 0.05 < 0.1 < oracle.asymmetry(4)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_thresholds(dtype):
    """A head whose bias is Bayes' own owes its mean logits to it."""
    world = hostile(gaussian_world(7, 10, num_batches=60, batch_sizes=(16, 3), seed=3))
    tolerance = FLOAT64 if dtype == np.float64 else FLOAT32_LED
    squares = np.sum((world.prototypes - world.prototypes.mean(axis=0)) ** 2, axis=1)
    bias = _rounded(-0.4 * squares + 0.1 * np.sin(np.arange(7)))
    # More of it than the head's own, of which no more than that is left in place.
    batches = [(z, _rounded(logits + 1.5 * bias), labels) for z, logits, labels in world.batches]
    world = World(world.prototypes, tuple(batches))
    settings = {"dtype": dtype, "tolerance": tolerance, "led": dtype == np.float32}
    plain, _ = run(world, TRACKED, **settings)
    moved, _ = run(world, TRACKED, **settings, bias=bias)
    assert np.max(np.abs(moved.beta - plain.beta)) > 0.05
    # The opposite direction is none of Bayes' thresholds.
    other, _ = run(world, TRACKED, **settings, bias=-bias)
    assert_allclose(other.beta, plain.beta, rtol=0, atol=1e-12)


@pytest.mark.parametrize("config", IDS)
def test_float32_led_by_the_oracle(config):
    world = hostile(gaussian_world(7, 10, num_batches=60, batch_sizes=(16, 3, 9), seed=2))
    run(world, config, dtype=np.float32, tolerance=FLOAT32_LED, led=True)


def test_float32_running_free():
    world = hostile(gaussian_world(12, 20, num_batches=150, batch_sizes=(1, 16, 4), seed=4))
    run(world, TRACKED, dtype=np.float32, tolerance=FLOAT32)


@pytest.mark.parametrize("update_every", [1, 16])
@pytest.mark.parametrize("name", ["tracked", "short-memory", "endless"])
def test_gain_learns_when_and_what_the_oracle_does(name, update_every):
    """Batches that straddle the period are learned with what was pending."""
    world = hostile(gaussian_world(6, 8, num_batches=150, batch_sizes=(1, 3, 11, 2), seed=5))
    gain = Gain(world.prototypes, CONFIGS[name], update_every=update_every, asymmetry=LEANS)
    oracle = ShiftOracle(world.prototypes, CONFIGS[name], asymmetry=LEANS)
    told = WaitingOracle(oracle, update_every)
    revised = 0.0
    for features, logits, _ in world.batches:
        first = oracle.predict(logits)
        expected = told.step(logits, features)
        revised = max(revised, float(np.max(np.abs(expected.probs - first.probs))))
        assert_step_matches(gain.step(features, logits), expected, FLOAT64, prob_floor=0.0)
        assert gain.frames == oracle.learned
    assert_state_matches(gain.state, oracle, FLOAT64.sums)
    assert revised > 0.01


@pytest.mark.parametrize("update_every", [1, 16])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_stream_that_trips_the_guard_twice(dtype, update_every):
    """A run of one class, which this config takes for a shift."""
    world = runaway_world()
    gain = Gain(world.prototypes.astype(dtype), RUNAWAY, update_every=update_every)
    oracle = ShiftOracle(world.prototypes, RUNAWAY)
    told = WaitingOracle(oracle, update_every)
    tolerance = FLOAT64 if dtype == np.float64 else FLOAT32
    for features, logits, _ in world.batches:
        expected = told.step(logits, features)
        result = gain.step(features.astype(dtype), logits.astype(dtype))
        assert_step_matches(result, expected, tolerance, prob_floor=0.0)
        assert (gain.state.guard.hold, gain.state.guard.trips) == (oracle.hold, oracle.trips)
    assert_state_matches(gain.state, oracle, tolerance.sums)
    assert oracle.trips == 2


# Neither shrinkage nor the classes seen hold it back.
RUNAWAY = replace(TRACKED, shrinkage=0.0, label_draws=0.0, half_life=400.0)


def runaway_world() -> World:
    """One class of four for 1,200 frames, the source sure and right."""
    rng = np.random.default_rng(9)
    batches = []
    for size in (3, 1, 4) * 150:
        logits = 4.0 * np.eye(4)[np.zeros(size, dtype=int)] + 0.5 * rng.normal(size=(size, 4))
        batches.append((rng.normal(size=(size, 6)), _rounded(logits), np.zeros(size)))
    return World(np.eye(4, 6), tuple(batches))


def test_posteriors_are_the_oracles():
    config = replace(CONFIGS["no-shrinkage"], guard=False)
    world = hostile(gaussian_world(9, 6, num_batches=40, seed=5))
    gain = Gain(world.prototypes, config, asymmetry=LEANS)
    oracle = ShiftOracle(world.prototypes, config, asymmetry=LEANS)
    for features, logits, _ in world.batches[:39]:
        gain.step(features, logits)
        oracle.step(logits, features=features)
    features, logits, _ = world.batches[39]
    log_proposal, log_evaluator = posteriors(features, logits, gain.state, config=config)
    expected = oracle.predict(logits)
    assert_scaled(log_proposal, expected.log_proposal, 1e-9)
    assert_scaled(log_evaluator, expected.log_evaluator, 1e-9)
    assert np.max(np.abs(expected.evidence)) > 0.1


def test_every_field_of_the_shift_is_moved():
    gaussian = {
        "proposal",
        "prior_strength",
        "prior_samples",
        "anchor",
        "variance",
        "prior_variance",
        "variance_floor",
        "variance_floor_ratio",
        "temper",
        "num_iters",
    }
    still = {
        item.name
        for item in fields(GainConfig)
        if all(getattr(c, item.name) == getattr(TRACKED, item.name) for c in CONFIGS.values())
    }
    assert still == gaussian
