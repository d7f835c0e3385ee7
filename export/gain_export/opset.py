"""Moving a graph between versions of the ONNX operator set."""

from __future__ import annotations

import logging

import onnx
from onnx import helper, numpy_helper, version_converter

from gain_core.errors import ArtifactError, EngineError
from gain_export.onnx_file import MAX_OPSET, MIN_OPSET, opset_of

__all__ = ["lower_opset", "raise_opset"]

logger = logging.getLogger(__name__)

_OLDEST_KEPT_OPSET = 13

# What opset 18 brought. Its other changes are new options whose defaults are the old behaviour.
_NEW_IN_18 = frozenset(
    {
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "CenterCropPad",
        "Col2Im",
        "GroupNormalization",
        "Mish",
    }
)


def lower_opset(model: onnx.ModelProto, /) -> None:
    """Rewrite an opset 18 graph as opset 17, which ONNX's own converter does for few operators.

    Parameters
    ----------
    model : onnx.ModelProto
        Changed in place.

    Raises
    ------
    EngineError
        If the graph needs something that opset 17 does not have.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        kind = node.op_type
        if kind in _NEW_IN_18 or (kind == "Pad" and len(node.input) > 3 and node.input[3]):
            raise EngineError(f"opset 17: has no {kind} as this model uses it; give --opset 18")
        if kind == "Split":
            for position in reversed(range(len(node.attribute))):
                # Without sizes, opset 17 splits evenly into as many parts as there are outputs.
                if node.attribute[position].name == "num_outputs":
                    del node.attribute[position]
        # ReduceSum takes its axes as an input since opset 13.
        if kind.startswith("Reduce") and kind != "ReduceSum" and len(node.input) > 1:
            if node.input[1] not in constants:
                raise EngineError(f"opset 17: {kind} needs constant axes; give --opset 18")
            axes = numpy_helper.to_array(constants[node.input[1]])
            node.attribute.append(helper.make_attribute("axes", axes.tolist()))
            del node.input[1]
    for item in model.opset_import:
        if item.domain in ("", "ai.onnx"):
            item.version = 17


def raise_opset(model: onnx.ModelProto, /, *, path: str) -> onnx.ModelProto:
    """Convert an older graph to opset 17.

    Parameters
    ----------
    model : onnx.ModelProto
        Below opset 17.
    path : str
        For messages.

    Returns
    -------
    onnx.ModelProto
        The same model where it has opset 13 to 16 and cannot be converted, which is logged as a
        warning.

    Raises
    ------
    ArtifactError
        If its opset is below 13 and it cannot be converted.
    """
    opset = opset_of(model)
    try:
        converted = version_converter.convert_version(model, MIN_OPSET)
        onnx.checker.check_model(converted)
    except (RuntimeError, onnx.checker.ValidationError) as err:
        # The converter is native code whose failures arrive as RuntimeError.
        reason = " ".join(str(err).split())
        if opset < _OLDEST_KEPT_OPSET:
            raise ArtifactError(
                f"{path}: expected opset {MIN_OPSET} to {MAX_OPSET}, got {opset}, and it cannot be "
                f"converted ({reason}); export it again with opset_version={MAX_OPSET}"
            ) from err
        logger.warning(
            "%s: stays at opset %d, because it cannot be converted (%s)", path, opset, reason
        )
        return model
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
