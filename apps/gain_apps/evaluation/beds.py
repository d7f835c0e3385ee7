"""Test beds: frozen features of one network under corruptions, in one `.npz` file."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_apps.corruptions import CORRUPTIONS
from gain_apps.evaluation.source_head import source_head
from gain_apps.evaluation.store import ANY_SEVERITY, FeatureStore, Outputs
from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.file_kind import is_file

__all__ = ["Bed", "is_bed", "load_bed"]

HEAD_ARRAYS = ("weight", "bias", "labels")
CLEAN = "clean"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bed:
    """A bed's store, and the hash of its file."""

    path: Path
    sha256: str
    store: FeatureStore


def is_bed(path: str | Path, /) -> bool:
    """Whether a file is an `.npz` with a head in it (and not one with images)."""
    path = Path(path)
    if path.suffix != ".npz" or not is_file(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False
    return "weight.npy" in names and "labels.npy" in names


def load_bed(path: str | Path, /, *, domains: Sequence[str] | None = None) -> Bed:
    """Read a bed.

    Parameters
    ----------
    path : str or Path
        `.npz` with `weight` (K, D), `bias` (K,), `labels` (N,) and, for `clean` and for every
        domain, features (N, D).
    domains : sequence of str, optional
        Domains of the stream, in order; by default all but `clean`, ImageNet-C's fifteen first
        and in their usual order.

    Returns
    -------
    Bed
        `head.source_mean` and `head.asymmetry` are those of `clean` where there is one.

    Raises
    ------
    ArtifactError
        If the file is missing, damaged, or an array is missing or does not fit the others.
    ConfigError
        If a domain is not in the bed.
    """
    path = Path(path)
    arrays = _read(path)
    missing = [name for name in HEAD_ARRAYS if name not in arrays]
    if missing:
        raise ArtifactError(
            f"{path}: expected a bed with the arrays {', '.join(HEAD_ARRAYS)}, "
            f"{', '.join(missing)} missing"
        )
    available = tuple(name for name in arrays if name not in HEAD_ARRAYS)
    chosen = _choose(path, available, domains)
    labels = _check(path, arrays, available)
    head = source_head(
        arrays["weight"].astype(np.float32),
        arrays["bias"].astype(np.float32),
        clean=arrays.get(CLEAN),
    )
    outputs = {(name, ANY_SEVERITY): (Outputs(features=arrays[name]),) for name in chosen}
    return Bed(
        path=path,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        store=FeatureStore(head=head, labels=labels, domains=chosen, outputs=outputs),
    )


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of the file."""
    if not is_file(path):
        raise ArtifactError(f"{path}: expected a bed (.npz), found no such file; check the path")
    try:
        # Opened here: NumPy leaves a file that is no archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as err:
        raise ArtifactError(
            f"{path}: expected a bed (.npz), cannot be read ({err}); copy the file again"
        ) from err


def _choose(
    path: Path, available: tuple[str, ...], domains: Sequence[str] | None
) -> tuple[str, ...]:
    """The domains of the stream, in order."""
    if domains is None:
        usual = [name for name in CORRUPTIONS if name in available]
        others = [name for name in available if name not in CORRUPTIONS and name != CLEAN]
        domains = usual + others or [CLEAN]
    unknown = [name for name in domains if name not in available]
    if unknown or not available:
        raise ConfigError(
            f"{path}: no domain {', '.join(unknown)}; it has {', '.join(available) or 'none'}"
        )
    return tuple(domains)


def _check(
    path: Path, arrays: dict[str, npt.NDArray[Any]], available: tuple[str, ...]
) -> npt.NDArray[np.int64]:
    """Shapes, dtypes, finiteness and label range; returns the labels."""
    weight, labels = arrays["weight"], arrays["labels"]
    shape = weight.shape
    if weight.ndim != 2 or shape[0] < 2:
        raise ArtifactError(f"{path}: weight: expected (K, D) with K >= 2, got {shape}")
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or len(labels) == 0:
        raise ArtifactError(
            f"{path}: labels: expected (N,) integers, got {labels.shape} {labels.dtype}"
        )
    expected = {"weight": shape, "bias": shape[:1]}
    expected |= {name: (len(labels), shape[1]) for name in available}
    for name, size in expected.items():
        array = arrays[name]
        if array.shape != size or not np.issubdtype(array.dtype, np.floating):
            raise ArtifactError(
                f"{path}: {name}: expected {size} floating, got {array.shape} {array.dtype}"
            )
        if not np.isfinite(array).all():
            raise ArtifactError(f"{path}: {name}: expected finite values, got NaN or infinity")
    if labels.min() < 0 or labels.max() >= shape[0]:
        raise ArtifactError(
            f"{path}: labels: expected class indices in [0, {shape[0]}), "
            f"got {labels.min()} to {labels.max()}"
        )
    result: npt.NDArray[np.int64] = labels.astype(np.int64)
    return result
