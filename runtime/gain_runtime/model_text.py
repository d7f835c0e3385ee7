"""The names in an ONNX model are text, and types have names, whatever a damaged file says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]

from gain_core.errors import ArtifactError

__all__ = ["dtype_name", "refuse_broken_text"]


def dtype_name(number: int, /) -> str:
    """Name of an ONNX element type, or its number where ONNX knows none."""
    names = onnx.TensorProto.DataType
    return names.Name(number) if number in names.values() else f"type {number}"


def refuse_broken_text(model: onnx.ModelProto, path: Path, /) -> None:
    """Refuse a model with names that are no text: protobuf gives those as bytes.

    Parameters
    ----------
    model : onnx.ModelProto
    path : Path
        Where it was read from.

    Raises
    ------
    ArtifactError
        If a name or an entry of the metadata is no UTF-8.
    """
    for text in _texts(model):
        if not isinstance(text, str):
            raise ArtifactError(
                f"{path}: expected names and metadata in UTF-8, got {text[:40]!r}; the file is "
                "damaged, copy it again or export the model again"
            )


def _texts(message: Message) -> Iterator[str | bytes]:
    """Every string of a message and those in it."""
    if isinstance(message, onnx.TensorProto):
        # Its other fields are numbers, and asking for them would copy them.
        yield message.name
        return
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            yield from [value] if isinstance(value, str | bytes) else value
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in [value] if isinstance(value, Message) else value:
                yield from _texts(inner)
