"""The asymmetry that frames of many classes teach or labels let guess, in the kernels on the host.

The reference is `Gain` on the same stream, in float64.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from changing_world import ASYMMETRY, changing_world
from numpy.testing import assert_allclose, assert_array_equal
from taught_gain import assert_bitwise, assert_states_close, every_array

from gain_core import PRESETS, Gain, prepare_prototypes
from gain_core.prototypes import DEFAULT_ASYMMETRY
from gain_core.shift import (
    LEARNED_RAMP,
    LEAST_SINGLE,
    NEWEST_WINDOW,
    REFERENCE_WINDOW,
    SPREAD_RAMP,
    SURE_FRAMES,
    known_asymmetry,
)
from gain_runtime.cuda import CudaGain

# The memory that is learned from holds about a hundred frames, and three times as many.
TRACKED = replace(PRESETS["tracked"], half_life=512.0)
LONGER = replace(TRACKED, half_life=2048.0)
NUM_CLASSES = 10
# Sums of the guard's that make it trip after the next batch.
TRIPPING = {"count": 300.0, "agreement": 1.0, "confidence": 290.0}
MOST_SINGLE, MIXED = DEFAULT_ASYMMETRY


def rounded(array):
    """The nearest float32 values, so that both precisions see the same."""
    return array.astype(np.float32).astype(np.float64)


@cache
def world(*, parts: tuple[int, int, int] = (36, 12, 12), signal: float = 1.2):
    """A head and batches under one domain's shift, whose logits the head gives as they are."""
    drawn = changing_world(NUM_CLASSES, parts=parts, signal=signal)
    batches = [(rounded(features), rounded(logits)) for features, logits, _ in drawn.batches]
    return rounded(drawn.prototypes), tuple(batches)


@cache
def world_of(num_shown: int, *, signal: float):
    """The same of frames of the first classes only, 22 batches."""
    drawn = changing_world(NUM_CLASSES, parts=(60, 0, 0), signal=signal)
    columns = (np.concatenate(column) for column in zip(*drawn.batches, strict=True))
    features, logits, labels = columns
    shown = labels < num_shown
    features, logits = rounded(features[shown]), rounded(logits[shown])
    batches = [(features[at : at + 16], logits[at : at + 16]) for at in range(0, 352, 16)]
    return rounded(drawn.prototypes), tuple(batches)


def both(host_kernels, config=TRACKED, *, dtype=np.float64, threads=2, head=None, **options):
    """The kernels and their reference on one head, which nobody has measured."""
    head = world()[0] if head is None else head
    gain = CudaGain(head.astype(dtype), config, kernels=host_kernels(threads), **options)
    return gain, Gain(head, config, **options)


def step_both(gain, plain, batches, *, atol=1e-9, dtype=np.float64):
    """Each batch on both; the asymmetry of mixtures after each."""
    learned = []
    for features, logits in batches:
        result = gain.step(features.astype(dtype), logits.astype(dtype))
        assert_allclose(result.probs, plain.step(features, logits).probs, rtol=0, atol=atol)
        mine, theirs = gain.state.sums, plain.state.sums
        for name in ("mixed_asymmetry", "share_count"):
            found, expected = (float(getattr(sums, name)) for sums in (mine, theirs))
            assert abs(found - expected) < 10 * atol * (1.0 + expected), name
        learned.append(float(theirs.mixed_asymmetry))
    return np.asarray(learned)


def guessed(state, head):
    """What single classes would have if nothing had been learned."""
    prototypes = prepare_prototypes(head, TRACKED)
    return float(known_asymmetry(with_mixed(state, 0.0).sums, prototypes=prototypes)[0])


def with_labels(state, few, *, leaning):
    """The state as if its newest labels were `few` beyond chance, of frames that lean so much."""
    sums = state.sums
    count = sums.window_count[NEWEST_WINDOW]
    share = np.full(NUM_CLASSES, (1.0 - np.sqrt(few + 1.0 / count)) / NUM_CLASSES)
    share[0] += np.sqrt(few + 1.0 / count)
    changed = {"newest_source": count * share, "window_lean": leaning * sums.window_range}
    return replace(state, sums=replace(sums, **changed))


def with_mixed(state, value):
    """The state as if mixtures had had that asymmetry."""
    mixed = np.asarray(value, state.sums.mixed_asymmetry.dtype)
    return replace(state, sums=replace(state.sums, mixed_asymmetry=mixed))


@cache
def taught():
    """The reference's state after a mixture that has taught it enough."""
    head, batches = world()
    plain = Gain(head, TRACKED)
    for batch in batches[:24]:
        plain.step(*batch)
    assert plain.state.sums.mixed_asymmetry > LEARNED_RAMP[1]
    assert plain.state.sums.share_count > 100.0
    return plain.state


@cache
def halfway():
    """The reference's state after frames of some classes, which have taught it nothing."""
    head, batches = world_of(6, signal=3.0)
    plain = Gain(head, TRACKED)
    for batch in batches[:12]:
        plain.step(*batch)
    assert plain.state.sums.mixed_asymmetry == 0.0
    return plain.state


@pytest.mark.parametrize(
    ("dtype", "config", "update_every", "threads"),
    [
        pytest.param(np.float32, TRACKED, 1, 1, id="float32-short-at-once"),
        pytest.param(np.float32, LONGER, 40, 4, id="float32-longer-waiting-threads"),
        pytest.param(np.float64, LONGER, 1, 1, id="float64-longer-at-once"),
        pytest.param(np.float64, TRACKED, 40, 1, id="float64-short-waiting"),
        pytest.param(np.float64, TRACKED, 1, 4, id="float64-short-at-once-threads"),
    ],
)
def test_a_mixture_teaches_it(host_kernels, dtype, config, update_every, threads):
    atol = 1e-4 if dtype is np.float32 else 1e-9
    head, batches = world(signal=0.85)
    options = {"update_every": update_every, "threads": threads}
    gain, plain = both(host_kernels, config, dtype=dtype, head=head, **options)
    learned = step_both(gain, plain, batches, atol=atol, dtype=dtype)
    begins, ends = LEARNED_RAMP
    assert config is LONGER or np.sum((learned > begins) & (learned < ends)) > 5
    assert learned[-1] > 0.15
    assert np.all(np.diff(learned) >= 0.0)
    count = plain.state.sums.window_count[REFERENCE_WINDOW]
    assert (count > 1.5 * SURE_FRAMES) == (config is LONGER)
    assert plain.state.sums.share_count > 100.0
    assert_states_close(gain.state, plain.state, atol)
    gain.flush()
    plain.flush()
    assert_states_close(gain.state, plain.state, atol)


@pytest.mark.parametrize("update_every", [1, 40])
def test_one_class_teaches_nothing(host_kernels, update_every):
    head, batches = world(parts=(0, 40, 0))
    gain, plain = both(host_kernels, head=head, update_every=update_every)
    assert_array_equal(step_both(gain, plain, batches), 0.0)
    assert_states_close(gain.state, plain.state)


@pytest.mark.parametrize("update_every", [1, 40])
def test_one_class_that_looks_like_many_teaches_little(host_kernels, update_every):
    """A network that is wrong most of the time gives one class the labels of many."""
    drawn = changing_world(NUM_CLASSES, parts=(0, 40, 0), signal=0.3, seed=2)
    head = rounded(drawn.prototypes)
    # Of the head alone, without a domain that makes one class win.
    batches = [(rounded(features), rounded(features @ head.T)) for features, *_ in drawn.batches]
    gain, plain = both(host_kernels, LONGER, head=head, update_every=update_every)
    learned = step_both(gain, plain, batches)
    assert learned[-1] < 0.1
    assert update_every > 1 or learned[-1] > 0.005
    sums = plain.state.sums
    share = sums.window_mass[REFERENCE_WINDOW] / sums.window_count[REFERENCE_WINDOW]
    begins, ends = SPREAD_RAMP
    assert begins < (np.sum(share * share) - 0.1) / 0.9 < ends
    assert_states_close(gain.state, plain.state)


@pytest.mark.parametrize("mixed", [0.0, 0.12, 0.2, 0.6])
def test_an_unmeasured_one_reads_it(host_kernels, mixed):
    gain, plain = both(host_kernels)
    for each in (gain, plain):
        each.load_state(with_mixed(taught(), mixed), frames=9)
    learned = step_both(gain, plain, world()[1][24:28])
    assert learned[0] >= mixed
    assert_states_close(gain.state, plain.state)


def test_the_sums_read_it_before_the_frames_and_the_estimate_after(host_kernels):
    """What counts is what the batches were predicted with; what corrects the next is the newest."""
    found = {}
    for mixed in (0.0, 0.2):
        gain, plain = both(host_kernels)
        for each in (gain, plain):
            each.load_state(with_mixed(taught(), mixed), frames=9)
        (learned,) = step_both(gain, plain, world()[1][24:25])
        # The one that knew nothing learns more than enough from this batch.
        assert learned > LEARNED_RAMP[1]
        found[mixed] = gain.state
    counts = [float(state.sums.share_count) for state in found.values()]
    assert counts[0] + 10.0 < counts[1]
    trusts = [float(state.shift.trust) for state in found.values()]
    assert min(trusts) > 0.8


@pytest.mark.parametrize("update_every", [1, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("num_shown", "signal", "least", "most"),
    [
        pytest.param(8, 0.85, LEAST_SINGLE, LEAST_SINGLE, id="many"),
        pytest.param(6, 3.0, 0.03, 0.05, id="some"),
        pytest.param(4, 3.0, MOST_SINGLE, MOST_SINGLE, id="few"),
    ],
)
def test_the_newest_labels_guess_it(
    host_kernels, num_shown, signal, least, most, dtype, update_every
):
    atol = 1e-4 if dtype is np.float32 else 1e-9
    head, batches = world_of(num_shown, signal=signal)
    gain, plain = both(host_kernels, dtype=dtype, head=head, update_every=update_every)
    guesses, learned = [], []
    for batch in batches:
        learned.extend(step_both(gain, plain, [batch], atol=atol, dtype=dtype))
        guesses.append(guessed(plain.state, head))
    assert np.median(learned) < LEARNED_RAMP[1]
    assert least <= np.median(guesses) <= most
    assert (least < most) == (np.std(guesses[5:]) > 0.005)
    assert_states_close(gain.state, plain.state, atol)
    # Another guess would have counted others.
    for single in (LEAST_SINGLE, MOST_SINGLE):
        if least == most == single:
            continue
        other = Gain(head, TRACKED, asymmetry=(single, MIXED), update_every=update_every)
        for batch in batches:
            other.step(*batch)
        assert abs(other.state.sums.share_count - plain.state.sums.share_count) > 1.0


@pytest.mark.parametrize(("mixed", "leaning"), [(0.0, 0.26), (0.12, 0.175)])
def test_a_loaded_one_guesses_at_once(host_kernels, mixed, leaning):
    head, batches = world()
    counts = []
    for few in (0.02, 0.06, 0.075, 0.09, 0.2):
        state = with_mixed(with_labels(taught(), few, leaning=leaning), mixed)
        gain, plain = both(host_kernels)
        for each in (gain, plain):
            each.load_state(state, frames=9)
        way = np.clip((few - 0.05) / 0.05, 0.0, 1.0)
        expected = LEAST_SINGLE + way * (MOST_SINGLE - LEAST_SINGLE)
        assert_allclose(guessed(state, head), expected, rtol=1e-12)
        step_both(gain, plain, batches[24:28])
        assert_states_close(gain.state, plain.state)
        gain.load_state(state, frames=9)
        gain.step(*batches[24])
        counts.append(float(gain.state.sums.share_count))
    # Of the sixteen frames, the fewer the more careful.
    assert np.all(np.diff(counts) < -0.1)


@pytest.mark.parametrize(("few", "num_shown"), [(0.0, 1), (0.12, 6)], ids=["one", "some"])
def test_what_is_corrected_next_is_guessed_by_the_newest_labels(host_kernels, few, num_shown):
    """One class comes after labels of many, or many after labels of one."""
    head, _ = world_of(6, signal=3.0)
    _, batches = world_of(num_shown, signal=3.0)
    state = with_labels(halfway(), few, leaning=0.13)
    before = guessed(state, head)
    gain, plain = both(host_kernels, head=head)
    stale = Gain(head, TRACKED, asymmetry=(before, MIXED))
    for each in (gain, plain, stale):
        each.load_state(state, frames=9)
    step_both(gain, plain, batches[:1])
    stale.step(*batches[0])
    assert abs(guessed(plain.state, head) - before) > 0.02
    assert_states_close(gain.state, plain.state)
    # A guess by the labels before the batch would have expected other classes.
    expected, other = plain.state.shift.log_prior, stale.state.shift.log_prior
    assert np.max(np.abs(expected - other)) > 0.01


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_a_stream_goes_on_as_if_nothing_was_loaded(host_kernels, dtype, threads):
    head, batches = world_of(6, signal=3.0)
    gain, _ = both(host_kernels, dtype=dtype, head=head, threads=threads)
    resumed, _ = both(host_kernels, dtype=dtype, head=head, threads=threads)
    for features, logits in batches[:10]:
        gain.step(features.astype(dtype), logits.astype(dtype))
    # Whatever the other has seen before.
    for features, logits in world()[1][:3]:
        resumed.step(features.astype(dtype), logits.astype(dtype))
    resumed.load_state(gain.state, frames=gain.frames)
    before = float(gain.state.sums.share_count)
    for features, logits in batches[10:13]:
        mine, theirs = (
            each.step(features.astype(dtype), logits.astype(dtype)) for each in (resumed, gain)
        )
        assert_array_equal(mine.log_probs, theirs.log_probs)
    assert_bitwise(every_array(resumed.state), every_array(gain.state))
    assert before + 1.0 < float(gain.state.sums.share_count) < before + 40.0


def test_a_measured_one_guesses_nothing(host_kernels):
    counts = {}
    for asymmetry in (None, (0.04, MIXED)):
        for few in (0.02, 0.2):
            gain, _ = both(host_kernels, asymmetry=asymmetry)
            state = with_labels(with_mixed(taught(), 0.0), few, leaning=0.26)
            gain.load_state(state, frames=9)
            gain.step(*world()[1][24])
            counts[asymmetry, few] = float(gain.state.sums.share_count)
    assert counts[None, 0.02] > counts[None, 0.2] + 1.0
    assert counts[(0.04, MIXED), 0.02] == counts[(0.04, MIXED), 0.2]


@pytest.mark.parametrize("given", [ASYMMETRY, DEFAULT_ASYMMETRY], ids=["measured", "as-guessed"])
def test_a_measured_one_reads_nothing_of_it(host_kernels, given):
    results = []
    for mixed in (0.0, 0.12, 0.6):
        gain, plain = both(host_kernels, asymmetry=given)
        for each in (gain, plain):
            each.load_state(with_mixed(taught(), mixed), frames=9)
        results.append([gain.step(*batch).log_probs for batch in world()[1][24:30]])
        for batch in world()[1][24:30]:
            plain.step(*batch)
        # It goes on all the same, whoever takes the state over.
        assert float(gain.state.sums.mixed_asymmetry) >= mixed
        assert_states_close(gain.state, plain.state)
    assert np.any(results[0][0] != results[0][1])
    for other in results[1:]:
        assert_array_equal(other, results[0])
    # An unmeasured one would have answered otherwise.
    unmeasured, _ = both(host_kernels)
    unmeasured.load_state(with_mixed(taught(), 0.6), frames=9)
    answers = [unmeasured.step(*batch).log_probs for batch in world()[1][24:30]]
    assert np.max(np.abs(np.asarray(answers) - np.asarray(results[0]))) > 1e-3


def test_a_guard_that_trips_drops_it(host_kernels):
    gain, plain = both(host_kernels)
    numbers = {name: np.asarray(value) for name, value in TRIPPING.items()}
    tripping = replace(taught(), guard=replace(taught().guard, **numbers))
    for each in (gain, plain):
        each.load_state(tripping, frames=9)
    assert_array_equal(step_both(gain, plain, world()[1][24:25]), 0.0)
    assert float(gain.state.guard.trips) == 1.0
    assert float(gain.state.sums.mixed_asymmetry) == 0.0
    # It is learned anew.
    assert step_both(gain, plain, world()[1][25:34])[-1] > 0.1
    assert_states_close(gain.state, plain.state)


@pytest.mark.parametrize(
    ("setting", "learns"), [("independence_test", True), ("mixture_test", False)]
)
def test_it_is_learned_where_mixtures_are_told(host_kernels, setting, learns):
    gain, plain = both(host_kernels, replace(TRACKED, **{setting: False}))
    for each in (gain, plain):
        each.load_state(with_mixed(taught(), 0.05), frames=9)
    after = step_both(gain, plain, world()[1][24:28])
    assert np.all(after > 0.15) if learns else np.all(after == 0.05)
    assert_states_close(gain.state, plain.state)


def test_two_classes_teach_nothing(host_kernels):
    drawn = changing_world(2, parts=(20, 0, 0))
    gain, plain = both(host_kernels, head=rounded(drawn.prototypes))
    batches = [(rounded(features), rounded(logits)) for features, logits, _ in drawn.batches]
    assert_array_equal(step_both(gain, plain, batches), 0.0)
    assert_states_close(gain.state, plain.state)


def test_it_is_loaded_and_reset(host_kernels):
    gain, _ = both(host_kernels)
    gain.load_state(taught(), frames=9)
    assert_bitwise(every_array(gain.state), every_array(taught()))
    gain.reset()
    assert float(gain.state.sums.mixed_asymmetry) == 0.0


@pytest.mark.parametrize("name", ["window_lean", "window_mass"])
def test_of_what_is_no_number_nothing_is_learned(host_kernels, name):
    gain, _ = both(host_kernels)
    broken = np.full_like(getattr(taught().sums, name), np.nan)
    state = with_mixed(taught(), 0.05)
    gain.load_state(replace(state, sums=replace(state.sums, **{name: broken})), frames=9)
    gain.step(*world()[1][24])
    assert float(gain.state.sums.mixed_asymmetry) == 0.05
