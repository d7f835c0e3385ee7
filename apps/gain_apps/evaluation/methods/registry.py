"""Methods by name, with options, as `paper:rule=fixed`; the source and GAIN itself among them."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np

from gain_apps.evaluation.methods.forward_only import (
    T3A,
    BatchRecentring,
    Dota,
    FoaShift,
    Lame,
    Neo,
    NeoContinual,
)
from gain_apps.evaluation.methods.protocol import (
    Batch,
    Cost,
    Diagnosis,
    Floats,
    Head,
    Method,
    TorchNetwork,
    entropy,
    log_softmax,
)
from gain_core import (
    PRESETS,
    UPDATE_EVERY,
    WARMUP_FRAMES,
    Config,
    Gain,
    PaperConfig,
    Posteriors,
    Prediction,
    ShiftConfig,
    config_to_dict,
    evidence_path,
    preset,
)
from gain_core import make_method as make_gain
from gain_core.errors import ConfigError
from gain_core.method import Method as CoreMethod
from gain_core.method import answer
from gain_core.paper import Paper, PaperState
from gain_core.paper.statistics import concatenate
from gain_core.records import nbytes


class Source:
    """No adaptation: what every method is compared with."""

    cost = Cost()

    def predict(self, batch: Batch, /) -> Floats:
        """The log-softmax of the logits, (B, K)."""
        return log_softmax(batch.logits)

    def reset(self) -> None:
        """Nothing to forget."""


class GainMethod:
    """GAIN as a stream runs it."""

    def __init__(
        self,
        method: CoreMethod[Any],
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

    The rule sets the strength lambda. `gain`: lambda*. `retention`: 0. `full`: 1, which is the
    paper's "proposal as prediction". `fixed`: `fixed_strength`. `entropy`: H(s) / ln K.
    `disagreement`: JS(s, q_hat) / ln 2. The paper names the signals of the last two but not their
    scale; both are divided by their largest value here.

    The roles: `gain`: q_hat proposes, q_bar evaluates. `evaluator`: q_bar is the prediction.
    `swapped`: q_bar proposes, q_hat evaluates. The assignment allots a sample to classes in every
    sum: p*, s or q_hat. With reliability, zeta weighs the sums (zeta = s at the assignment's own
    top class); without it every sample weighs one. The prior: `both`: kappa / kappa_hat^2.
    `uniform`: 1/K. `reliability`: kappa / kappa_hat. `balancing`: 1 / kappa_hat.

    A value that is unknown, or a rule and a role that contradict each other, are a `ConfigError`.
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
        return self == Ablation(fixed_strength=self.fixed_strength)


class AblatedPaper(Paper):
    """Algorithm 1 with the parts of an `Ablation` exchanged; NumPy only.

    The neutral ablation gives what `Paper` gives.
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


Value = str | int | float | bool

_BASELINES: dict[str, Callable[..., Method]] = {
    "neo": Neo,
    "neo-continual": NeoContinual,
    "foa-shift": FoaShift,
    "t3a": T3A,
    "lame": Lame,
    "dota": Dota,
    "recentre": BatchRecentring,
}
_WITHOUT_HEAD = frozenset({"lame"})
# Module and class of the methods that need torch; imported when asked for.
_WITH_TORCH = {
    "torch-source": ("entropy", "TorchSource"),
    "tent": ("entropy", "Tent"),
    "eata": ("entropy", "Eata"),
    "sar": ("entropy", "Sar"),
    "cotta": ("augmented", "Cotta"),
    "roid": ("augmented", "Roid"),
    "foa": ("foa", "Foa"),
}
TORCH_METHODS: tuple[str, ...] = tuple(_WITH_TORCH)
METHODS: tuple[str, ...] = ("source", *PRESETS, *_BASELINES)
ALL_METHODS = (*METHODS, *TORCH_METHODS)

_WAITS = {"update_every": UPDATE_EVERY, "warmup_frames": WARMUP_FRAMES}
_GAIN_KEYS = frozenset({*_WAITS, "measured"})
_ABLATION_KEYS = frozenset(item.name for item in fields(Ablation))


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSpec:
    """A method as the command line names it: `text` is its key in the results."""

    text: str
    name: str
    options: Mapping[str, Value]


def parse_method(text: str, /) -> MethodSpec:
    """Read `NAME` or `NAME:key=value:key=value`; `ConfigError` if it is unknown or malformed."""
    name, options = parse_spec(text)
    if name not in ALL_METHODS:
        raise ConfigError(f"method: expected one of {', '.join(ALL_METHODS)}, got {name!r}")
    return MethodSpec(text=text.strip(), name=name, options=options)


def parse_spec(text: str, /) -> tuple[str, dict[str, Value]]:
    """A name, and the keys with their values behind it, as `NAME:key=value:key=value` has them.

    `ConfigError` if a pair is malformed or a key is given twice.
    """
    name, *pairs = text.strip().split(":")
    options: dict[str, Value] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key or not value:
            raise ConfigError(f"{text}: expected NAME:key=value:key=value, got {pair!r}")
        if key in options:
            raise ConfigError(f"{text}: {key} is given more than once")
        options[key] = _value(value)
    return name, options


def make_method(
    spec: MethodSpec | str, head: Head, /, *, network: Callable[[], TorchNetwork] | None = None
) -> Method:
    """Build a method for a head.

    GAIN presets take every key of their config, `update_every`, `warmup_frames` and `measured`
    (whether clean images are used where there are some; the default), the paper's presets those of
    `Ablation`; the baselines take the keywords of their classes. `network` makes the network in
    torch, for the methods that train it.

    Raises `ConfigError` if the name or an option is unknown or out of range, or the head lacks what
    it needs, or there is no network for a method that trains one, and `BackendUnavailableError` if
    it needs torch and there is none.
    """
    if isinstance(spec, str):
        spec = parse_method(spec)
    if spec.name == "source":
        _check_options(spec, frozenset())
        return Source()
    if spec.name in _WITH_TORCH:
        if network is None:
            raise ConfigError(
                f"{spec.text}: needs the network itself, on images; give --timm and --weights"
            )
        module, name = _WITH_TORCH[spec.name]
        methods = importlib.import_module(f"gain_apps.evaluation.methods.{module}")
        return _build(spec, getattr(methods, name), network())
    if head.logits_only and not isinstance(PRESETS.get(spec.name), ShiftConfig):
        raise ConfigError(
            f"{spec.text}: needs features, and the network has logits only; use shift"
        )
    if spec.name in PRESETS:
        return _make_gain(spec, head)
    arguments = () if spec.name in _WITHOUT_HEAD else (head,)
    return _build(spec, _BASELINES[spec.name], *arguments)


def _build(spec: MethodSpec, build: Callable[..., Method], *arguments: object) -> Method:
    """Call a method's class with the spec's options."""
    keywords = inspect.signature(build).parameters.values()
    _check_options(spec, frozenset(p.name for p in keywords if p.kind is p.KEYWORD_ONLY))
    try:
        return build(*arguments, **spec.options)
    except TypeError as err:
        raise ConfigError(f"{spec.text}: an option is of the wrong type ({err})") from err


def describe_method(spec: MethodSpec, /) -> dict[str, Any]:
    """The whole configuration of a method, for a result file."""
    if spec.name not in PRESETS:
        return {"name": spec.name, "options": dict(spec.options)}
    config, ablation = _gain_settings(spec)
    record: dict[str, Any] = {"name": spec.name, "config": config_to_dict(config)}
    if not ablation.is_neutral:
        record["ablation"] = asdict(ablation)
    record |= {key: spec.options[key] for key in _GAIN_KEYS if key in spec.options}
    return record


def _gain_settings(spec: MethodSpec, /) -> tuple[Config, Ablation]:
    """The config and the ablation that a spec of a GAIN preset means."""
    config = preset(spec.name)
    config_keys = frozenset(item.name for item in fields(config))
    ablation_keys = _ABLATION_KEYS if isinstance(config, PaperConfig) else frozenset()
    _check_options(spec, config_keys | ablation_keys | _GAIN_KEYS)
    changes: dict[str, Any] = {k: v for k, v in spec.options.items() if k in config_keys}
    exchanged: dict[str, Any] = {k: v for k, v in spec.options.items() if k in ablation_keys}
    try:
        return replace(config, **changes), Ablation(**exchanged)
    except TypeError as err:
        raise ConfigError(f"{spec.text}: an option is of the wrong type ({err})") from err


def _make_gain(spec: MethodSpec, head: Head) -> Method:
    """GAIN itself, or with parts exchanged."""
    config, ablation = _gain_settings(spec)
    waits = {}
    for name, default in _WAITS.items():
        frames = spec.options.get(name, default)
        if isinstance(frames, bool) or not isinstance(frames, int):
            raise ConfigError(f"{spec.text}: {name}: expected a whole number of frames")
        waits[name] = frames
    measured = spec.options.get("measured", True)
    if not isinstance(measured, bool):
        raise ConfigError(f"{spec.text}: measured: expected true or false, got {measured!r}")
    if isinstance(config, PaperConfig) and not ablation.is_neutral:
        return GainMethod(AblatedPaper(head.weight, config, ablation), **waits)
    of = head.num_classes if head.logits_only else head.weight
    method = make_gain(of, config, **(head.measured if measured else {}))
    return GainMethod(method, **waits)


def _check_options(spec: MethodSpec, known: frozenset[str]) -> None:
    """Every option is one that the method has."""
    unknown = sorted(set(spec.options) - known)
    if unknown:
        raise ConfigError(
            f"{spec.text}: unknown option {', '.join(unknown)}; "
            f"{spec.name} has {', '.join(sorted(known)) or 'none'}"
        )


def _value(text: str) -> Value:
    """A number, a truth value or a word."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
