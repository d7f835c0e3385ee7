"""Exporting any ONNX classifier by surgery on its graph; needs neither torch nor timm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from gain_core.errors import ArtifactError, ConfigError
from gain_export.graph import Graph
from gain_export.head import Run, choose_layer
from gain_export.labels import choose_labels, load_aliases, names_in_onnx
from gain_export.onnx_file import hash_onnx, load_onnx, settle_versions
from gain_export.outputs import (
    Activation,
    Candidate,
    Original,
    Values,
    choose_output,
    find_candidates,
    run_values,
    runs_over_classes,
)
from gain_export.preprocessing import (
    InputForm,
    Layout,
    PreprocessOverrides,
    check_range,
    complete,
    feed,
    plain_settings,
    read_input,
    rewrite_input,
)
from gain_export.surgery import freed
from gain_export.verify import Reference
from gain_export.write import (
    Classifier,
    ExportReport,
    OnStep,
    Steps,
    choose_images,
    is_half,
    verification_pixels,
    write_classifier,
)
from gain_runtime.files.manifest import Preprocess
from gain_runtime.files.paths import check_output, resolved

_TOOLS = ("gain-edge", "onnx", "onnxruntime")

Floats = npt.NDArray[np.float32]


def export_onnx(
    path: str | Path,
    /,
    *,
    output: str | Path | None = None,
    preprocess: PreprocessOverrides | None = None,
    like: str | None = None,
    labels: str | Path | None = None,
    head: str | None = None,
    output_name: str | None = None,
    layout: Layout | None = None,
    verify_images: str | Path | None = None,
    force: bool = False,
    on_step: OnStep | None = None,
) -> ExportReport:
    """Write an artifact from an ONNX classifier, verified against the model's own output.

    Parameters
    ----------
    path : str or Path
        The `.onnx` file; it is not changed.
    output : str or Path, optional
        Default: `NAME.gain.onnx` beside it.
    preprocess : PreprocessOverrides, optional
        How frames become the model's input. What the graph does not show must be given.
    like : str, optional
        A timm tag or alias whose preprocessing the model shares.
    labels : str or Path, optional
        One class name per line, or `imagenet` for its 1000.
    head : str, optional
        Node or value inside the graph that holds the logits, instead of an output.
    output_name : str, optional
        The output of the classifier, if several could be; with `head`, the output to compare with.
    layout : {"NCHW", "NHWC"}, optional
        Where the channels are, if the graph does not say.
    verify_images : str or Path, optional
        Folder of photographs to verify on; default: drawn images.
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
        If a file cannot be read or written, or the model cannot be used.
    BackendUnavailableError
        If `like` is given and timm is missing.
    ConfigError
        If preprocessing is missing or contradicts the graph, or the output or head is ambiguous.
    EngineError
        If ONNX Runtime cannot run the original or the result.
    ParityError
        If the artifact and the original disagree.
    """
    path = Path(path)
    output = path.with_suffix(".gain.onnx") if output is None else Path(output)
    if resolved(output) == resolved(path):
        raise ConfigError(f"{output}: is the original itself; name another file with --output")
    check_output(output, force=force)
    images = choose_images(verify_images)
    overrides = preprocess or PreprocessOverrides()
    steps = Steps(on_step)
    with steps("read"):
        raw = load_onnx(path)
        form = read_input(raw, path=path, layout=layout, value_range=overrides.value_range)
        spec = _preprocess(form, overrides, like=like, path=path)
        check_range(form, spec, path=path)
    with steps("run original"):
        original = Original(path, lambda values: feed(form, values), batch=form.batch)
        pixel_values = verification_pixels(images, spec)
        outputs = original.run(pixel_values)
    with steps("settle"):
        names = [value.name for value in raw.graph.output]
        own_labels = names_in_onnx(raw, path)
        half = is_half(raw)
        model, changes = settle_versions(raw, path=str(path))
        rewrite_input(model, form, spec)
        renamed = dict(zip(names, [value.name for value in model.graph.output], strict=True))
        outputs = {renamed[name]: values for name, values in outputs.items()}
        model, fixed_batch = freed(model, original.fixed_batch, pixel_values, outputs)
        reference = Reference(
            name=path.name,
            pixel_values=pixel_values,
            images=len(images.images),
            image_source=images.source,
            output=None,
            half=half,
        )
        logits, num_classes, reference = _find_logits(
            model,
            outputs,
            reference,
            head=head,
            output_name=None if output_name is None else renamed.get(output_name, output_name),
            fixed_batch=fixed_batch,
            path=path,
        )
    notes = [*(f"input: {seen}" for seen in form.seen), *(f"changed: {c}" for c in changes)]
    if fixed_batch is not None:
        notes.append(
            f"fixed to batches of {fixed_batch}: the runtime cuts and fills batches; export with a "
            "dynamic batch axis to save that"
        )
    elif original.fixed_batch is not None:
        notes.append(f"changed: batches of {original.fixed_batch} to any")
    if len(names) > 1 and head is None:
        notes.append(f"output: '{reference.output_name}' of {len(names)}")
    classifier = Classifier(
        model=model,
        logits=logits,
        num_classes=num_classes,
        activation=reference.activation,
        fixed_batch=fixed_batch,
        source=path.name,
        weights_sha256=hash_onnx(path),
        labels=choose_labels(labels, num_classes=num_classes, own=own_labels),
        preprocess=spec,
        tools=_TOOLS,
        notes=tuple(notes),
    )
    return write_classifier(classifier, reference, output=output, steps=steps)


def _preprocess(
    form: InputForm, overrides: PreprocessOverrides, *, like: str | None, path: Path
) -> Preprocess:
    """What the graph states, what `like` states and what the user gave, joined."""
    known: dict[str, object] = {}
    if like is not None:
        # Imported late: everything else works without timm.
        from gain_export.from_timm import preprocess_of

        alias = load_aliases().get(like)
        known = preprocess_of(like if alias is None else alias.model)
        known |= {} if alias is None else alias.preprocess()
    if form.value_range is not None:
        known["mean"], known["std"] = plain_settings(form.value_range)
    fixed = {"height_px": form.height_px, "width_px": form.width_px}
    stated = {name: size for name, size in fixed.items() if size is not None}
    spec = complete(overrides, {**known, **stated}, what=path.name)
    for name, size in stated.items():
        if getattr(spec, name) != size:
            raise ConfigError(
                f"--img-size: expected {fixed['height_px']} {fixed['width_px']} as {path} is fixed "
                f"to, got {spec.height_px} {spec.width_px}; leave the flag out or export the model "
                "again at that size"
            )
    return spec


def _find_logits(
    model: onnx.ModelProto,
    outputs: Values,
    reference: Reference,
    *,
    head: str | None,
    output_name: str | None,
    fixed_batch: int | None,
    path: Path,
) -> tuple[str, int, Reference]:
    """The value that holds the logits, K, and the model's own output to compare them with."""
    graph = Graph(model)
    candidates = find_candidates(graph, outputs)

    def run(name: str) -> npt.NDArray[np.generic]:
        """A value inside, for every image."""
        if name in outputs:
            return outputs[name]
        size = fixed_batch or len(reference.pixel_values)
        parts = []
        for start in range(0, len(reference.pixel_values), size):
            batch = reference.pixel_values[start : start + size]
            batch = batch[np.resize(np.arange(len(batch)), size)]
            parts.append(run_values(model, [name], batch)[name])
        return np.concatenate(parts)[: len(reference.pixel_values)]

    if head is not None:
        logits, activation, chosen = choose_layer(
            graph,
            head,
            candidates,
            run,
            output_name=output_name,
            half=reference.half,
            path=str(path),
        )
    else:
        chosen = choose_output(
            candidates,
            outputs,
            name=output_name,
            all_names=[value.name for value in model.graph.output],
            path=str(path),
        )
        logits, activation = _logits_of(chosen, run)
    num_classes = int(np.prod(run(logits).shape[1:]))
    if chosen is None:
        kinds = ", ".join(map(str, candidates)) or "none with scores of classes"
        why_not = f"no output of the model has {num_classes} columns (its outputs: {kinds})"
        return logits, num_classes, replace(reference, why_not=why_not)
    reference = replace(
        reference, output=chosen.scores, output_name=chosen.name, activation=activation
    )
    return logits, num_classes, reference


def _logits_of(chosen: Candidate, run: Run) -> tuple[str, Activation]:
    """The value before an output's activation, and that."""
    ending = chosen.ending
    if ending.activation != "none":
        if runs_over_classes(ending, run(ending.logits).shape):
            return ending.logits, ending.activation
        if ending.activation == "class_number":
            raise ArtifactError(
                f"output '{chosen.name}' is a class index, and the graph has no vector of scores "
                "behind it; export the model with its scores as output"
            )
    return chosen.name, "probabilities" if chosen.sums_to_one else "none"
