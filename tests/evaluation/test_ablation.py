"""GAIN behind the protocol, and its ablations: the neutral one is GAIN, each other one is exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_apps.evaluation.methods import Diagnosing, make_method
from gain_apps.evaluation.methods.ablation import AblatedGain, Ablation, jensen_shannon
from gain_apps.evaluation.methods.gain_method import GainMethod
from gain_apps.evaluation.methods.softmax import log_softmax
from gain_core import PRESETS, ConfigError, Gain, GainConfig, posteriors

# One class seen once and light priors, so that every part of the state matters.
LIGHT = "balanced:prior_strength=4:prior_samples=0:half_life=60"
# Shrunken so little that twelve batches move it.
SHIFT = "tracked:shrinkage=0.2:half_life=60"


def light_config() -> GainConfig:
    balanced = GainConfig.preset("balanced")
    return replace(balanced, prior_strength=4.0, prior_samples=0.0, half_life=60.0)


REVISED = GainConfig(shrinkage=0.2, half_life=60.0)
# Without the second prediction of a batch, each part shows in the first.
CONFIGS = {"gaussians": light_config(), "shift": replace(REVISED, independence_test=False)}
KINDS = [pytest.param(config, id=name) for name, config in CONFIGS.items()]
WHOLE = {"revised": REVISED} | PRESETS


def kinks(world, config=None, **exchanged) -> AblatedGain:
    return AblatedGain(world.head, config or light_config(), Ablation(**exchanged))


def source_of(batch):
    return log_softmax(batch.logits)


@pytest.mark.parametrize("preset", PRESETS)
def test_gain_method_is_gain(preset, world):
    method = make_method(preset, world.head)
    gain = Gain(world.head.weight, GainConfig.preset(preset), bias=world.head.bias)
    for batch in world.batches:
        expected = gain.step(batch.features, batch.logits)
        assert_array_equal(method.predict(batch), expected.log_probs)


def test_diagnosis_is_of_the_prediction_before_its_revision(world):
    """As protocol, report and pages say: what is scored has been revised."""
    method = GainMethod(world.head, REVISED)
    gain = Gain(world.head.weight, REVISED, bias=world.head.bias)
    revised = 0.0
    for batch in world.batches:
        diagnosis = method.diagnose(batch)
        first = gain.predict(batch.features, batch.logits)
        assert_array_equal(diagnosis.strength, first.strength)
        assert_array_equal(diagnosis.gain, first.gain)
        scored = gain.step(batch.features, batch.logits)
        assert_array_equal(method.predict(batch), scored.log_probs)
        revised = max(revised, float(np.abs(scored.gain - first.gain).max()))
    assert revised > 0.01


@pytest.mark.parametrize(
    "config", [*KINDS, *(pytest.param(config, id=name) for name, config in WHOLE.items())]
)
def test_neutral_ablation_is_gain(config, world):
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
    # Twelve batches do not convince the default shrinkage.
    assert moved > 0.1 or config == GainConfig(), (
        "the correction never did anything, so the comparison shows nothing"
    )


@pytest.mark.parametrize("config", KINDS)
def test_first_batch_is_the_source_whatever_the_ablation(config, world):
    for exchanged in ({"rule": "full"}, {"role": "evaluator"}, {"rule": "fixed"}):
        batch = world.batches[0]
        assert_allclose(
            kinks(world, config, **exchanged).predict(batch), source_of(batch), atol=1e-6
        )


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
@pytest.mark.parametrize("config", KINDS)
def test_rules_set_the_strength_on_the_evidence_path(config, exchanged, strength_of, world):
    method = kinks(world, config, **exchanged)
    for batch in world.batches[:3]:
        method.predict(batch)
    batch = world.batches[3]
    proposal, _ = posteriors(batch.features, batch.logits, method._state, config=config)
    assert np.abs(proposal - source_of(batch)).max() > 0.1
    source = source_of(batch)
    strength = strength_of(source, proposal)
    expected = log_softmax(source + strength[:, None] * (proposal - source))
    assert_allclose(method.diagnose(batch).strength, strength, atol=1e-5)
    assert_allclose(method.predict(batch), expected, atol=1e-5)


@pytest.mark.parametrize("config", KINDS)
def test_evaluator_as_prediction(config, world):
    method = kinks(world, config, role="evaluator")
    for batch in world.batches[:3]:
        method.predict(batch)
    batch = world.batches[3]
    _, evaluator = posteriors(batch.features, batch.logits, method._state, config=config)
    assert_allclose(method.predict(batch), evaluator, atol=1e-6)


@pytest.mark.parametrize("config", KINDS)
def test_swapped_roles_exchange_the_posteriors(config, world):
    method = kinks(world, config, role="swapped")
    for batch in world.batches[:3]:
        method.predict(batch)
    batch = world.batches[3]
    proposal, evaluator = posteriors(batch.features, batch.logits, method._state, config=config)
    source = source_of(batch)
    diagnosis = method.diagnose(batch)
    assert_allclose(diagnosis.evidence, evaluator - source, atol=1e-5)
    expected = (np.exp(proposal) * (evaluator - source)).sum(axis=1)
    assert_allclose(diagnosis.gain, expected, atol=1e-4)


@pytest.mark.parametrize("reliability", [True, False])
@pytest.mark.parametrize("assignment", ["source", "proposal", "adapted"])
def test_assignment_fills_the_sums(assignment, reliability, world):
    config = replace(light_config(), half_life=np.inf)
    method = AblatedGain(
        world.head, config, Ablation(assignment=assignment, reliability=reliability)
    )
    support, mass = np.zeros(6), np.zeros(6)
    for batch in world.batches[:4]:
        source = source_of(batch)
        if assignment == "source" or not bool(method._state.geometry.has_history):
            assigned = np.exp(source)
        elif assignment == "proposal":
            proposal, _ = posteriors(batch.features, batch.logits, method._state, config=config)
            assigned = np.exp(proposal)
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


@pytest.mark.parametrize(
    ("exchanged", "message"),
    [
        ({"assignment": "source"}, r"assignment: expected adapted where a shift .*got source"),
        ({"prior": "uniform"}, r"prior: expected both where a shift is proposed, got uniform"),
    ],
    ids=["assignment", "prior"],
)
def test_a_shift_has_no_assignment_and_no_prior(exchanged, message, world):
    with pytest.raises(ConfigError, match=rf"^{message}; use balanced, paper or paper-l2"):
        kinks(world, GainConfig(), **exchanged)
    ((name, value),) = exchanged.items()
    with pytest.raises(ConfigError, match=message):
        make_method(f"tracked:{name}={value}", world.head)


def test_without_reliability_every_frame_weighs_one_in_the_scale(world):
    config = CONFIGS["shift"]
    method = kinks(world, config, reliability=False)
    centred = world.head.weight - world.head.weight.mean(axis=0)
    power = (centred**2).sum(axis=1)
    expected = 0.0
    for batch in world.batches[:4]:
        expected *= 0.5 ** (20 / config.scale_half_life)
        expected += (power[method.predict(batch).argmax(axis=1)] ** 2).sum()
    assert_allclose(method._state.sums.scale_denominator, expected, rtol=1e-5)
    weighted = kinks(world, config)
    for batch in world.batches[:4]:
        weighted.predict(batch)
    assert weighted._state.sums.scale_denominator < 0.99 * expected


@pytest.mark.parametrize("make", [GainMethod, lambda *a: AblatedGain(*a, Ablation())])
def test_while_the_guard_holds_the_source_answers_and_there_is_no_evidence(make, world):
    method = make(world.head, CONFIGS["shift"])
    for batch in world.batches[:6]:
        method.predict(batch)
    batch = world.batches[6]
    assert np.abs(method.diagnose(batch).evidence).max() > 0.1
    inner = method._gain if isinstance(method, GainMethod) else method
    guard = replace(inner._state.guard, hold=np.float32(50.0))
    inner._state = replace(inner._state, guard=guard)
    diagnosis = method.diagnose(batch)
    for value in (diagnosis.evidence, diagnosis.strength, diagnosis.gain):
        assert_array_equal(value, np.zeros_like(value))
    assert_allclose(method.predict(batch), source_of(batch), atol=1e-6)


def test_jensen_shannon_by_hand():
    first, second = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
    middle = np.array([0.7, 0.3])
    by_hand = 0.5 * np.sum([0.5, 0.5] * np.log(np.array([0.5, 0.5]) / middle))
    by_hand += 0.5 * np.sum([0.9, 0.1] * np.log(np.array([0.9, 0.1]) / middle))
    assert_allclose(jensen_shannon(first, second), [by_hand], rtol=1e-12)
    assert_allclose(jensen_shannon(first, first), [0.0], atol=1e-12)


@pytest.mark.parametrize("spec", [LIGHT, SHIFT], ids=["gaussians", "shift"])
def test_diagnosis_changes_nothing(spec, world):
    plain, watched = make_method(spec, world.head), make_method(spec, world.head)
    assert isinstance(watched, Diagnosing)
    for batch in world.batches:
        watched.diagnose(batch)
        assert_array_equal(plain.predict(batch), watched.predict(batch))


def test_specs_build_what_they_say(world):
    assert isinstance(make_method("tracked:rule=full", world.head), AblatedGain)
    assert isinstance(make_method("tracked:rule=gain", world.head), GainMethod)
    for spec in (LIGHT, SHIFT):
        fixed = make_method(f"{spec}:rule=fixed:fixed_strength=0", world.head)
        retention = make_method(f"{spec}:rule=retention", world.head)
        for batch in world.batches[:4]:
            assert_array_equal(fixed.predict(batch), retention.predict(batch))
