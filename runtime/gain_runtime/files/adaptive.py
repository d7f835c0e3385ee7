"""Reading an adaptive file: an artifact with the adaptation step inside its graph."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from gain_core import Config, Method, config_from_dict, make_method
from gain_core.errors import ArrayError, ArtifactError, ConfigError
from gain_core.records import arrays_of
from gain_runtime.files.artifact import read_head, read_model
from gain_runtime.files.manifest import PREFIX, Manifest

ADAPTIVE_PREFIX = PREFIX + "adaptive."
ADAPTIVE_SCHEMA_VERSION = "10"
# Begins the fields of what waits to be learned from.
PENDING = "pending_"
_STATE, _NEXT = "state.", "next_state."
_WAITS = ("update_every", "warmup_frames")
_REMEDY = "make the adaptive file again with gain-export --adaptive"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """One state tensor: feed `next_name`'s output to `name` at the next frame; starts as zeros.

    `field` is the name in the method's record, that of what waits begins with `PENDING`; `dtype` is
    NumPy's name.
    """

    field: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def name(self) -> str:
        """Of the graph's input."""
        return _STATE + self.field

    @property
    def next_name(self) -> str:
        """Of the graph's output."""
        return _NEXT + self.field

    @property
    def size_bytes(self) -> int:
        """Of one copy."""
        return self.zeros().nbytes

    def zeros(self) -> npt.NDArray[Any]:
        """Its value before the first frame."""
        return np.zeros(self.shape, dtype=self.dtype)


def state_layout(
    method: Method[Any], /, *, update_every: int, warmup_frames: int
) -> tuple[StateSpec, ...]:
    """Every state tensor of a file, in the order of its inputs.

    The fields of the method's state (on NumPy), `frames` and, where frames ever wait, the fields of
    its evidence.
    """
    arrays: dict[str, Any] = dict(arrays_of(method.init_state()))
    arrays["frames"] = np.zeros((), dtype=np.int64)
    capacity = max(update_every, warmup_frames) - 1
    if capacity:
        waiting = arrays_of(method.no_evidence(capacity))
        arrays |= {PENDING + field: array for field, array in waiting.items()}
    return tuple(
        StateSpec(field=field, shape=array.shape, dtype=array.dtype.name)
        for field, array in arrays.items()
    )


def outputs_read(method: Method[Any], /) -> tuple[str, ...]:
    """What a file without a network takes in its place: `features`, if they are read, `logits`."""
    return ("logits",) if method.feature_dim is None else ("features", "logits")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdaptiveArtifact:
    """A checked adaptive file.

    `sha256` is that of its bytes, `artifact_sha256` that of the artifact it was made from, to which
    state files and `manifest` belong; both hexadecimal. `method` (on NumPy), `update_every` and
    `warmup_frames` (frames between two updates, and before the first) are fixed in the graph. With
    `features_only` the file has no network, and takes what one gives.
    """

    path: Path
    sha256: str
    artifact_sha256: str
    manifest: Manifest
    method: Method[Any]
    update_every: int
    warmup_frames: int
    features_only: bool
    state: tuple[StateSpec, ...]

    @property
    def config(self) -> Config:
        """The settings baked into the graph."""
        config: Config = self.method.config
        return config

    @property
    def input_names(self) -> tuple[str, ...]:
        """The network's input, or what takes its place."""
        return outputs_read(self.method) if self.features_only else (self.manifest.input_name,)

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of every input, the batch axis left out."""
        if self.features_only:
            widths = {"features": self.method.feature_dim, "logits": self.method.num_classes}
            return tuple((width,) for name in self.input_names if (width := widths[name]))
        return ((3, self.manifest.preprocess.height_px, self.manifest.preprocess.width_px),)


def load_adaptive(path: str | Path, /) -> AdaptiveArtifact:
    """Read an adaptive file (`.adaptive.onnx`) and check that it is whole.

    Raises ArtifactError if it is missing, corrupt or truncated, is a plain artifact or none, or if
    its graph does not have the inputs and outputs that its metadata ask for.
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
    head = _head(model.graph, manifest, path)
    try:
        update_every, warmup_frames = (_wait(entries, name) for name in _WAITS)
        config = config_from_dict(json.loads(entries["config"]))
        method = make_method(head, config, **json.loads(entries["measured"]))
        artifact = AdaptiveArtifact(
            path=path,
            sha256=sha256,
            artifact_sha256=entries["artifact_sha256"],
            manifest=manifest,
            method=method,
            update_every=update_every,
            warmup_frames=warmup_frames,
            features_only={"outputs": True, "pixel_values": False}[entries["input"]],
            state=state_layout(method, update_every=update_every, warmup_frames=warmup_frames),
        )
    except (ArrayError, ConfigError, KeyError, TypeError, ValueError) as err:
        raise ArtifactError(
            f"{path}: malformed {ADAPTIVE_PREFIX}* metadata ({type(err).__name__}: {err}); "
            f"{_REMEDY}"
        ) from err
    _check_graph(model.graph, artifact)
    return artifact


def _head(graph: onnx.GraphProto, manifest: Manifest, path: Path) -> Any:
    """The head's weight where the file has it, else K."""
    stored = {tensor.name for tensor in graph.initializer}
    if manifest.head is None or manifest.head.weight not in stored:
        return manifest.num_classes
    # The bias is not needed, and not in a file without a network.
    located = replace(manifest, head=replace(manifest.head, bias=None))
    return read_head(graph, located, path)[0]


def _wait(entries: Mapping[str, str], name: str) -> int:
    """Frames that an update waits for."""
    frames = int(entries[name])
    if frames < 1:
        raise ValueError(f"{name}: expected at least 1, got {frames}")
    return frames


def _check_graph(graph: onnx.GraphProto, artifact: AdaptiveArtifact) -> None:
    """Inputs and outputs are those of the method's state."""
    inputs, outputs = _kinds(graph.input), _kinds(graph.output)
    missing = {"update", *artifact.input_names} - set(inputs)
    for item in artifact.state:
        kind = item.dtype, item.shape
        found = ((inputs, item.name), (outputs, item.next_name))
        missing |= {name for kinds, name in found if kinds.get(name) != kind}
    named = {name for name in inputs if name.startswith(_STATE)}
    if unknown := sorted(named - {item.name for item in artifact.state}):
        raise ArtifactError(
            f"{artifact.path}: its graph has {', '.join(unknown)}, which its method does not know; "
            f"{_REMEDY}"
        )
    if missing:
        raise ArtifactError(
            f"{artifact.path}: its graph lacks {', '.join(sorted(missing))}, or has them in "
            f"another shape, and its metadata ask for them; {_REMEDY}"
        )


def _kinds(values: Iterable[onnx.ValueInfoProto]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape by name."""
    found = {}
    for value in values:
        kind = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
        found[value.name] = dtype, tuple(dim.dim_value for dim in kind.shape.dim)
    return found


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
    """Whether a file's metadata say that adaptation is inside; ArtifactError if it is no model."""
    model, _ = read_model(Path(path))
    return any(item.key.startswith(ADAPTIVE_PREFIX) for item in model.metadata_props)
