"""Tracing a timm model up to its pre-logits features into an ONNX graph."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from gain_core._optional import require
from gain_core.errors import ConfigError, EngineError
from gain_export.onnx_file import MAX_BYTES, opset_of
from gain_export.opset import lower_opset
from gain_export.surgery import FEATURES, PIXEL_VALUES

torch = require("torch", extra="export")
timm_layers = require("timm.layers", extra="export")

__all__ = ["Split", "decomposed_attention", "quiet", "split", "trace"]

logger = logging.getLogger(__name__)

# Tracing specialises an axis of length one, so that a batch of one would become the only batch.
_TRACED_BATCH = 2
# Below it the exporter converts, and keeps this version without an error where it cannot.
_LOWEST_TRACED_OPSET = 18
# Rounding of one matrix product in another order, relative to its largest value.
_HEAD_RTOL = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """A classifier cut in two: a module that gives the features, and the head's arrays.

    Attributes
    ----------
    backbone : torch.nn.Module
        From `pixel_values` (B, 3, H, W) to `features` (B, D).
    weight : array, (K, D) float32
    bias : array, (K,) float32, or None
    """

    backbone: Any
    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32] | None


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


def split(model: Any, /, *, height_px: int, width_px: int) -> Split:
    """Cut a timm classifier before its last linear layer.

    A distilled model averages two heads. With x, y their inputs, (Vx + a + Wy + b) / 2 is one
    linear layer on the features (x, y), and that is what this returns.

    Parameters
    ----------
    model : timm model
        In evaluation mode.
    height_px, width_px : int

    Returns
    -------
    Split

    Raises
    ------
    ConfigError
        If the model ends in anything but linear layers on its pre-logits features, or does not
        take images of this size.
    """
    classifier = model.get_classifier()
    heads = classifier if isinstance(classifier, tuple) else (classifier,)
    name = type(model).__name__
    kinds = ", ".join(type(head).__name__ for head in heads)
    if not all(_is_linear(head) for head in heads):
        raise ConfigError(
            f"{name}: expected a classifier that is one linear layer, got {kinds}; "
            "give --classes if it was built without one, or choose another model"
        )
    with torch.no_grad():
        weight = torch.cat([head.weight.flatten(1) for head in heads], dim=1) / len(heads)
        biases = [head.bias for head in heads if head.bias is not None]
        bias = sum(biases) / len(heads) if biases else None
        backbone = _backbone(model, distilled=len(heads) > 1).eval()
        example = torch.linspace(-1.0, 1.0, 3 * height_px * width_px)
        example = example.reshape(1, 3, height_px, width_px)
        try:
            features = backbone(example)
            expected = model(example)
        except (RuntimeError, AssertionError, TypeError) as err:
            raise ConfigError(
                f"{name}: cannot be run at {width_px} x {height_px} px ({_first_line(err)}); "
                "give the --img-size it was made for"
            ) from err
        logits = features @ weight.T + (0.0 if bias is None else bias)
        allowed = _HEAD_RTOL * (1.0 + float(expected.abs().max()))
    if logits.shape != expected.shape or float((logits - expected).abs().max()) > allowed:
        raise ConfigError(
            f"{name}: its logits are not one linear layer on its pre-logits features ({kinds}), "
            "so there is no head to adapt; choose another model"
        )
    return Split(
        backbone=backbone,
        weight=weight.numpy().astype(np.float32),
        bias=None if bias is None else bias.numpy().astype(np.float32),
    )


def trace(backbone: Any, /, *, height_px: int, width_px: int, opset: int) -> onnx.ModelProto:
    """Trace a module from `pixel_values` to `features`, its batch axis symbolic.

    Parameters
    ----------
    backbone : torch.nn.Module
        From (B, 3, H, W) to (B, D), in evaluation mode.
    height_px, width_px : int
    opset : int
        17 to 20; 17 is lowered from 18, the least torch's exporter writes itself.

    Returns
    -------
    onnx.ModelProto
        Constants folded, no external data.

    Raises
    ------
    ConfigError
        If the weights exceed one ONNX file.
    EngineError
        If torch cannot trace the module, or not with a symbolic batch axis or at this opset.
    """
    size_bytes = sum(4 * tensor.numel() for tensor in backbone.state_dict().values())
    if size_bytes > MAX_BYTES:
        raise ConfigError(
            f"model: expected at most 2 GB of weights, the limit of one ONNX file, "
            f"got {size_bytes / 2**30:.1f} GB; choose a smaller model"
        )
    example = torch.zeros(_TRACED_BATCH, 3, height_px, width_px)
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                backbone,
                (example,),
                dynamo=True,
                input_names=[PIXEL_VALUES],
                output_names=[FEATURES],
                opset_version=max(opset, _LOWEST_TRACED_OPSET),
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                optimize=True,
                verbose=False,
            )
            model: onnx.ModelProto = program.model_proto
    except (RuntimeError, torch.onnx.OnnxExporterError) as err:
        raise EngineError(
            f"{type(backbone).__name__}: torch {torch.__version__} cannot trace it "
            f"({_first_line(err)}); update torch and onnxscript or choose another model"
        ) from err
    if opset < _LOWEST_TRACED_OPSET:
        lower_opset(model)
    _check(model, opset)
    # The exporter notes this machine's file paths and source lines beside every node.
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    del model.graph.metadata_props[:]
    return model


def _check(model: onnx.ModelProto, opset: int) -> None:
    """The exporter did what it was asked: it falls back without an error."""
    batch = model.graph.input[0].type.tensor_type.shape.dim[0]
    if not batch.dim_param:
        raise EngineError(
            f"batch axis: expected a symbolic one, got {batch.dim_value}: the model computes "
            "something from its batch size and cannot be exported"
        )
    if opset_of(model) != opset:
        raise EngineError(
            f"opset: expected {opset}, got {opset_of(model)}: torch cannot convert this model; "
            f"give --opset {opset_of(model)}"
        )


def _is_linear(module: Any) -> bool:
    """A linear layer, or a 1 x 1 convolution that acts as one on a single pixel."""
    if isinstance(module, torch.nn.Conv2d):
        return bool(module.kernel_size == (1, 1) and module.groups == 1)
    return isinstance(module, torch.nn.Linear)


def _backbone(model: Any, *, distilled: bool) -> Any:
    """The module that ends at the classifier's input."""

    class Backbone(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: Any) -> Any:
            tokens = self.model.forward_features(pixel_values)
            if distilled:
                return torch.cat([tokens[:, 0], tokens[:, 1]], dim=1)
            return self.model.forward_head(tokens, pre_logits=True).flatten(1)

    return Backbone()


def _first_line(err: Exception) -> str:
    """The innermost cause in one line."""
    while err.__cause__ is not None and isinstance(err.__cause__, Exception):
        err = err.__cause__
    lines = str(err).strip().splitlines()
    return lines[0] if lines else type(err).__name__
