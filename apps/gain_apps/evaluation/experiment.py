"""An experiment: every method over the same streams, one stream per severity and seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.methods import make_method
from gain_apps.evaluation.methods.registry import MethodSpec
from gain_apps.evaluation.methods.torch_network import TorchNetwork
from gain_apps.evaluation.store import FeatureStore
from gain_apps.evaluation.streams import StreamBatch, StreamPlan, make_stream
from gain_apps.evaluation.trace import Trace, run_method
from gain_core.errors import ConfigError

__all__ = ["Experiment", "Run", "plan_runs", "run_experiment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is run.

    Attributes
    ----------
    plan : StreamPlan
        `severity` and `seed` are replaced by each run's.
    severities : tuple of float
    seeds : tuple of int
    methods : tuple of MethodSpec
    num_bins : int
        Of the calibration error.
    diagnose : bool
        Record strength and gain of the GAIN methods.
    """

    plan: StreamPlan
    severities: tuple[float, ...]
    seeds: tuple[int, ...]
    methods: tuple[MethodSpec, ...]
    num_bins: int = 20
    diagnose: bool = True

    def __post_init__(self) -> None:
        for name in ("severities", "seeds", "methods"):
            values = getattr(self, name)
            if not values:
                raise ConfigError(f"{name}: expected at least one, got none")
        for name, keys in (
            ("severity", [f"{value:g}" for value in self.severities]),
            ("methods", [spec.text for spec in self.methods]),
        ):
            repeated = sorted({key for key in keys if keys.count(key) > 1})
            if repeated:
                raise ConfigError(f"{name}: {', '.join(repeated)} given more than once")
        if self.num_bins < 1:
            raise ConfigError(f"bins: expected at least 1, got {self.num_bins}")
        if len(self.seeds) > 1 and not self.plan.is_random:
            raise ConfigError(
                f"seeds: {self.plan.kind} in list order is the same stream for every seed; "
                "use --seeds 1 or --order shuffled"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """All methods over one stream."""

    severity: float
    seed: int
    stream: tuple[StreamBatch, ...]
    traces: Mapping[str, Trace]


def plan_runs(experiment: Experiment, /) -> list[StreamPlan]:
    """The plan of every run, severities outermost."""
    return [
        replace(experiment.plan, severity=severity, seed=seed)
        for severity in experiment.severities
        for seed in experiment.seeds
    ]


def run_experiment(
    experiment: Experiment,
    store: FeatureStore,
    /,
    *,
    recorded: npt.NDArray[np.int64] | None = None,
    network: Callable[[], TorchNetwork] | None = None,
    on_method: Callable[[str, int], Callable[[], None]] | None = None,
) -> list[Run]:
    """Run every method over every stream.

    Parameters
    ----------
    experiment : Experiment
    store : FeatureStore
    recorded : array, (N,) int64, optional
        See `make_stream`.
    network : callable, optional
        See `make_method`.
    on_method : callable, optional
        Called with a title and the number of batches before each method starts; what it returns
        is called after every batch.

    Returns
    -------
    list of Run

    Raises
    ------
    ConfigError, NumericsError
        As `make_method`, `make_stream` and `run_method`.
    """
    # Built first, so that a wrong option ends the experiment before hours of it have run.
    methods = {
        spec.text: make_method(spec, store.head, network=network) for spec in experiment.methods
    }
    runs = []
    for plan in plan_runs(experiment):
        stream = tuple(make_stream(plan, store.labels, recorded=recorded))
        traces = {}
        for name, method in methods.items():
            title = f"{name}, severity {plan.severity:g}, seed {plan.seed}"
            on_batch = None if on_method is None else on_method(title, len(stream))
            # Division by zero and overflow are found by the check of every prediction.
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                traces[name] = run_method(
                    method, stream, store, diagnose=experiment.diagnose, on_batch=on_batch
                )
        runs.append(Run(severity=plan.severity, seed=plan.seed, stream=stream, traces=traces))
    return runs
