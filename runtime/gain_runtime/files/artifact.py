"""Reading an artifact: one ONNX file that carries its own manifest and classifier head."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import numpy_helper

from gain_core.errors import ArtifactError
from gain_runtime.files.manifest import PREFIX, Manifest


def dtype_name(number: int, /) -> str:
    """Name of an ONNX element type, or its number where ONNX knows none."""
    names = onnx.TensorProto.DataType
    return names.Name(number) if number in names.values() else f"type {number}"


def refuse_broken_text(model: onnx.ModelProto, path: Path, /) -> None:
    """Raises ArtifactError if a name or metadata is no UTF-8: protobuf gives those as bytes."""
    for text in _contents(model):
        if isinstance(text, onnx.TensorProto):
            text = text.name
        if not isinstance(text, str):
            raise ArtifactError(
                f"{path}: expected names and metadata in UTF-8, got {text[:40]!r}; the file is "
                "damaged, copy it again or export the model again"
            )


def _contents(message: Message) -> Iterator[str | bytes | onnx.TensorProto]:
    """Every string and every tensor of a message and those in it; tensors stay closed.

    Their fields are numbers, and asking for those would copy them.
    """
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            yield from [value] if isinstance(value, str | bytes) else value
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in [value] if isinstance(value, Message) else value:
                yield from [inner] if isinstance(inner, onnx.TensorProto) else _contents(inner)


_FLOAT_TYPES = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Artifact:
    """A checked artifact.

    Attributes
    ----------
    path : Path
        The `.onnx` file.
    sha256 : str
        SHA-256 of the file's bytes, hexadecimal.
    manifest : Manifest
        Its `gain.*` metadata.
    head_weight : array, (K, D) float32, read-only; or None
        None if the artifact has logits only.
    head_bias : array, (K,) float32, read-only; or None
        Zeros if the head has no bias; None if the artifact has logits only.
    """

    path: Path
    sha256: str
    manifest: Manifest
    head_weight: npt.NDArray[np.float32] | None
    head_bias: npt.NDArray[np.float32] | None

    @property
    def measured(self) -> dict[str, Any]:
        """What the export measured on clean images, as keywords of `gain_core.make_method`."""
        fitness = self.manifest.fitness
        return {} if fitness is None else fitness.measured


def load_artifact(path: str | Path, /) -> Artifact:
    """Read an artifact and check that it is whole and fits its own manifest.

    Parameters
    ----------
    path : str or Path
        The `.onnx` file.

    Returns
    -------
    Artifact

    Raises
    ------
    ArtifactError
        If the file is missing, unreadable, truncated, no ONNX model, has no `gain.*` metadata
        or another schema of it, refers to data outside itself, or if its graph or head does not
        have the names and shapes that the manifest states.
    """
    path = Path(path)
    model, sha256 = read_model(path)
    metadata = {item.key: item.value for item in model.metadata_props}
    manifest = Manifest.from_metadata(metadata, path=str(path))
    _check_graph(model.graph, manifest, path)
    found = (None, None) if manifest.head is None else read_head(model.graph, manifest, path)
    return Artifact(
        path=path, sha256=sha256, manifest=manifest, head_weight=found[0], head_bias=found[1]
    )


def read_model(path: Path, /) -> tuple[onnx.ModelProto, str]:
    """An ONNX model that is one file, and the SHA-256 of the file's bytes, hexadecimal.

    Raises ArtifactError if it is missing, unreadable, truncated, no ONNX model, or refers to data
    outside.
    """
    data = _read(path)
    sha256 = hashlib.sha256(data).hexdigest()
    model = _parse(data, path)
    del data  # a large model need not lie in memory twice while its head is read
    refuse_broken_text(model, path)
    # Weights beside a file get lost or swapped when it is moved.
    for tensor in _contents(model):
        if not isinstance(tensor, onnx.TensorProto):
            continue
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise ArtifactError(
                f"{path}: expected all weights inside the file, got external data for "
                f"{tensor.name or 'an unnamed tensor'}; export the model again as one file"
            )
    return model, sha256


def write_metadata(model: onnx.ModelProto, manifest: Manifest, /) -> None:
    """Replace the `gain.*` entries of a model's metadata, in place; other entries stay."""
    for position in reversed(range(len(model.metadata_props))):
        if model.metadata_props[position].key.startswith(PREFIX):
            del model.metadata_props[position]
    for key, value in manifest.to_metadata().items():
        model.metadata_props.add(key=key, value=value)


def _read(path: Path) -> bytes:
    """The file's bytes."""
    try:
        return path.read_bytes()
    except FileNotFoundError as err:
        raise ArtifactError(
            f"{path}: expected an artifact (one .onnx file), found no such file; "
            "check the path or make one with gain-export"
        ) from err
    except IsADirectoryError as err:
        raise ArtifactError(
            f"{path}: expected an artifact (one .onnx file), got a folder; name the file in it"
        ) from err
    except OSError as err:
        raise ArtifactError(
            f"{path}: cannot be read ({err.strerror}); check its permissions and the disk"
        ) from err


def _parse(data: bytes, path: Path) -> onnx.ModelProto:
    """The model in `data`."""
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError as err:
        raise ArtifactError(
            f"{path}: expected an ONNX model, got {len(data)} bytes of something else or of "
            "a truncated one; copy the file again or export the model again"
        ) from err
    # Protobuf accepts an empty file and some text files as messages of unknown fields.
    if not model.ir_version or not model.graph.output:
        raise ArtifactError(
            f"{path}: expected an ONNX model, got {len(data)} bytes without a graph; "
            "copy the file again or export the model again"
        )
    return model


def _check_graph(graph: onnx.GraphProto, manifest: Manifest, path: Path) -> None:
    """The graph has the input and outputs the manifest names, of the sizes it states."""
    size = manifest.preprocess
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    shape = ("B", 3, size.height_px, size.width_px)
    _check_value(inputs, manifest.input_name, shape, kind="input", path=path)
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs)
        raise ArtifactError(
            f"{path}: expected {manifest.input_name} as the only input, got {names}; "
            "export the model again"
        )
    for name, width in manifest.outputs:
        _check_value(graph.output, name, ("B", width), kind="output", path=path)


def _check_value(
    values: Iterable[onnx.ValueInfoProto],
    name: str,
    expected: tuple[str | int, ...],
    *,
    kind: str,
    path: Path,
) -> None:
    """One graph input or output is there, float32, and of the expected shape where it is known."""
    found = {value.name: value.type.tensor_type for value in values}
    if name not in found:
        raise ArtifactError(
            f"{path}: expected an {kind} named {name}, got {', '.join(found) or 'none'}; "
            "export the model again"
        )
    tensor = found[name]
    if tensor.elem_type not in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.FLOAT):
        dtype = dtype_name(tensor.elem_type)
        raise ArtifactError(
            f"{path}: {kind} {name}: expected float32, got {dtype}; export the model again"
        )
    if not tensor.HasField("shape"):
        return
    shape = tuple(dim.dim_value or dim.dim_param or "?" for dim in tensor.shape.dim)
    fits = len(shape) == len(expected) and all(
        isinstance(got, str) or isinstance(want, str) or got == want
        for got, want in zip(shape, expected, strict=True)
    )
    if not fits:
        wanted, found_shape = (", ".join(map(str, sizes)) for sizes in (expected, shape))
        raise ArtifactError(
            f"{path}: {kind} {name}: expected shape ({wanted}) as the manifest states, got "
            f"({found_shape}); export the model again"
        )


def read_head(
    graph: onnx.GraphProto, manifest: Manifest, path: Path
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Weight (K, D) and bias (K,) of the head, float32, read-only; no bias is one of zeros.

    Raises ArtifactError if one is missing, of another shape than the manifest's, or not finite.
    """
    num_classes, feature_dim, head = manifest.num_classes, manifest.feature_dim, manifest.head
    assert head is not None
    assert feature_dim is not None
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    stored = _read_floats(tensors, head.weight, path)
    weight = stored
    while weight.ndim > 2 and weight.shape[-1] == 1:
        weight = weight[..., 0]
    expected = (num_classes, feature_dim)
    expected = expected if head.layout == "KD" else expected[::-1]
    if weight.shape != expected:
        raise ArtifactError(
            f"{path}: head weight {head.weight}: expected {head.layout} = {expected}, "
            f"got {stored.shape}; export the model again"
        )
    weight = np.ascontiguousarray(weight if head.layout == "KD" else weight.T)
    bias = np.zeros(num_classes, dtype=np.float32)
    if head.bias is not None:
        stored = _read_floats(tensors, head.bias, path)
        # Graphs store it (K,), (1, K) or, beside a convolution, (K, 1, 1).
        if stored.size != num_classes or max(stored.shape) != num_classes:
            raise ArtifactError(
                f"{path}: head bias {head.bias}: expected ({num_classes},), got {stored.shape}; "
                "export the model again"
            )
        bias = np.ascontiguousarray(stored.reshape(num_classes))
    weight.flags.writeable = False
    bias.flags.writeable = False
    return weight, bias


def _read_floats(
    tensors: dict[str, onnx.TensorProto], name: str, path: Path
) -> npt.NDArray[np.float32]:
    """One initializer as a float32 array of its own memory."""
    if name not in tensors:
        raise ArtifactError(
            f"{path}: expected an initializer named {name} (the head), found none; "
            "export the model again"
        )
    tensor = tensors[name]
    dtype = dtype_name(tensor.data_type)
    if dtype not in _FLOAT_TYPES:
        raise ArtifactError(
            f"{path}: head array {name}: expected floating point, got {dtype}; "
            "export the model with its head left unquantised"
        )
    try:
        values = numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as err:
        raise ArtifactError(
            f"{path}: head array {name}: its data does not fill its shape ({err}); "
            "export the model again"
        ) from err
    with np.errstate(over="ignore"):  # an overflow is caught by the check below
        array: npt.NDArray[np.float32] = np.array(values, dtype=np.float32, order="C")
    if not np.isfinite(array).all():
        raise ArtifactError(
            f"{path}: head array {name}: expected finite values, got NaN or infinity; "
            "export the model again from intact weights"
        )
    return array
