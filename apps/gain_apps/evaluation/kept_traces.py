"""Traces of an evaluation that has not ended, kept beside its result file."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from gain_apps.evaluation.eval_input import EvalInput
from gain_apps.evaluation.executor import StreamTask
from gain_apps.evaluation.methods.protocol import Cost
from gain_apps.evaluation.methods.registry import MethodSpec
from gain_apps.evaluation.scores import GainTrace, Trace
from gain_core import __version__
from gain_core.errors import ArtifactError
from gain_runtime.files.paths import exists, write_atomically

__all__ = ["KeptTraces"]

ARRAYS = tuple(item.name for item in fields(Trace) if item.name not in ("cost", "gain"))
GAIN_ARRAYS = tuple(item.name for item in fields(GainTrace))


class KeptTraces:
    """A file for each method and stream, named by the hash of all that its trace depends on.

    Parameters
    ----------
    result : Path
        Result file; the folder is `RESULT.traces`.
    of : EvalInput
    """

    def __init__(self, result: Path, /, *, of: EvalInput) -> None:
        self._folder = result.with_name(result.name + ".traces")
        self._input = _fingerprint(of)

    def load(self, task: StreamTask, /) -> dict[str, Trace]:
        """Those of a task's methods that ended before.

        Raises
        ------
        ArtifactError
            If a file is damaged.
        """
        paths = {spec.text: self._path(task, spec) for spec in task.methods}
        return {text: _read(path) for text, path in paths.items() if exists(path)}

    def save(self, task: StreamTask, traces: Mapping[str, Trace], /) -> None:
        """Keep the traces of a task's methods.

        Raises
        ------
        ArtifactError
            If they cannot be written.
        """
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
    digest.update(repr(head.skewness).encode())
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
