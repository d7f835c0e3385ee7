"""Algorithm 1: what it has always predicted, and the slow float64 code over whole streams."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gain_oracle import Oracle, OracleStep
from gaussian_world import World, gaussian_world
from numpy.testing import assert_allclose
from taught_gain import make_gain

from gain_core import PRESETS, Gain, PaperConfig, Prediction

PAPER, PAPER_L2 = PRESETS["paper"], PRESETS["paper-l2"]
# The presets, and every setting moved to where it matters.
CONFIGS = {
    "paper": PAPER,
    "paper-l2": PAPER_L2,
    "light-prior": replace(PAPER, prior_strength=0.3),
    "l2-light-prior": replace(PAPER_L2, prior_strength=0.03),
    "high-probability-floor": replace(PAPER, prob_floor=1e-2),
    "high-variance-floor": replace(PAPER_L2, variance_floor=0.1),
}
WORLDS = {
    "K2-D1": {"num_classes": 2, "feature_dim": 1, "batch_sizes": (8,)},
    "K5-D3-uneven": {"num_classes": 5, "feature_dim": 3, "batch_sizes": (1, 16, 7, 2)},
    "K40-D64": {"num_classes": 40, "feature_dim": 64, "batch_sizes": (16,)},
}
# Of probabilities, and relative to 1 + the largest entry for all else. float32 feeds its rounding
# back through the statistics; led by the oracle's predictions it has its own rounding only.
TOLERANCE = {np.float64: 1e-8, np.float32: 1e-4}
LED = 2e-5


def made(head: np.ndarray, config: PaperConfig, dtype: type) -> Gain:
    return Gain(head.astype(dtype), config, update_every=1, warmup_frames=1)


@pytest.mark.parametrize("name", ["paper", "paper-l2"])
def test_the_paper_is_what_it_was(name):
    """Against a record of 2025, made with bisection."""
    with np.load(Path(__file__).with_name("paper_record.npz")) as file:
        record = dict(file)
    gain = make_gain(record["prototypes"].astype(np.float64), name)
    partial = 0
    for index in range(len(record["features"])):
        z, logits = (record[part][index].astype(np.float64) for part in ("features", "logits"))
        result = gain.step(z, logits)
        assert_allclose(result.probs, record[name][index], rtol=0, atol=1e-6)
        strength = record[f"{name}, strength"][index]
        # Where the correction moves nothing, J is flat and any strength as good.
        matters = np.max(np.abs(result.probs - np.exp(result.source_log_probs)), axis=1) > 1e-3
        assert_allclose(result.strength[matters], strength[matters], rtol=0, atol=1e-5)
        partial += np.sum(matters & (strength > 0) & (strength < 1))
    assert partial > 10


def assert_step_matches(
    result: Prediction, expected: OracleStep, tolerance: float, *, floor: float
) -> None:
    """Every field; the strength as far as it moves the prediction.

    Where xi is rounding alone, strength 0 (the source) and 1 (its floored copy) are both right.
    """
    telling = np.max(np.abs(expected.evidence), axis=1) > 10 * tolerance
    slack = tolerance + np.where(telling, 0.0, len(expected.probs[0]) * floor)[:, None]
    assert np.all(np.abs(result.probs - expected.probs) <= slack)
    if result.probs.dtype == np.float64:  # the strength of a peaked row is worth 1e-3 of a log
        assert_scaled(result.log_probs[telling], expected.log_probs[telling], 10 * tolerance)
    assert_scaled(result.source_log_probs, expected.source_log_probs, tolerance)
    assert_scaled(result.gain, expected.gain, tolerance)
    mean = np.sum(expected.probs * expected.evidence, axis=1, keepdims=True)
    curvature = np.sum(expected.probs * (expected.evidence - mean) ** 2, axis=1)
    off = np.abs(result.strength - expected.strength) * np.minimum(curvature, 1.0)
    assert np.max(off) <= 10 * tolerance
    assert bool(result.finite)


def assert_scaled(result: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Equal to `tolerance` times one plus the largest magnitude."""
    peak = 1.0 + np.max(np.abs(expected), initial=0.0)
    assert_allclose(result / peak, expected / peak, rtol=0, atol=tolerance)


def assert_state_matches(gain: Gain, oracle: Oracle, tolerance: float) -> None:
    """What was summed, and what predictions read of it."""
    state = gain.state
    origin = state.origin.astype(np.float64)
    moment = oracle.U - oracle.n[:, None] * origin
    expected = {
        "support": (state.support, oracle.n),
        "predicted_mass": (state.predicted_mass, oracle.n_hat),
        "squared_support": (state.squared_support, oracle.Q),
        "first_moment": (state.first_moment, moment),
        "centers": (state.centers + state.offset, oracle.m),
        "variance": (state.variance, oracle.v),
        "precision": (state.precision, oracle.config.prior_strength + oracle.n),
        "log_prior": (state.log_prior, oracle.log_pi),
    }
    for result, wanted in expected.values():
        assert_scaled(result, wanted, tolerance)


def run_against_oracle(
    world: World, config: PaperConfig, *, dtype: type, led: bool = False
) -> np.ndarray:
    """Stream a world through both; `led` gives each update the oracle's prediction."""
    gain, oracle = made(world.prototypes, config, dtype), Oracle(world.prototypes, config)
    tolerance, strengths = LED if led else TOLERANCE[dtype], []
    for features, logits, _ in world.batches:
        z = features.astype(dtype)
        result = gain.predict(z, logits.astype(dtype))
        assert result.probs.dtype == dtype
        expected = oracle.step(features, logits)
        assert_step_matches(result, expected, tolerance, floor=config.prob_floor)
        strengths.append(expected.strength)
        if led:
            names = ("probs", "log_probs", "source_log_probs")
            result = replace(
                result, **{name: getattr(expected, name).astype(dtype) for name in names}
            )
        gain.update(z, result)
        assert_state_matches(gain, oracle, tolerance)
    return np.concatenate(strengths[1:])


def in_turn(first, second):
    """Every pair in one of the two types in turn, and in the other if slow is asked for."""
    return [
        pytest.param(
            one,
            two,
            dtype,
            id="-".join(filter(None, (a, b, dtype.__name__))),
            marks=() if (row + column + index) % 2 == 0 else pytest.mark.slow,
        )
        for row, (a, one) in enumerate(first.items())
        for column, (b, two) in enumerate(second.items())
        for index, dtype in enumerate((np.float64, np.float32))
    ]


@pytest.mark.parametrize(
    ("config", "world", "dtype"), in_turn({"paper": PAPER, "paper-l2": PAPER_L2}, WORLDS)
)
def test_a_stream_of_every_size(config, world, dtype):
    run_against_oracle(gaussian_world(**world, num_batches=24, seed=1), config, dtype=dtype)


@pytest.mark.parametrize(("config", "_", "dtype"), in_turn(CONFIGS, {"": None}))
def test_a_stream_under_every_setting(config, _, dtype):
    world = gaussian_world(7, 10, num_batches=24, batch_sizes=(16, 3, 9), seed=2)
    run_against_oracle(world, config, dtype=dtype, led=dtype == np.float32)


def test_a_stream_whose_evaluator_says_no_some_and_all():
    world = gaussian_world(60, 30, num_batches=15, batch_sizes=(8,), seed=1)
    strength = run_against_oracle(world, CONFIGS["light-prior"], dtype=np.float64)
    none, full = np.sum(strength == 0.0), np.sum(strength == 1.0)
    assert min(none, full, len(strength) - none - full) >= 5


def test_float32_holds_far_from_the_origin():
    """|z|^2 / v is about 1e6 here: expanding the square without an offset loses every digit."""
    world = gaussian_world(12, 20, num_batches=20, offset=200.0, seed=4)
    run_against_oracle(world, PAPER, dtype=np.float32, led=True)
