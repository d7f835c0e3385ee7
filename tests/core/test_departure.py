"""One class that comes after many is told from a domain by the features beside the head's rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from changing_world import ASYMMETRY, ChangingWorld, changing_world
from compared_steps import Tolerance, assert_step_matches
from numpy.testing import assert_allclose, assert_array_equal
from shift_oracle import ShiftOracle

from gain_core import (
    Gain,
    GainConfig,
    init_state,
    merge_states,
    prepare_prototypes,
    state_from_arrays,
    state_to_arrays,
)
from gain_core.departure import BESIDE_DIMS, LEAST_ROOM, beside_head, departed, squared_move

TRACKED = GainConfig()
WIDE = 48


def number(value: float) -> np.ndarray:
    """A float64 of no dimensions."""
    return np.asarray(value, dtype=np.float64)


def departure_after(before: float = 0.0, **changes: float) -> float:
    """Of a move that is a class's, to labels of one class, but for the changes."""
    values = {
        "move": 0.5,
        "beside": 0.05,
        "concentration": 0.5,
        "mixed": 0.1,
        "counted": 1.0,
        "release": 0.25,
    } | changes
    known = np.asarray(values.pop("known", True))
    arrays = {name: number(value) for name, value in values.items()}
    return float(departed(number(before), known=known, **arrays))


def moved_world(world: ChangingWorld, *, jumps: dict[int, int], size: float = 0.8) -> ChangingWorld:
    """The same seen through domains that move the features in every direction.

    From each batch of `jumps` on, the domain is the one of that number.
    """
    batches, offset = [], np.zeros(world.prototypes.shape[1])
    for index, (features, logits, labels) in enumerate(world.batches):
        if index in jumps:
            rng = np.random.default_rng(jumps[index])
            offset = size * rng.normal(size=features.shape[1])
        batches.append((features + offset, logits + offset @ world.prototypes.T, labels))
    return world._replace(batches=batches)


def level_world(*, parts: tuple[int, int, int], seed: int) -> ChangingWorld:
    """All of it seen through one domain, and the third part's classes as far apart as ever."""
    world = changing_world(feature_dim=WIDE, parts=parts, left=1.0, signal=0.4, seed=seed)
    level = [(z, z @ world.prototypes.T, labels) for z, _, labels in world.batches]
    return world._replace(batches=level)


def departures(world: ChangingWorld, config: GainConfig = TRACKED) -> list[float]:
    """After each batch."""
    gain = Gain(world.prototypes, config, asymmetry=ASYMMETRY)
    found = []
    for features, logits, _ in world.batches:
        gain.step(features, logits)
        found.append(float(gain.state.sums.departure))
    return found


# --- what changed ---


def test_a_move_that_nothing_beside_the_head_follows_is_the_classes():
    assert departure_after() == 1.0
    assert departure_after(beside=0.5) == 0.0
    assert departure_after(beside=-0.01) == 1.0


def test_where_no_mixture_is_known_none_gives_way():
    assert departure_after(counted=0.0) == 0.0
    assert departure_after(counted=0.5) == 0.5
    assert departure_after(1.0, counted=0.0) == 1.0


def test_chance_moves_nothing():
    assert departure_after(move=0.1) == 0.0
    assert 0.0 < departure_after(move=0.15) < 1.0


def test_between_a_domain_and_a_class_it_counts_in_proportion():
    found = [departure_after(move=1.0, beside=1.0 / ratio) for ratio in np.linspace(1.6, 2.0, 7)]
    assert np.all(np.diff(found) > 0.0)
    assert_allclose(found[0], 0.0, atol=1e-12)
    assert_allclose(found[-1], 1.0, atol=1e-12)


def test_without_features_beside_the_head_nothing_departs():
    assert departure_after(known=False) == 0.0
    # What was known before they were lost is let go as labels say.
    assert departure_after(1.0, known=False) == 1.0
    assert departure_after(1.0, known=False, concentration=0.0) == 0.25


def test_many_classes_that_come_back_end_it():
    """At once where only the classes changed, and by and by where a domain came with them."""
    assert departure_after(1.0, concentration=0.0) == 0.0
    assert departure_after(1.0, concentration=0.0, beside=0.5) == 0.25


def test_labels_of_few_classes_hold_it_through_a_domain():
    assert departure_after(1.0, beside=0.5) == 1.0
    assert departure_after(1.0, move=0.0, beside=0.0) == 1.0


def test_a_squared_move_is_in_units_of_the_scatter_less_chance():
    move = squared_move(
        np.array([3.0, 0.0]), np.array([0.0, 4.0]), scatter=number(50.0), count=number(20.0)
    )
    assert_allclose(move, 0.5 - 0.05)
    still = squared_move(np.zeros(3), np.zeros(3), scatter=number(0.0), count=number(20.0))
    assert_allclose(still, -0.05)


# --- beside the head ---


def test_the_projections_see_nothing_that_the_head_reads():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(10, WIDE))
    sketch = beside_head(rows - rows.mean(axis=0))
    assert sketch.shape == (WIDE, BESIDE_DIMS)
    steps = (rows - rows.mean(axis=0)) @ sketch
    assert np.max(np.abs(steps)) < 1e-6
    # The rows' mean, which no softmax sees, is beside them.
    assert np.linalg.norm(rows.mean(axis=0) @ sketch) > 0.1


def test_the_projections_keep_a_length():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(10, 400))
    sketch = beside_head(rows - rows.mean(axis=0))
    basis = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][:9]
    ratios = []
    for _ in range(200):
        step = rng.normal(size=400)
        step = step - (step @ basis.T) @ basis
        ratios.append(np.sum((step @ sketch) ** 2) / np.sum(step**2))
    assert abs(np.mean(ratios) - 1.0) < 0.1
    assert np.std(ratios) < 0.25


@pytest.mark.parametrize(("num_classes", "room"), [(33, 16), (34, 15), (60, -11)])
def test_a_head_that_reads_nearly_everything_has_nothing_beside_it(num_classes, room):
    rows = np.random.default_rng(2).normal(size=(num_classes, WIDE))
    sketch = beside_head(rows - rows.mean(axis=0))
    assert np.any(sketch) == (room >= LEAST_ROOM)


def test_rows_that_depend_on_one_another_are_taken_out_once():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(6, WIDE))
    rows = np.concatenate([rows, rows, np.zeros((1, WIDE))])
    centered = rows - rows.mean(axis=0)
    assert np.max(np.abs(centered @ beside_head(centered))) < 1e-5
    assert_array_equal(beside_head(np.zeros((4, WIDE))), beside_head(np.zeros((7, WIDE))))


def test_float32_has_the_projections_of_float64():
    rows = np.random.default_rng(4).normal(size=(20, 200)).astype(np.float32)
    wide = prepare_prototypes(rows.astype(np.float64), TRACKED)
    slim = prepare_prototypes(rows, TRACKED)
    assert slim.beside.dtype == np.float32
    assert_allclose(slim.beside, wide.beside, rtol=0, atol=2e-6)


def test_torch_has_the_projections_of_numpy():
    torch = pytest.importorskip("torch")
    rows = np.random.default_rng(5).normal(size=(20, 200))
    mine = prepare_prototypes(torch.from_numpy(rows), TRACKED).beside
    assert_allclose(mine.numpy(), prepare_prototypes(rows, TRACKED).beside, rtol=0, atol=1e-12)


# --- on a stream ---


def test_one_class_after_many_departs_and_many_bring_it_back():
    """The second part is of one class; in the third, classes are as in the first."""
    found = departures(level_world(parts=(100, 40, 60), seed=3))
    assert max(found[:100]) == 0.0
    assert min(found[108:140]) > 0.9
    assert found[144] < 0.5
    assert max(found[154:]) < 0.05


def test_a_domain_does_not_depart():
    """Domains that move every direction alike, one after the other, over all classes."""
    world = changing_world(feature_dim=WIDE, parts=(160, 0, 0), signal=0.4, seed=4)
    jumps = {start: start for start in range(20, 160, 20)}
    assert max(departures(moved_world(world, jumps=jumps))) == 0.0


def test_without_the_test_for_independent_frames_nothing_departs():
    world = changing_world(feature_dim=WIDE, parts=(100, 40, 0), signal=0.4, seed=3)
    assert max(departures(world)) > 0.9
    assert max(departures(world, replace(TRACKED, independence_test=False))) == 0.0


def lost_to_the_source(seed: int, *, num_features: int) -> float:
    """Share of a class's frames that the source names and the adapted prediction does not.

    The class comes after many, and the source calls it many things.
    """
    world = changing_world(feature_dim=WIDE, parts=(100, 150, 0), signal=0.35, seed=seed)
    gain = Gain(world.prototypes, TRACKED, asymmetry=ASYMMETRY)
    right = []
    for index, (features, logits, labels) in enumerate(world.batches):
        result = gain.step(features[:, :num_features], logits)
        if index >= world.single.start:
            answers = (result.source_log_probs, result.probs)
            right.append([np.mean(np.argmax(rows, axis=1) == labels) for rows in answers])
    source, adapted = np.mean(right, axis=0)
    return float(source - adapted)


@pytest.mark.parametrize("seed", range(6))
def test_a_class_called_many_things_stays_with_the_source(seed):
    assert lost_to_the_source(seed, num_features=WIDE) < 0.012


def test_labels_alone_lose_it():
    assert lost_to_the_source(3, num_features=3) > 0.15
    assert lost_to_the_source(3, num_features=WIDE) < 0.0


@pytest.mark.parametrize("size", [1e18, 1e25, 1e38])
def test_features_too_large_to_square_leave_the_memory_sound(size):
    world = changing_world(feature_dim=WIDE, parts=(20, 0, 0), seed=6)
    gain = Gain(world.prototypes.astype(np.float32), TRACKED, asymmetry=ASYMMETRY)
    for index, (features, logits, _) in enumerate(world.batches):
        scale = size if index == 5 else 1.0
        rows = (scale * np.sign(features) if index == 5 else features).astype(np.float32)
        gain.step(rows, logits.astype(np.float32))
    for name, array in state_to_arrays(gain.state).items():
        assert np.all(np.isfinite(array)), name


# --- the oracle ---


@pytest.mark.parametrize("update_every", [pytest.param(1, marks=pytest.mark.slow), 48])
def test_a_departure_and_a_return_are_the_oracles(update_every):
    world = level_world(parts=(80, 30, 40), seed=3)
    world = moved_world(world, jumps={30: 1, 95: 2, 130: 4}, size=0.3)
    config = replace(TRACKED, num_iters=60)
    gain = Gain(world.prototypes, config, asymmetry=ASYMMETRY, update_every=update_every)
    oracle = ShiftOracle(world.prototypes, config, asymmetry=ASYMMETRY)
    waiting, found = [], []
    for features, logits, _ in world.batches:
        result = gain.step(features, logits)
        if 16 * (len(waiting) + 1) < update_every:
            waiting.append(oracle.predict(logits, features))
            expected = waiting[-1]
        else:
            expected = oracle.step(logits, *waiting, features=features)
            waiting = []
        exact = Tolerance(probs=1e-8, scores=1e-8, sums=1e-8)
        assert_step_matches(result, expected, exact, prob_floor=0.0)
        assert_allclose(gain.state.sums.departure, oracle.departure, rtol=0, atol=1e-7)
        found.append(oracle.departure)
    assert max(found[:80]) == 0.0
    assert max(found) > 0.9
    assert found[-1] < 0.5


# --- the state ---


def departed_state():
    """After a mixture and one class, and its head."""
    world = changing_world(feature_dim=WIDE, parts=(80, 20, 0), signal=0.4, seed=3)
    prototypes = prepare_prototypes(world.prototypes, TRACKED, asymmetry=ASYMMETRY)
    gain = Gain(prototypes, TRACKED)
    for features, logits, _ in world.batches:
        gain.step(features, logits)
    assert gain.state.sums.departure > 0.5
    return gain.state, prototypes


def test_a_saved_state_remembers_it():
    state, prototypes = departed_state()
    again = state_from_arrays(state_to_arrays(state), prototypes=prototypes, config=TRACKED)
    assert_array_equal(again.sums.departure, state.sums.departure)
    assert_array_equal(again.shift.vector, state.shift.vector)


def test_two_states_that_departed_are_no_more_than_departed():
    state, prototypes = departed_state()
    both = merge_states(state, state, prototypes=prototypes, config=TRACKED)
    assert 0.5 < both.sums.departure <= 1.0
    fresh = init_state(prototypes, TRACKED)
    one = merge_states(state, fresh, prototypes=prototypes, config=TRACKED)
    assert_array_equal(one.sums.departure, state.sums.departure)
