"""Feature dumps: frozen features of one network under corruptions, in one `.npz` file."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.eval_input import ANY_SEVERITY, EvalInput, FeatureStore, Outputs
from gain_apps.evaluation.methods.protocol import Floats, Head
from gain_apps.evaluation.streams import NOISE
from gain_core.errors import ArtifactError, ConfigError
from gain_export.images import MAX_IMAGES, measure_fitness
from gain_runtime.files.paths import is_file
from gain_scenes.corruptions import CORRUPTIONS

HEAD_ARRAYS = ("weight", "bias", "labels")
CLEAN = "clean"


def is_dump(path: str | Path, /) -> bool:
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


def load_dump(path: str | Path, /, *, domains: Sequence[str] | None = None) -> EvalInput:
    """Read a feature dump: an `.npz` with `weight` (K, D), `bias` (K,) and `labels` (N,).

    For `clean` and for every domain it has features (N, D). The domains of the stream are, by
    default, all but `clean`, ImageNet-C's fifteen first and in their usual order. Where there is
    `clean`, the head has its mean and what was measured on it.

    Raises `ArtifactError` if the file is missing, damaged, or an array is missing or does not fit
    the others, and `ConfigError` if a domain is not in the dump.
    """
    path = Path(path)
    arrays = _read(path)
    missing = [name for name in HEAD_ARRAYS if name not in arrays]
    if missing:
        raise ArtifactError(
            f"{path}: expected a feature dump with the arrays {', '.join(HEAD_ARRAYS)}, "
            f"{', '.join(missing)} missing"
        )
    available = tuple(name for name in arrays if name not in HEAD_ARRAYS)
    chosen = _choose(path, available, domains)
    labels = _check(path, arrays, available)
    clean = arrays.get(CLEAN)
    weight, bias = arrays["weight"].astype(np.float32), arrays["bias"].astype(np.float32)
    outputs = {(name, ANY_SEVERITY): (Outputs(features=arrays[name]),) for name in chosen}
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    model = {"kind": "feature dump", "path": str(path), "sha256": sha256}
    return EvalInput(
        store=FeatureStore(
            head=measured_head(weight, bias, clean=clean),
            labels=labels,
            domains=chosen,
            outputs=outputs,
            deviation=noise_deviation(clean),
        ),
        record={
            "model": {**model, "num_classes": weight.shape[0], "feature_dim": weight.shape[1]},
            "data": {"kind": "feature dump", "path": str(path), "images": len(labels)},
        },
        default_order="shuffled",
        single_severity=True,
    )


def measured_head(
    weight: Floats,
    bias: Floats,
    /,
    *,
    clean: Floats | None,
    measured: Mapping[str, Any] | None = None,
    logits_only: bool = False,
) -> Head:
    """The frozen head, (K, D) and (K,) float32, with what clean images say of it.

    Those are features (N, D) of uncorrupted images, None where there are none. What the artifact
    has `measured` comes first; where that is empty it is measured on them.
    """
    head = Head(weight=weight, bias=bias, measured=measured or {}, logits_only=logits_only)
    if clean is None:
        return head
    if not measured:
        some = clean
        if len(clean) > MAX_IMAGES:
            # Drawn: every n-th of a data set in which the classes take turns would be of a few.
            rows = np.random.default_rng(0).choice(len(clean), MAX_IMAGES, replace=False)
            some = clean[np.sort(rows)]
        measured = measure_fitness(head.logits(some)).measured
    return replace(head, source_mean=clean.mean(axis=0, dtype=np.float64), measured=measured)


def noise_deviation(clean: Floats | None, /) -> Floats | None:
    """Deviation of the noise between two frames of one object, (D,)."""
    return None if clean is None else (NOISE * clean.astype(np.float32).std(axis=0))


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of the file."""
    if not is_file(path):
        raise ArtifactError(
            f"{path}: expected a feature dump (.npz), found no such file; check the path"
        )
    try:
        # Opened here: NumPy leaves a file that is no archive open, and loads an array by any name.
        with path.open("rb") as file, np.lib.npyio.NpzFile(file) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as err:
        raise ArtifactError(
            f"{path}: expected a feature dump (.npz), cannot be read ({err}); copy the file again"
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
