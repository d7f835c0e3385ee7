"""The methods of the road-sign ablations: two bases, each with one part exchanged, and others."""

from __future__ import annotations

__all__ = ["ABLATIONS", "BASE", "DEFAULT", "DEFAULT_ABLATIONS", "OTHERS", "all_methods"]

BASE = "balanced:half_life=60"
ABLATIONS = {
    "intervention": (
        "rule=retention",
        "rule=full",
        "rule=fixed:fixed_strength=0.5",
        "rule=entropy",
        "rule=disagreement",
    ),
    "roles": ("role=evaluator", "role=swapped"),
    "state updates": (
        "assignment=source",
        "assignment=source:reliability=false",
        "assignment=proposal",
        "assignment=proposal:reliability=false",
        "reliability=false",
    ),
    "class prior": ("prior=uniform", "prior=reliability", "prior=balancing"),
    "prior strength": tuple(
        f"prior_samples=0:prior_strength={value}" for value in (3, 10, 30, 100, 300, 1000, 3000)
    ),
}
DEFAULT = "tracked"
# The shift has no sums by class, so assignments, the class prior and kappa_0 are not parts of it.
DEFAULT_ABLATIONS = {
    "intervention": (
        "rule=full",
        "rule=fixed:fixed_strength=0.5",
        "rule=entropy",
        "rule=disagreement",
    ),
    "roles": ("role=evaluator", "role=swapped"),
    "scale and mixture": (
        "match_scale=false",
        "mixture_test=false",
        "match_scale=false:mixture_test=false",
    ),
    "independent frames": ("independence_test=false",),
    "shares of the classes": ("class_prior=false",),
    "guard": ("guard=false",),
    "measured on clean images": ("measured=true",),
    "weights of the scale": ("reliability=false",),
    "label evidence": ("label_draws=0", "label_draws=3", "label_draws=30"),
    "shrinkage": ("shrinkage=0", "shrinkage=1", "shrinkage=2"),
    "memory": ("half_life=128", "half_life=512", "half_life=4096"),
}
OTHERS = ("paper", "neo", "neo-continual", "foa-shift", "t3a", "lame", "recentre")


def all_methods() -> tuple[str, ...]:
    """Both bases, each with one part exchanged, and the others.

    Returns
    -------
    tuple of str
        As `gain-eval --methods` takes them; `source`, which it adds, is not among them.
    """
    exchanged = [
        f"{base}:{change}"
        for base, groups in ((BASE, ABLATIONS), (DEFAULT, DEFAULT_ABLATIONS))
        for changes in groups.values()
        for change in changes
    ]
    return (BASE, DEFAULT, *exchanged, *OTHERS)
