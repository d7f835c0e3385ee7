"""Reading an adaptive file: an artifact with the adaptation step inside its graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from gain_core import GainConfig, Prototypes, prepare_prototypes
from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.artifact import read_head, read_model
from gain_runtime.manifest import PREFIX, Manifest

__all__ = [
    "ADAPTIVE_PREFIX",
    "ADAPTIVE_SCHEMA_VERSION",
    "ASYMMETRY",
    "LOG_LENGTHS",
    "THRESHOLDS",
    "AdaptiveArtifact",
    "StateSpec",
    "is_adaptive",
    "load_adaptive",
]

ADAPTIVE_PREFIX = PREFIX + "adaptive."
ADAPTIVE_SCHEMA_VERSION = "7"
# Initializers of a tracked shift: values a class, in files where they are not zero, and a pair.
THRESHOLDS, LOG_LENGTHS = "gain/thresholds", "gain/log_lengths"
ASYMMETRY = "gain/asymmetry"
_STATE_PREFIX = "state."
_WAITS = ("update_every", "warmup_frames")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """One state tensor: feed `next_name`'s output to `name` at the next frame; starts as zeros."""

    name: str
    next_name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def field(self) -> str:
        """Name without the prefix, as `gain_core` calls it."""
        return self.name.removeprefix(_STATE_PREFIX)

    def zeros(self) -> npt.NDArray[Any]:
        """Its value before the first frame."""
        return np.zeros(self.shape, dtype=self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdaptiveArtifact:
    """A checked adaptive file.

    Attributes
    ----------
    path : Path
    sha256 : str
        Of the file's bytes, hexadecimal.
    artifact_sha256 : str
        Of the artifact it was made from; state files belong to that one.
    manifest : Manifest
        The artifact's.
    config : GainConfig
        Baked into the graph.
    update_every : int
        Frames between two updates, baked into the graph.
    warmup_frames : int
        Frames the first update waits for, baked into the graph.
    input_names : tuple of str
        The network's input, or `features` and `logits` where the file has no network.
    features_only : bool
    state : tuple of StateSpec
    head_weight : array, (K, D) float32, read-only
    prototypes : Prototypes
        Of that weight, with the constants the graph was made with.
    """

    path: Path
    sha256: str
    artifact_sha256: str
    manifest: Manifest
    config: GainConfig
    update_every: int
    warmup_frames: int
    input_names: tuple[str, ...]
    features_only: bool
    state: tuple[StateSpec, ...]
    head_weight: npt.NDArray[np.float32]
    prototypes: Prototypes

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of every input, the batch axis left out."""
        if self.features_only:
            return tuple((width,) for _, width in self.manifest.outputs)
        return ((3, self.manifest.preprocess.height_px, self.manifest.preprocess.width_px),)


def load_adaptive(path: str | Path, /) -> AdaptiveArtifact:
    """Read an adaptive file and check that it is whole.

    Parameters
    ----------
    path : str or Path
        The `.adaptive.onnx` file.

    Returns
    -------
    AdaptiveArtifact

    Raises
    ------
    ArtifactError
        If the file is missing, corrupt or truncated, is a plain artifact or none, or if its graph
        does not have the inputs and outputs its metadata states.
    """
    path = Path(path)
    model, sha256 = read_model(path)
    metadata = {item.key: item.value for item in model.metadata_props}
    manifest = Manifest.from_metadata(metadata, path=str(path))
    entries = {
        key.removeprefix(ADAPTIVE_PREFIX): value
        for key, value in metadata.items()
        if key.startswith(ADAPTIVE_PREFIX)
    }
    _check_schema(entries, path)
    if manifest.head is None:
        raise ArtifactError(f"{path}: expected a head, got logits only; export the model again")
    # The head's bias is not needed here, and not in a file without a network.
    located = replace(manifest, head=replace(manifest.head, bias=None))
    weight, _ = read_head(model.graph, located, path)
    try:
        update_every, warmup_frames = (_wait(entries, name) for name in _WAITS)
        config = GainConfig.from_dict(json.loads(entries["config"]))
        features_only = {"features": True, "pixel_values": False}[entries["input"]]
        artifact = AdaptiveArtifact(
            path=path,
            sha256=sha256,
            artifact_sha256=entries["artifact_sha256"],
            manifest=manifest,
            config=config,
            update_every=update_every,
            warmup_frames=warmup_frames,
            input_names=("features", "logits") if features_only else (manifest.input_name,),
            features_only=features_only,
            state=tuple(_state_spec(item) for item in json.loads(entries["state"])),
            head_weight=weight,
            prototypes=_prototypes(model.graph, weight, config, manifest),
        )
        _check_waiting(artifact)
    except (ConfigError, KeyError, TypeError, ValueError) as err:
        raise ArtifactError(
            f"{path}: malformed {ADAPTIVE_PREFIX}* metadata ({type(err).__name__}: {err}); "
            "make the adaptive file again with gain-export --adaptive"
        ) from err
    inputs = {value.name for value in model.graph.input}
    outputs = {value.name for value in model.graph.output}
    wanted_inputs = {"update", *artifact.input_names, *(item.name for item in artifact.state)}
    missing = (wanted_inputs - inputs) | ({item.next_name for item in artifact.state} - outputs)
    if missing:
        raise ArtifactError(
            f"{path}: its graph lacks {', '.join(sorted(missing))}, which its metadata names; "
            "make the adaptive file again with gain-export --adaptive"
        )
    return artifact


def _prototypes(
    graph: onnx.GraphProto,
    weight: npt.NDArray[np.float32],
    config: GainConfig,
    manifest: Manifest,
) -> Prototypes:
    """The head's constants, as the graph has them."""
    prepared = prepare_prototypes(weight, config)
    sizes = {THRESHOLDS: len(weight), LOG_LENGTHS: len(weight), ASYMMETRY: 2}
    found = {}
    for tensor in graph.initializer:
        if tensor.name not in sizes:
            continue
        values = numpy_helper.to_array(tensor)
        if values.shape != (sizes[tensor.name],):
            raise ValueError(f"{tensor.name}: expected ({sizes[tensor.name]},), got {values.shape}")
        found[tensor.name.removeprefix("gain/")] = values
    # A pair is in the graph in any case; where it is a guess, the graph learns it.
    measured = manifest.fitness is not None and manifest.fitness.asymmetry is not None
    return replace(prepared, measured=measured, **found)


def _wait(entries: Mapping[str, str], name: str) -> int:
    """Frames that an update waits for."""
    frames = int(entries[name])
    if frames < 1:
        raise ValueError(f"{name}: expected at least 1, got {frames}")
    return frames


def _check_waiting(artifact: AdaptiveArtifact) -> None:
    """Frames wait in the state if they ever wait; sessions count them by these numbers."""
    waits = max(artifact.update_every, artifact.warmup_frames) > 1
    if waits != any(item.field.startswith("pending_") for item in artifact.state):
        raise ValueError(
            f"{', '.join(_WAITS)}: {artifact.update_every}, {artifact.warmup_frames} "
            "do not fit the state's pending tensors"
        )


def _state_spec(item: Mapping[str, Any]) -> StateSpec:
    """One entry of the metadata's list."""
    if item["initial"] != "zeros" or item["dtype"] not in ("float32", "int64"):
        raise ValueError(f"state tensor {item['name']} has an initial value or type not known here")
    return StateSpec(
        name=str(item["name"]),
        next_name=str(item["next"]),
        shape=tuple(int(size) for size in item["shape"]),
        dtype=str(item["dtype"]),
    )


def _check_schema(entries: Mapping[str, str], path: Path) -> None:
    """The file is an adaptive one of this schema."""
    schema = entries.get("schema")
    if schema is None:
        raise ArtifactError(
            f"{path}: expected an adaptive file, got a plain artifact; "
            f"make one with: gain-export {path} --adaptive"
        )
    if schema != ADAPTIVE_SCHEMA_VERSION:
        raise ArtifactError(
            f"{path}: expected adaptive schema {ADAPTIVE_SCHEMA_VERSION}, got {schema}; "
            "make the adaptive file again with this version of gain-export"
        )


def is_adaptive(path: str | Path, /) -> bool:
    """Whether a file's metadata say that adaptation is inside.

    Raises
    ------
    ArtifactError
        As `load_artifact`, where it is no ONNX model.
    """
    model, _ = read_model(Path(path))
    return any(item.key.startswith(ADAPTIVE_PREFIX) for item in model.metadata_props)
