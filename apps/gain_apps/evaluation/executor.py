"""Where an evaluation's work is done: here, unless another executor is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from gain_apps.evaluation.camera_streams import noise_of
from gain_apps.evaluation.eval_input import EvalInput, InputSettings, OnImages
from gain_apps.evaluation.methods.protocol import Method
from gain_apps.evaluation.methods.registry import MethodSpec, make_method
from gain_apps.evaluation.scores import Trace, run_methods
from gain_apps.evaluation.streams import StreamBatch, StreamPlan, make_stream
from gain_core.errors import ConfigError

if TYPE_CHECKING:
    from gain_apps.evaluation.features import Cell, FeatureMaker, Rows
    from gain_runtime.files.artifact import Artifact
    from gain_runtime.sessions.session import Session

__all__ = [
    "ONE_BLAS_THREAD",
    "Executor",
    "LocalExecutor",
    "StreamTask",
    "make_methods",
    "run_stream",
    "stream_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTask:
    """Some methods over one stream.

    Attributes
    ----------
    plan : StreamPlan
        With the stream's own severity and seed.
    methods : tuple of MethodSpec
    diagnose : bool
        See `Experiment`.
    """

    plan: StreamPlan
    methods: tuple[MethodSpec, ...]
    diagnose: bool = False

    @property
    def title(self) -> str:
        """For people."""
        plan = self.plan
        return f"{plan.kind}, severity {plan.severity:g}, seed {plan.seed}"


class Executor(Protocol):
    """Where features are computed and streams are run; what they are does not depend on it."""

    def open_network(
        self, artifact: Artifact, settings: InputSettings, /
    ) -> AbstractContextManager[Session]:
        """The artifact's network, or where another machine runs it what is known of it."""
        ...

    def rows(self, maker: FeatureMaker, cells: Sequence[Cell], settings: InputSettings, /) -> Rows:
        """Begin to compute what the cache lacks of some cells; the result gives rows of them."""
        ...

    def run(
        self, tasks: Sequence[StreamTask], of: EvalInput, /, *, on_run: OnImages | None
    ) -> Iterator[tuple[StreamTask, Mapping[str, Trace]]]:
        """Run streams; tasks, or parts of them with fewer methods, come back as they end."""
        ...


class LocalExecutor:
    """One thing after another in this process."""

    def open_network(
        self, artifact: Artifact, settings: InputSettings, /
    ) -> AbstractContextManager[Session]:
        """See `Executor`.

        Raises
        ------
        ConfigError
            If the cache is a URL.
        BackendUnavailableError, EngineError
            As `open_session`.
        """
        from gain_runtime.sessions.session import open_session

        if "://" in str(settings.cache):
            raise ConfigError(
                f"--cache: expected a folder, got {settings.cache}; a URL goes with --ray"
            )
        return open_session(artifact, device=settings.device, num_threads=settings.num_threads)

    def rows(self, maker: FeatureMaker, cells: Sequence[Cell], settings: InputSettings, /) -> Rows:
        """See `Executor`."""
        return maker.rows

    def run(
        self, tasks: Sequence[StreamTask], of: EvalInput, /, *, on_run: OnImages | None
    ) -> Iterator[tuple[StreamTask, Mapping[str, Trace]]]:
        """See `Executor`."""
        # Built first, so that a wrong option ends the experiment before hours of it have run.
        methods = make_methods([spec for task in tasks for spec in task.methods], of)
        for task in tasks:
            yield task, run_stream(task, of, methods, on_run=on_run)


def stream_of(plan: StreamPlan, of: EvalInput, /) -> tuple[StreamBatch, ...]:
    """The batches of a plan's stream over an input.

    Raises
    ------
    ConfigError
        As `make_stream`.
    """
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
    """Methods for an input, by their texts.

    Raises
    ------
    ConfigError
        As `make_method`.
    """
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
    """Run a task's methods batch by batch.

    Parameters
    ----------
    task : StreamTask
    of : EvalInput
    methods : mapping
        As `make_methods` gives them, of this task and maybe of others; they are reset.
    on_run : callable, optional
        Called with a title and the number of batches; what it returns is called after every batch.

    Returns
    -------
    dict of str to Trace
        By the methods' texts.

    Raises
    ------
    ConfigError, NumericsError
        As `make_stream` and `run_methods`.
    """
    stream = stream_of(task.plan, of)
    on_batch: Callable[[], None] | None = None
    if on_run is not None:
        on_batch = on_run(task.title, len(stream))
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
