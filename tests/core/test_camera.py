"""What the default makes of the streams that a camera sees, in a world of Gaussians.

Accuracies in per cent, of the source and adapted; the bounds are generous.
"""

from __future__ import annotations

import numpy as np
import pytest
from gaussian_world import CameraWorld, camera_world
from numpy.testing import assert_array_equal
from taught_gain import assert_sound

from gain_core import Gain
from gain_core.shift.clean import clean_moments, skewness

K = 20
SEEDS = [0, 1]


def made(world: CameraWorld) -> Gain:
    """As the tools make it, measured on clean images of every class."""
    num_classes = len(world.prototypes)
    classes = np.repeat(np.arange(num_classes), 20)
    logits, labels = world.frames(classes, domain=0, stay=1, seed=77)
    x = logits - np.mean(logits, axis=1, keepdims=True)
    of_one = np.mean([skewness(x[labels == k]) for k in range(num_classes)])
    pair = float(of_one), float(skewness(x))
    return Gain(num_classes, skewness=pair, clean_moments=clean_moments(x))


def accuracies(gain: Gain, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(2,): of the source, and adapted, sixteen frames a batch."""
    starts = range(0, len(logits), 16)
    results = [gain.step(None, logits[at : at + 16].astype(np.float32)) for at in starts]
    answers = np.concatenate([result.probs for result in results]).argmax(axis=1)
    assert_sound(results[-1], gain.state)
    return 100.0 * np.array([np.mean(logits.argmax(axis=1) == labels), np.mean(answers == labels)])


def mixture(world: CameraWorld, domain: int, *, objects: int = 120, classes=None, seed: int = 0):
    """Objects of some classes, all unless said otherwise."""
    rng = np.random.default_rng([seed, domain])
    classes = np.arange(len(world.prototypes)) if classes is None else classes
    return world.frames(rng.choice(classes, objects), domain=domain, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_mixture_in_a_new_domain_gains(seed):
    world = camera_world(K, seed=seed)
    gain = made(world)
    found = [accuracies(gain, *mixture(world, domain)) for domain in range(4)]
    gains = np.diff(found, axis=1)[:, 0]
    assert np.mean(gains[1:]) > 1.0
    assert np.min(gains) > -2.0


@pytest.mark.parametrize(
    ("seed", "domain"),
    [
        pytest.param(0, 1, id="0-same-domain"),
        pytest.param(1, 2, id="1-another-domain"),
        pytest.param(0, 2, id="0-another-domain", marks=pytest.mark.slow),
        pytest.param(1, 1, id="1-same-domain", marks=pytest.mark.slow),
    ],
)
def test_one_class_after_a_mixture_loses_little(seed, domain):
    world, lost = camera_world(K, seed=seed), []
    for one in (0, 7, 13):
        gain = made(world)
        for before in (0, 1):
            accuracies(gain, *mixture(world, before))
        source, adapted = accuracies(gain, *world.frames(np.full(120, one), domain=domain, seed=9))
        lost.append(source - adapted)
    assert max(lost) <= 3.0


@pytest.mark.parametrize("seed", SEEDS)
def test_one_class_from_the_start_is_the_sources(seed):
    world = camera_world(K, seed=seed)
    gain = made(world)
    logits, labels = world.frames(np.full(120, 3), domain=1, seed=9)
    source, adapted = accuracies(gain, logits, labels)
    assert source == adapted
    assert_array_equal(gain.predict(None, logits[:5]).strength, 0.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_few_classes_lose_little(seed):
    """Five of twenty: they gain in one world, and lose up to three points in the other."""
    world = camera_world(K, seed=seed)
    gain = made(world)
    found = [accuracies(gain, *mixture(world, d, classes=np.arange(5), seed=9)) for d in range(3)]
    assert np.mean(np.diff(found, axis=1)) > -4.0


def test_what_no_block_confirms_fades_and_the_source_answers():
    world = camera_world(K, seed=0)
    gain = made(world)
    for domain in (0, 1):
        accuracies(gain, *mixture(world, domain))
    assert gain.state.trust > 0.3
    logits, _ = world.frames(np.full(120, 3), domain=1, seed=9)
    for start in range(0, len(logits), 16):
        result = gain.step(None, logits[start : start + 16].astype(np.float32))
    assert gain.state.trust == 0.0
    assert_array_equal(result.log_probs, result.source_log_probs)


def test_what_the_source_gives_to_one_class_confirms_nothing_though_corrected_labels_spread():
    """The logits of one class rise: as far as was learned, then until they win nearly always."""
    rng, gain = np.random.default_rng(0), Gain(K, skewness=(0.0, 0.5))

    def frames(risen: float, count: int) -> np.ndarray:
        logits = 6.0 * np.eye(K)[rng.integers(0, K, count)] + rng.normal(size=(count, K))
        logits[:, 0] += risen
        for start in range(0, count, 16):
            gain.step(None, logits[start : start + 16].astype(np.float32))
        return logits

    frames(5.0, 640)
    before = gain.state
    logits = frames(8.0, 320)
    corrected = logits - logits.mean(axis=1, keepdims=True) - before.shift
    shares = [np.bincount(each.argmax(axis=1), minlength=K) / 320 for each in (logits, corrected)]
    assert shares[0][0] > 0.9
    assert np.sum(shares[1] ** 2) < 1.0 / gain.config.min_classes
    assert 0.0 < gain.state.draws[-1] < before.draws[-1]
    assert gain.state.unconfirmed > before.unconfirmed + 1.0


def test_a_camera_parked_for_ten_thousand_frames():
    """One object and noise; then a mixture again, of which it learns as if new."""
    world = camera_world(K, seed=0)
    gain = made(world)
    accuracies(gain, *mixture(world, 1))
    source, adapted = accuracies(gain, *world.frames([4], domain=1, stay=10_000))
    assert adapted >= source - 1.0
    again = accuracies(gain, *mixture(world, 1, objects=300, seed=5))
    assert again[1] > again[0] + 1.0


def test_of_two_classes_nothing_is_learned_and_the_source_answers():
    """Their logits are each other's negative, so that the skewness of any frames is zero."""
    world = camera_world(2, size=2.0, seed=0)
    gain = made(world)
    for domain in range(3):
        source, adapted = accuracies(gain, *mixture(world, domain))
        assert source == adapted
    assert gain.state.draws[-1] == 0.0


@pytest.mark.parametrize("seed", SEEDS)
def test_where_a_mixture_cannot_be_told_the_source_answers(seed):
    """Of three classes, one and a mixture are 0.07 apart: less than the error of a block."""
    world = camera_world(3, size=2.0, seed=seed)
    gain = made(world)
    for domain in range(3):
        source, adapted = accuracies(gain, *mixture(world, domain))
        assert source == adapted
    assert gain.state.draws[-1] == 0.0


def test_a_rare_class_is_not_lost():
    """One object in eighty is of it: what the frequent ones teach does not hide it."""
    world, rng = camera_world(K, seed=0), np.random.default_rng(2)
    gain = made(world)
    classes = rng.integers(1, K, 960)
    classes[::80] = 0
    logits, labels = world.frames(classes, domain=1, stay=6)
    rows = np.flatnonzero(labels == 0)
    answers = []
    for start in range(0, len(logits), 16):
        part = gain.step(None, logits[start : start + 16].astype(np.float32))
        answers.append(part.probs.argmax(axis=1))
    answers = np.concatenate(answers)
    assert np.mean(answers == labels) > np.mean(logits.argmax(axis=1) == labels) + 0.02
    source, adapted = (np.mean(found[rows] == 0) for found in (logits.argmax(axis=1), answers))
    assert adapted >= source - 0.1
