"""Putting the step behind an artifact's network: one file that adapts wherever ONNX runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from gain_core import UPDATE_EVERY, WARMUP_FRAMES, Config, config_to_dict
from gain_core.errors import ArtifactError, ConfigError
from gain_export.adaptive.step import PREDICTION_NAMES, UPDATE, Step, StoredHead
from gain_export.graph import free_name, rename_value
from gain_export.onnx_file import MAX_OPSET, MIN_OPSET, opset_of
from gain_runtime.engine import artifact_method
from gain_runtime.files.adaptive import ADAPTIVE_PREFIX, ADAPTIVE_SCHEMA_VERSION, outputs_read
from gain_runtime.files.artifact import Artifact, load_artifact, read_model
from gain_runtime.files.paths import write_atomically

# Rows of waiting frames are part of the state; beyond this they outgrow what they save.
MAX_WAITING = 1024
MAX_IR_VERSION = 10
# `onnx.checker` takes a serialised model of up to 2 GB; files near it are left to the runtime.
_CHECKED_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveReport:
    """An adaptive file that was written.

    `num_nodes` leaves out the branches of the step's conditionals; `state_bytes` is the size of all
    state tensors together; `features_only`: the network was left out.
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
        """The report as plain values for JSON."""
        return asdict(self) | {"path": str(self.path)}


def adaptive_path(artifact_path: str | Path, /) -> Path:
    """The default path of an artifact's adaptive file: `NAME.adaptive.onnx` beside it."""
    path = Path(artifact_path)
    name = path.name.removesuffix(".onnx").removesuffix(".gain")
    return path.with_name(f"{name}.adaptive.onnx")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is written: an artifact and the step behind it."""

    model: onnx.ModelProto
    artifact: Artifact
    step: Step
    features_only: bool
    reserved: set[str]  # names of the step's inputs and outputs


def add_adaptation(
    artifact_path: str | Path,
    output_path: str | Path,
    /,
    *,
    config: Config | None = None,
    update_every: int = UPDATE_EVERY,
    warmup_frames: int = WARMUP_FRAMES,
    features_only: bool = False,
) -> AdaptiveReport:
    """Write an adaptive file: an artifact's network, followed by one step of the method.

    Parameters
    ----------
    artifact_path : str or Path
        Any artifact, also of mixed precision or int8: its features and logits are float32.
    output_path : str or Path
        Usually `NAME.adaptive.onnx`; replaced if it exists.
    config : Config, optional
        Fixed in the file. Default: the preset `shift`.
    update_every, warmup_frames : int, optional
        Frames between two updates of the state, and before the first one; fixed in the file. See
        `gain_core.Gain`.
    features_only : bool, optional
        Leave the network out: the file takes logits instead of pixels, and features if the method
        reads them.

    Returns
    -------
    AdaptiveReport

    Raises
    ------
    ArtifactError
        If the input is no artifact, is adaptive already, or the file cannot be written.
    ConfigError
        If `update_every` or `warmup_frames` is out of its range, or the method reads features and
        the artifact has none.
    """
    plan = _plan(
        artifact_path,
        config,
        update_every=update_every,
        warmup_frames=warmup_frames,
        features_only=features_only,
    )
    manifest, method = plan.artifact.manifest, plan.step.method
    head = None
    if method.feature_dim is not None and manifest.head is not None:
        name, layout = manifest.head.weight, manifest.head.layout
        # `load_artifact` has seen that it is there.
        tensor = next(item for item in plan.model.graph.initializer if item.name == name)
        head = StoredHead(tensor=tensor, transposed=layout == "DK")
    features: str | None = "features"
    if features_only:
        logits, batch = "logits", "B"
        model = _without_network(plan, head)
    else:
        # The step stands behind the network's outputs.
        features, logits = manifest.features_name, manifest.logits_name
        dim = plan.model.graph.input[0].type.tensor_type.shape.dim
        batch = ((dim[0].dim_value or dim[0].dim_param) if len(dim) else "") or "B"
        model = plan.model
        for name in sorted(plan.reserved):
            if free_name(model, name) != name:
                rename_value(model, name, free_name(model, f"network/{name}"))
    opset = opset_of(model)
    step = plan.step.graph(features=features, logits=logits, batch=batch, head=head, opset=opset)
    graph = model.graph
    graph.node.extend(step.node)
    graph.initializer.extend(step.initializer)
    graph.input.extend(step.input)
    del graph.output[:]
    graph.output.extend(step.output)
    model.ir_version = min(model.ir_version, MAX_IR_VERSION)
    _describe(model, plan)
    data = bytes(model.SerializeToString())
    if len(data) <= _CHECKED_BYTES:
        onnx.checker.check_model(data, full_check=True)
    path = Path(output_path)
    write_atomically(path, data, error=ArtifactError)
    return AdaptiveReport(
        path=path,
        size_bytes=len(data),
        opset=opset,
        ir_version=model.ir_version,
        num_nodes=len(step.node),
        state_bytes=sum(item.size_bytes for item in plan.step.layout),
        update_every=update_every,
        warmup_frames=warmup_frames,
        features_only=features_only,
    )


def check_adaptable(
    artifact_path: str | Path,
    /,
    *,
    config: Config | None = None,
    update_every: int = UPDATE_EVERY,
    warmup_frames: int = WARMUP_FRAMES,
    features_only: bool = False,
) -> None:
    """Refuse what `add_adaptation` would refuse of an artifact and its settings; writes nothing."""
    _plan(
        artifact_path,
        config,
        update_every=update_every,
        warmup_frames=warmup_frames,
        features_only=features_only,
    )


def check_waiting(name: str, frames: int, /) -> None:
    """Raise ConfigError, beginning with `name`, for a wait that a file's state does not hold."""
    if not 1 <= frames <= MAX_WAITING:
        raise ConfigError(
            f"{name}: expected 1 to {MAX_WAITING} frames, which wait in the file's state, "
            f"got {frames}"
        )


def _plan(
    artifact_path: str | Path,
    config: Config | None,
    *,
    update_every: int,
    warmup_frames: int,
    features_only: bool,
) -> _Plan:
    """The artifact and its method, if the one can be made adaptive by the other."""
    check_waiting("update_every", update_every)
    check_waiting("warmup_frames", warmup_frames)
    model, _ = read_model(Path(artifact_path))
    if any(item.key.startswith(ADAPTIVE_PREFIX) for item in model.metadata_props):
        raise ArtifactError(
            f"{artifact_path}: expected an artifact, got one that is adaptive already; "
            "name the artifact it was made from"
        )
    artifact = load_artifact(artifact_path)
    opset = opset_of(model)
    if not MIN_OPSET <= opset <= MAX_OPSET:
        raise ArtifactError(
            f"{artifact.path}: expected opset {MIN_OPSET} to {MAX_OPSET}, got {opset}; "
            "export the model again"
        )
    step = Step(
        method=artifact_method(artifact, config),
        update_every=update_every,
        warmup_frames=warmup_frames,
    )
    return _Plan(
        model=model,
        artifact=artifact,
        step=step,
        features_only=features_only,
        reserved=_reserved(artifact, step, features_only=features_only),
    )


def _without_network(plan: _Plan, head: StoredHead | None) -> onnx.ModelProto:
    """A model of the inputs that stand for the network, and of the head where that is read."""
    method = plan.step.method
    widths = {"features": method.feature_dim, "logits": method.num_classes}
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", widths[name]])
        for name in outputs_read(method)
    ]
    weights = [] if head is None else [head.tensor]
    graph = helper.make_graph([], "gain", inputs, [], weights)
    opset = helper.make_opsetid("", opset_of(plan.model))
    bare = helper.make_model(graph, opset_imports=[opset], ir_version=plan.model.ir_version)
    bare.metadata_props.extend(plan.model.metadata_props)
    return bare


def _reserved(artifact: Artifact, step: Step, *, features_only: bool) -> set[str]:
    """The names of the step's inputs and outputs, which the artifact's own must not have."""
    reserved = {UPDATE, *PREDICTION_NAMES}
    reserved |= {name for item in step.layout for name in (item.name, item.next_name)}
    manifest = artifact.manifest
    fixed = set()
    if manifest.head is not None:
        fixed = {manifest.head.weight, manifest.head.bias}
    if not features_only:
        fixed |= {manifest.input_name, manifest.features_name, manifest.logits_name}
    if clash := sorted(name for name in reserved & fixed if name):
        raise ArtifactError(
            f"{artifact.path}: {', '.join(clash)}: an adaptive file's own inputs and outputs "
            "need these names; rename them in the original model and export it again"
        )
    return reserved


def _describe(model: onnx.ModelProto, plan: _Plan) -> None:
    """Say in the metadata what the file is."""
    method = plan.step.method
    entries = {
        "schema": ADAPTIVE_SCHEMA_VERSION,
        "artifact_sha256": plan.artifact.sha256,
        "config": json.dumps(config_to_dict(method.config), sort_keys=True),
        "measured": json.dumps(method.measured, sort_keys=True),
        "update_every": str(plan.step.update_every),
        "warmup_frames": str(plan.step.warmup_frames),
        "input": "outputs" if plan.features_only else "pixel_values",
    }
    for key, value in entries.items():
        model.metadata_props.add(key=ADAPTIVE_PREFIX + key, value=value)
