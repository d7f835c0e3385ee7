"""What the newest labels say of a mixture: one class after many, and many that look like one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from changing_world import ASYMMETRY, changing_world
from compared_steps import Tolerance, assert_step_matches
from numpy.testing import assert_allclose
from shift_oracle import ShiftOracle

from gain_core import Gain, GainConfig, Prediction, prepare_prototypes
from gain_core.departure import BESIDE_DIMS
from gain_core.shift import (
    FEW_SHARE,
    NEWEST_WINDOW,
    NUM_WINDOWS,
    ShiftSums,
    asymmetry_of,
    estimate_shift,
)

TRACKED = GainConfig()
K, D = 10, 16
COUNT = 400.0
FLOAT64 = Tolerance(probs=1e-9, scores=1e-9, sums=1e-9)
FLOAT32 = Tolerance(probs=1e-4, scores=1e-3, sums=1e-4)


def trust_of(
    *,
    inverse_draws: float,
    ways: tuple[float, ...],
    counted: float = 0.0,
    step: float = 1.0,
    departure: float = 0.0,
    config: GainConfig = TRACKED,
) -> float:
    """Of memories whose mean has moved far.

    `inverse_draws` is the newest labels' |q|^2 - 1/K, `ways` how far every memory's asymmetry is
    from one class to all, `step` von Neumann's ratio.
    """
    rng = np.random.default_rng(0)
    prototypes = prepare_prototypes(rng.normal(size=(K, D)), config, asymmetry=ASYMMETRY)
    count = np.full(NUM_WINDOWS, COUNT)
    mean = np.linspace(-1.0, 1.0, K)
    variance = 0.5
    share = np.full((NUM_WINDOWS, K), 1.0 / K)
    tilt = np.sqrt(inverse_draws / (K * (K - 1.0)))
    share[NEWEST_WINDOW] -= tilt
    share[NEWEST_WINDOW, 0] += K * tilt
    single, all_classes = ASYMMETRY
    asymmetry = single + np.asarray(ways) * (all_classes - single)
    sums = ShiftSums(
        window_count=count,
        window_logits=count[:, None] * np.tile(mean, (NUM_WINDOWS, 1)),
        window_powers=count[:, None] * np.tile(mean**2 + variance, (NUM_WINDOWS, 1)),
        window_mass=count[:, None] * share,
        window_lean=count * asymmetry,
        window_range=count,
        share_mass=np.full(K, counted / K),
        share_count=np.asarray(counted),
        window_beside=np.zeros((NUM_WINDOWS, BESIDE_DIMS)),
        window_beside_power=np.zeros(NUM_WINDOWS),
        newest_source=COUNT * share[NEWEST_WINDOW],
        departure=np.asarray(departure),
        mixed_asymmetry=np.asarray(0.0),
        step_power=np.asarray(COUNT * step * K * variance),
        step_count=np.asarray(COUNT),
        scale_numerator=np.asarray(0.0),
        scale_denominator=np.asarray(0.0),
    )
    return float(estimate_shift(sums, prototypes=prototypes, config=config).trust)


def shares_right(result: Prediction, labels: np.ndarray) -> list[float]:
    """Of a batch, the source's and the adapted answers."""
    answers = (result.source_log_probs, result.probs)
    return [float(np.mean(np.argmax(rows, axis=1) == labels)) for rows in answers]


EVEN = (0.0,) * NUM_WINDOWS
# A mixture until a while ago: the longest memory still shows it.
ONCE = (0.0, 0.0, 0.0, 0.0, 1.0)
BEGINS = 1.0 / COUNT + FEW_SHARE / K
ENDS = 2.0 * BEGINS


# --- one class after many ---


def test_few_classes_now_are_few_in_every_memory():
    assert trust_of(inverse_draws=ENDS, ways=ONCE) == 0.0
    # Without independence the longest memory is what says where the domain is.
    assert trust_of(inverse_draws=ENDS, ways=ONCE, step=0.3) > 0.9
    assert trust_of(inverse_draws=BEGINS, ways=ONCE) > 0.9


def test_few_classes_in_uneven_frames_are_a_mixture():
    """Under a domain that makes one class win, frames of many still stick out on one side."""
    assert trust_of(inverse_draws=ENDS, ways=(1.0,) * NUM_WINDOWS) > 0.9


def test_between_few_and_many_a_memory_counts_in_proportion():
    steps = np.linspace(BEGINS, ENDS, 7)
    found = [trust_of(inverse_draws=step, ways=ONCE) for step in steps]
    assert np.all(np.diff(found) <= 0.0)
    assert 0.0 < found[1] < found[0]


@pytest.mark.parametrize("seed", range(8))
def test_one_class_after_many_stays_with_the_source(seed):
    """Before, the shift that the mixture had taught went on to follow the one class."""
    world = changing_world(parts=(100, 150, 0), seed=seed)
    gain, right = Gain(world.prototypes, TRACKED, asymmetry=ASYMMETRY), []
    for index, (features, logits, labels) in enumerate(world.batches):
        result = gain.step(features, logits)
        if index == world.single.start:
            assert gain.state.shift.trust > 0.5
        right.append(shares_right(result, labels))
    source, adapted = np.mean(right[world.single], axis=0)
    assert adapted > source - 0.01
    assert gain.state.shift.trust < 0.02
    assert np.max(np.abs(gain.state.shift.vector)) < 0.05


def test_a_departure_empties_every_memory_of_the_mixture():
    """Whatever the labels and the scatter say."""
    known = {"inverse_draws": 0.01, "ways": (1.0,) * NUM_WINDOWS, "counted": TRACKED.half_life}
    assert trust_of(**known) > 0.9
    assert trust_of(**known, departure=1.0) == 0.0
    assert 0.0 < trust_of(**known, departure=0.3) < 0.9
    assert trust_of(**known, departure=1.0, step=0.3) > 0.9


# --- many that look like one ---


def test_many_classes_behind_even_frames_are_known_from_those_counted():
    assert trust_of(inverse_draws=0.01, ways=EVEN, counted=TRACKED.half_life) > 0.9
    # Where no mixture was ever seen, even frames are of one class.
    assert trust_of(inverse_draws=0.01, ways=EVEN) == 0.0
    assert trust_of(inverse_draws=0.01, ways=EVEN, counted=TRACKED.half_life, step=0.3) == 0.0
    assert trust_of(inverse_draws=ENDS, ways=EVEN, counted=TRACKED.half_life) == 0.0


def test_without_a_prior_no_class_is_counted():
    config = replace(TRACKED, class_prior=False)
    world = changing_world(parts=(60, 0, 0))
    gain = Gain(world.prototypes, config, asymmetry=ASYMMETRY)
    for features, logits, _ in world.batches:
        gain.step(features, logits)
    assert gain.state.shift.independence == 1.0
    assert gain.state.sums.share_count == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_a_mixture_that_a_corruption_hides_is_still_corrected(seed):
    world = changing_world(parts=(150, 0, 60), seed=seed)
    gain, right, even = Gain(world.prototypes, TRACKED, asymmetry=ASYMMETRY), [], []
    for features, logits, labels in world.batches:
        result = gain.step(features, logits)
        even.append(asymmetry_of(gain.state.sums)[NEWEST_WINDOW] / ASYMMETRY[1])
        right.append(shares_right(result, labels))
    # By its frames alone the domain would be taken for one class, as it is by half of them here.
    assert np.mean(even[world.hidden]) < 0.2
    assert gain.state.shift.trust > 0.98
    source, adapted = np.mean(right[world.hidden], axis=0)
    assert adapted > source + 0.02


# --- against the oracle ---


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        pytest.param(np.float64, FLOAT64, id="float64"),
        pytest.param(np.float32, FLOAT32, id="float32"),
    ],
)
@pytest.mark.parametrize("parts", [(70, 40, 0), (100, 0, 20)], ids=["one", "hidden"])
def test_predictions_are_the_oracles(dtype, tolerance, parts):
    world = changing_world(parts=parts, seed=2)
    config = replace(TRACKED, num_iters=60 if dtype is np.float64 else 24)
    gain = Gain(world.prototypes.astype(dtype), config, asymmetry=ASYMMETRY)
    oracle = ShiftOracle(world.prototypes, config, asymmetry=ASYMMETRY)
    for features, logits, _ in world.batches:
        features, logits = features.astype(dtype), logits.astype(dtype)
        expected = oracle.step(logits)
        result = gain.step(features, logits)
        assert_step_matches(result, expected, tolerance, prob_floor=0.0)
    assert_allclose(gain.state.shift.vector, oracle.beta, rtol=0, atol=tolerance.scores)
    assert (oracle.trust < 0.01) == (parts[1] > 0)
