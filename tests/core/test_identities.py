"""The equalities that hold whatever the data: of the evidence path, the gain and the sums."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from gaussian_world import World, gaussian_world
from numpy.testing import assert_allclose, assert_array_equal
from plain_sums import plain_sums
from taught_gain import assert_bitwise, every_array, learned

from gain_core import (
    ArrayError,
    GainConfig,
    GainState,
    Prediction,
    ShiftState,
    evidence_path,
    expected_gain,
    init_state,
    merge_states,
    posteriors,
    predict,
    slope,
    solve_strength,
    update,
)
from gain_core.statistics import Statistics

NAMES = ("tracked", "balanced", "paper", "paper-l2")
PRESETS = [pytest.param(GainConfig.preset(name), id=name) for name in NAMES]
GAUSSIANS = PRESETS[1:]


def random_log_probs(rng: np.random.Generator, *, rows: int, spread: float) -> np.ndarray:
    """Rows of log-probabilities over 7 classes, peaked the more the larger `spread` is."""
    scores = spread * rng.normal(size=(rows, 7))
    return scores - np.log(np.sum(np.exp(scores), axis=1, keepdims=True))


@pytest.fixture(params=[0.3, 2.0, 6.0], ids=["close", "apart", "peaked"])
def triple(request):
    """log s, log q_hat, log q_bar of 300 samples."""
    rng = np.random.default_rng(11)
    return tuple(random_log_probs(rng, rows=300, spread=request.param) for _ in range(3))


def kl(log_p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    """KL(p || q) of each row, in nats."""
    return np.sum(np.exp(log_p) * (log_p - log_q), axis=1)


def improvement(log_s: np.ndarray, xi: np.ndarray, log_bar: np.ndarray, strength) -> np.ndarray:
    """J(lambda) = KL(q_bar || s) - KL(q_bar || p(lambda)), by its definition."""
    strength = np.broadcast_to(np.asarray(strength, dtype=float), log_s.shape[:1])
    return kl(log_bar, log_s) - kl(log_bar, evidence_path(log_s, xi, strength))


def solved(log_s: np.ndarray, xi: np.ndarray, log_bar: np.ndarray, num_iters: int = 60):
    """G and lambda*."""
    gain = expected_gain(log_bar, xi)
    return gain, solve_strength(log_s, xi, gain=gain, num_iters=num_iters)


def test_path_starts_at_the_source_and_ends_at_the_proposal(triple):
    log_s, log_hat, _ = triple
    xi = log_hat - log_s
    assert_allclose(evidence_path(log_s, xi, np.zeros(300)), log_s, atol=1e-12)
    assert_allclose(evidence_path(log_s, xi, np.ones(300)), log_hat, atol=1e-12)


def test_path_is_normalised_in_between(triple):
    log_s, log_hat, _ = triple
    path = evidence_path(log_s, log_hat - log_s, np.linspace(0, 1, 300))
    assert_allclose(np.sum(np.exp(path), axis=1), 1.0, rtol=1e-12)


def test_gain_is_a_difference_of_divergences(triple):
    log_s, log_hat, log_bar = triple
    gain = expected_gain(log_bar, log_hat - log_s)
    assert_allclose(gain, kl(log_bar, log_s) - kl(log_bar, log_hat), atol=1e-11)


def test_gain_is_the_improvement_of_the_full_correction(triple):
    log_s, log_hat, log_bar = triple
    xi = log_hat - log_s
    assert_allclose(improvement(log_s, xi, log_bar, 1.0), expected_gain(log_bar, xi), atol=1e-11)


def test_slope_at_the_ends(triple):
    log_s, log_hat, log_bar = triple
    xi = log_hat - log_s
    gain = expected_gain(log_bar, xi)
    at_zero = slope(log_s, xi, gain=gain, strength=np.zeros(300))
    at_one = slope(log_s, xi, gain=gain, strength=np.ones(300))
    assert_allclose(at_zero, gain + kl(log_s, log_hat), atol=1e-11)
    assert_allclose(at_one, gain - kl(log_hat, log_s), atol=1e-11)


def test_slope_is_the_derivative_of_the_improvement(triple):
    log_s, log_hat, log_bar = triple
    xi = log_hat - log_s
    gain = expected_gain(log_bar, xi)
    for middle in (0.1, 0.5, 0.9):
        rise = improvement(log_s, xi, log_bar, middle + 1e-5)
        fall = improvement(log_s, xi, log_bar, middle - 1e-5)
        expected = slope(log_s, xi, gain=gain, strength=np.full(300, middle))
        assert_allclose((rise - fall) / 2e-5, expected, atol=1e-5)


def test_improvement_is_concave(triple):
    log_s, log_hat, log_bar = triple
    xi = log_hat - log_s
    values = np.stack([improvement(log_s, xi, log_bar, at) for at in np.linspace(0, 1, 41)])
    second = values[2:] - 2 * values[1:-1] + values[:-2]
    assert np.all(second <= 1e-12)
    assert np.min(second) < -1e-5  # and not merely flat


def test_chosen_strength_is_at_least_as_good_as_both_ends_and_a_grid(triple):
    log_s, log_hat, log_bar = triple
    xi = log_hat - log_s
    gain, strength = solved(log_s, xi, log_bar)
    best = improvement(log_s, xi, log_bar, strength)
    assert np.all(best >= np.maximum(0.0, gain) - 1e-12)
    for at in np.linspace(0, 1, 21):
        assert np.all(best >= improvement(log_s, xi, log_bar, at) - 1e-12)
    kinds = [np.sum(strength == 0.0), np.sum(strength == 1.0)]
    assert min(*kinds, 300 - sum(kinds)) > 10  # all three cases of eq:app_optimal_lambda


def test_self_evaluation_applies_the_whole_correction(triple):
    log_s, log_hat, _ = triple
    xi = log_hat - log_s
    gain, strength = solved(log_s, xi, log_hat)
    assert np.all(gain > 0)
    # J'(1) is 0 exactly here, up to rounding of either sign.
    assert_allclose(strength, 1.0, rtol=0, atol=1e-9)
    assert_allclose(evidence_path(log_s, xi, strength), log_hat, rtol=0, atol=1e-8)


def test_an_evaluator_that_agrees_with_the_source_applies_none(triple):
    log_s, log_hat, _ = triple
    xi = log_hat - log_s
    gain, strength = solved(log_s, xi, log_s)
    assert np.all(gain < 0)
    # J'(0) is 0 exactly here, up to rounding of either sign.
    assert_allclose(improvement(log_s, xi, log_s, strength), 0.0, atol=1e-12)
    assert_allclose(strength, 0.0, atol=1e-7)


def test_no_evidence_means_no_intervention(triple):
    log_s, _, log_bar = triple
    gain, strength = solved(log_s, np.zeros_like(log_s), log_bar)
    assert_array_equal(gain, 0.0)
    assert_array_equal(strength, 0.0)


def test_an_evaluator_on_the_path_is_found():
    """q_bar = p(lambda) has its optimum at that lambda."""
    rng = np.random.default_rng(12)
    log_s = random_log_probs(rng, rows=200, spread=2.0)
    xi = random_log_probs(rng, rows=200, spread=2.0) - log_s
    wanted = rng.uniform(0.01, 0.99, size=200)
    _, strength = solved(log_s, xi, evidence_path(log_s, xi, wanted))
    assert_allclose(strength, wanted, atol=1e-10)


# --- of a whole stream ---


def run(
    world: World, config: GainConfig, *, rows=slice(None)
) -> tuple[list[Prediction], GainState]:
    """Stream the world's batches, their rows reordered by `rows`."""
    state, results = init_state(world.prototypes, config), []
    for features, logits, _ in world.batches:
        z, scores = features[rows], logits[rows]
        results.append(predict(z, scores, state, config=config))
        state = update(z, results[-1], state, prototypes=world.prototypes, config=config)
    return results, state


# What depends on the order of the frames within a batch.
ORDERED = ("sums.step_power", "last.logits")


def assert_states_equal(
    left: GainState, right: GainState, *, atol: float = 1e-9, but: tuple[str, ...] = ()
) -> None:
    """Every array but some, relative to one plus its largest magnitude."""
    result = every_array(left)
    for name, wanted in every_array(right).items():
        if name in but:
            continue
        scale = 1.0 + np.max(np.abs(wanted))
        assert_allclose(result[name] / scale, wanted / scale, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("config", PRESETS)
def test_permuting_classes_permutes_outputs(config):
    world = gaussian_world(9, 6, num_batches=12, seed=21)
    order = np.random.default_rng(22).permutation(9)
    moved = World(
        world.prototypes[order],
        tuple((z, logits[:, order], labels) for z, logits, labels in world.batches),
    )
    results, state = run(world, config)
    permuted, moved_state = run(moved, config)
    for left, right in zip(results, permuted, strict=True):
        assert_allclose(right.probs, left.probs[:, order], rtol=0, atol=1e-6)
        assert_allclose(right.strength, left.strength, rtol=0, atol=1e-6)
        assert_allclose(right.gain, left.gain, rtol=1e-6, atol=1e-6)
    assert_allclose(learned(moved_state), learned(state)[order], rtol=0, atol=1e-6)
    if isinstance(state, ShiftState):
        assert_allclose(moved_state.shift.stretch, state.shift.stretch[order], rtol=0, atol=1e-6)
    mass, moved_mass = (
        s.sums.window_mass if isinstance(s, ShiftState) else s.statistics.support[None]
        for s in (state, moved_state)
    )
    assert_allclose(moved_mass, mass[:, order], rtol=0, atol=1e-6)


@pytest.mark.parametrize("config", PRESETS)
def test_permuting_a_batch_permutes_its_rows_and_leaves_the_state(config):
    """But for the steps from frame to frame, which the shift does not ask for here."""
    config = replace(config, independence_test=False)
    world = gaussian_world(9, 6, num_batches=12, seed=23)
    order = np.random.default_rng(24).permutation(16)
    results, state = run(world, config)
    permuted, moved_state = run(world, config, rows=order)
    for left, right in zip(results, permuted, strict=True):
        assert_allclose(right.probs, left.probs[order], rtol=0, atol=1e-6)
        assert_allclose(right.strength, left.strength[order], rtol=0, atol=1e-6)
    assert_states_equal(moved_state, state, atol=1e-6, but=ORDERED)


@pytest.mark.parametrize("config", PRESETS)
def test_a_rows_prediction_does_not_depend_on_its_batch(config):
    world = gaussian_world(9, 6, num_batches=6, seed=25)
    _, state = run(world, config)
    features, logits, _ = world.batches[-1]
    together = predict(features, logits, state, config=config)
    for row in range(len(features)):
        alone = predict(features[row : row + 1], logits[row : row + 1], state, config=config)
        assert_allclose(alone.probs[0], together.probs[row], rtol=0, atol=1e-9)
        assert_allclose(alone.strength[0], together.strength[row], rtol=0, atol=1e-6)


def halves(config: GainConfig, seed: int = 31):
    """A world, its predictions under a state that learns, and both halves of the stream."""
    world = gaussian_world(8, 5, num_batches=14, batch_sizes=(16, 5), seed=seed)
    results, _ = run(world, config)
    pairs = [(batch[0], result) for batch, result in zip(world.batches, results, strict=True)]
    return world.prototypes, pairs[:6], pairs[6:]


def learn(pairs, prototypes, config, state=None) -> GainState:
    """Feed given predictions, so that the responsibilities are the same however they are split."""
    state = state or init_state(prototypes, config)
    for features, prediction in pairs:
        state = update(features, prediction, state, prototypes=prototypes, config=config)
    return state


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(GainConfig.preset("paper"), id="paper"),
        pytest.param(GainConfig.preset("paper-l2"), id="paper-l2"),
        pytest.param(
            GainConfig(half_life=math.inf, scale_half_life=math.inf, guard=False),
            id="endless-shift",
        ),
    ],
)
def test_states_of_disjoint_streams_merge_to_that_of_their_union(config):
    prototypes, first, second = halves(config)
    left, right = learn(first, prototypes, config), learn(second, prototypes, config)
    merged = merge_states(left, right, prototypes=prototypes, config=config)
    union = learn(first + second, prototypes, config)
    if isinstance(merged, ShiftState):
        # The scale is regressed about the shift of the time, and the asymmetry taken about the
        # mean of the time, which a second device both started anew.
        for name in ("window_count", "window_logits", "window_powers", "window_mass"):
            assert_allclose(getattr(merged.sums, name), getattr(union.sums, name), atol=1e-9)
        return
    assert_states_equal(merged, union)


def test_shift_sums_merge_by_addition_under_forgetting_too():
    config = GainConfig.preset("tracked")
    prototypes, first, second = halves(config)
    left, right = learn(first, prototypes, config), learn(second, prototypes, config)
    merged = every_array(merge_states(left, right, prototypes=prototypes, config=config))
    one, two = every_array(left), every_array(right)
    for name in [name for name in merged if name.startswith("sums.")]:
        assert_allclose(merged[name], one[name] + two[name], rtol=0, atol=1e-12, err_msg=name)
    for name in ("guard.count", "guard.agreement", "guard.confidence", "guard.trips"):
        assert_allclose(merged[name], one[name] + two[name], rtol=0, atol=1e-12, err_msg=name)


def test_of_two_holds_the_longer_stays():
    config = GainConfig.preset("tracked")
    prototypes, first, second = halves(config)
    left, right = learn(first, prototypes, config), learn(second, prototypes, config)
    left, right = (
        replace(state, guard=replace(state.guard, hold=np.asarray(hold), trips=np.asarray(1.0)))
        for state, hold in ((left, 30.0), (right, 200.0))
    )
    guard = merge_states(left, right, prototypes=prototypes, config=config).guard
    assert (guard.hold, guard.trips) == (200.0, 2.0)


def test_sums_merge_by_addition_under_forgetting_too():
    config = GainConfig.preset("balanced")
    prototypes, first, second = halves(config)
    left, right = learn(first, prototypes, config), learn(second, prototypes, config)
    merged = plain_sums(merge_states(left, right, prototypes=prototypes, config=config))
    one, two = plain_sums(left), plain_sums(right)
    assert {"origin", *merged} == {item.name for item in fields(Statistics)}
    for name, value in merged.items():
        assert_allclose(value, one[name] + two[name], rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("config", PRESETS)
def test_merging_commutes_up_to_the_origin(config):
    prototypes, first, second = halves(config)
    left, right = learn(first, prototypes, config), learn(second, prototypes, config)
    one = merge_states(left, right, prototypes=prototypes, config=config)
    two = merge_states(right, left, prototypes=prototypes, config=config)
    assert_allclose(learned(one), learned(two), rtol=0, atol=1e-9)
    if isinstance(one, ShiftState):
        assert_states_equal(one, two)
    else:
        assert_allclose(one.geometry.variance, two.geometry.variance, rtol=1e-9)
    features, logits, _ = gaussian_world(8, 5, num_batches=1, seed=32).batches[0]
    left, right = (predict(features, logits, state, config=config) for state in (one, two))
    assert_allclose(left.probs, right.probs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("config", PRESETS)
def test_merging_with_a_fresh_state_changes_nothing(config):
    """But that the next frame follows none: another device's may have come in between."""
    prototypes, first, _ = halves(config)
    state, fresh = learn(first, prototypes, config), init_state(prototypes, config)
    for merged in (
        merge_states(state, fresh, prototypes=prototypes, config=config),
        merge_states(fresh, state, prototypes=prototypes, config=config),
    ):
        assert_states_equal(merged, state, but=("last.logits", "last.known"))
        if isinstance(merged, ShiftState):
            assert_array_equal(merged.last.logits, 0.0)
            assert (merged.last.known, state.last.known) == (0.0, 1.0)


@pytest.mark.parametrize("config", PRESETS)
def test_two_fresh_states_merge_to_a_fresh_state(config):
    prototypes, _, _ = halves(config)
    fresh = init_state(prototypes, config)
    merged = merge_states(fresh, fresh, prototypes=prototypes, config=config)
    assert_states_equal(merged, fresh, atol=0)
    features, logits, _ = gaussian_world(8, 5, num_batches=1, seed=33).batches[0]
    result = predict(features, logits, merged, config=config)
    assert_array_equal(result.probs, np.exp(result.source_log_probs))


@pytest.mark.parametrize("config", PRESETS)
def test_merging_leaves_its_inputs_alone(config):
    prototypes, first, second = halves(config)
    left, right = learn(first, prototypes, config), learn(second, prototypes, config)
    before = [every_array(state) for state in (left, right)]
    merge_states(left, right, prototypes=prototypes, config=config)
    for state, kept in zip((left, right), before, strict=True):
        assert_bitwise(every_array(state), kept)


def test_states_of_different_heads_do_not_merge():
    config = GainConfig.preset("paper")
    one, two = (init_state(np.ones((3, dim)), config) for dim in (4, 5))
    with pytest.raises(ArrayError, match=r"second state: expected \(K, D\) = \(3, 4\)"):
        merge_states(one, two, prototypes=np.ones((3, 4)), config=config)
    config = GainConfig.preset("tracked")
    one, two = (init_state(np.ones((num_classes, 4)), config) for num_classes in (3, 5))
    with pytest.raises(
        ArrayError, match=r"second state: expected ShiftState of 3 classes, .* of 5"
    ):
        merge_states(one, two, prototypes=np.ones((3, 4)), config=config)


def test_states_of_different_kinds_do_not_merge():
    shift, gaussian = (
        init_state(np.ones((3, 4)), GainConfig.preset(name)) for name in ("tracked", "balanced")
    )
    with pytest.raises(ArrayError, match=r"first state: expected ShiftState .*GaussianState"):
        merge_states(gaussian, shift, prototypes=np.ones((3, 4)), config=GainConfig())
    with pytest.raises(ArrayError, match=r"second state: expected GaussianState .*ShiftState"):
        merge_states(
            gaussian, shift, prototypes=np.ones((3, 4)), config=GainConfig.preset("balanced")
        )


@pytest.mark.parametrize("config", GAUSSIANS)
def test_with_no_class_evidence_the_proposal_is_the_recentred_head(config):
    """Under `temper = head` the proposal keeps the source's logit scale (sketch, line 5)."""
    if config.temper != "head":
        config = replace(config, temper="head", anchor="balanced", variance="isotropic")
    rng = np.random.default_rng(35)
    prototypes = rng.normal(size=(6, 40))
    state = init_state(prototypes, replace(config, prior_strength=1e9))
    config = replace(config, prior_strength=1e9)
    features = rng.normal(size=(64, 40)) + 5.0
    for _ in range(2):
        result = predict(features, features @ prototypes.T, state, config=config)
        state = update(features, result, state, prototypes=prototypes, config=config)
    rows, head = features, prototypes
    if config.normalise:
        rows = features / np.linalg.norm(features, axis=1, keepdims=True)
        head = prototypes / np.linalg.norm(prototypes, axis=1, keepdims=True)
    log_proposal, _ = posteriors(features, features @ prototypes.T, state, config=config)
    shift = state.centers[0] - state.geometry.scale * head[0]
    scores = (rows - shift) @ head.T - 0.5 * state.geometry.scale * np.sum(head**2, axis=1)
    expected = scores - np.max(scores, axis=1, keepdims=True)
    expected = expected - np.log(np.sum(np.exp(expected), axis=1, keepdims=True))
    assert_allclose(log_proposal, expected, rtol=0, atol=1e-5)
