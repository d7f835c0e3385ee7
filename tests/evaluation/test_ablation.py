"""GAIN behind the protocol, and the ablations of Algorithm 1: neutral is GAIN, each other exact."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_apps.evaluation.methods.protocol import Diagnosing, log_softmax
from gain_apps.evaluation.methods.registry import (
    AblatedPaper,
    Ablation,
    GainMethod,
    jensen_shannon,
    make_method,
)
from gain_core import PRESETS, Gain, PaperConfig
from gain_core.paper import Paper

# Light priors, so that every part of the state matters after a few batches.
CONFIG = PaperConfig(prior_strength=4.0)
AT_ONCE = {"update_every": 1, "warmup_frames": 1}


def method_of(world, **exchanged):
    return GainMethod(AblatedPaper(world.head.weight, CONFIG, Ablation(**exchanged)), **AT_ONCE)


def warmed(world, **exchanged):
    """The method after three batches, and the fourth with its posteriors."""
    method = method_of(world, **exchanged)
    for batch in world.batches[:3]:
        method.predict(batch)
    batch, gain = world.batches[3], method._gain
    plain = Paper(world.head.weight, CONFIG)
    return method, batch, plain.posteriors(batch.features, batch.logits, gain.state)


def source_of(batch):
    return log_softmax(batch.logits)


@pytest.mark.parametrize("preset", PRESETS)
def test_gain_method_is_gain(preset, world):
    method = make_method(preset, world.head)
    gain = Gain(world.head.weight, PRESETS[preset])
    for batch in world.batches:
        expected = gain.step(batch.features, batch.logits)
        assert_array_equal(method.predict(batch), expected.log_probs)


def test_neutral_ablation_is_gain(world):
    gain = GainMethod(Paper(world.head.weight, CONFIG), **AT_ONCE)
    neutral = method_of(world)
    moved = 0.0
    for batch in world.batches:
        expected = gain.predict(batch)
        assert_allclose(neutral.predict(batch), expected, atol=1e-6)
        moved = max(moved, float(np.abs(expected - source_of(batch)).max()))
    assert moved > 0.1


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
    method, batch, found = warmed(world, **exchanged)
    proposal, source = np.asarray(found.log_proposal), np.asarray(found.start)
    assert np.abs(proposal - source).max() > 0.1
    strength = strength_of(source, proposal)
    expected = log_softmax(source + strength[:, None] * (proposal - source))
    assert_allclose(method.diagnose(batch).strength, strength, atol=1e-5)
    assert_allclose(method.predict(batch), expected, atol=1e-5)


def test_evaluator_as_prediction(world):
    method, batch, found = warmed(world, role="evaluator")
    assert_allclose(method.predict(batch), found.log_evaluator, atol=1e-6)


def test_swapped_roles_exchange_the_posteriors(world):
    method, batch, found = warmed(world, role="swapped")
    diagnosis = method.diagnose(batch)
    floored = np.maximum(np.asarray(found.log_evaluator), np.log(CONFIG.prob_floor))
    evidence = log_softmax(floored) - np.asarray(found.start)
    assert_allclose(diagnosis.evidence, evidence, atol=1e-4)
    expected = (np.exp(np.asarray(found.log_proposal)) * evidence).sum(axis=1)
    assert_allclose(diagnosis.gain, expected, atol=1e-3)


@pytest.mark.parametrize("reliability", [True, False])
@pytest.mark.parametrize("assignment", ["source", "proposal", "adapted"])
def test_assignment_fills_the_sums(assignment, reliability, world):
    method = method_of(world, assignment=assignment, reliability=reliability)
    plain = Paper(world.head.weight, CONFIG)
    support, mass = np.zeros(6), np.zeros(6)
    for batch in world.batches[:4]:
        source = source_of(batch)
        found = plain.posteriors(batch.features, batch.logits, method._gain.state)
        proposal = np.asarray(found.log_proposal if found.adapts else found.source)
        log_probs = method.predict(batch)
        chosen = {"source": source, "proposal": proposal, "adapted": log_probs}[assignment]
        assigned = np.exp(chosen)
        top = assigned.argmax(axis=1)
        zeta = np.exp(source)[np.arange(20), top] if reliability else np.ones(20)
        support += (zeta[:, None] * assigned).sum(axis=0)
        mass += assigned.sum(axis=0)
    state = method._gain.state
    assert_allclose(np.asarray(state.precision) - CONFIG.prior_strength, support, rtol=1e-3)
    assert_allclose(state.predicted_mass, mass, rtol=1e-4)


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
    method, _, _ = warmed(world, prior=prior)
    state = method._gain.state
    expected = formula(np.asarray(state.precision), 4.0 + np.asarray(state.predicted_mass))
    assert_allclose(np.exp(np.asarray(state.log_prior)), expected / expected.sum(), rtol=1e-4)


def test_jensen_shannon_by_hand():
    first, second = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
    middle = np.array([0.7, 0.3])
    by_hand = 0.5 * np.sum([0.5, 0.5] * np.log(np.array([0.5, 0.5]) / middle))
    by_hand += 0.5 * np.sum([0.9, 0.1] * np.log(np.array([0.9, 0.1]) / middle))
    assert_allclose(jensen_shannon(first, second), [by_hand], rtol=1e-12)


@pytest.mark.parametrize("spec", ["paper:prior_strength=4", "shift"])
def test_diagnosis_changes_nothing(spec, world):
    plain, watched = make_method(spec, world.head), make_method(spec, world.head)
    assert isinstance(watched, Diagnosing)
    for batch in world.batches:
        watched.diagnose(batch)
        assert_array_equal(plain.predict(batch), watched.predict(batch))


def test_specs_build_what_they_say(world):
    spec = "paper:prior_strength=4:update_every=1:warmup_frames=1"
    fixed = make_method(f"{spec}:rule=fixed:fixed_strength=0", world.head)
    retention = make_method(f"{spec}:rule=retention", world.head)
    for batch in world.batches[:4]:
        assert_array_equal(fixed.predict(batch), retention.predict(batch))
    assert not Ablation(rule="full").is_neutral
    assert replace(Ablation(), fixed_strength=0.2).is_neutral
