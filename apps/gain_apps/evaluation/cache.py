"""Features on disk: computed once, memory-mapped afterwards, resumed where a run was cut off.

An entry is two files named after the hash of its key: `HASH.npy`, an (N, D + K) float32 array of
features beside logits, and `HASH.json` with the key and the array's checksum. While an entry is
being computed its files are called `HASH.partial.npy` and `HASH.partial.json`; the latter holds
a checksum per finished chunk.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.eval_input import Outputs
from gain_core.errors import ArtifactError, GainError
from gain_runtime.atomic_file import write_atomically
from gain_runtime.file_kind import exists

__all__ = ["FeatureCache", "default_cache_dir"]

CHUNK_ROWS = 256

Floats = npt.NDArray[np.float32]
Mapped: TypeAlias = "np.memmap[Any, np.dtype[np.float32]]"
# (first row, end row) to features (rows, D) and logits (rows, K).
Compute = Callable[[int, int], tuple[Floats, Floats]]


def default_cache_dir() -> Path:
    """`gain-edge/features` in the user's cache folder; XDG_CACHE_HOME is respected."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "gain-edge" / "features"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureCache:
    """Entries of one network's width.

    Attributes
    ----------
    folder : Path
        Made when first needed.
    feature_dim, num_classes : int
        D and K.
    """

    folder: Path
    feature_dim: int
    num_classes: int

    def fetch(
        self,
        key: Mapping[str, Any],
        num_rows: int,
        /,
        *,
        compute: Compute,
        on_rows: Callable[[], None] | None = None,
    ) -> Outputs:
        """Open an entry, after computing what of it is missing.

        Parameters
        ----------
        key : mapping
            Plain JSON values: everything the features depend on.
        num_rows : int
            N.
        compute : callable
            Makes rows `[first, end)`; called for missing chunks only.
        on_rows : callable, optional
            Called once per row.

        Returns
        -------
        Outputs
            Mapped from the file, read-only.

        Raises
        ------
        ArtifactError
            If a file of the entry is damaged or cannot be written; it is named.
        """
        entry = _Entry(self.folder, key, shape=(num_rows, self.feature_dim + self.num_classes))
        if not exists(entry.sidecar):
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._complete(entry, compute, on_rows)
            except OSError as err:
                # Ours are about something else: a damaged image, an entry that is no entry.
                if isinstance(err, GainError):
                    raise
                raise ArtifactError(
                    f"{entry.partial}: cannot be written ({err.strerror or err}); "
                    "choose another folder with --cache"
                ) from err
        elif on_rows is not None:
            for _ in range(num_rows):
                on_rows()
        array = entry.open_finished()
        return Outputs(features=array[:, : self.feature_dim], logits=array[:, self.feature_dim :])

    def _complete(
        self, entry: _Entry, compute: Compute, on_rows: Callable[[], None] | None
    ) -> None:
        """Compute the missing chunks, then give the entry its final name."""
        num_rows = entry.shape[0]
        array, checksums = entry.open_partial()
        for start in range(0, num_rows, CHUNK_ROWS):
            end = min(start + CHUNK_ROWS, num_rows)
            if start // CHUNK_ROWS >= len(checksums):
                features, logits = compute(start, end)
                array[start:end, : self.feature_dim] = features
                array[start:end, self.feature_dim :] = logits
                array.flush()
                checksums.append(_checksum(array[start:end]))
                entry.note_progress(checksums)
            if on_rows is not None:
                for _ in range(start, end):
                    on_rows()
        del array
        entry.finish()


class _Entry:
    """The files of one entry."""

    def __init__(self, folder: Path, key: Mapping[str, Any], /, *, shape: tuple[int, int]) -> None:
        self.key = dict(key)
        self.shape = shape
        text = json.dumps([self.key, list(shape)], sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:32]
        self.array = folder / f"{name}.npy"
        self.sidecar = folder / f"{name}.json"
        self.partial = folder / f"{name}.partial.npy"
        self.progress = folder / f"{name}.partial.json"

    def open_finished(self) -> Floats:
        """The finished array, its checksum verified."""
        record = _read_json(self.sidecar)
        if record.get("key") != self.key:
            raise _damaged(self.sidecar, "it belongs to another key")
        array = self._mapped(self.array, mode="r")
        if _checksum(array) != record.get("sha256"):
            raise _damaged(self.array, "its checksum is not the one in its .json file")
        return array

    def open_partial(self) -> tuple[Mapped, list[str]]:
        """The array under construction, and a checksum for each chunk in it."""
        if not (exists(self.partial) and exists(self.progress)):
            # A file of the whole size first: a full disk is found before hours of work.
            array = np.lib.format.open_memmap(
                self.partial, mode="w+", dtype=np.float32, shape=self.shape
            )
            return array, []
        checksums = _read_json(self.progress).get("chunks")
        if not isinstance(checksums, list):
            raise _damaged(self.progress, "it has no list of chunks")
        array = self._mapped(self.partial, mode="r+")
        for number, checksum in enumerate(checksums):
            rows = array[number * CHUNK_ROWS : (number + 1) * CHUNK_ROWS]
            if _checksum(rows) != checksum:
                raise _damaged(self.partial, f"chunk {number} does not have its checksum")
        return array, checksums

    def note_progress(self, checksums: list[str]) -> None:
        """Record the finished chunks."""
        record = {"key": self.key, "chunks": checksums}
        write_atomically(self.progress, json.dumps(record).encode())

    def finish(self) -> None:
        """Rename the array; the sidecar comes last and makes the entry valid."""
        checksum = _checksum(self._mapped(self.partial, mode="r"))
        with self.partial.open("rb+") as file:
            os.fsync(file.fileno())
        self.partial.replace(self.array)
        record = {"key": self.key, "shape": list(self.shape), "sha256": checksum}
        write_atomically(self.sidecar, (json.dumps(record, indent=1) + "\n").encode())
        self.progress.unlink(missing_ok=True)

    def _mapped(self, path: Path, *, mode: str) -> Mapped:
        """A file of the entry's shape as an array."""
        try:
            array = np.load(path, mmap_mode=mode, allow_pickle=False)  # type: ignore[arg-type]
        except (OSError, ValueError, EOFError) as err:
            raise _damaged(path, str(err)) from err
        if array.shape != self.shape or array.dtype != np.float32:
            raise _damaged(path, f"expected {self.shape} float32, got {array.shape} {array.dtype}")
        mapped: Mapped = array
        return mapped


def _checksum(array: Floats) -> str:
    """SHA-256 of the array's values."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError) as err:
        raise _damaged(path, str(err)) from err
    if not isinstance(record, dict):
        raise _damaged(path, "expected a JSON object")
    return record


def _damaged(path: Path, reason: str) -> ArtifactError:
    return ArtifactError(f"{path}: damaged cache file ({reason}); delete it and run again")
