"""What holds for every input, drawn by hypothesis, and how frames may be cut into batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gain_oracle import Oracle, OracleStep
from gaussian_world import World, gaussian_world
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.testing import assert_allclose, assert_array_equal
from plain_sums import plain_sums
from taught_gain import every_array, learned

from gain_core import (
    ConfigError,
    Gain,
    GainConfig,
    GainState,
    ShiftState,
    evidence_path,
    expected_gain,
    predict,
    slope,
    solve_strength,
    state_from_arrays,
    state_to_arrays,
)

NAMES = ("tracked", "balanced", "paper", "paper-l2")
PRESETS = [pytest.param(GainConfig.preset(name), id=name) for name in NAMES]
GAUSSIANS = PRESETS[1:]

QUICK = settings(max_examples=60, deadline=None, derandomize=True)


def matrices(rows: int, columns: int, bound: float) -> st.SearchStrategy[np.ndarray]:
    """Finite float64 matrices within +-bound."""
    return npst.arrays(np.float64, (rows, columns), elements=st.floats(-bound, bound, width=32))


def normalised(scores: np.ndarray) -> np.ndarray:
    """Log-softmax of each row."""
    shifted = scores - np.max(scores, axis=1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))


def taught(config: GainConfig, *, dtype: type = np.float64) -> Gain:
    """A Gain with some history, K = 6 and D = 4."""
    world = gaussian_world(6, 4, num_batches=5, seed=41)
    gain = Gain(world.prototypes.astype(dtype), config)
    for features, logits, _ in world.batches:
        gain.step(features.astype(dtype), logits.astype(dtype))
    return gain


TAUGHT = {name: taught(GainConfig.preset(name)) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
@QUICK
@given(features=matrices(3, 4, 100.0), logits=matrices(3, 6, 50.0))
def test_prediction_is_a_distribution_between_source_and_proposal(name, features, logits):
    if name == "paper-l2":
        features = features + 1.0 * (np.linalg.norm(features, axis=1, keepdims=True) < 1e-3)
    gain = TAUGHT[name]
    result = gain.predict(features, logits)
    assert_allclose(np.sum(result.probs, axis=1), 1.0, rtol=0, atol=1e-12)
    assert np.all(result.probs >= 0)
    assert np.all((result.strength >= 0) & (result.strength <= 1))
    assert np.all(np.isfinite(result.gain))
    assert_allclose(np.exp(result.log_probs), result.probs, rtol=0, atol=1e-15)
    assert_allclose(result.source_log_probs, normalised(logits), rtol=0, atol=1e-12)
    assert bool(result.finite)


@pytest.mark.parametrize("name", NAMES)
@QUICK
@given(features=matrices(4, 4, 10.0), logits=matrices(4, 6, 10.0))
def test_no_intervention_equals_the_source(name, features, logits):
    features = features + 1.0
    result = TAUGHT[name].predict(features, logits)
    left_alone = result.strength == 0.0
    assert_array_equal(result.log_probs[left_alone], result.source_log_probs[left_alone])


def test_some_rows_are_left_alone_some_corrected_in_part_some_in_full():
    """The property above is not empty: the evaluator says no, some and all."""
    world = gaussian_world(100, 30, batch_sizes=(8,), seed=1)
    gain = Gain(world.prototypes, replace(GainConfig.preset("paper"), prior_strength=0.3))
    strength = np.stack([gain.step(z, logits).strength for z, logits, _ in world.batches])[1:]
    full, none = np.sum(strength == 1), np.sum(strength == 0)
    assert min(full, none, strength.size - full - none) >= 10


@pytest.mark.parametrize("config", PRESETS)
@QUICK
@given(features=matrices(3, 4, 100.0), logits=matrices(3, 6, 1000.0))
def test_first_batch_is_the_softmax(config, features, logits):
    gain = Gain(np.eye(6, 4) + 0.5, config)
    result = gain.predict(features, logits)
    assert_allclose(result.log_probs, normalised(logits), rtol=1e-14, atol=1e-12)
    assert_array_equal(result.log_probs, result.source_log_probs)
    assert_array_equal(result.strength, 0.0)
    assert_array_equal(result.gain, 0.0)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    source=matrices(4, 5, 12.0),
    proposal=matrices(4, 5, 12.0),
    evaluator=matrices(4, 5, 12.0),
    num_iters=st.integers(5, 40),
)
def test_bisection_brackets_the_root(source, proposal, evaluator, num_iters):
    log_s, log_hat, log_bar = normalised(source), normalised(proposal), normalised(evaluator)
    xi = log_hat - log_s
    gain = expected_gain(log_bar, xi)
    strength = solve_strength(log_s, xi, gain=gain, num_iters=num_iters)
    assert np.all((strength >= 0) & (strength <= 1))
    half = 0.5 ** (num_iters + 1)
    noise = 1e-12 * (1.0 + np.max(np.abs(xi), axis=1))

    def at(lam):
        return slope(log_s, xi, gain=gain, strength=np.clip(lam, 0, 1))

    none, full = strength == 0.0, strength == 1.0
    inner = ~none & ~full
    assert np.all(at(np.zeros(4))[none] <= noise[none])
    assert np.all(at(np.ones(4))[full] >= -noise[full])
    # J' falls through zero within half a bracket of the answer, whose residual is then bounded
    # by the bracket times the largest curvature.
    assert np.all(at(strength - half)[inner] >= -noise[inner])
    assert np.all(at(strength + half)[inner] <= noise[inner])
    spread = (np.max(xi, axis=1) - np.min(xi, axis=1)) ** 2 / 4.0
    assert np.all(np.abs(at(strength))[inner] <= (half * spread + noise)[inner])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    source=matrices(4, 5, 12.0),
    proposal=matrices(4, 5, 12.0),
    evaluator=matrices(4, 5, 12.0),
)
def test_prediction_is_never_worse_than_either_end_to_the_evaluator(source, proposal, evaluator):
    log_s, log_hat, log_bar = normalised(source), normalised(proposal), normalised(evaluator)
    xi = log_hat - log_s
    gain = expected_gain(log_bar, xi)
    strength = solve_strength(log_s, xi, gain=gain, num_iters=50)
    improvement = np.sum(np.exp(log_bar) * (evidence_path(log_s, xi, strength) - log_s), axis=1)
    assert np.all(improvement >= np.maximum(0.0, gain) - 1e-10)


@pytest.mark.parametrize("name", NAMES)
@QUICK
@given(shift=st.floats(-1e3, 1e3), features=matrices(2, 4, 5.0), logits=matrices(2, 6, 20.0))
def test_a_constant_added_to_the_logits_changes_nothing(name, shift, features, logits):
    gain = TAUGHT[name]
    features = features + 0.3
    moved = gain.predict(features, logits + shift).probs
    assert_allclose(moved, gain.predict(features, logits).probs, rtol=0, atol=1e-6)


# --- batches and pending frames ---


def in_batches(world: World, sizes: list[int]):
    """The world's frames, cut anew."""
    features = np.concatenate([batch[0] for batch in world.batches])
    logits = np.concatenate([batch[1] for batch in world.batches])
    start = 0
    while start < len(features):
        for size in sizes:
            stop = min(start + size, len(features))
            if start < stop:
                yield features[start:stop], logits[start:stop]
            start = stop


def assert_states_close(left: Gain, right: Gain, *, atol: float) -> None:
    """The sums and what predictions read of them."""
    assert left.frames == right.frames
    wanted, result = (_comparable(gain.state) for gain in (right, left))
    for name, value in wanted.items():
        scale = 1.0 + np.max(np.abs(value))
        assert_allclose(result[name] / scale, value / scale, rtol=0, atol=atol, err_msg=name)


def _comparable(state: GainState) -> dict[str, np.ndarray]:
    """Arrays that do not depend on where the state keeps its origin."""
    if isinstance(state, ShiftState):
        return every_array(state)
    return plain_sums(state) | {"centers": state.centers, "variance": state.geometry.variance}


def first_probs(gain: Gain, features: np.ndarray, logits: np.ndarray, dtype: type) -> np.ndarray:
    """As they were predicted before the batch was learned from."""
    result = gain.predict(features.astype(dtype), logits.astype(dtype))
    gain.update(features.astype(dtype), result)
    return result.probs


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([1], id="frame-by-frame"),
        pytest.param([4], id="quarters"),
        pytest.param([1, 3, 12], id="uneven"),
        pytest.param([16], id="whole"),
    ],
)
@pytest.mark.parametrize("config", PRESETS)
def test_sixteen_pending_frames_teach_what_a_batch_of_sixteen_does(config, sizes, dtype):
    world = gaussian_world(7, 5, num_batches=10, seed=43)
    prototypes = world.prototypes.astype(dtype)
    whole, cut = Gain(prototypes, config), Gain(prototypes, config, update_every=16)
    expected = [first_probs(whole, z, logits, dtype) for z, logits, _ in world.batches]
    result = [first_probs(cut, z, logits, dtype) for z, logits in in_batches(world, sizes)]
    assert cut.frames == 160
    atol = 1e-6 if dtype == np.float64 else 1e-4
    assert_allclose(np.concatenate(result), np.concatenate(expected), rtol=0, atol=atol)
    assert_states_close(cut, whole, atol=atol)


@pytest.mark.parametrize(
    ("sizes", "update_every"),
    [
        pytest.param([10], 16, id="tens-into-sixteen"),
        pytest.param([5, 1, 20, 3], 16, id="mixed-into-sixteen"),
        pytest.param([7], 3, id="batches-above-the-period"),
        pytest.param([1, 2], 2, id="ones-and-twos"),
    ],
)
@pytest.mark.parametrize("config", GAUSSIANS)
def test_a_batch_that_straddles_is_learned_with_what_was_pending(config, sizes, update_every):
    """Once `update_every` frames are pending, all of them are learned as one batch."""
    config = replace(config, num_iters=60)
    world = gaussian_world(7, 5, num_batches=8, seed=44)
    gain = Gain(world.prototypes, config, update_every=update_every)
    oracle, waiting, learned = Oracle(world.prototypes, config), [], 0
    for features, logits in in_batches(world, sizes):
        result = gain.step(features, logits)
        expected = oracle.predict(features, logits)
        assert_allclose(result.probs, expected.probs, rtol=0, atol=1e-8)
        waiting.append((features, expected))
        count = sum(len(z) for z, _ in waiting)
        assert gain.frames == learned + (count if count >= update_every else 0)
        if count >= update_every:
            _learn_together(oracle, waiting)
            waiting, learned = [], learned + count
    arrays = state_to_arrays(gain.state)
    assert_allclose(arrays["support"], oracle.n, rtol=0, atol=1e-8)
    assert_allclose(gain.state.centers, oracle.m, rtol=0, atol=1e-8)


def _learn_together(oracle: Oracle, waiting: list[tuple[np.ndarray, OracleStep]]) -> None:
    """One update from several predicted batches."""
    features = np.concatenate([z for z, _ in waiting])
    probs = np.concatenate([step.probs for _, step in waiting])
    log_s = np.concatenate([step.source_log_probs for _, step in waiting])
    oracle.update(features, replace(waiting[0][1], probs=probs, source_log_probs=log_s))


@pytest.mark.parametrize("config", PRESETS)
def test_flush_learns_the_rest(config):
    world = gaussian_world(7, 5, num_batches=3, batch_sizes=(5,), seed=45)
    waiting, whole = (
        Gain(world.prototypes, config, update_every=1000),
        Gain(world.prototypes, config),
    )
    features, logits = next(in_batches(world, [15]))
    for row in range(15):
        waiting.step(features[row : row + 1], logits[row : row + 1])
    assert waiting.frames == 0
    waiting.flush()
    whole.step(features, logits)
    assert_states_close(waiting, whole, atol=1e-12)
    before = state_to_arrays(waiting.state)
    waiting.flush()
    for name, value in state_to_arrays(waiting.state).items():
        assert_array_equal(value, before[name], err_msg=name)


@pytest.mark.parametrize("config", PRESETS)
def test_many_pending_frames_teach_what_one_large_batch_does(config):
    """Longer than any buffer a pending batch may sit in."""
    rng = np.random.default_rng(46)
    prototypes = rng.normal(size=(5, 3))
    features, logits = rng.normal(size=(1500, 3)) + 1.0, 2.0 * rng.normal(size=(1500, 5))
    waiting, whole = Gain(prototypes, config, update_every=1500), Gain(prototypes, config)
    for gain in (waiting, whole):  # the second time against a state with history
        for _ in range(2):
            step = 50 if gain is waiting else 1500
            for start in range(0, 1500, step):
                gain.step(features[start : start + step], logits[start : start + step])
    assert_states_close(waiting, whole, atol=1e-6)


@pytest.mark.parametrize("config", PRESETS)
def test_saved_arrays_bring_the_state_back(config):
    gain = taught(config)
    arrays = state_to_arrays(gain.state)
    world = gaussian_world(6, 4, num_batches=5, seed=41)
    state = state_from_arrays(arrays, prototypes=world.prototypes, config=config)
    for name, value in state_to_arrays(state).items():
        assert_array_equal(value, arrays[name], err_msg=name)
    features, logits, _ = gaussian_world(6, 4, num_batches=1, seed=47).batches[0]
    expected = gain.predict(features, logits)
    result = predict(features, logits, state, config=config)
    assert_allclose(result.probs, expected.probs, rtol=0, atol=1e-12)
    again = Gain(world.prototypes, config)
    again.load_state(state, frames=gain.frames)
    again.step(features, logits)
    gain.step(features, logits)
    assert_states_close(again, gain, atol=1e-12)


@pytest.mark.parametrize("config", PRESETS)
def test_first_update_waits_for_the_warm_up(config: GainConfig) -> None:
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((5, 8))
    features = rng.standard_normal((40, 8)) + 1.0
    logits = features @ weight.T
    patient = Gain(weight, config, update_every=4, warmup_frames=10)
    for start in range(8):
        prediction = patient.step(features[start : start + 1], logits[start : start + 1])
        assert_array_equal(prediction.log_probs, prediction.source_log_probs)
        assert patient.frames == 0
    for start in range(8, 16):
        patient.step(features[start : start + 1], logits[start : start + 1])
    # Ten frames at once, then every four.
    assert (patient.frames, patient.pending_frames) == (14, 2)
    plain = Gain(weight, config)
    plain.step(features[:10], logits[:10])
    plain.step(features[10:14], logits[10:14])
    assert_allclose(learned(patient.state), learned(plain.state), rtol=1e-12)
    patient.reset()
    patient.step(features[:4], logits[:4])
    assert (patient.frames, patient.pending_frames) == (0, 4)


def test_warm_up_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="warmup_frames: expected at least 1 frame, got 0"):
        Gain(np.eye(3), warmup_frames=0)
