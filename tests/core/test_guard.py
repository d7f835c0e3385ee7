"""The guard: when it trips, how long the source then answers, and what is left of the state."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from gaussian_world import gaussian_world
from numpy.testing import assert_array_equal

from gain_core import Gain, GainConfig, init_state, state_from_arrays, state_to_arrays
from gain_core.guard import Guard, GuardSums, armed_guard, watch

# Neither shrinkage nor the classes seen hold it back: it takes a run of one class for a shift.
RUNAWAY = GainConfig(shrinkage=0.0, label_draws=0.0, half_life=400.0)
PROTOTYPES = np.eye(4, 6)


def run_of_one_class(num_frames: int, seed: int = 9) -> tuple[np.ndarray, np.ndarray]:
    """Features and logits (N, 1, .) of a source that is sure and right."""
    rng = np.random.default_rng(seed)
    logits = np.array([4.0, 0.0, 0.0, 0.0]) + 0.5 * rng.normal(size=(num_frames, 1, 4))
    return rng.normal(size=(num_frames, 1, 6)), logits


def seen(count: float, agreement: float, confidence: float) -> GuardSums:
    return GuardSums(
        count=np.asarray(count), agreement=np.asarray(agreement), confidence=np.asarray(confidence)
    )


def values(guard: Guard) -> dict[str, float]:
    return {item.name: float(getattr(guard, item.name)) for item in fields(guard)}


@pytest.mark.parametrize(
    ("agreement", "trips"),
    [
        pytest.param(43.0, 1.0, id="below-a-fifth"),
        pytest.param(44.0, 0.0, id="at-a-fifth"),
        pytest.param(45.0, 0.0, id="above-a-fifth"),
    ],
)
def test_trips_exactly_below_a_fifth_of_the_confidence_beyond_chance(agreement, trips):
    """Of 300 frames and 75 classes, four agree by chance: (44 - 4) / (204 - 4) is a fifth."""
    guard, tripped = watch(
        armed_guard(like=np.zeros(1)), seen(300.0, agreement, 204.0), num_classes=75
    )
    assert float(guard.trips) == float(tripped) == trips
    assert float(guard.hold) == 256.0 * trips


@pytest.mark.parametrize(("count", "trips"), [(255.0, 0.0), (256.0, 1.0)])
def test_judges_only_after_256_frames(count, trips):
    guard, _ = watch(armed_guard(like=np.zeros(1)), seen(count, 0.0, 0.9 * count), num_classes=4)
    assert float(guard.trips) == trips


def test_a_trip_empties_the_sums_and_each_next_hold_is_twice_as_long():
    guard, holds = armed_guard(like=np.zeros(1)), []
    for _ in range(9):
        guard, tripped = watch(guard, seen(400.0, 10.0, 300.0), num_classes=40)
        assert tripped
        assert (guard.count, guard.agreement, guard.confidence) == (0.0, 0.0, 0.0)
        holds.append(float(guard.hold))
        guard = replace(guard, hold=np.zeros_like(guard.hold))
    assert holds == [256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 8192.0, 8192.0, 8192.0]
    assert float(guard.trips) == 9.0


def test_while_it_holds_it_counts_down_and_watches_nothing():
    guard, _ = watch(armed_guard(like=np.zeros(1)), seen(300.0, 0.0, 250.0), num_classes=4)
    for left in (156.0, 56.0, 0.0):
        assert guard.holds
        guard, tripped = watch(guard, seen(100.0, 0.0, 100.0), num_classes=4)
        assert not tripped
        assert float(guard.hold) == left
        assert (guard.count, guard.agreement, guard.confidence) == (0.0, 0.0, 0.0)
    assert not guard.holds
    guard, _ = watch(guard, seen(10.0, 9.0, 8.0), num_classes=4)
    assert (guard.count, guard.agreement, guard.confidence) == (10.0, 9.0, 8.0)


def test_its_memory_halves_every_256_frames():
    guard, _ = watch(armed_guard(like=np.zeros(1)), seen(100.0, 80.0, 70.0), num_classes=4)
    guard, _ = watch(guard, seen(256.0, 256.0, 256.0), num_classes=4)
    assert values(guard) == pytest.approx(
        {"count": 306.0, "agreement": 296.0, "confidence": 291.0, "hold": 0.0, "trips": 0.0}
    )


def test_a_runaway_stream_trips_it_and_the_source_answers_for_256_frames():
    """From the frame that trips it on: that one is predicted once more."""
    gain, tripped_at, answered = Gain(PROTOTYPES, RUNAWAY), None, 0
    for index, (z, logits) in enumerate(zip(*run_of_one_class(900), strict=True)):
        result = gain.step(z, logits)
        if gain.state.guard.holds:
            answered += 1
            assert_array_equal(result.log_probs, result.source_log_probs)
            assert_array_equal(result.strength, 0.0)
            assert_array_equal(result.gain, 0.0)
        if tripped_at is None and gain.state.guard.trips == 1:
            tripped_at = index
            fresh = state_to_arrays(init_state(PROTOTYPES, RUNAWAY))
            for name, array in state_to_arrays(gain.state).items():
                # The last frame is the stream's, and nothing that was learned.
                if not name.startswith(("guard_", "last_")):
                    assert_array_equal(array, fresh[name], err_msg=name)
            assert_array_equal(gain.state.shift.vector, 0.0)
    assert tripped_at is not None
    # A memory that halves every 256 frames holds 256 of them after 436.
    assert tripped_at == 435
    assert answered == 256
    assert gain.state.guard.trips == 1


@pytest.mark.parametrize("batch_size", [1, 40])
def test_it_judges_every_frame_that_waited(batch_size):
    """Long waits are folded into sums more than once before they are learned from."""
    z, logits = (array[:, 0] for array in run_of_one_class(200))
    once, piecewise = Gain(PROTOTYPES), Gain(PROTOTYPES, update_every=200)
    once.step(z, logits)
    for start in range(0, 200, batch_size):
        rows = slice(start, start + batch_size)
        piecewise.step(z[rows], logits[rows])
    assert values(piecewise.state.guard) == pytest.approx(values(once.state.guard), rel=1e-12)
    assert piecewise.state.guard.count == 200.0


def test_without_a_guard_the_runaway_stream_is_followed():
    gain = Gain(PROTOTYPES, replace(RUNAWAY, guard=False))
    for z, logits in zip(*run_of_one_class(500), strict=True):
        result = gain.step(z, logits)
    assert values(gain.state.guard) == dict.fromkeys(values(gain.state.guard), 0.0)
    assert result.strength[0] > 0.5


@pytest.mark.parametrize("half_life", [40.0, 1024.0])
def test_never_trips_on_streams_that_adapting_helps(half_life):
    world = gaussian_world(8, 12, num_batches=200, domain_every=40, seed=12)
    rng = np.random.default_rng(1)
    gain, ratios = Gain(world.prototypes, GainConfig(half_life=half_life)), []
    for index, (z, logits, _) in enumerate(world.batches):
        if index % 40 == 0:
            offset = rng.normal(size=8)
        gain.step(z, logits + offset)
        guard = gain.state.guard
        ratios.append(float(guard.agreement / guard.confidence))
    assert values(gain.state.guard)["trips"] == 0.0
    assert min(ratios[16:]) > 0.6
    assert gain.state.shift.trust > 0.1


@pytest.mark.parametrize("frames", [200, 500], ids=["armed", "holding"])
def test_saved_and_restored_in_either_condition(frames):
    z, logits = run_of_one_class(1300)
    gain, restored = Gain(PROTOTYPES, RUNAWAY), Gain(PROTOTYPES, RUNAWAY)
    for index in range(frames):
        gain.step(z[index], logits[index])
    assert bool(gain.state.guard.holds) == (frames == 500)
    arrays = {name: np.array(array) for name, array in state_to_arrays(gain.state).items()}
    state = state_from_arrays(arrays, prototypes=PROTOTYPES, config=RUNAWAY)
    restored.load_state(state, frames=frames)
    for index in range(frames, 1300):
        expected, result = (g.step(z[index], logits[index]) for g in (gain, restored))
        assert_array_equal(result.log_probs, expected.log_probs)
    assert values(restored.state.guard) == values(gain.state.guard)
    assert restored.state.guard.trips == 2
