"""GAIN behind the protocol, and its ablations: the neutral one is GAIN, each other one is exact."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_apps.evaluation.methods import Diagnosing, make_method
from gain_apps.evaluation.methods.ablation import AblatedGain, Ablation, jensen_shannon
from gain_apps.evaluation.methods.gain_method import GainMethod
from gain_apps.evaluation.methods.softmax import log_softmax
from gain_core import PRESETS, Gain, GainConfig, posteriors

# One class seen once and light priors, so that every part of the state matters.
LIGHT = "tracked:prior_strength=4:prior_samples=0:half_life=60"


def light_config() -> GainConfig:
    return GainConfig(prior_strength=4.0, prior_samples=0.0, half_life=60.0)


def kinks(world, **exchanged) -> AblatedGain:
    return AblatedGain(world.head, light_config(), Ablation(**exchanged))


def source_of(batch):
    return log_softmax(batch.logits)


@pytest.mark.parametrize("preset", PRESETS)
def test_gain_method_is_gain(preset, world):
    method = make_method(preset, world.head)
    gain = Gain(world.head.weight, GainConfig.preset(preset))
    for batch in world.batches:
        expected = gain.step(batch.features, batch.logits)
        assert_array_equal(method.predict(batch), expected.log_probs)


@pytest.mark.parametrize("preset", [*PRESETS, LIGHT])
def test_neutral_ablation_is_gain(preset, world):
    config = light_config() if preset == LIGHT else GainConfig.preset(preset)
    neutral = AblatedGain(world.head, config, Ablation())
    gain = GainMethod(world.head, config)
    moved = 0.0
    for batch in world.batches:
        ours, theirs = neutral.diagnose(batch), gain.diagnose(batch)
        assert_allclose(ours.strength, theirs.strength, atol=1e-4)
        assert_allclose(ours.gain, theirs.gain, atol=1e-4, rtol=1e-5)
        expected = gain.predict(batch)
        assert_allclose(neutral.predict(batch), expected, atol=1e-5, rtol=1e-5)
        moved = max(moved, float(np.abs(expected - source_of(batch)).max()))
    assert moved > 0.1, "the correction never did anything, so the comparison shows nothing"


def test_first_batch_is_the_source_whatever_the_ablation(world):
    for exchanged in ({"rule": "full"}, {"role": "evaluator"}, {"rule": "fixed"}):
        batch = world.batches[0]
        assert_allclose(kinks(world, **exchanged).predict(batch), source_of(batch), atol=1e-6)


@pytest.mark.parametrize(
    ("exchanged", "strength_of"),
    [
        ({"rule": "retention"}, lambda s, q: np.zeros(len(s))),
        ({"rule": "full"}, lambda s, q: np.ones(len(s))),
        ({"rule": "fixed", "fixed_strength": 0.3}, lambda s, q: np.full(len(s), 0.3)),
        ({"rule": "entropy"}, lambda s, q: -(np.exp(s) * s).sum(axis=1) / np.log(6)),
        ({"rule": "disagreement"}, lambda s, q: jensen_shannon(s, q) / np.log(2)),
    ],
    ids=["retention", "full", "fixed", "entropy", "disagreement"],
)
def test_rules_set_the_strength_on_the_evidence_path(exchanged, strength_of, world):
    method = kinks(world, **exchanged)
    for batch in world.batches[:3]:
        method.predict(batch)
    batch = world.batches[3]
    proposal, _ = posteriors(batch.features, method._state, config=light_config())
    source = source_of(batch)
    strength = strength_of(source, proposal)
    expected = log_softmax(source + strength[:, None] * (proposal - source))
    assert_allclose(method.diagnose(batch).strength, strength, atol=1e-5)
    assert_allclose(method.predict(batch), expected, atol=1e-5)


def test_evaluator_as_prediction(world):
    method = kinks(world, role="evaluator")
    for batch in world.batches[:3]:
        method.predict(batch)
    _, evaluator = posteriors(world.batches[3].features, method._state, config=light_config())
    assert_allclose(method.predict(world.batches[3]), evaluator, atol=1e-6)


def test_swapped_roles_exchange_the_posteriors(world):
    method = kinks(world, role="swapped")
    for batch in world.batches[:3]:
        method.predict(batch)
    batch = world.batches[3]
    proposal, evaluator = posteriors(batch.features, method._state, config=light_config())
    source = source_of(batch)
    diagnosis = method.diagnose(batch)
    assert_allclose(diagnosis.evidence, evaluator - source, atol=1e-5)
    expected = (np.exp(proposal) * (evaluator - source)).sum(axis=1)
    assert_allclose(diagnosis.gain, expected, atol=1e-4)


@pytest.mark.parametrize("reliability", [True, False])
@pytest.mark.parametrize("assignment", ["source", "proposal", "adapted"])
def test_assignment_fills_the_sums(assignment, reliability, world):
    config = GainConfig(prior_strength=4.0, prior_samples=0.0, half_life=np.inf)
    method = AblatedGain(
        world.head, config, Ablation(assignment=assignment, reliability=reliability)
    )
    support, mass = np.zeros(6), np.zeros(6)
    for batch in world.batches[:4]:
        source = source_of(batch)
        if assignment == "source" or not bool(method._state.geometry.has_history):
            assigned = np.exp(source)
        elif assignment == "proposal":
            assigned = np.exp(posteriors(batch.features, method._state, config=config)[0])
        else:
            assigned = None
        log_probs = method.predict(batch)
        if assigned is None:
            assigned = np.exp(log_probs)
        top = assigned.argmax(axis=1)
        zeta = np.exp(source)[np.arange(20), top] if reliability else np.ones(20)
        support += (zeta[:, None] * assigned).sum(axis=0)
        mass += assigned.sum(axis=0)
    assert_allclose(method._state.statistics.support, support, rtol=1e-4)
    assert_allclose(method._state.statistics.predicted_mass, mass, rtol=1e-4)


@pytest.mark.parametrize(
    ("prior", "formula"),
    [
        ("uniform", lambda kappa, kappa_hat: np.ones_like(kappa)),
        ("reliability", lambda kappa, kappa_hat: kappa / kappa_hat),
        ("balancing", lambda kappa, kappa_hat: 1 / kappa_hat),
        ("both", lambda kappa, kappa_hat: kappa / kappa_hat**2),
    ],
)
def test_priors(prior, formula, world):
    method = kinks(world, prior=prior)
    for batch in world.batches[:4]:
        method.predict(batch)
    sums = method._state.statistics
    expected = formula(4.0 + sums.support, 4.0 + sums.predicted_mass)
    log_prior = method._state.geometry.log_prior
    assert_allclose(np.exp(log_prior), expected / expected.sum(), rtol=1e-5)
    assert np.ptp(4.0 + sums.support) > 0.1


def test_jensen_shannon_by_hand():
    first, second = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
    middle = np.array([0.7, 0.3])
    by_hand = 0.5 * np.sum([0.5, 0.5] * np.log(np.array([0.5, 0.5]) / middle))
    by_hand += 0.5 * np.sum([0.9, 0.1] * np.log(np.array([0.9, 0.1]) / middle))
    assert_allclose(jensen_shannon(first, second), [by_hand], rtol=1e-12)
    assert_allclose(jensen_shannon(first, first), [0.0], atol=1e-12)


def test_diagnosis_changes_nothing(world):
    plain, watched = make_method(LIGHT, world.head), make_method(LIGHT, world.head)
    assert isinstance(watched, Diagnosing)
    for batch in world.batches:
        watched.diagnose(batch)
        assert_array_equal(plain.predict(batch), watched.predict(batch))


def test_specs_build_what_they_say(world):
    assert isinstance(make_method("tracked:rule=full", world.head), AblatedGain)
    assert isinstance(make_method("tracked:rule=gain", world.head), GainMethod)
    fixed = make_method(f"{LIGHT}:rule=fixed:fixed_strength=0", world.head)
    retention = make_method(f"{LIGHT}:rule=retention", world.head)
    for batch in world.batches[:4]:
        assert_array_equal(fixed.predict(batch), retention.predict(batch))
