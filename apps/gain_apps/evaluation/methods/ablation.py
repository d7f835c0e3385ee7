"""GAIN with parts exchanged, as the paper's ablations do, composed from the core's functions."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from gain_apps.evaluation.methods.protocol import Batch, Cost, Diagnosis, Floats, Head
from gain_apps.evaluation.methods.softmax import entropy, log_softmax
from gain_core import (
    GainConfig,
    GainState,
    GaussianState,
    Prediction,
    ShiftState,
    evidence_path,
    expected_gain,
    init_state,
    posteriors,
    prepare_prototypes,
    solve_strength,
)
from gain_core.errors import ConfigError
from gain_core.shift import between, may_be_independent
from gain_core.statistics import Evidence, accumulate
from gain_core.step import add_up, advance_shift, collect, commit, may_adapt

__all__ = ["AblatedGain", "Ablation"]

Rule = Literal["gain", "retention", "full", "fixed", "entropy", "disagreement"]
Role = Literal["gain", "evaluator", "swapped"]
Assignment = Literal["adapted", "source", "proposal"]
Prior = Literal["both", "uniform", "reliability", "balancing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """Which parts are exchanged; the defaults are GAIN itself.

    Attributes
    ----------
    rule : str
        How the strength lambda is set. `gain`: lambda*. `retention`: 0. `full`: 1, which is the
        paper's "proposal as prediction". `fixed`: `fixed_strength`. `entropy`: H(s) / ln K.
        `disagreement`: JS(s, q_hat) / ln 2. The paper names the signals of the last two but not
        their scale; both are divided by their largest value here.
    fixed_strength : float
        In [0, 1]; for the rule `fixed` only.
    role : str
        `gain`: q_hat proposes, q_bar evaluates. `evaluator`: q_bar is the prediction.
        `swapped`: q_bar proposes, q_hat evaluates.
    assignment : str
        What allots a sample to classes in every sum: p*, s or q_hat.
        Gaussians only.
    reliability : bool
        Whether zeta weighs the sums (zeta = s at the assignment's own top class); without it
        every sample weighs one. Of a shift, it weighs the regression of the scale only.
    prior : str
        Gaussians only.
        `both`: kappa / kappa_hat^2. `uniform`: 1/K. `reliability`: kappa / kappa_hat.
        `balancing`: 1 / kappa_hat.

    Raises
    ------
    ConfigError
        If a value is unknown, or rule and role contradict each other.
    """

    rule: Rule = "gain"
    fixed_strength: float = 0.5
    role: Role = "gain"
    assignment: Assignment = "adapted"
    reliability: bool = True
    prior: Prior = "both"

    def __post_init__(self) -> None:
        choices = (("rule", Rule), ("role", Role), ("assignment", Assignment), ("prior", Prior))
        for name, choice in choices:
            if getattr(self, name) not in get_args(choice):
                raise ConfigError(
                    f"{name}: expected one of {', '.join(get_args(choice))}, "
                    f"got {getattr(self, name)!r}"
                )
        if not 0.0 <= self.fixed_strength <= 1.0:
            raise ConfigError(f"fixed_strength: expected [0, 1], got {self.fixed_strength}")
        if not isinstance(self.reliability, bool):
            raise ConfigError(f"reliability: expected true or false, got {self.reliability!r}")
        if self.role == "evaluator" and self.rule != "gain":
            raise ConfigError("role evaluator: sets no strength; leave the rule out")

    @property
    def is_neutral(self) -> bool:
        """Whether this is GAIN itself."""
        neutral = Ablation(fixed_strength=self.fixed_strength)
        return all(getattr(self, item.name) == getattr(neutral, item.name) for item in fields(self))


class _Step(NamedTuple):
    """A prediction and the parts it was made of."""

    prediction: Prediction
    log_proposal: Floats
    evidence: Floats


class AblatedGain:
    """GAIN with the parts of an `Ablation` exchanged; NumPy only.

    Parameters
    ----------
    head : Head
    config : GainConfig
    ablation : Ablation
        The neutral one gives what `Gain` gives.

    Raises
    ------
    ConfigError
        If the assignment or the prior is exchanged where a shift is proposed, which has neither.
    """

    def __init__(self, head: Head, config: GainConfig, ablation: Ablation, /) -> None:
        if config.proposal == "shift":
            _refuse_gaussian_parts(ablation)
        self._config = config
        self._ablation = ablation
        self._prototypes = prepare_prototypes(head.weight, config, bias=head.bias)
        self._state: GainState = init_state(self._prototypes, config)

    @property
    def cost(self) -> Cost:
        """One forward pass and the statistics."""
        return Cost(state_bytes=self._state.nbytes)

    def predict(self, batch: Batch, /) -> Floats:
        """The ablated log p*, predicted and revised as `Gain.step` does it, (B, K)."""
        step, before = self._step(batch, self._state), self._state
        self._learn(self._collect(batch.features, step))
        step = self._revised(batch, step, before)
        result: Floats = np.asarray(step.prediction.log_probs)
        return result

    def reset(self) -> None:
        """Nothing learned."""
        self._state = init_state(self._prototypes, self._config)

    def diagnose(self, batch: Batch, /) -> Diagnosis:
        """Strength, expected gain and evidence of a batch against the state as it is, unrevised."""
        step = self._step(batch, self._state)
        return Diagnosis(
            strength=np.asarray(step.prediction.strength),
            gain=np.asarray(step.prediction.gain),
            evidence=step.evidence,
        )

    def _learn(self, evidence: Evidence) -> None:
        """Add the rows to the sums and derive what predictions read."""
        prototypes, config = self._prototypes, self._config
        if isinstance(self._state, ShiftState):
            seen = add_up(evidence, self._state, prototypes=prototypes, config=config)
            self._state = advance_shift(self._state, seen, prototypes=prototypes, config=config)
            return
        added = accumulate(evidence, self._state.statistics)
        state = commit(self._state, added, prototypes=prototypes, config=config)
        geometry = replace(state.geometry, log_prior=self._log_prior(state))
        self._state = replace(state, geometry=geometry)

    def _revised(self, batch: Batch, step: _Step, before: GainState) -> _Step:
        """The step of a batch that was learned from, as `revise` has it of GAIN."""
        after = self._state
        if not (isinstance(before, ShiftState) and isinstance(after, ShiftState)):
            return step
        if not may_be_independent(self._config, num_classes=self._prototypes.shape[0]):
            return step
        moved = replace(after, shift=between(before.shift, after.shift))
        return self._step(batch, moved)

    def _step(self, batch: Batch, state: GainState) -> _Step:
        """Propose, evaluate and intervene; where nothing may be proposed the source answers."""
        source = log_softmax(batch.logits.astype(self._prototypes.centered.dtype))
        if not bool(may_adapt(state)):
            zeros = np.zeros(len(source), dtype=source.dtype)
            prediction = _prediction(source, source, strength=zeros, gain=zeros)
            return _Step(prediction, source, np.zeros_like(source))
        posterior = posteriors(batch.features, batch.logits, state, config=self._config)
        proposal, evaluator = (np.asarray(log_probs) for log_probs in posterior)
        if self._ablation.role == "swapped":
            proposal, evaluator = evaluator, proposal
        start, proposal = self._floored(source), self._floored(proposal)
        evidence = proposal - start
        gain = np.asarray(expected_gain(evaluator, evidence))
        if self._ablation.role == "evaluator":
            adapted, strength = evaluator, np.ones_like(gain)
        else:
            strength = self._strength(start, evidence, gain, proposal=proposal)
            path = np.asarray(evidence_path(start, evidence, strength))
            adapted = np.where(strength[:, None] > 0, path, source)
        prediction = _prediction(source, adapted, strength=strength, gain=gain)
        return _Step(prediction, proposal, evidence)

    def _strength(
        self, start: Floats, evidence: Floats, gain: Floats, *, proposal: Floats
    ) -> Floats:
        """lambda by the ablation's rule, (B,)."""
        rule = self._ablation.rule
        if rule == "gain":
            return np.asarray(
                solve_strength(start, evidence, gain=gain, num_iters=self._config.num_iters)
            )
        strength: Floats
        if rule == "entropy":
            strength = np.clip(entropy(start) / math.log(start.shape[1]), 0.0, 1.0)
            return strength
        if rule == "disagreement":
            strength = np.clip(jensen_shannon(start, proposal) / math.log(2.0), 0.0, 1.0)
            return strength
        value = {"retention": 0.0, "full": 1.0, "fixed": self._ablation.fixed_strength}[rule]
        return np.full_like(gain, value)

    def _collect(self, features: Floats, step: _Step) -> Evidence:
        """The rows for the sums, allotted and weighted as the ablation says."""
        prediction = step.prediction
        if self._ablation.assignment != "adapted":
            chosen = {
                "source": np.asarray(prediction.source_log_probs),
                "proposal": step.log_proposal,
            }[self._ablation.assignment]
            prediction = replace(prediction, probs=np.exp(chosen))
        evidence = collect(features, prediction, self._state, config=self._config)
        if self._ablation.reliability:
            return evidence
        return replace(
            evidence,
            responsibilities=evidence.probs,
            reliability=evidence.accepted,
        )

    def _log_prior(self, state: GaussianState) -> Floats:
        """log pi by the ablation's prior, normalised, (K,)."""
        if self._ablation.prior == "both":
            return np.asarray(state.geometry.log_prior)
        precision = np.asarray(state.geometry.precision)
        # kappa_0 is what precision holds beyond the support.
        kappa_0 = self._config.strength_of_prior(len(precision))
        predicted = kappa_0 + np.asarray(state.statistics.predicted_mass)
        scores = {
            "uniform": np.zeros_like(precision),
            "reliability": np.log(precision) - np.log(predicted),
            "balancing": -np.log(predicted),
        }[self._ablation.prior]
        return log_softmax(scores.astype(precision.dtype))

    def _floored(self, log_probs: Floats) -> Floats:
        """Probabilities bounded below by eps_p and renormalised, as the core does."""
        if self._config.prob_floor == 0.0:
            return log_probs
        floor = log_probs.dtype.type(math.log(self._config.prob_floor))
        return log_softmax(np.maximum(log_probs, floor))


def _refuse_gaussian_parts(ablation: Ablation) -> None:
    """Where a shift is proposed there are no class sums to allot and no class prior."""
    neutral = Ablation()
    for name in ("assignment", "prior"):
        value, default = getattr(ablation, name), getattr(neutral, name)
        if value != default:
            raise ConfigError(
                f"{name}: expected {default} where a shift is proposed, got {value}; "
                "use balanced, paper or paper-l2, whose Gaussians it concerns"
            )


def jensen_shannon(first: Floats, second: Floats, /) -> Floats:
    """Jensen-Shannon divergence of two rows of log-probabilities, in nats, at most ln 2."""
    middle = np.logaddexp(first, second) - math.log(2.0)
    return entropy(middle) - 0.5 * (entropy(first) + entropy(second))


def _prediction(source: Floats, adapted: Floats, *, strength: Floats, gain: Floats) -> Prediction:
    """The core's record of an ablated prediction."""
    finite: Any = np.isfinite(adapted).all() & np.isfinite(source).all()
    return Prediction(
        probs=np.exp(adapted),
        log_probs=adapted,
        strength=strength,
        gain=gain,
        source_log_probs=source,
        finite=finite,
    )
