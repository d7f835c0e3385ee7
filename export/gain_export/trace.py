"""Tracing a timm model into an ONNX graph."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any

import onnx

from gain_core.errors import ConfigError, EngineError
from gain_export.onnx_file import MAX_BYTES, lower_opset, opset_of
from gain_export.preprocessing import PIXEL_VALUES
from gain_export.surgery import LOGITS
from gain_runtime.optional import require

torch = require("torch", extra="export")
timm_layers = require("timm.layers", extra="export")

__all__ = ["cause_line", "decomposed_attention", "quiet", "trace"]

logger = logging.getLogger(__name__)

# Tracing specialises an axis of length one, so that a batch of one would become the only batch.
_TRACED_BATCH = 2
# Below it the exporter converts, and keeps this version without an error where it cannot.
_LOWEST_TRACED_OPSET = 18
# What tracing raises, which depends on what the model's own code does while it is traced.
_TRACE_ERRORS = (
    RuntimeError,
    TypeError,
    ValueError,
    AttributeError,
    AssertionError,
    KeyError,
    IndexError,
    NotImplementedError,
    torch.onnx.OnnxExporterError,
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@contextlib.contextmanager
def decomposed_attention() -> Iterator[None]:
    """Let timm build attention from matrix products: the fused operator needs opset 23."""
    fused = timm_layers.use_fused_attn()
    experimental = timm_layers.use_fused_attn(experimental=True)
    timm_layers.set_fused_attn(False)
    try:
        yield
    finally:
        timm_layers.set_fused_attn(fused, experimental=experimental)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what torch and its exporter print and warn from the user; it goes to the debug log."""
    said = io.StringIO()
    previous = logging.root.manager.disable
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            warnings.simplefilter("ignore")
            logging.disable(logging.WARNING)
            yield
    finally:
        logging.disable(previous)
        if said.getvalue().strip():
            logger.debug("torch: %s", said.getvalue().strip())


def trace(model: Any, /, *, height_px: int, width_px: int, opset: int) -> onnx.ModelProto:
    """Trace a module from `pixel_values` to `logits`, its batch axis symbolic where that works.

    Parameters
    ----------
    model : torch.nn.Module
        From (B, 3, H, W) to (B, K), in evaluation mode.
    height_px, width_px : int
    opset : int
        17 to 20; 17 is lowered from 18, the least torch's exporter writes itself.

    Returns
    -------
    onnx.ModelProto
        Constants folded, no external data. Its batch axis is 1 where torch cannot trace the
        module for any batch size.

    Raises
    ------
    ConfigError
        If the weights exceed one ONNX file.
    EngineError
        If torch cannot trace the module, or not at this opset.
    """
    size_bytes = sum(4 * tensor.numel() for tensor in model.state_dict().values())
    if size_bytes > MAX_BYTES:
        raise ConfigError(
            f"model: expected at most 2 GB of weights, the limit of one ONNX file, "
            f"got {size_bytes / 2**30:.1f} GB; choose a smaller model"
        )
    size, least = (height_px, width_px), max(opset, _LOWEST_TRACED_OPSET)
    try:
        try:
            traced = _traced(model, size, opset=least, batch=_TRACED_BATCH)
            free = bool(traced.graph.input[0].type.tensor_type.shape.dim[0].dim_param)
        except _TRACE_ERRORS as err:
            logger.info("%s: traced for batches of one (%s)", type(model).__name__, cause_line(err))
            free = False
        if not free:
            traced = _traced(model, size, opset=least, batch=None)
    except _TRACE_ERRORS as err:
        raise EngineError(
            f"{type(model).__name__}: torch {torch.__version__} cannot trace it "
            f"({cause_line(err)}); update torch and onnxscript or choose another model"
        ) from err
    if opset < _LOWEST_TRACED_OPSET:
        traced = lower_opset(traced, opset, path=type(model).__name__)
    if opset_of(traced) != opset:
        raise EngineError(
            f"opset: expected {opset}, got {opset_of(traced)}: torch cannot convert this model; "
            f"give --set opset={opset_of(traced)}"
        )
    # The exporter notes this machine's file paths and source lines beside every node.
    for node in traced.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    del traced.graph.metadata_props[:]
    return traced


def _traced(model: Any, size: tuple[int, int], *, opset: int, batch: int | None) -> onnx.ModelProto:
    """torch's own export, for any batch size or for one image only."""
    shapes = None if batch is None else ({0: torch.export.Dim("batch")},)
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            model,
            (torch.zeros(batch or 1, 3, *size),),
            dynamo=True,
            input_names=[PIXEL_VALUES],
            output_names=[LOGITS],
            opset_version=opset,
            dynamic_shapes=shapes,
            optimize=True,
            verbose=False,
        )
    traced: onnx.ModelProto = program.model_proto
    return traced


def cause_line(err: Exception, /) -> str:
    """The first line of the innermost cause, without a terminal's colours."""
    while err.__cause__ is not None and isinstance(err.__cause__, Exception):
        err = err.__cause__
    lines = _COLOURS.sub("", str(err)).strip().splitlines()
    return lines[0] if lines else type(err).__name__
