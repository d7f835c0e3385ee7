"""Evaluation on a Ray cluster: features by Ray Data, streams as Ray tasks.

Actors that hold a session each write the features of a chunk of images to a shard,
`CACHE/HASH/ROW.npz` below any fsspec path; HASH is the name of the entry in the local cache. Each
machine that streams them gathers the shards to such an entry, and maps it.
"""

from __future__ import annotations

import functools
import io
import logging
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gain_apps.evaluation.eval_input import EvalInput, InputSettings, OnImages, Origin, open_input
from gain_apps.evaluation.executor import Executor, StreamTask, Trace, make_methods, run_stream
from gain_apps.evaluation.features import (
    CHUNK_ROWS,
    Cell,
    FeatureMaker,
    Floats,
    Rows,
    cache_folder,
)
from gain_apps.evaluation.image_input import open_maker
from gain_core import errors
from gain_core.errors import (
    ArtifactError,
    BackendUnavailableError,
    ConfigError,
    GainError,
    one_line,
)
from gain_runtime.files.artifact import Artifact, load_artifact
from gain_runtime.files.paths import FsspecFolder
from gain_runtime.frames import Closing
from gain_runtime.optional import require
from gain_runtime.sessions.onnx import CPU_PROVIDER, CUDA_PROVIDER
from gain_runtime.sessions.session import Features, Session, open_session

# What a session says it runs on, where it is opened by another machine.
PROVIDERS = {"cpu": CPU_PROVIDER, "cuda": CUDA_PROVIDER, "tensorrt": "tensorrt"}


@dataclass(frozen=True, slots=True)
class _Elsewhere(Closing):
    """What is known of a session that others hold."""

    artifact: Artifact
    provider: str

    def infer(self, pixel_values: Floats, /) -> Features:
        """Nothing: the shards have what it would say."""
        raise ArtifactError(f"{self.artifact.path}: is run by the cluster's actors, not here")

    def close(self) -> None:
        """Nothing to release."""


class ShardReader(Executor):
    """Features out of shards that others have written: what a machine does that runs streams."""

    def open_network(
        self, artifact: Artifact, settings: InputSettings, /
    ) -> AbstractContextManager[Session]:
        """See `Executor`; no session is opened.

        The device `auto` is a `ConfigError`: machines that choose differently make other features.
        """
        if settings.device not in PROVIDERS:
            raise ConfigError(
                f"--device: expected {', '.join(PROVIDERS)} on a cluster, got {settings.device}; "
                "the machines could choose differently"
            )
        return _Elsewhere(artifact, PROVIDERS[settings.device])

    def rows(self, maker: FeatureMaker, cells: Sequence[Cell], settings: InputSettings, /) -> Rows:
        store = _store(settings)
        names = {cell: maker.entry(cell).name for cell in cells}

        def read(cell: Cell, start: int, end: int) -> tuple[Floats, Floats]:
            return _read_shard(store, names[cell], start)

        return read


class RayExecutor(ShardReader, Closing):
    """A connection to a cluster (a context manager).

    The address is `auto`, `HOST:PORT`, or `local`, which starts a cluster of this machine. Raises
    `BackendUnavailableError` if Ray is not installed, or no cluster answers.
    """

    def __init__(self, address: str, /) -> None:
        self._ray: Any = require("ray", extra="ray")
        require("ray.data", extra="ray")
        self._gathered: list[tuple[FeatureMaker, Cell, FsspecFolder]] = []
        # A program that is connected already keeps its connection.
        self._owns = not self._ray.is_initialized()
        if not self._owns:
            return
        try:
            self._ray.init(address, log_to_driver=False, logging_level=logging.WARNING)
        except (ConnectionError, ValueError, RuntimeError) as err:
            reason = one_line(err)
            raise BackendUnavailableError(
                f"--ray {address}: expected a running Ray cluster ({reason}); "
                "start one with: ray start --head, or give --ray local"
            ) from err

    def close(self) -> None:
        """Leave the cluster; what was asked of it and has not ended is given up."""
        if self._owns:
            self._ray.shutdown()
        gathered, self._gathered = self._gathered, []
        for maker, cell, store in gathered:
            # Below the local cache itself they would be there twice.
            if store.url == str(maker.cache.folder) and maker.entry(cell).is_whole:
                store.remove(maker.entry(cell).name)

    def rows(self, maker: FeatureMaker, cells: Sequence[Cell], settings: InputSettings, /) -> Rows:
        """See `Executor`; Ray Data computes the shards that are missing while the first are read.

        A cluster that has none of what the device takes is a `ConfigError`.
        """
        store, read = _store(settings), super().rows(maker, cells, settings)
        self._gathered += [(maker, cell, store) for cell in cells]
        chunks = _missing(maker, cells, store)
        if not chunks:
            return read
        written, awaited = self._compute(maker, chunks, settings), {tuple(c) for c in chunks}

        def rows(cell: Cell, start: int, end: int) -> tuple[Floats, Floats]:
            while (*cell, start, end) in awaited:
                awaited.discard(next(written))
            return read(cell, start, end)

        return rows

    def _compute(
        self, maker: FeatureMaker, chunks: Sequence[_Chunk], settings: InputSettings
    ) -> Iterator[tuple[Any, ...]]:
        """Write shards; each chunk comes back once its own is there."""
        data = self._ray.data
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        threads = settings.num_threads or 1
        resource, share = ("CPU", threads) if settings.device == "cpu" else ("GPU", 1)
        room = int(self._ray.cluster_resources().get(resource, 0)) // share
        if not room:
            raise ConfigError(
                f"--device {settings.device}: expected a cluster with {resource}s for one session, "
                "got none; start nodes that have them"
            )
        dataset = data.from_items(
            [chunk._asdict() for chunk in chunks], override_num_blocks=len(chunks)
        ).map_batches(
            _ShardWriter,
            fn_constructor_args=(
                str(maker.session.artifact.path.resolve()),
                maker.data.path,
                replace(settings, num_threads=threads),
                {cell: maker.entry(cell).name for cell in {chunk.cell for chunk in chunks}},
            ),
            batch_size=None,
            compute=data.ActorPoolStrategy(size=min(room, len(chunks))),
            **{f"num_{resource.lower()}s": share},
        )
        for row in dataset.iter_rows():
            if row["error"]:
                raise getattr(errors, row["error"])(row["reason"])
            yield tuple(row[name] for name in _Chunk._fields)

    def run(
        self, tasks: Sequence[StreamTask], of: EvalInput, /, *, on_run: OnImages | None
    ) -> Iterator[tuple[StreamTask, Mapping[str, Trace]]]:
        """See `Executor`; every method of every stream is a task of its own.

        An input that `open_input` did not open is a `ConfigError`.
        """
        if of.origin is None:
            raise ConfigError("--ray: expected an input that open_input opened, got another")
        parts = [replace(task, methods=(spec,)) for task in tasks for spec in task.methods]
        on_end = None if on_run is None else on_run("streams on Ray", len(parts))
        remote = self._ray.remote(num_cpus=1)(_run_task)
        # One copy in the object store for all tasks.
        origin = self._ray.put(of.origin)
        running = {remote.remote(part, origin): part for part in parts}
        while running:
            (ended, *_), _ = self._ray.wait(list(running), num_returns=1)
            part = running.pop(ended)
            try:
                traces = self._ray.get(ended)
            except self._ray.exceptions.RayTaskError as err:
                # Ours out of what Ray wraps around it.
                raise err.cause if isinstance(err.cause, GainError) else err from None
            if on_end is not None:
                on_end()
            yield part, traces


class _Chunk(NamedTuple):
    """Rows `[start, end)` of a cell."""

    domain: str
    severity: float
    view: int
    start: int
    end: int

    @property
    def cell(self) -> Cell:
        return Cell(self.domain, self.severity, self.view)


class _ShardWriter:
    """An actor: a session, and the shards it writes."""

    def __init__(
        self, model: str, location: str, settings: InputSettings, names: Mapping[Cell, str]
    ) -> None:
        self._opening = (model, location, settings)
        self._names = names
        self._store = _store(settings)
        self._checked: set[Cell] = set()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        # Ray Data says of an error only that there was one, so ours go with the rows.
        error = reason = ""
        try:
            for values in zip(*(batch[name] for name in _Chunk._fields), strict=True):
                domain, severity, view, start, end = values
                self._write(Cell(str(domain), float(severity), int(view)), int(start), int(end))
        except GainError as err:
            error, reason = type(err).__name__, str(err)
        count = len(batch["start"])
        return {**batch, "error": [error] * count, "reason": [reason] * count}

    @functools.cached_property
    def _maker(self) -> FeatureMaker:
        model, location, settings = self._opening
        session = open_session(
            load_artifact(model), device=settings.device, num_threads=settings.num_threads
        )
        return open_maker(settings, location, session)

    def _write(self, cell: Cell, start: int, end: int) -> None:
        """Compute a chunk, and put it where all find it."""
        self._check(cell)
        features, logits = self._maker.rows(cell, start, end)
        stream = io.BytesIO()
        np.savez(stream, features=features, logits=logits)
        self._store.write(_shard(self._names[cell], start), stream.getvalue())

    def _check(self, cell: Cell) -> None:
        """Refuse a machine that has another network, other data or other code under this name."""
        if cell not in self._checked and self._maker.entry(cell).name != self._names[cell]:
            raise ArtifactError(
                f"{self._maker.data.path}: expected on every machine what the first has, got a "
                f"machine with other images (or other times of change) or another artifact or "
                f"provider for {cell.domain}; put artifact and data on a disk that all share"
            )
        self._checked.add(cell)


def _run_task(task: StreamTask, origin: Origin) -> dict[str, Trace]:
    """A Ray task."""
    of = _opened(origin)
    traces: dict[str, Trace] = run_stream(task, of, make_methods(task.methods, of))
    return traces


@functools.lru_cache(maxsize=1)
def _opened(origin: Origin) -> EvalInput:
    """An input as the driver has it; a worker process keeps its last one."""
    model, data, settings, recorded = origin
    return open_input(model, data, settings, recorded=recorded, executor=ShardReader())


def _store(settings: InputSettings) -> FsspecFolder:
    """Where shards lie."""
    return FsspecFolder(settings.cache if settings.cache is not None else cache_folder(None))


def _shard(entry: str, start: int) -> str:
    return f"{entry}/{start:010d}.npz"


def _missing(maker: FeatureMaker, cells: Sequence[Cell], store: FsspecFolder) -> list[_Chunk]:
    """The chunks of which there is neither an entry here nor a shard."""
    num_rows = len(maker.data.labels)
    chunks = []
    for cell in cells:
        entry = maker.entry(cell)
        if entry.is_whole:
            continue
        there = set(store.names(entry.name))
        chunks += [
            _Chunk(*cell, start, min(start + CHUNK_ROWS, num_rows))
            for start in range(0, num_rows, CHUNK_ROWS)
            if _shard(entry.name, start).rpartition("/")[2] not in there
        ]
    return chunks


def _read_shard(store: FsspecFolder, entry: str, start: int) -> tuple[Floats, Floats]:
    """Features and logits of one chunk."""
    name = _shard(entry, start)
    data = store.read(name)
    if data is None:
        raise ArtifactError(
            f"{store.url}/{name}: expected a shard that another machine wrote, found none; give a "
            "--cache that all machines see"
        )
    try:
        # The archive has a checksum for each array.
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return archive["features"], archive["logits"]
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as err:
        raise ArtifactError(
            f"{store.url}/{name}: damaged shard of features ({err}); delete it and run again"
        ) from err
