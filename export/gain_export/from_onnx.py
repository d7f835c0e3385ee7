"""Exporting any ONNX classifier by surgery on its graph; needs neither torch nor timm."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx

from gain_core.errors import ArtifactError, ConfigError, EngineError
from gain_export.head import Head, find_head
from gain_export.labels import choose_labels
from gain_export.onnx_file import hash_onnx, load_onnx
from gain_export.original import Original
from gain_export.preprocessing import PreprocessOverrides, complete
from gain_export.report import ExportReport, OnStep, Steps
from gain_export.surgery import attach_head, declare_input, free_batch, settle_versions
from gain_export.verify import Reference
from gain_export.write import check_output, choose_images, make_manifest, verify_and_write
from gain_runtime.file_kind import resolved
from gain_runtime.manifest import HeadLocation, Preprocess

__all__ = ["export_onnx"]

logger = logging.getLogger(__name__)

_TOOLS = ("gain-edge", "onnx", "onnxruntime")


def export_onnx(
    path: str | Path,
    /,
    *,
    output: str | Path | None = None,
    preprocess: PreprocessOverrides | None = None,
    like: str | None = None,
    labels: str | Path | None = None,
    head: str | None = None,
    verify_images: str | Path | None = None,
    force: bool = False,
    on_step: OnStep | None = None,
) -> ExportReport:
    """Expose the features of an ONNX classifier, verify against the original, write an artifact.

    Parameters
    ----------
    path : str or Path
        The `.onnx` file; it is not changed.
    output : str or Path, optional
        Defaults to `NAME.gain.onnx` beside it.
    preprocess : PreprocessOverrides, optional
        How frames become the model's input; nothing in the file says so, and nothing is guessed.
        The image size may be left out where the graph states it.
    like : str, optional
        A timm tag or alias whose preprocessing the model shares.
    labels : str or Path, optional
        One class name per line.
    head : str, optional
        Node, value or output name of the head, where several qualify.
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
        If a file cannot be read or written or the model is none that can be used.
    BackendUnavailableError
        If `like` is given and timm is missing.
    ConfigError
        If preprocessing is missing or contradicts the graph, or the head is ambiguous.
    EngineError
        If ONNX Runtime cannot run the original or the result.
    ParityError
        If the two disagree.
    """
    path = Path(path)
    output = path.with_suffix(".gain.onnx") if output is None else Path(output)
    if resolved(output) == resolved(path):
        raise ConfigError(f"{output}: is the original itself; name another file with --output")
    check_output(output, force=force)
    images = choose_images(None if verify_images is None else Path(verify_images))
    steps = Steps(on_step)
    with steps("read"):
        model = load_onnx(path)
        found = find_head(model, name=head)
        spec = _preprocess(model, preprocess or PreprocessOverrides(), like=like, path=path)
        names = choose_labels(
            None if labels is None else Path(labels), num_classes=found.weight.shape[0]
        )
    with steps("run original"):
        original = Original(model, found, spec, path=path)
        _check_shapes(original, found, path)
    with steps("surgery"):
        model, location = _rewrite(model, found, original, path=path)
    manifest = make_manifest(
        source=path.name,
        weights_sha256=hash_onnx(path),
        head=location,
        head_shape=found.weight.shape,
        labels=names,
        preprocess=spec,
        tools=_TOOLS,
    )
    if found.output is None:
        logger.warning("%s: everything after %s is dropped", path, found.node)
    with _fixed_batch_explained(original, path):
        return verify_and_write(
            model,
            manifest,
            output=output,
            reference=Reference(name=path.name, run=original.run, activation=found.activation),
            images=images,
            steps=steps,
        )


@contextmanager
def _fixed_batch_explained(original: Original, path: Path) -> Iterator[None]:
    """Where a graph fails whose batch axis was declared fixed, say that it really is."""
    try:
        yield
    except EngineError as err:
        if original.fixed_batch is None:
            raise
        raise ArtifactError(
            f"{path}: its graph is fixed to batches of {original.fixed_batch} "
            f"({' '.join(str(err).split())[:160]}); export it again with a dynamic batch axis, for "
            "instance torch.onnx.export(..., dynamic_shapes=({0: torch.export.Dim('batch')},))"
        ) from err


def _preprocess(
    model: onnx.ModelProto, overrides: PreprocessOverrides, *, like: str | None, path: Path
) -> Preprocess:
    """What the graph states, what `like` states and what the user gave, joined."""
    known: dict[str, object] = {}
    if like is not None:
        # Imported late: everything else works without timm.
        from gain_export.aliases import load_aliases
        from gain_export.timm_models import preprocess_of

        alias = load_aliases().get(like)
        known = preprocess_of(like if alias is None else alias.model)
        known |= {} if alias is None else alias.preprocess()
    sizes = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    fixed = dict(zip(("height_px", "width_px"), sizes[2:], strict=True))
    stated = {name: size for name, size in fixed.items() if size > 0}
    spec = complete(overrides, {**known, **stated}, what=path.name)
    for name, size in stated.items():
        if getattr(spec, name) != size:
            raise ConfigError(
                f"--img-size: expected {fixed['height_px']} {fixed['width_px']} as {path} is fixed "
                f"to, got {spec.height_px} {spec.width_px}; leave the flag out or export the model "
                "again at that size"
            )
    return spec


def _check_shapes(original: Original, head: Head, path: Path) -> None:
    """The head acts on one vector per image."""
    classes, width = head.weight.shape
    images = original.probed_batch
    for name, shape, size in (
        (head.features, original.features_shape, width),
        (head.logits, original.logits_shape, classes),
    ):
        if shape[:1] != (images,) or int(np.prod(shape[1:])) != size:
            raise ArtifactError(
                f"{path}: head {head.node}: expected '{name}' to hold {size} values per image, "
                f"got shape {shape} for {images} images: the layer acts on a map or sequence, "
                "not on one vector, and what follows it is not its result alone"
            )


def _rewrite(
    model: onnx.ModelProto, head: Head, original: Original, *, path: Path
) -> tuple[onnx.ModelProto, HeadLocation]:
    """The artifact's graph, and where its head lies."""
    # The head first: naming the input may rename the value the head reads.
    location = attach_head(
        model,
        head.features,
        weight=head.weight,
        bias=head.bias,
        flatten=len(original.features_shape) != 2,
    )
    size = original.spec
    declare_input(model, height_px=size.height_px, width_px=size.width_px)
    if original.fixed_batch is not None:
        free_batch(model, original.fixed_batch)
    return settle_versions(model, path=str(path)), location
