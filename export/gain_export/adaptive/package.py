"""Putting the step behind an artifact's network: one file that adapts wherever ONNX runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from gain_core import GainConfig
from gain_core.errors import ArtifactError, ConfigError
from gain_export.adaptive.expressions import Tape
from gain_export.adaptive.head_graph import prepare_head
from gain_export.adaptive.pending_graph import Awaited
from gain_export.adaptive.predict_graph import PREDICTION_NAMES
from gain_export.adaptive.state_layout import state_layout
from gain_export.adaptive.step_graph import UPDATE, StepGraph, write_step
from gain_export.graph import free_name, rename_value
from gain_export.onnx_file import MAX_OPSET, MIN_OPSET, opset_of
from gain_runtime.adaptive_artifact import ADAPTIVE_PREFIX, ADAPTIVE_SCHEMA_VERSION
from gain_runtime.artifact import (
    Artifact,
    artifact_prototypes,
    load_artifact,
    read_model,
    require_head,
)
from gain_runtime.atomic_file import write_atomically

__all__ = [
    "AdaptiveReport",
    "adaptive_path",
    "add_adaptation",
    "check_adaptable",
    "check_waiting",
]

# Rows of waiting frames are part of the state; beyond this they outgrow what they save.
MAX_WAITING = 1024
MAX_IR_VERSION = 10
_FEATURES, _LOGITS = "features", "logits"
# `onnx.checker` takes a serialised model of up to 2 GB; files near it are left to the runtime.
_CHECKED_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveReport:
    """An adaptive file that was written.

    Attributes
    ----------
    path : Path
    size_bytes, opset, ir_version : int
    num_nodes : int
        Nodes of the step, the branches of its conditional not counted.
    state_bytes : int
        Of all state tensors together.
    update_every, warmup_frames : int
    features_only : bool
    """

    path: Path
    size_bytes: int
    opset: int
    ir_version: int
    num_nodes: int
    state_bytes: int
    update_every: int
    warmup_frames: int
    features_only: bool

    def to_dict(self) -> dict[str, object]:
        """Plain values, ready for JSON."""
        return asdict(self) | {"path": str(self.path)}


def adaptive_path(artifact_path: str | Path, /) -> Path:
    """Where an artifact's adaptive file goes unless the user says otherwise.

    Parameters
    ----------
    artifact_path : str or Path
        `NAME.gain.onnx` or `NAME.onnx`.

    Returns
    -------
    Path
        `NAME.adaptive.onnx` in the same folder.
    """
    path = Path(artifact_path)
    name = path.name.removesuffix(".onnx").removesuffix(".gain")
    return path.with_name(f"{name}.adaptive.onnx")


def add_adaptation(
    artifact_path: str | Path,
    output_path: str | Path,
    /,
    *,
    config: GainConfig,
    update_every: int = 1,
    warmup_frames: int = 1,
    features_only: bool = False,
) -> AdaptiveReport:
    """Write an adaptive file: an artifact's network with one step of GAIN behind it.

    Parameters
    ----------
    artifact_path : str or Path
        Any artifact, mixed precision or int8 as well: its features and logits are float32.
    output_path : str or Path
        Usually `NAME.adaptive.onnx`; replaced if it exists.
    config : GainConfig
        Baked in.
    update_every : int, optional
        Frames between two updates of the state, baked in; see `gain_core.Gain`.
    warmup_frames : int, optional
        Frames the first update waits for, baked in; see `gain_core.Gain`. `gain-stream` lets a
        video's wait for 64.
    features_only : bool, optional
        Leave the network out: the file takes features and logits instead of pixels.

    Returns
    -------
    AdaptiveReport

    Raises
    ------
    ArtifactError
        If the input is no artifact, is adaptive already, or the file cannot be written.
    ConfigError
        If `update_every` or `warmup_frames` is out of its range.
    """
    awaited = _awaited(update_every, warmup_frames)
    model, artifact = _read(artifact_path)
    if features_only:
        model = _without_network(model, artifact)
    else:
        _make_room(model, _reserved(artifact, config=config, awaited=awaited))
    step = _write(model, artifact, config=config, awaited=awaited)
    _append(model, step)
    model.ir_version = min(model.ir_version, MAX_IR_VERSION)
    _describe(
        model,
        artifact,
        step,
        config=config,
        awaited=awaited,
        features_only=features_only,
    )
    data = _checked(model)
    path = Path(output_path)
    try:
        write_atomically(path, data)
    except OSError as err:
        raise ArtifactError(
            f"{path}: the adaptive file cannot be written ({err.strerror}); "
            "check that the folder exists, is writable and has room"
        ) from err
    return AdaptiveReport(
        path=path,
        size_bytes=len(data),
        opset=opset_of(model),
        ir_version=model.ir_version,
        num_nodes=len(step.nodes),
        state_bytes=sum(item.size_bytes for item in step.layout),
        update_every=update_every,
        warmup_frames=warmup_frames,
        features_only=features_only,
    )


def check_adaptable(
    artifact_path: str | Path,
    /,
    *,
    config: GainConfig,
    update_every: int = 1,
    warmup_frames: int = 1,
    features_only: bool = False,
) -> None:
    """Refuse what `add_adaptation` would refuse of an artifact and its settings; writes nothing.

    Parameters
    ----------
    artifact_path, config, update_every, warmup_frames, features_only
        As of `add_adaptation`.

    Raises
    ------
    ArtifactError, ConfigError
        As `add_adaptation`.
    """
    awaited = _awaited(update_every, warmup_frames)
    _, artifact = _read(artifact_path)
    if not features_only:
        _reserved(artifact, config=config, awaited=awaited)


def check_waiting(name: str, frames: int, /) -> None:
    """Refuse a wait that an adaptive file's state does not hold.

    Parameters
    ----------
    name : str
        The parameter or flag; begins the message.
    frames : int

    Raises
    ------
    ConfigError
        If it is out of range.
    """
    if not 1 <= frames <= MAX_WAITING:
        raise ConfigError(
            f"{name}: expected 1 to {MAX_WAITING} frames, which wait in the file's state, "
            f"got {frames}"
        )


def _awaited(update_every: int, warmup_frames: int) -> Awaited:
    """The waits, if the state holds them."""
    check_waiting("update_every", update_every)
    check_waiting("warmup_frames", warmup_frames)
    return Awaited(update_every=update_every, warmup_frames=warmup_frames)


def _read(artifact_path: str | Path) -> tuple[onnx.ModelProto, Artifact]:
    """The model to put the step behind, and what it says of itself."""
    model, _ = read_model(Path(artifact_path))
    if any(item.key.startswith(ADAPTIVE_PREFIX) for item in model.metadata_props):
        raise ArtifactError(
            f"{artifact_path}: expected an artifact, got one that is adaptive already; "
            "name the artifact it was made from"
        )
    artifact = load_artifact(artifact_path)
    require_head(artifact, what="an adaptive file")
    opset = opset_of(model)
    if not MIN_OPSET <= opset <= MAX_OPSET:
        raise ArtifactError(
            f"{artifact.path}: expected opset {MIN_OPSET} to {MAX_OPSET}, got {opset}; "
            "export the model again"
        )
    return model, artifact


def _write(
    model: onnx.ModelProto, artifact: Artifact, *, config: GainConfig, awaited: Awaited
) -> StepGraph:
    """The step behind the network, or behind the inputs that replace it."""
    manifest = artifact.manifest
    assert manifest.head is not None
    assert manifest.features_name is not None
    assert manifest.feature_dim is not None
    network = any(value.name == manifest.input_name for value in model.graph.input)
    features, logits = _FEATURES, _LOGITS
    if network:
        features, logits = manifest.features_name, manifest.logits_name
    dim = model.graph.input[0].type.tensor_type.shape.dim
    batch = (dim[0].dim_value or dim[0].dim_param) if len(dim) else ""
    tape = Tape(opset=opset_of(model))
    head = prepare_head(
        tape,
        manifest.head.weight,
        num_classes=manifest.num_classes,
        feature_dim=manifest.feature_dim,
        layout=manifest.head.layout,
        data_type=_head_weight(model, artifact).data_type,
        config=config,
        constants=artifact_prototypes(artifact, config),
    )
    return write_step(
        tape.value(features),
        tape.value(logits),
        head=head,
        config=config,
        update_every=awaited.update_every,
        warmup_frames=awaited.warmup_frames,
        batch=batch or "B",
    )


def _head_weight(model: onnx.ModelProto, artifact: Artifact) -> onnx.TensorProto:
    """The head's stored weight; `load_artifact` has seen that it is there."""
    head = artifact.manifest.head
    assert head is not None
    return next(tensor for tensor in model.graph.initializer if tensor.name == head.weight)


def _without_network(model: onnx.ModelProto, artifact: Artifact) -> onnx.ModelProto:
    """A model with the head's weight in it and features and logits as inputs."""
    manifest = artifact.manifest
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", size])
        for name, size in ((_FEATURES, manifest.feature_dim), (_LOGITS, manifest.num_classes))
    ]
    graph = helper.make_graph([], "gain", inputs, [], [_head_weight(model, artifact)])
    opset = helper.make_opsetid("", opset_of(model))
    bare = helper.make_model(graph, opset_imports=[opset], ir_version=model.ir_version)
    bare.metadata_props.extend(model.metadata_props)
    return bare


def _reserved(artifact: Artifact, *, config: GainConfig, awaited: Awaited) -> set[str]:
    """The names of the step's inputs and outputs, which the artifact's own must not have."""
    manifest = artifact.manifest
    assert manifest.feature_dim is not None
    layout = state_layout(
        num_classes=manifest.num_classes,
        feature_dim=manifest.feature_dim,
        config=config,
        most_awaited=awaited.most,
    )
    reserved = {UPDATE, *PREDICTION_NAMES}
    reserved |= {name for item in layout for name in (item.input_name, item.output_name)}
    head = manifest.head
    assert head is not None
    fixed = {manifest.input_name, *(name for name, _ in manifest.outputs), head.weight}
    if head.bias is not None:
        fixed.add(head.bias)
    if clash := sorted(reserved & fixed):
        raise ArtifactError(
            f"{artifact.path}: {', '.join(clash)}: an adaptive file's own inputs and outputs need "
            "these names; rename them in the original model and export it again"
        )
    return reserved


def _make_room(model: onnx.ModelProto, reserved: set[str]) -> None:
    """Rename those of the network's values whose names the step's inputs and outputs need."""
    for name in sorted(reserved):
        if free_name(model, name) != name:
            rename_value(model, name, free_name(model, f"network/{name}"))


def _append(model: onnx.ModelProto, step: StepGraph) -> None:
    """Put the step's nodes behind the network's and its outputs in the place of theirs."""
    graph = model.graph
    graph.node.extend(step.nodes)
    graph.initializer.extend(step.initializers)
    graph.input.extend(step.inputs)
    del graph.output[:]
    graph.output.extend(step.outputs)


def _describe(
    model: onnx.ModelProto,
    artifact: Artifact,
    step: StepGraph,
    *,
    config: GainConfig,
    awaited: Awaited,
    features_only: bool,
) -> None:
    """Say in the metadata what the file is and what every state tensor holds."""
    state = [
        {
            "name": item.input_name,
            "next": item.output_name,
            "shape": list(item.shape),
            "dtype": item.dtype,
            "initial": "zeros",
            "meaning": item.meaning,
        }
        for item in step.layout
    ]
    entries = {
        "schema": ADAPTIVE_SCHEMA_VERSION,
        "artifact_sha256": artifact.sha256,
        "config": json.dumps(config.to_dict(), sort_keys=True),
        "update_every": str(awaited.update_every),
        "warmup_frames": str(awaited.warmup_frames),
        "input": "features" if features_only else "pixel_values",
        "state": json.dumps(state),
    }
    for key, value in entries.items():
        model.metadata_props.add(key=ADAPTIVE_PREFIX + key, value=value)


def _checked(model: onnx.ModelProto) -> bytes:
    """The serialised model, after ONNX's own checker and strict shape inference."""
    data = bytes(model.SerializeToString())
    if len(data) <= _CHECKED_BYTES:
        onnx.checker.check_model(data, full_check=True)
    return data
