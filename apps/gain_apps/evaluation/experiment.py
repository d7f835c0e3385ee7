"""An evaluation: every method over the same streams, one stream per severity and seed."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from gain_apps.evaluation.eval_input import EvalInput, InputSettings, OnImages, open_input
from gain_apps.evaluation.executor import (
    Executor,
    GainTrace,
    StreamTask,
    Trace,
    stream_of,
)
from gain_apps.evaluation.methods.protocol import Cost
from gain_apps.evaluation.methods.registry import MethodSpec, parse_method
from gain_apps.evaluation.streams import RAMP, Order, StreamBatch, StreamPlan, parse_stream
from gain_core import DEFAULT_PRESET, __version__
from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.files.paths import exists, write_atomically
from gain_scenes.corruptions.constants import MAX_SEVERITY

# Frames a step: the paper's for a data set, an update's for what a camera sees.
BATCH_SIZE, CAMERA_BATCH_SIZE = 64, 16
# Scores of all runs are worked out again each time, which takes seconds where they are many.
WRITE_EVERY_S = 10.0


def evaluate(
    model: str | Path | EvalInput,
    data: str | Path | tuple[str, ...] | None = None,
    /,
    *,
    stream: str = "csc",
    order: Order | None = None,
    methods: Sequence[str] = (DEFAULT_PRESET,),
    seeds: int | Sequence[int] = 1,
    batch_size: int | None = None,
    settings: InputSettings | None = None,
    diagnose: bool = False,
    command: str = "evaluate()",
    executor: Executor | None = None,
    result: Path | None = None,
    on_task: OnImages | None = None,
) -> dict[str, Any]:
    """Run methods over streams of one network and score them.

    Parameters
    ----------
    model : str, Path or EvalInput
        Artifact (.onnx), feature dump (.npz), or what `open_input` gave.
    data : str, Path or tuple of str, optional
        Data set of an artifact: a folder, `.npz` or `test://` source; see `open_input`.
    stream : str
        `NAME` or `NAME:key=value`, see the module `streams`.
    order : str, optional
        Order of the images within a domain; default: that of the data.
    methods : sequence of str
        As `make_method` takes them; the source is always run first.
    seeds : int or sequence of int
        Number of seeds, from 0, or the seeds.
    batch_size : int, optional
        Frames per step; default: 16 if objects stay in view as for a camera, else 64.
    settings : InputSettings, optional
        How the network is run; not for an `EvalInput`.
    diagnose : bool
        Record strength and gain of GAIN's methods before each batch is learned from.
    command : str
        Written into the result as its origin.
    executor : Executor, optional
        Does the work; default: this process.
    result : Path, optional
        Result file, written as runs end. Until the last run has ended, its entry `unfinished` lists
        what is missing; the same evaluation, started again, continues from there.
    on_task : callable, optional
        Called with a title and a number of steps before each part of the work; the callable that
        it returns is called after every step.

    Returns
    -------
    dict
        As `make_results`: plain values, `methods.NAME.accuracy` and so on.

    Raises
    ------
    ArtifactError, StreamError
        If a file is missing or damaged.
    BackendUnavailableError
        If a library or device that is needed is not there.
    ConfigError
        If a setting is out of range or does not fit the data.
    EngineError
        If the network cannot be loaded or run.
    NumericsError
        If features or predictions hold NaN or infinity.

    Examples
    --------
    >>> evaluate("vit.npz", stream="few", methods=["shift", "neo"], seeds=5)  # doctest: +SKIP
    """
    from gain_apps.evaluation.results import make_results, write_results

    executor = executor or Executor()
    settings = settings or InputSettings()
    specs = [parse_method(name) for name in ("source", *(m for m in methods if m != "source"))]
    opened = model
    if not isinstance(opened, EvalInput):
        opened = open_for_stream(
            opened, data, stream, settings, executor=executor, on_images=on_task
        )
    plan = _make_plan(opened, stream, order=order, batch_size=batch_size)
    severities = (0.0,) if plan.kind == "ramp" else settings.severities
    if opened.single_severity and (plan.kind == "ramp" or len(severities) > 1):
        raise ConfigError("severity: a dump was made at one severity; ask for one, and no ramp")
    experiment = Experiment(
        plan=plan,
        severities=severities,
        seeds=tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
        methods=tuple(specs),
        diagnose=diagnose,
    )
    kept = None if result is None else KeptTraces(result, of=opened)
    runs: list[Run] = []
    written_s = time.monotonic()
    for runs in _run_experiment(experiment, opened, executor=executor, kept=kept, on_run=on_task):
        if result is not None and time.monotonic() - written_s > WRITE_EVERY_S:
            write_results(result, make_results(experiment, runs, of=opened, command=command))
            written_s = time.monotonic()
    results = make_results(experiment, runs, of=opened, command=command)
    if kept is not None and result is not None:
        write_results(result, results)
        kept.forget()
    return results


def open_for_stream(
    model: str | Path,
    data: str | Path | tuple[str, ...] | None,
    stream: str,
    settings: InputSettings,
    /,
    *,
    executor: Executor | None = None,
    on_images: OnImages | None = None,
) -> EvalInput:
    """`open_input` with what a stream needs of it: every severity of a ramp, frames as recorded."""
    kind = parse_stream(stream)["kind"]
    for severity in settings.severities:
        if not 0 <= severity <= MAX_SEVERITY:
            raise ConfigError(
                f"severity: expected numbers in [0, {MAX_SEVERITY}], got {severity:g}"
            )
    if kind == "ramp" and data is not None:
        settings = replace(settings, severities=tuple(sorted(set(map(float, RAMP)))))
    recorded = kind.startswith("recorded")
    return open_input(
        model, data, settings, recorded=recorded, executor=executor, on_images=on_images
    )


def _make_plan(
    of: EvalInput, stream: str, /, *, order: Order | None, batch_size: int | None
) -> StreamPlan:
    """A stream's plan for an input; severity and seed are set for each run."""
    plan = StreamPlan(num_domains=len(of.store.domains), **parse_stream(stream))
    camera = plan.is_camera or plan.kind.startswith("recorded")
    if camera and order not in (None, "list"):
        raise ConfigError(f"order: stream {plan.kind} has an order of its own; leave it out")
    if batch_size is None:
        batch_size = CAMERA_BATCH_SIZE if camera else BATCH_SIZE
    order = "list" if camera else order or of.default_order
    return replace(plan, order=order, batch_size=batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is run; severity and seed of the plan are replaced by each run's."""

    plan: StreamPlan
    severities: tuple[float, ...]
    seeds: tuple[int, ...]
    methods: tuple[MethodSpec, ...]
    diagnose: bool = False  # record strength and gain of the GAIN methods

    def __post_init__(self) -> None:
        for name in ("severities", "seeds", "methods"):
            if not getattr(self, name):
                raise ConfigError(f"{name}: expected at least one, got none")
        for name, keys in (
            ("severity", [f"{value:g}" for value in self.severities]),
            ("methods", [spec.text for spec in self.methods]),
        ):
            repeated = sorted({key for key in keys if keys.count(key) > 1})
            if repeated:
                raise ConfigError(f"{name}: {', '.join(repeated)} given more than once")
        if len(self.seeds) > 1 and not self.plan.is_random:
            raise ConfigError(
                f"seeds: {self.plan.kind} in list order is the same stream for every seed; "
                "use --seeds 1 or --set order=shuffled"
            )

    def tasks(self) -> tuple[StreamTask, ...]:
        """All methods over one stream per severity and seed, severities outermost."""
        return tuple(
            StreamTask(
                plan=replace(self.plan, severity=severity, seed=seed),
                methods=self.methods,
                diagnose=self.diagnose,
            )
            for severity in self.severities
            for seed in self.seeds
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Methods over one stream: all of them, once the experiment has ended."""

    severity: float
    seed: int
    stream: tuple[StreamBatch, ...]
    traces: dict[str, Trace]


def _run_experiment(
    experiment: Experiment,
    of: EvalInput,
    /,
    *,
    executor: Executor,
    kept: KeptTraces | None,
    on_run: OnImages | None,
) -> Iterator[list[Run]]:
    """Run every method over every stream."""
    tasks = experiment.tasks()
    runs = {
        task.plan: Run(
            severity=task.plan.severity,
            seed=task.plan.seed,
            stream=stream_of(task.plan, of),
            traces={} if kept is None else kept.load(task),
        )
        for task in tasks
    }
    missing = [
        replace(task, methods=left)
        for task in tasks
        if (left := tuple(s for s in task.methods if s.text not in runs[task.plan].traces))
    ]
    if len(missing) < len(tasks):
        yield [run for run in runs.values() if run.traces]
    for task, found in executor.run(missing, of, on_run=on_run):
        runs[task.plan].traces.update(found)
        if kept is not None:
            kept.save(task, found)
        yield [run for run in runs.values() if run.traces]


ARRAYS = tuple(item.name for item in fields(Trace) if item.name not in ("cost", "gain"))
GAIN_ARRAYS = tuple(item.name for item in fields(GainTrace))


class KeptTraces:
    """A file for each method and stream, named by the hash of all that its trace depends on.

    They lie in `RESULT.traces`; one that is damaged or cannot be written is an `ArtifactError`.
    """

    def __init__(self, result: Path, /, *, of: EvalInput) -> None:
        self._folder = result.with_name(result.name + ".traces")
        self._input = _fingerprint(of)

    def load(self, task: StreamTask, /) -> dict[str, Trace]:
        """Those of a task's methods that ended before."""
        paths = {spec.text: self._path(task, spec) for spec in task.methods}
        return {text: _read(path) for text, path in paths.items() if exists(path)}

    def save(self, task: StreamTask, traces: Mapping[str, Trace], /) -> None:
        """Keep the traces of a task's methods."""
        try:
            self._folder.mkdir(exist_ok=True)
            for spec in task.methods:
                write_atomically(self._path(task, spec), _packed(traces[spec.text]))
        except OSError as err:
            raise ArtifactError(
                f"{self._folder}: cannot be written ({err.strerror}); choose another place with "
                "--json"
            ) from err

    def forget(self) -> None:
        """Delete them: the result is whole."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, task: StreamTask, spec: MethodSpec) -> Path:
        key = [__version__, self._input, asdict(task.plan), spec.text, task.diagnose]
        name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
        return self._folder / f"{name}.npz"


def _fingerprint(of: EvalInput) -> str:
    """Hash of what the streams of an input are made of."""
    store, head = of.store, of.store.head
    digest = hashlib.sha256(json.dumps(of.record, sort_keys=True, default=str).encode())
    for key, views in store.outputs.items():
        digest.update(json.dumps([*key, *(view.name for view in views)]).encode())
    for array in (head.weight, head.bias, head.source_mean, store.labels, store.deviation):
        if array is not None:
            digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(repr(head.measured).encode())
    return digest.hexdigest()


def _packed(trace: Trace) -> bytes:
    arrays: dict[str, Any] = {name: getattr(trace, name) for name in ARRAYS}
    if trace.gain is not None:
        arrays |= {f"gain.{name}": getattr(trace.gain, name) for name in GAIN_ARRAYS}
    stream = io.BytesIO()
    np.savez(stream, cost=np.array(json.dumps(trace.cost.to_dict())), **arrays)
    return stream.getvalue()


def _read(path: Path) -> Trace:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        cost = Cost(**json.loads(str(arrays.pop("cost"))))
        gain = None
        if "gain.strength" in arrays:
            gain = GainTrace(**{name: arrays.pop(f"gain.{name}") for name in GAIN_ARRAYS})
        return Trace(**arrays, cost=cost, gain=gain)
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as err:
        raise ArtifactError(
            f"{path}: damaged trace of an unfinished evaluation ({err}); delete it and run again"
        ) from err
