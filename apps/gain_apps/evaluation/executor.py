"""Running methods over streams: a record of each scored sample, here or where an executor is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from gain_apps.evaluation.eval_input import EvalInput, FeatureStore, InputSettings, OnImages
from gain_apps.evaluation.methods.protocol import (
    Batch,
    Cost,
    Diagnosing,
    Floats,
    Method,
    OnPixels,
)
from gain_apps.evaluation.methods.registry import MethodSpec, make_method
from gain_apps.evaluation.streams import StreamBatch, StreamPlan, make_stream, noise_of
from gain_core.errors import ConfigError, NumericsError

if TYPE_CHECKING:
    from gain_apps.evaluation.features import Cell, FeatureMaker, Rows
    from gain_runtime.files.artifact import Artifact
    from gain_runtime.sessions.session import Session

# Normalised log-probabilities; single precision over a thousand classes stays well within.
MAX_NORM_ERROR = 1e-3

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GainTrace:
    """What GAIN's parts said about each sample, (T,) each, before its batch was learned from.

    Strength and expected gain in nats; realised is log(q_hat / s) at the true class: what the full
    correction would have gained.
    """

    strength: Reals
    expected: Reals
    realised: Reals


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """A method's run over a stream of T scored samples; arrays are (T,) but `step_ms`."""

    domains: npt.NDArray[np.int64]
    rounds: npt.NDArray[np.int64]
    confidence: Reals  # probability of the predicted class
    correct: npt.NDArray[np.bool_]
    nll: Reals  # -log p(label), in nats; infinite where the label was given no probability
    brier: Reals  # squared distance to the one-hot label
    # Of every batch, the wall time of `predict`: the network's forward pass is not in it, unless
    # the method runs the network itself (`OnPixels`).
    step_ms: Reals
    cost: Cost  # as of the end
    gain: GainTrace | None  # of methods of the GAIN family


def run_methods(
    methods: Mapping[str, Method],
    stream: Sequence[StreamBatch],
    store: FeatureStore,
    /,
    *,
    noise: np.random.Generator | None = None,
    diagnose: bool = False,
    on_batch: Callable[[], None] | None = None,
) -> dict[str, Trace]:
    """Reset methods and run them over a stream, all of them batch by batch.

    Where asked, methods that can are diagnosed before each batch that is scored, of which there is
    at least one; that is not in their time. Raises `NumericsError` if a prediction is not finite or
    its rows do not sum to one, and `ConfigError` as `FeatureStore.batch`.
    """
    recorders = {name: _Recorder(method, diagnose=diagnose) for name, method in methods.items()}
    with_pixels = any(isinstance(method, OnPixels) for method in methods.values())
    for number, item in enumerate(stream):
        batch = store.batch(item, with_pixels=with_pixels, noise=noise)
        for recorder in recorders.values():
            recorder.step(batch, store.labels[item.images], scored=item.scored, number=number)
        if on_batch is not None:
            on_batch()
    scored = [item for item in stream if item.scored]
    return {name: recorder.trace(scored) for name, recorder in recorders.items()}


class _Recorder:
    """One method's run."""

    def __init__(self, method: Method, /, *, diagnose: bool) -> None:
        method.reset()
        self._method = method
        self._watched = method if diagnose and isinstance(method, Diagnosing) else None
        self._rows: list[tuple[npt.NDArray[Any], ...]] = []
        self._gains: list[tuple[Reals, ...]] = []
        self._step_ms: list[float] = []

    def step(
        self, batch: Batch, labels: npt.NDArray[np.int64], /, *, scored: bool, number: int
    ) -> None:
        """Predict a batch, and keep what is scored of it."""
        if self._watched is not None and scored:
            found = self._watched.diagnose(batch)
            realised = found.evidence[np.arange(len(labels)), labels]
            columns = (found.strength, found.gain, realised)
            self._gains.append(tuple(column.astype(np.float64) for column in columns))
        start = time.perf_counter_ns()
        log_probs = self._method.predict(batch)
        self._step_ms.append((time.perf_counter_ns() - start) / 1e6)
        _check(log_probs, self._method, number=number)
        if scored:
            self._rows.append(_sample_scores(log_probs, labels))

    def trace(self, scored: Sequence[StreamBatch], /) -> Trace:
        """Everything kept."""
        confidence, correct, nll, brier = _joined(self._rows)
        gain = None
        if self._watched is not None:
            strength, expected, realised = _joined(self._gains)
            gain = GainTrace(strength=strength, expected=expected, realised=realised)
        return Trace(
            domains=np.concatenate([item.domains for item in scored]),
            rounds=np.concatenate([item.rounds for item in scored]),
            confidence=confidence,
            correct=correct,
            nll=nll,
            brier=brier,
            step_ms=np.asarray(self._step_ms),
            cost=self._method.cost,
            gain=gain,
        )


def _joined(rows: Sequence[tuple[npt.NDArray[Any], ...]]) -> list[npt.NDArray[Any]]:
    """The batches' columns, each in one piece."""
    return [np.concatenate(column) for column in zip(*rows, strict=True)]


def _check(log_probs: Floats, method: Method, *, number: int) -> None:
    """The prediction is a distribution."""
    with np.errstate(over="ignore"):
        total = np.exp(log_probs.astype(np.float64)).sum(axis=1)
    # Written so that NaN fails it.
    if not (np.abs(total - 1.0) <= MAX_NORM_ERROR).all():
        raise NumericsError(
            f"{type(method).__name__}: expected probabilities that sum to one, got sums from "
            f"{total.min():g} to {total.max():g} in batch {number}"
        )


def _sample_scores(
    log_probs: Floats, labels: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[Any], ...]:
    """Confidence, correctness, NLL and Brier score of each sample."""
    probs = np.exp(log_probs.astype(np.float64))
    each = np.arange(len(labels))
    top = log_probs.argmax(axis=1)
    brier = np.sum(probs * probs, axis=1) - 2.0 * probs[each, labels] + 1.0
    nll = -log_probs[each, labels].astype(np.float64)
    return probs[each, top], top == labels, nll, brier


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTask:
    """Some methods over one stream, whose plan has its own severity and seed."""

    plan: StreamPlan
    methods: tuple[MethodSpec, ...]
    diagnose: bool = False  # record strength and gain of the GAIN methods

    @property
    def title(self) -> str:
        """For people."""
        plan = self.plan
        return f"{plan.kind}, severity {plan.severity:g}, seed {plan.seed}"


class Executor:
    """Computes features and runs streams, one thing after another in this process.

    Where another executor does so, features and scores are the same.
    """

    def open_network(
        self, artifact: Artifact, settings: InputSettings, /
    ) -> AbstractContextManager[Session]:
        """The artifact's network, or where another machine runs it what is known of it.

        A setting that this executor does not take is a `ConfigError`.
        """
        from gain_runtime.sessions.session import open_session

        if "://" in str(settings.cache):
            raise ConfigError(
                f"--cache: expected a folder, got {settings.cache}; a URL goes with --ray"
            )
        return open_session(artifact, device=settings.device, num_threads=settings.num_threads)

    def rows(self, maker: FeatureMaker, cells: Sequence[Cell], settings: InputSettings, /) -> Rows:
        """Begin to compute what the cache lacks of some cells; the result gives rows of them."""
        return maker.rows

    def run(
        self, tasks: Sequence[StreamTask], of: EvalInput, /, *, on_run: OnImages | None
    ) -> Iterator[tuple[StreamTask, Mapping[str, Trace]]]:
        """Run streams; tasks, or parts of them with fewer methods, come back as they end."""
        # Built first, so that a wrong option ends the experiment before hours of it have run.
        methods = make_methods([spec for task in tasks for spec in task.methods], of)
        for task in tasks:
            yield task, run_stream(task, of, methods, on_run=on_run)


def stream_of(plan: StreamPlan, of: EvalInput, /) -> tuple[StreamBatch, ...]:
    """The batches of a plan's stream over an input."""
    store = of.store
    return tuple(
        make_stream(
            plan,
            store.labels,
            num_classes=store.head.num_classes,
            recorded=of.recorded,
            recordings=of.recordings,
        )
    )


def make_methods(specs: Iterable[MethodSpec], of: EvalInput, /) -> dict[str, Method]:
    """Methods for an input, by their texts."""
    once = {spec.text: spec for spec in specs}
    return {
        text: make_method(spec, of.store.head, network=of.network) for text, spec in once.items()
    }


# With more threads BLAS sums in another order, and the last bits depend on the machine; arrays as
# small as these take longer with them, too.
ONE_BLAS_THREAD = threadpool_limits.wrap(limits=1, user_api="blas")


@ONE_BLAS_THREAD  # type: ignore[untyped-decorator]
def run_stream(
    task: StreamTask,
    of: EvalInput,
    methods: Mapping[str, Method],
    /,
    *,
    on_run: OnImages | None = None,
) -> dict[str, Trace]:
    """Run a task's methods batch by batch; their traces, by the methods' texts.

    The methods, as `make_methods` gives them, may be of other tasks too; they are reset.
    """
    stream = stream_of(task.plan, of)
    on_batch = None if on_run is None else on_run(task.title, len(stream))
    # Division by zero and overflow are found by the check of every prediction.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return run_methods(
            {spec.text: methods[spec.text] for spec in task.methods},
            stream,
            of.store,
            noise=noise_of(task.plan),
            diagnose=task.diagnose,
            on_batch=on_batch,
        )
