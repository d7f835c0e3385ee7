"""Reading somebody else's ONNX file and refusing, with the reason, what cannot be used."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto, external_data_helper, inliner

from gain_core.errors import ArtifactError
from gain_runtime.manifest import PREFIX
from gain_runtime.model_text import dtype_name, refuse_broken_text

__all__ = [
    "DEFAULT_OPSET",
    "MAX_BYTES",
    "MAX_OPSET",
    "MIN_OPSET",
    "hash_onnx",
    "is_artifact",
    "load_onnx",
    "opset_of",
]

# Protobuf's own limit for one message, less a margin for graph and metadata.
MAX_BYTES = 2**31 - 2**24
MIN_OPSET, MAX_OPSET = 17, 20
# torch's exporter writes opset 18 without converting; every runtime since TensorRT 8.6 reads it.
DEFAULT_OPSET = 18


def is_artifact(path: Path, /) -> bool:
    """Whether a file is an ONNX model that already carries `gain.*` metadata.

    Raises
    ------
    ArtifactError
        If the file is no ONNX model.
    """
    model = _parse(path)
    return any(item.key == PREFIX + "schema" for item in model.metadata_props)


def load_onnx(path: Path, /) -> onnx.ModelProto:
    """Read an ONNX classifier whole: external data and local functions become part of the graph.

    Parameters
    ----------
    path : Path

    Returns
    -------
    onnx.ModelProto
        Its only input is the image batch, (B, 3, H, W) float32 as far as it is declared;
        initializers that old files list among the inputs no longer are.

    Raises
    ------
    ArtifactError
        If the file or its external data is missing, corrupt or too large for one file, if it is
        an artifact already, newer than opset 20, or takes anything but one batch of RGB images.
    """
    model = _parse(path)
    if any(item.key == PREFIX + "schema" for item in model.metadata_props):
        raise ArtifactError(
            f"{path}: expected a plain ONNX classifier, got an artifact, which needs no export"
        )
    _read_external_data(model, path)
    opset = opset_of(model)
    if opset > MAX_OPSET:
        raise ArtifactError(
            f"{path}: expected opset {MIN_OPSET} to {MAX_OPSET}, got {opset}, which runtimes on "
            f"devices do not read; export it again with opset_version={MAX_OPSET}"
        )
    if model.functions:
        model = inliner.inline_local_functions(model)
    initializers = {tensor.name for tensor in model.graph.initializer}
    for position in reversed(range(len(model.graph.input))):
        if model.graph.input[position].name in initializers:
            del model.graph.input[position]
    _check_input(model, path)
    return model


def hash_onnx(path: Path, /) -> str:
    """Sha256, hexadecimal, of an ONNX file followed by the files that hold its weights, if any."""
    digest = hashlib.sha256(path.read_bytes())
    for file in sorted(_external_files(_parse(path), path)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def opset_of(model: onnx.ModelProto) -> int:
    """The version of the standard operators a model uses."""
    return max(
        (item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=1
    )


def _parse(path: Path) -> onnx.ModelProto:
    """The model in a file, external data left aside."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ArtifactError(f"{path}: expected an ONNX file below 2 GB; export a smaller model")
        model = onnx.ModelProto.FromString(path.read_bytes())
    except DecodeError as err:
        raise ArtifactError(
            f"{path}: expected an ONNX model, got a file that is none or is truncated; "
            "copy it again or export the model again"
        ) from err
    except ArtifactError:
        raise
    except OSError as err:
        raise ArtifactError(f"{path}: cannot be read ({err.strerror}); check the path") from err
    # Protobuf accepts an empty file and some text files as messages of unknown fields.
    if not model.ir_version or not model.graph.output:
        raise ArtifactError(
            f"{path}: expected an ONNX model, got a file without a graph; "
            "copy it again or export the model again"
        )
    refuse_broken_text(model, path)
    return model


def _read_external_data(model: onnx.ModelProto, path: Path) -> None:
    """Bring weights that lie beside the file into it."""
    files = _external_files(model, path)
    for file in sorted(files):
        if not file.is_file():
            raise ArtifactError(
                f"{path}: its weights lie in {file.name}, which is not in {path.parent}; "
                "copy that file beside it"
            )
    total = model.ByteSize() + sum(file.stat().st_size for file in files)
    if total > MAX_BYTES:
        raise ArtifactError(
            f"{path}: expected at most 2 GB of weights, the limit of one ONNX file, "
            f"got {total / 2**30:.1f} GB; export a smaller model"
        )
    try:
        external_data_helper.load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as err:
        raise ArtifactError(
            f"{path}: its external weights cannot be read ({' '.join(str(err).split())}); "
            "copy the model and the data beside it again"
        ) from err


def _external_files(model: onnx.ModelProto, path: Path) -> set[Path]:
    """The files beside a model that hold its weights."""
    return {
        path.parent / external_data_helper.ExternalDataInfo(tensor).location
        for tensor in model.graph.initializer
        if external_data_helper.uses_external_data(tensor)
    }


def _check_input(model: onnx.ModelProto, path: Path) -> None:
    """One float32 batch of channels-first RGB images is all the model takes."""
    inputs = model.graph.input
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs) or "none"
        raise ArtifactError(
            f"{path}: expected one input (a batch of images), got {len(inputs)} ({names}); "
            "export the image classifier alone"
        )
    value = inputs[0]
    tensor = value.type.tensor_type
    if tensor.elem_type != TensorProto.FLOAT:
        dtype = dtype_name(tensor.elem_type)
        raise ArtifactError(
            f"{path}: input {value.name}: expected float32 pixels that are normalised outside "
            f"the graph, got {dtype}; export the model without its own preprocessing, in float32"
        )
    sizes = [dim.dim_value or dim.dim_param or "?" for dim in tensor.shape.dim]
    shape = f"({', '.join(str(size) for size in sizes)})"
    if len(sizes) != 4:
        raise ArtifactError(
            f"{path}: input {value.name}: expected images (B, 3, H, W), got {shape}; "
            "only image classifiers can be exported"
        )
    if isinstance(sizes[1], int) and sizes[1] != 3:
        if sizes[3] == 3:
            raise ArtifactError(
                f"{path}: input {value.name}: expected channels first (B, 3, H, W), got channels "
                f"last {shape}; export it channels first (tf2onnx: --inputs-as-nchw {value.name})"
            )
        raise ArtifactError(
            f"{path}: input {value.name}: expected 3 colour channels (B, 3, H, W), got {shape}; "
            "only RGB or BGR classifiers can be exported"
        )
