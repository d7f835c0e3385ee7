"""An adaptive file as a model repository of NVIDIA's Triton: one sequence for each camera.

Triton keeps the state of every sequence and feeds it back by itself (its sequence batcher with
implicit state). Everything it has to be told is in its config. Its ONNX Runtime back end runs the
file as it is; for its TensorRT back end a plan is built of one without scalars.
"""

from __future__ import annotations

import errno
import json
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gain_core.errors import ArtifactError
from gain_export.graph import free_name, rename_value
from gain_runtime.files.adaptive import AdaptiveArtifact, load_adaptive
from gain_runtime.files.artifact import read_model
from gain_runtime.files.paths import exists, is_folder, write_atomically

TritonBackend = Literal["onnxruntime", "tensorrt"]
_PLATFORMS = {"onnxruntime": "onnxruntime_onnx", "tensorrt": "tensorrt_plan"}
CONFIG, MODEL, PLAN = "config.pbtxt", "model.onnx", "model.plan"
# Frames of one request: what a plan takes at most. A camera sends one.
MAX_FRAMES = 8
# Sequences that one instance holds; more wait in a queue until one ends. A place costs nothing
# until a camera takes it.
MAX_SEQUENCES = 1024
# Triton's own default is a second, after which a camera that stalls would lose what it learned.
MAX_IDLE_S = 3600
_TYPES = {
    TensorProto.FLOAT: "TYPE_FP32",
    TensorProto.INT64: "TYPE_INT64",
    TensorProto.BOOL: "TYPE_BOOL",
}


def check_triton(adaptive_path: str | Path, repository: str | Path, /, *, force: bool) -> None:
    """Refuse a repository that cannot take the model, before anything is written.

    Raises ArtifactError if it is no folder, or the model is there without `force`, or what is there
    is no model's folder. The adaptive file need not exist yet.
    """
    repository = Path(repository)
    if exists(repository, error=ArtifactError) and not is_folder(repository, error=ArtifactError):
        raise ArtifactError(f"{repository}: expected a folder for models, got a file; name another")
    target = repository / _name(Path(adaptive_path))
    if not exists(target, error=ArtifactError):
        return
    if not exists(target / CONFIG, error=ArtifactError):
        raise ArtifactError(
            f"{target}: expected no such folder, or a model's, with {CONFIG} in it; got something "
            "else; move it away or choose another repository"
        )
    if not force:
        raise ArtifactError(f"{target}: exists already; --force replaces it")


def write_triton(
    adaptive_path: str | Path,
    repository: str | Path,
    /,
    *,
    backend: TritonBackend = "onnxruntime",
    force: bool = False,
) -> Path:
    """Write `NAME/config.pbtxt` and `NAME/1/model.onnx` into a model repository.

    Parameters
    ----------
    adaptive_path : str or Path
        The `.adaptive.onnx` file.
    repository : str or Path
        Folder of models; created if it is missing.
    backend : {"onnxruntime", "tensorrt"}, optional
        `onnxruntime` copies the file byte for byte. `tensorrt` writes its scalar inputs and outputs
        with one axis of length 1; Triton then needs `NAME/1/model.plan` built from it, by the
        command at the top of the config.
    force : bool, optional
        Replace an existing model with all its versions.

    Returns
    -------
    Path
        The model's folder, named as the file without `.adaptive.onnx`.

    Raises
    ------
    ArtifactError
        If the file is no adaptive file, `check_triton` refuses the repository, or it cannot be
        written. An existing model then stays as it was.
    """
    path, repository = Path(adaptive_path), Path(repository)
    artifact = load_adaptive(path)
    check_triton(path, repository, force=force)
    model, _ = read_model(path)
    data = path.read_bytes()
    if backend == "tensorrt":
        _give_scalars_an_axis(model)
        data = model.SerializeToString()
    name = _name(path)
    target, staged = repository / name, repository / f".{name}.{secrets.token_hex(4)}.tmp"
    try:
        repository.mkdir(parents=True, exist_ok=True)
        (staged / "1").mkdir(parents=True)
        write_atomically(staged / "1" / MODEL, data)
        config = _config(name, artifact, model.graph, backend=backend)
        write_atomically(staged / CONFIG, config.encode())
        _put(staged, target)
    except OSError as err:
        raise ArtifactError(
            f"{target}: the model cannot be written ({err.strerror}); "
            "check that the repository is writable and has room"
        ) from err
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return target


def _name(adaptive_path: Path) -> str:
    """What clients call the model."""
    return adaptive_path.name.removesuffix(".onnx").removesuffix(".adaptive") or "model"


def _put(staged: Path, target: Path) -> None:
    """Rename a folder into its place; what is in its place goes only once that has succeeded."""
    old = staged.with_suffix(".old")
    try:
        target.rename(old)
    except OSError as err:
        if err.errno != errno.ENOENT:
            raise
    try:
        staged.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _give_scalars_an_axis(model: onnx.ModelProto) -> None:
    """One axis of 1 for every input and output without axes, in place.

    A plan must have the axes that its config says, and a config knows no scalars; it may reshape
    inputs and outputs, but no states.
    """
    graph = model.graph
    axes = numpy_helper.from_array(np.zeros(1, np.int64), free_name(model, "axis_of_scalars"))
    graph.initializer.append(axes)
    for values, operator in ((graph.input, "Squeeze"), (graph.output, "Unsqueeze")):
        for value in values:
            if value.type.tensor_type.shape.dim:
                continue
            outer, inner = value.name, free_name(model, f"{value.name}.scalar")
            rename_value(model, outer, inner)
            value.name = outer
            value.type.tensor_type.shape.dim.add().dim_value = 1
            if operator == "Squeeze":
                graph.node.insert(0, helper.make_node(operator, [outer, axes.name], [inner]))
            else:
                graph.node.append(helper.make_node(operator, [inner, axes.name], [outer]))


def _plan_command(inputs: Sequence[onnx.ValueInfoProto]) -> str:
    """What builds the plan; TF32 would round the statistics to ten bits."""
    command = f"trtexec --onnx=1/{MODEL} --saveEngine=1/{PLAN} --stronglyTyped --noTF32"
    axes = {value.name: value.type.tensor_type.shape.dim for value in inputs}
    for bound, frames in (("min", 1), ("opt", 1), ("max", MAX_FRAMES)):
        shapes = [
            f"{name}:{'x'.join(str(dim.dim_value or frames) for dim in dims)}"
            for name, dims in axes.items()
            if not all(dim.dim_value for dim in dims)
        ]
        if shapes:
            command += f" --{bound}Shapes={','.join(shapes)}"
    return command


def _config(
    name: str, artifact: AdaptiveArtifact, graph: onnx.GraphProto, *, backend: TritonBackend
) -> str:
    """The config as protobuf text.

    The state belongs to one stream and has no batch axis, so two sequences never share a call:
    `max_batch_size` is 0 and every axis is written out. The strategy `direct` would give each
    instance one sequence then; `oldest` lets it hold many and run them in turns. The graph has no
    control inputs, and needs none: Triton starts a sequence from `initial_state`.
    """
    kinds = {value.name: value.type.tensor_type for value in (*graph.input, *graph.output)}
    states = {item.name for item in artifact.state}
    inputs = [value for value in graph.input if value.name not in states]
    title = f"# Of {_text(artifact.path.name)}, sha256 {artifact.sha256}; written by gain-export."
    if backend == "tensorrt":
        title += f"\n# In this folder, on the server's GPU: {_plan_command(inputs)}"
    parts = [
        title,
        f"name: {_text(name)}",
        f'platform: "{_PLATFORMS[backend]}"',
        f'backend: "{backend}"',
        "max_batch_size: 0",
        *(_block("input", _tensor(each.name, kinds[each.name])) for each in inputs),
        # Triton's ONNX Runtime back end takes the shape of a scalar state from here, and a client
        # that asks for all states has what a state file holds.
        *(_block("output", _tensor(each.name, kinds[each.name])) for each in graph.output),
        "sequence_batching {",
        f"  max_sequence_idle_microseconds: {MAX_IDLE_S * 1_000_000}",
        f"  oldest {{ max_candidate_sequences: {MAX_SEQUENCES} }}",
    ]
    for item in artifact.state:
        kind = list(_kind(kinds[item.name]))
        zeros = _block("initial_state", ['name: "zeros"', *kind, "zero_data: true"])
        names = [f"input_name: {_text(item.name)}", f"output_name: {_text(item.next_name)}"]
        parts.append("  " + _block("state", [*names, *kind, zeros]))
    parts += ["}", "instance_group { count: 1 }"]
    return "\n".join(parts) + "\n"


def _tensor(name: str, kind: onnx.TypeProto.Tensor) -> list[str]:
    """The fields of an input or an output."""
    return [f"name: {_text(name)}", *_kind(kind)]


def _kind(kind: onnx.TypeProto.Tensor) -> Iterator[str]:
    """Type and axes; -1 where a call chooses, and one axis of 1 for a scalar, as Triton has it."""
    axes = [dim.dim_value or -1 for dim in kind.shape.dim] or [1]
    yield f"data_type: {_TYPES[kind.elem_type]}"
    yield f"dims: {axes}"


def _block(name: str, fields: Sequence[str]) -> str:
    return f"{name} {{ {' '.join(fields)} }}"


def _text(value: str) -> str:
    """A string in protobuf's text format, whose escapes JSON's are among."""
    return json.dumps(value, ensure_ascii=False)
