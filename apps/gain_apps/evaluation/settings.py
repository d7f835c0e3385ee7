"""The command line's settings as an experiment."""

from __future__ import annotations

from argparse import Namespace

from gain_apps.corruptions.constants import MAX_SEVERITY
from gain_apps.evaluation.experiment import Experiment
from gain_apps.evaluation.methods.registry import parse_method
from gain_apps.evaluation.streams import StreamPlan
from gain_apps.evaluation.subject import Subject
from gain_core.errors import ConfigError

__all__ = ["make_experiment"]


def make_experiment(args: Namespace, subject: Subject, /) -> Experiment:
    """Resolve what was asked for against what the data offers.

    Parameters
    ----------
    args : Namespace
        Of `gain-eval`.
    subject : Subject

    Returns
    -------
    Experiment
        The source first, whether named or not.

    Raises
    ------
    ConfigError
        If a setting is unknown, out of range or does not fit the data.
    """
    for severity in args.severity:
        if not 0 <= severity <= MAX_SEVERITY:
            raise ConfigError(
                f"severity: expected numbers in [0, {MAX_SEVERITY}], got {severity:g}"
            )
    if subject.single_severity and (args.stream == "ramp" or len(args.severity) > 1):
        raise ConfigError("severity: a bed was recorded at one severity; ask for one, and no ramp")
    names = [name for name in args.methods if name != "source"]
    plan = StreamPlan(
        kind=args.stream,
        num_domains=len(subject.store.domains),
        order="list" if args.stream == "recorded" else args.order or subject.default_order,
        batch_size=args.batch_size,
        seed=args.seed,
        delta=args.delta,
        rounds=args.rounds,
        visits=args.visits,
        only_class=args.only_class,
    )
    return Experiment(
        plan=plan,
        severities=(0.0,) if args.stream == "ramp" else tuple(args.severity),
        seeds=tuple(range(args.seed, args.seed + args.seeds)),
        methods=tuple(parse_method(name) for name in ("source", *names)),
        num_bins=args.bins,
        diagnose=not args.no_diagnosis,
    )
