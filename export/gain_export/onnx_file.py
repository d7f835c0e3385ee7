"""Reading somebody else's ONNX file and refusing, with the reason, what cannot be used."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import external_data_helper

from gain_core.errors import ArtifactError
from gain_runtime.manifest import PREFIX
from gain_runtime.model_text import refuse_broken_text

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
    """Read an ONNX file whole: external data becomes part of the model.

    Parameters
    ----------
    path : Path

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ArtifactError
        If the file or its external data is missing, corrupt or too large for one file, or if it
        is an artifact already.
    """
    model = _parse(path)
    if any(item.key == PREFIX + "schema" for item in model.metadata_props):
        raise ArtifactError(
            f"{path}: expected a plain ONNX classifier, got an artifact, which needs no export"
        )
    _read_external_data(model, path)
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
