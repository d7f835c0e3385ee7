"""ONNX files of any version: read with clear errors, converted to the opset that devices take."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import external_data_helper, inliner, version_converter

from gain_core.errors import ArtifactError, one_line
from gain_export.graph import all_nodes
from gain_runtime.files.artifact import refuse_broken_text
from gain_runtime.files.manifest import PREFIX
from gain_runtime.files.paths import is_file

logger = logging.getLogger(__name__)

# Protobuf's own limit for one message, less a margin for graph and metadata.
MAX_BYTES = 2**31 - 2**24
MIN_OPSET, MAX_OPSET = 17, 20
# torch's exporter writes opset 18 without converting; every runtime since TensorRT 8.6 reads it.
DEFAULT_OPSET = 18


def is_artifact(path: Path, /) -> bool:
    """Whether a file already carries `gain.*` metadata; ArtifactError if it is no ONNX model."""
    model = _parse(path)
    return any(item.key == PREFIX + "schema" for item in model.metadata_props)


def load_onnx(path: Path, /) -> onnx.ModelProto:
    """Read an ONNX file whole: external data becomes part of the model.

    Raises ArtifactError if the file or its external data is missing, corrupt or too large for one
    file, or if it is an artifact already.
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
            f"{path}: expected an ONNX model, got another file or a truncated one; "
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
        if not is_file(file, error=ArtifactError):
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


# The newest file format that the runtimes of JetPack 6 read, and the oldest worth writing.
_MAX_IR, _MIN_IR = 10, 8
_STANDARD = ("", "ai.onnx")

# The converter is native code: what fails inside it arrives as one of these.
_CONVERTER_ERRORS = (
    RuntimeError,
    ValueError,
    IndexError,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    # Derives from Exception alone in onnx 1.23, from RuntimeError before.
    version_converter.ConvertError,
)


def settle_versions(
    model: onnx.ModelProto, /, *, path: str
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Bring operator set (17 to 20) and file format (8 to 10) into the range that devices read.

    Takes the model whole, as it was read: the converter needs what later steps may drop. Local
    functions become part of the graph; initializers that old files list among the inputs no longer
    are. Returns it with what was changed, for the report. Raises ArtifactError, naming `path`, if
    the opset cannot be changed.
    """
    changes = []
    # First, because the converter takes a file of version 3 only as long as its opset fits.
    if not _MIN_IR <= model.ir_version <= _MAX_IR:
        settled = min(max(model.ir_version, _MIN_IR), _MAX_IR)
        changes.append(f"IR {model.ir_version} to {settled}")
        model.ir_version = settled
    initializers = {tensor.name for tensor in model.graph.initializer}
    for position in reversed(range(len(model.graph.input))):
        if model.graph.input[position].name in initializers:
            del model.graph.input[position]
    if model.functions:
        model = inliner.inline_local_functions(model)
    opset = opset_of(model)
    if opset < MIN_OPSET:
        model = raise_opset(model, path=path)
    elif opset > MAX_OPSET:
        model = lower_opset(model, MAX_OPSET, path=path)
    if opset_of(model) != opset:
        changes.append(f"opset {opset} to {opset_of(model)}")
    return model, tuple(changes)


def foreign_operators(model: onnx.ModelProto, /) -> list[str]:
    """Operators outside the ONNX standard, which only ONNX Runtime reads, as `domain:Operator`."""
    return sorted(
        {
            f"{node.domain}:{node.op_type}"
            for node in all_nodes(model.graph)
            if node.domain not in _STANDARD
        }
    )


def raise_opset(model: onnx.ModelProto, /, *, path: str) -> onnx.ModelProto:
    """Convert a graph below opset 17 to that; ArtifactError if it cannot be."""
    opset = opset_of(model)
    try:
        converted = version_converter.convert_version(model, MIN_OPSET)
    except _CONVERTER_ERRORS as err:
        if not _changed_operators(model, MIN_OPSET, at_all=True):
            return _relabelled(model, MIN_OPSET)
        raise ArtifactError(
            f"{path}: expected opset {MIN_OPSET} to {MAX_OPSET}, got {opset}, and it cannot be "
            f"converted ({one_line(err)[:300]}); export it again with opset_version={MAX_OPSET}"
        ) from err
    logger.info("%s: converted from opset %d to %d", path, opset, MIN_OPSET)
    if any(node.op_type == "Sqrt" for node in converted.graph.node):
        logger.warning(
            "%s: opset %d spells out layer norms, which overflow in half precision; where that "
            "matters export it again with opset_version=%d",
            path,
            opset,
            MAX_OPSET,
        )
    return converted


def lower_opset(model: onnx.ModelProto, opset: int, /, *, path: str) -> onnx.ModelProto:
    """Write a newer graph in an older opset, where everything in it had the same meaning there.

    Operators that are new since, and defined by older ones, are spelt out (Attention,
    RMSNormalization, Swish). The caller runs the result and compares. Raises ArtifactError if the
    graph needs something that `opset` does not have.
    """
    was = opset_of(model)
    unknown = {
        node.op_type
        for node in all_nodes(model.graph)
        if node.domain in _STANDARD and _schema(node, opset) is None
    }
    if unknown:
        try:
            model = _spelt_out(model, sorted(unknown))
        except (TypeError, *_CONVERTER_ERRORS) as err:
            logger.debug("%s: %s", path, one_line(err))
    _write_as_before(model, opset)
    changed = _changed_operators(model, opset)
    if changed:
        remedy = "give --set opset=18" if opset == MIN_OPSET else f"export it with opset {opset}"
        raise ArtifactError(
            f"{path}: opset {opset}: has no {', '.join(changed[:4])} as this model of opset {was} "
            f"uses it; {remedy}"
        )
    return _relabelled(model, opset)


def _spelt_out(model: onnx.ModelProto, operators: list[str]) -> onnx.ModelProto:
    """The graph with operators replaced by their definitions."""
    typed = onnx.shape_inference.infer_shapes(model)
    # The definitions depend on types, which are looked for among the noted values only.
    typed.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in typed.graph.initializer
    )
    made = inliner.inline_selected_functions(
        typed, [("", name) for name in operators], inline_schema_functions=True
    )
    del made.graph.value_info[:]
    return made


def _write_as_before(model: onnx.ModelProto, opset: int) -> None:
    """What opset 18 moved from attributes to inputs goes back for 17."""
    if opset >= 18:
        return
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in all_nodes(model.graph):
        if node.op_type == "Split":
            for position in reversed(range(len(node.attribute))):
                # Without sizes, opset 17 splits evenly into as many parts as there are outputs.
                if node.attribute[position].name == "num_outputs":
                    del node.attribute[position]
        # ReduceSum takes its axes as an input since opset 13.
        moved = node.op_type.startswith("Reduce") and node.op_type != "ReduceSum"
        if moved and len(node.input) > 1 and node.input[1] in constants:
            axes = onnx.numpy_helper.to_array(constants[node.input[1]])
            node.attribute.append(onnx.helper.make_attribute("axes", axes.tolist()))
            del node.input[1]


def _schema(node: onnx.NodeProto, opset: int) -> onnx.defs.OpSchema | None:
    """An operator's definition in an opset; None where it has none."""
    if node.domain not in _STANDARD:
        return None
    try:
        return onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError:
        return None


def _changed_operators(model: onnx.ModelProto, opset: int, *, at_all: bool = False) -> list[str]:
    """Operators that an opset does not have with these inputs and attributes, or `at_all` alike."""
    found = set()
    for node in all_nodes(model.graph):
        if node.domain not in _STANDARD:
            continue
        schema, own = _schema(node, opset), _schema(node, opset_of(model))
        if schema is None or own is None:
            found.add(str(node.op_type))
        elif schema.since_version != own.since_version:
            attributes = {item.name for item in node.attribute}
            fits = len(node.input) <= schema.max_input and attributes <= set(schema.attributes)
            # Since opset 21 its scale is one per channel and no longer one per group.
            if at_all or not fits or node.op_type == "GroupNormalization":
                found.add(str(node.op_type))
    return sorted(found)


def _relabelled(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    for item in model.opset_import:
        if item.domain in _STANDARD:
            item.version = opset
    return model
