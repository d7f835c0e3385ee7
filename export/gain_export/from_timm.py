"""Exporting a timm model by name."""

from __future__ import annotations

import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_core._optional import require
from gain_core.errors import ConfigError
from gain_export import trace
from gain_export.aliases import Alias, load_aliases
from gain_export.batch import freed
from gain_export.classifier import Classifier, write_classifier
from gain_export.input_form import read_input, rewrite_input
from gain_export.labels import choose_labels
from gain_export.onnx_file import DEFAULT_OPSET, MAX_OPSET, MIN_OPSET
from gain_export.opset import settle_versions
from gain_export.original import Values
from gain_export.preprocessing import PreprocessOverrides, complete
from gain_export.report import ExportReport, OnStep, Steps
from gain_export.timm_models import build
from gain_export.verify import Reference
from gain_export.write import Facts, check_output, choose_images, verification_pixels

torch = require("torch", extra="export")

__all__ = ["export_timm"]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]

_CHUNK = 8
_TOOLS = ("gain-edge", "torch", "timm", "onnx", "onnxscript", "onnxruntime")


def export_timm(
    name: str,
    output: str | Path,
    /,
    *,
    weights: str | Path | None = None,
    random_seed: int | None = None,
    num_classes: int | None = None,
    labels: str | Path | None = None,
    preprocess: PreprocessOverrides | None = None,
    opset: int = DEFAULT_OPSET,
    ema: bool | None = None,
    verify_images: str | Path | None = None,
    force: bool = False,
    on_step: OnStep | None = None,
) -> ExportReport:
    """Build a timm model, trace it, verify it against timm's own forward and write an artifact.

    Parameters
    ----------
    name : str
        An alias of `models/*.toml` or a full timm tag.
    output : str or Path
        The `.onnx` file to write.
    weights : str or Path, optional
        Local checkpoint instead of the published weights.
    random_seed : int, optional
        Random weights from this seed, for benchmarks and tests.
    num_classes : int, optional
        K; a checkpoint states it by itself.
    labels : str or Path, optional
        One class name per line.
    preprocess : PreprocessOverrides, optional
        Settings that differ from timm's; `img_size` is baked into the graph.
    opset : int, optional
        17 to 20.
    ema : bool, optional
        Of a checkpoint with both: the weights averaged over training (the default) or the last.
    verify_images : str or Path, optional
        Folder of photographs to verify on; drawn images without it.
    force : bool, optional
        Replace an existing file.
    on_step : callable, optional
        Called with each step's name as it begins.

    Returns
    -------
    ExportReport

    Raises
    ------
    ArtifactError
        If weights, labels or photographs cannot be had, or the output cannot be written.
    BackendUnavailableError
        If torch, timm or onnxscript is missing.
    ConfigError
        If the name, a setting or the kind of model is wrong.
    EngineError
        If the model cannot be traced or run.
    ParityError
        If the graph and the model disagree.
    """
    output = Path(output)
    overrides = preprocess or PreprocessOverrides()
    _check_settings(opset, weights=weights, random_seed=random_seed)
    if ema is not None and weights is None:
        raise ConfigError("--ema, --no-ema: choose weights of a checkpoint; add --weights FILE")
    check_output(output, force=force)
    # Wrong flags are found before the minutes of work.
    images = choose_images(None if verify_images is None else Path(verify_images))
    steps = Steps(on_step)
    # Its absence would show only after the model is built.
    require("onnxscript", extra="export")
    with steps("build"), trace.quiet(), trace.decomposed_attention():
        source = build(
            load_aliases().get(name) or Alias(model=name),
            weights=None if weights is None else Path(weights),
            random_seed=random_seed,
            num_classes=num_classes,
            img_size=overrides.img_size,
            ema=ema,
        )
    spec = complete(overrides, source.preprocess, what=name)
    names = choose_labels(
        None if labels is None else Path(labels),
        num_classes=source.model.num_classes,
        imagenet=source.is_imagenet,
    )
    size = {"height_px": spec.height_px, "width_px": spec.width_px}
    pixel_values = verification_pixels(images, spec)
    with steps("run original"):
        expected = _run(source.model, pixel_values, **size)
    with steps("trace"):
        model = trace.trace(source.model, **size, opset=opset)
        model, changes = settle_versions(model, path=name)
        form = read_input(model, path=output)
        rewrite_input(model, form, spec)
        known: Values = {model.graph.output[0].name: expected}
        model, fixed_batch = freed(model, form.batch, pixel_values, known)
    return write_classifier(
        Classifier(
            model=model,
            logits=model.graph.output[0].name,
            num_classes=expected.shape[1],
            activation="none",
            fixed_batch=fixed_batch,
        ),
        Facts(
            source=source.name,
            weights_sha256=source.weights_sha256,
            labels=names,
            preprocess=spec,
            tools=_TOOLS,
            notes=(*source.notes, *(f"changed: {change}" for change in changes)),
        ),
        output=output,
        reference=Reference(
            name=f"timm {version('timm')} on torch {torch.__version__}",
            pixel_values=pixel_values,
            output=expected,
        ),
        images=images,
        steps=steps,
    )


def _check_settings(opset: int, *, weights: str | Path | None, random_seed: int | None) -> None:
    """Contradictions that need no model to be seen."""
    if not MIN_OPSET <= opset <= MAX_OPSET:
        raise ConfigError(f"opset: expected {MIN_OPSET} to {MAX_OPSET}, got {opset}")
    if weights is not None and random_seed is not None:
        raise ConfigError("--weights and --random-weights: give one of them")


def _run(model: Any, pixel_values: Floats, *, height_px: int, width_px: int) -> Floats:
    """timm's own forward pass, (N, K)."""
    kind = type(model).__name__
    logits = []
    try:
        with trace.quiet(), torch.no_grad():
            for start in range(0, len(pixel_values), _CHUNK):
                logits.append(model(torch.from_numpy(pixel_values[start : start + _CHUNK])))
            found = torch.cat(logits)
    except (RuntimeError, AssertionError, TypeError, ValueError) as err:
        raise ConfigError(
            f"{kind}: cannot be run at {width_px} x {height_px} px ({trace.one_line(err)}); "
            "give the --img-size it was made for"
        ) from err
    if found.ndim != 2:
        raise ConfigError(
            f"{kind}: expected one score per class, got {tuple(found.shape[1:])} per image; "
            "choose another model"
        )
    expected: Floats = found.float().numpy()
    return expected
