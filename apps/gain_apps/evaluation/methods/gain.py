"""The frozen network, GAIN on `gain_core.Gain` itself, and Algorithm 1 with parts exchanged."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np

from gain_apps.evaluation.methods.protocol import (
    Batch,
    Cost,
    Diagnosis,
    Floats,
    entropy,
    log_softmax,
)
from gain_core import (
    UPDATE_EVERY,
    WARMUP_FRAMES,
    Gain,
    PaperConfig,
    Posteriors,
    Prediction,
    evidence_path,
)
from gain_core.errors import ConfigError
from gain_core.method import Method, answer
from gain_core.paper import Paper, PaperState
from gain_core.paper.statistics import concatenate
from gain_core.records import nbytes

__all__ = [
    "AblatedPaper",
    "Ablation",
    "GainMethod",
    "Source",
]


class Source:
    """No adaptation: what every method is compared with."""

    @property
    def cost(self) -> Cost:
        """One forward pass."""
        return Cost()

    def predict(self, batch: Batch, /) -> Floats:
        """The log-softmax of the logits, (B, K)."""
        return log_softmax(batch.logits)

    def reset(self) -> None:
        """Nothing to forget."""


class GainMethod:
    """GAIN as a stream runs it.

    Parameters
    ----------
    method : gain_core.Method
    update_every, warmup_frames : int, optional
        See `Gain`.
    """

    def __init__(
        self,
        method: Method[Any],
        /,
        *,
        update_every: int = UPDATE_EVERY,
        warmup_frames: int = WARMUP_FRAMES,
    ) -> None:
        self._gain = Gain(method, update_every=update_every, warmup_frames=warmup_frames)

    @property
    def cost(self) -> Cost:
        """One forward pass and the statistics."""
        return Cost(state_bytes=nbytes(self._gain.state))

    def predict(self, batch: Batch, /) -> Floats:
        """log p*, as `Gain.step` has it, (B, K)."""
        prediction = self._gain.step(batch.features, batch.logits)
        result: Floats = np.asarray(prediction.log_probs)
        return result

    def reset(self) -> None:
        """Nothing learned."""
        self._gain.reset()

    def diagnose(self, batch: Batch, /) -> Diagnosis:
        """Strength, expected gain and evidence of a batch against the state as it is."""
        method, state = self._gain.method, self._gain.state
        prediction = method.predict(batch.features, batch.logits, state)
        found = method.posteriors(batch.features, batch.logits, state)
        evidence = np.zeros_like(np.asarray(found.source))
        if found.adapts:
            evidence = np.asarray(found.log_proposal) - np.asarray(found.source)
        return Diagnosis(
            strength=np.asarray(prediction.strength),
            gain=np.asarray(prediction.gain),
            evidence=evidence,
        )


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
    reliability : bool
        Whether zeta weighs the sums (zeta = s at the assignment's own top class); without it
        every sample weighs one.
    prior : str
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


class AblatedPaper(Paper):
    """Algorithm 1 with the parts of an `Ablation` exchanged; NumPy only.

    Parameters
    ----------
    head : array, (K, D) float32
    config : PaperConfig
    ablation : Ablation
        The neutral one gives what `Paper` gives.
    """

    def __init__(self, head: Floats, config: PaperConfig, ablation: Ablation, /) -> None:
        super().__init__(head, config)
        self._ablation = ablation

    def posteriors(self, features: Any, logits: Any, state: PaperState, /) -> Posteriors:
        """Those of `Paper`, with their roles exchanged where the ablation says so."""
        found = super().posteriors(features, logits, state)
        if self._ablation.role != "swapped":
            return found
        floor = math.log(self.config.prob_floor)
        proposal = log_softmax(np.maximum(np.asarray(found.log_evaluator), floor))
        return replace(found, log_proposal=proposal, log_evaluator=found.log_proposal)

    def predict(self, features: Any, logits: Any, state: PaperState, /) -> Prediction:
        """p* by the ablation's rule; where nothing may be proposed the source answers."""
        found = self.posteriors(features, logits, state)
        prediction = answer(found)
        if not found.adapts or (
            self._ablation.rule == "gain" and self._ablation.role != "evaluator"
        ):
            return prediction
        start, proposal = np.asarray(found.start), np.asarray(found.log_proposal)
        if self._ablation.role == "evaluator":
            log_probs, strength = np.asarray(found.log_evaluator), np.ones_like(prediction.gain)
        else:
            strength = self._strength(start, proposal)
            path = np.asarray(evidence_path(start, proposal - start, strength))
            log_probs = np.where(strength[:, None] > 0, path, np.asarray(found.source))
        return replace(prediction, probs=np.exp(log_probs), log_probs=log_probs, strength=strength)

    def collect(
        self, features: Any, prediction: Prediction, state: PaperState, waiting: Any = None, /
    ) -> Any:
        """The rows for the sums, allotted and weighted as the ablation says."""
        source = np.asarray(prediction.source_log_probs)
        if self._ablation.assignment == "source":
            prediction = replace(prediction, probs=np.exp(source))
        elif self._ablation.assignment == "proposal":
            found = super().posteriors(features, source, state)
            proposed = found.log_proposal if found.adapts else found.source
            prediction = replace(prediction, probs=np.exp(np.asarray(proposed)))
        rows = super().collect(features, prediction, state)
        if not self._ablation.reliability:
            rows = replace(rows, reliability=rows.accepted)
        return rows if waiting is None else concatenate(waiting, rows)

    def update(self, evidence: Any, state: PaperState, /) -> PaperState:
        """As `Paper`, with log pi by the ablation's prior."""
        new = super().update(evidence, state)
        if self._ablation.prior == "both":
            return new
        precision = np.asarray(new.precision)
        predicted = self.config.prior_strength + np.asarray(new.predicted_mass)
        scores = {
            "uniform": np.zeros_like(precision),
            "reliability": np.log(precision) - np.log(predicted),
            "balancing": -np.log(predicted),
        }[self._ablation.prior]
        return replace(new, log_prior=log_softmax(scores.astype(precision.dtype)))

    def _strength(self, start: Floats, proposal: Floats) -> Floats:
        """lambda by the ablation's rule, (B,)."""
        rule = self._ablation.rule
        strength: Floats
        if rule == "entropy":
            strength = np.clip(entropy(start) / math.log(start.shape[1]), 0.0, 1.0)
            return strength
        if rule == "disagreement":
            strength = np.clip(jensen_shannon(start, proposal) / math.log(2.0), 0.0, 1.0)
            return strength
        value = {"retention": 0.0, "full": 1.0, "fixed": self._ablation.fixed_strength}[rule]
        return np.full(len(start), value, dtype=start.dtype)


def jensen_shannon(first: Floats, second: Floats, /) -> Floats:
    """Jensen-Shannon divergence of two rows of log-probabilities, in nats, at most ln 2."""
    middle = np.logaddexp(first, second) - math.log(2.0)
    return entropy(middle) - 0.5 * (entropy(first) + entropy(second))
