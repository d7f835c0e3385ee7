"""The method's settings as one frozen record, and its named presets as values of it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from gain_core.errors import ConfigError

__all__ = ["PRESETS", "GainConfig"]

Proposal = Literal["shift", "gaussian"]
Anchor = Literal["prototype", "balanced"]
Variance = Literal["diagonal", "isotropic"]
PriorVariance = Literal["unit", "total"]
Temper = Literal["none", "head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GainConfig:
    """Settings of GAIN; the defaults are the preset `tracked`.

    Attributes
    ----------
    proposal : {"shift", "gaussian"}
        What is proposed: the source with the tracked shift of its mean logits taken out, or the
        posterior of class-conditional Gaussians (Algorithm 1). The settings from
        `prior_strength` to `temper` concern the second only, but for the half-lives.
    half_life : float
        Frames after which a frame's weight in a sum has halved; `inf` never forgets. The shift
        also keeps memories of a third of it, a ninth, and so on.
    shrinkage : float
        The shift moves only where its square exceeds this many times its noise; a fifth less
        where frames are independent.
    label_draws : float
        Up to as many effective draws of a class, all that the classes seen explain is taken out
        of the shift; beyond, in proportion less.
    mixture_test : bool
        Count a memory as one draw where its frames' logits are as symmetric about their mean as
        those of a single class are ("shift").
    independence_test : bool
        Ask the shortest memories and the newest labels, and predict a batch with what it taught, as
        far as frames are independent of those before them ("shift"); needs `mixture_test`. Off,
        they never are.
    match_scale : bool
        Bring the deviations of the classes' logits to the ratios they have on the source's domain
        ("shift").
    class_prior : bool
        Expect the shares that the classes have had of the frames to come, as far as frames are
        independent ("shift"); needs `independence_test`.
    guard : bool
        Watch the agreement with the source and return to it where that breaks down ("shift").
    prior_strength : float
        kappa_0, the pseudo-count of the source-centred prior, in samples.
    prior_samples : float
        Raises kappa_0 to ``prior_samples * memory / K`` where that is more, `memory` being the
        number of samples the sums hold in the long run (0 switches this off). See
        `strength_of_prior`.
    normalise : bool
        Scale features and prototypes to unit length first.
    anchor : {"prototype", "balanced"}
        Where a class without evidence sits: at its prototype c_k, or at u + a c_k with the shift
        u and scale a regressed from the sums, one vote per supported class.
    scale_half_life : float
        Memory of the regression for the scale a, in frames.
    variance : {"diagonal", "isotropic"}
        Shared covariance: one value per dimension, or their mean.
    prior_variance : {"unit", "total"}
        What the covariance is shrunk towards: 1, or the total variance of the features.
    variance_floor : float
        eps_Sigma of eq. app:continual_statistics, an absolute lower bound.
    variance_floor_ratio : float
        A lower bound as a share of the total variance, per dimension.
    temper : {"none", "head"}
        Factor on both Gaussian log-likelihoods: 1, or tau such that with no class evidence the
        proposal keeps the source's logit scale.
    prob_floor : float
        eps_p: probabilities entering log-ratios are floored here and renormalised; 0 is off.
    num_iters : int
        Halvings of the bisection for the intervention strength.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    """

    proposal: Proposal = "shift"
    half_life: float = 1024.0
    shrinkage: float = 1.25
    label_draws: float = 10.0
    mixture_test: bool = True
    independence_test: bool = True
    match_scale: bool = True
    class_prior: bool = True
    guard: bool = True
    prior_strength: float = 300.0
    prior_samples: float = 0.0
    normalise: bool = False
    anchor: Anchor = "prototype"
    scale_half_life: float = 4414.0
    variance: Variance = "diagonal"
    prior_variance: PriorVariance = "unit"
    variance_floor: float = 1e-6
    variance_floor_ratio: float = 0.0
    temper: Temper = "none"
    prob_floor: float = 0.0
    num_iters: int = 24

    def __post_init__(self) -> None:
        # Each bound is written so that NaN fails it.
        checks = (
            (
                "proposal",
                " or ".join(get_args(Proposal)),
                self.proposal in get_args(Proposal),
            ),
            ("shrinkage", "a finite number >= 0", 0.0 <= self.shrinkage < math.inf),
            ("label_draws", "a finite number >= 0", 0.0 <= self.label_draws < math.inf),
            ("mixture_test", "true or false", isinstance(self.mixture_test, bool)),
            ("independence_test", "true or false", isinstance(self.independence_test, bool)),
            ("match_scale", "true or false", isinstance(self.match_scale, bool)),
            ("class_prior", "true or false", isinstance(self.class_prior, bool)),
            ("guard", "true or false", isinstance(self.guard, bool)),
            ("prior_strength", "a finite number > 0", 0.0 < self.prior_strength < math.inf),
            ("prior_samples", "a finite number >= 0", 0.0 <= self.prior_samples < math.inf),
            ("half_life", "a number > 0", self.half_life > 0.0),
            ("scale_half_life", "a number > 0", self.scale_half_life > 0.0),
            ("variance_floor", "a finite number > 0", 0.0 < self.variance_floor < math.inf),
            ("variance_floor_ratio", "[0, 1]", 0.0 <= self.variance_floor_ratio <= 1.0),
            ("prob_floor", "[0, 1e-2]", 0.0 <= self.prob_floor <= 1e-2),
            ("num_iters", "an integer in [1, 60]", self.num_iters in range(1, 61)),
            ("normalise", "true or false", isinstance(self.normalise, bool)),
            ("anchor", " or ".join(get_args(Anchor)), self.anchor in get_args(Anchor)),
            ("variance", " or ".join(get_args(Variance)), self.variance in get_args(Variance)),
            (
                "prior_variance",
                " or ".join(get_args(PriorVariance)),
                self.prior_variance in get_args(PriorVariance),
            ),
            ("temper", " or ".join(get_args(Temper)), self.temper in get_args(Temper)),
            (
                "prior_samples",
                "0 with an infinite half_life, whose memory has no bound",
                self.prior_samples == 0.0 or math.isfinite(self.half_life),
            ),
        )
        for name, expected, holds in checks:
            if not holds:
                raise ConfigError(f"{name}: expected {expected}, got {getattr(self, name)!r}")

    @classmethod
    def preset(cls, name: str, /) -> GainConfig:
        """Look a named preset up.

        Raises
        ------
        ConfigError
            If there is no preset of that name.
        """
        if name not in PRESETS:
            raise ConfigError(f"preset: expected one of {', '.join(PRESETS)}, got {name!r}")
        return PRESETS[name]

    @classmethod
    def from_dict(cls, record: dict[str, Any], /) -> GainConfig:
        """Rebuild a config written by `to_dict`; unknown keys are errors."""
        known = {item.name for item in fields(cls)}
        unknown = sorted(set(record) - known)
        if unknown:
            raise ConfigError(
                f"config: unknown key {', '.join(unknown)}; "
                f"known keys are {', '.join(sorted(known))}"
            )
        values = {key: _finite_or_inf(value) for key, value in record.items()}
        try:
            return cls(**values)
        except TypeError as err:
            raise ConfigError(f"config: a value is of the wrong type ({err})") from err

    def to_dict(self) -> dict[str, Any]:
        """Plain values that survive strict JSON: an infinite half-life becomes `"inf"`."""
        record = asdict(self)
        return {key: "inf" if value == math.inf else value for key, value in record.items()}

    def decay(self, num_frames: int, /) -> float:
        """Factor on every sum when `num_frames` more frames are added."""
        return 0.5 ** (num_frames / self.half_life)

    def scale_decay(self, num_frames: int, /) -> float:
        """Factor on the regression's remembered numerator and denominator."""
        return 0.5 ** (num_frames / self.scale_half_life)

    def strength_of_prior(self, num_classes: int, /) -> float:
        """kappa_0 for K classes: max(prior_strength, prior_samples * memory / K).

        A frame's weight decays by 2^(-1/half_life), so in the long run the sums hold
        ``half_life / ln 2`` frames; kappa_0 must outweigh a class's share of them.
        """
        if self.prior_samples == 0.0:
            return self.prior_strength
        memory = self.half_life / math.log(2.0)
        return max(self.prior_strength, self.prior_samples * memory / num_classes)


def _finite_or_inf(value: Any) -> Any:
    """Undo `to_dict`'s spelling of infinity."""
    return math.inf if value == "inf" else value


_PAPER = GainConfig(
    proposal="gaussian",
    guard=False,
    prior_strength=3.0,
    prior_samples=0.0,
    half_life=math.inf,
    normalise=False,
    anchor="prototype",
    variance="diagonal",
    prior_variance="unit",
    variance_floor=1e-6,
    variance_floor_ratio=0.0,
    temper="none",
    prob_floor=1e-8,
)

# Class-conditional Gaussians about an anchor regressed from the class means.
_BALANCED = GainConfig(
    proposal="gaussian",
    guard=False,
    prior_strength=300.0,
    prior_samples=50.0,
    half_life=420.0,
    anchor="balanced",
    variance="isotropic",
    prior_variance="total",
    variance_floor=1e-12,
    variance_floor_ratio=0.05,
    temper="head",
)

# `paper` is Algorithm 1 read literally. The paper leaves eps_Sigma, eps_p and whether features are
# normalised open; `paper-l2` is the reading that survives contact with real features.
PRESETS: dict[str, GainConfig] = {
    "tracked": GainConfig(),
    "balanced": _BALANCED,
    "paper": _PAPER,
    "paper-l2": GainConfig(**{**asdict(_PAPER), "normalise": True, "variance_floor": 1e-2}),
}
