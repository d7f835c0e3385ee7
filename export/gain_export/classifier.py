"""The part every export shares: from a graph and its logits to a verified artifact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from onnx import TensorProto

from gain_core.errors import EngineError, ParityError
from gain_export.graph import Graph, all_nodes, attribute
from gain_export.head import Head, NotLinearError, affine_values, compose_head
from gain_export.onnx_file import foreign_operators
from gain_export.outputs import Activation, run_values
from gain_export.preprocessing import state_batch
from gain_export.surgery import attach_head, attach_logits
from gain_export.verify import Reference
from gain_export.write import (
    ExportReport,
    Facts,
    Steps,
    VerifyImages,
    make_manifest,
    verify_and_write,
)
from gain_runtime.files.manifest import HeadLocation

__all__ = ["Classifier", "is_half", "write_classifier"]

_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# Distinct from every axis of one, where the graph takes any batch size.
_PROBED_BATCH = 3
_MAX_LISTED = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classifier:
    """A graph on `pixel_values` and the value in it that holds the logits.

    Attributes
    ----------
    model : onnx.ModelProto
        Of a version that devices read.
    logits : str
        A value with K numbers per image; probabilities where `activation` says so.
    num_classes : int
    activation : str
        What the original applies to them.
    fixed_batch : int or None
        The only batch size it takes.
    """

    model: onnx.ModelProto
    logits: str
    num_classes: int
    activation: Activation
    fixed_batch: int | None


def write_classifier(
    classifier: Classifier,
    facts: Facts,
    /,
    *,
    output: Path,
    reference: Reference,
    images: VerifyImages,
    steps: Steps,
) -> ExportReport:
    """Expose the features where the logits are linear in some, verify, and write the artifact.

    Parameters
    ----------
    classifier : Classifier
        Its model is changed in place.
    facts : Facts
        What the manifest says besides.
    output : Path
    reference : Reference
    images : VerifyImages
    steps : Steps

    Returns
    -------
    ExportReport

    Raises
    ------
    ArtifactError
        If the file would exceed 2 GB or cannot be written.
    EngineError
        If ONNX Runtime cannot run the graph.
    ParityError
        If the graph and the model's own output disagree. Nothing is left behind.
    """
    with steps("surgery"):
        head, reason = _head(classifier, reference)
    notes = [*facts.notes, *_warnings(classifier)]
    if head is not None:
        exact = onnx.ModelProto()
        exact.CopyFrom(classifier.model)
        location = attach_head(exact, head)
        try:
            return _finish(
                exact,
                replace(facts, notes=(*notes, *_folded(head))),
                classifier,
                head_location=location,
                feature_dim=head.weight.shape[1],
                output=output,
                reference=reference,
                images=images,
                steps=steps,
            )
        except ParityError as err:
            # A head that rounds, in half precision or quantised, is kept as it is instead.
            reason = str(err).partition(": ")[2].removesuffix("; nothing was written")
        del exact
    notes.append(f"no features: {reason}")
    attach_logits(
        classifier.model,
        classifier.logits,
        num_classes=classifier.num_classes,
        logarithm=classifier.activation == "probabilities",
    )
    return _finish(
        classifier.model,
        replace(facts, notes=tuple(notes)),
        classifier,
        head_location=None,
        feature_dim=None,
        output=output,
        reference=reference,
        images=images,
        steps=steps,
    )


def is_half(model: onnx.ModelProto, /) -> bool:
    """Whether a graph computes in half precision anywhere."""
    if any(tensor.data_type in _HALVES for tensor in model.graph.initializer):
        return True
    casts = (node for node in all_nodes(model.graph) if node.op_type == "Cast")
    return any(attribute(node, "to", 0) in _HALVES for node in casts)


def _finish(
    model: onnx.ModelProto,
    facts: Facts,
    classifier: Classifier,
    *,
    head_location: HeadLocation | None,
    feature_dim: int | None,
    output: Path,
    reference: Reference,
    images: VerifyImages,
    steps: Steps,
) -> ExportReport:
    if classifier.fixed_batch is not None:
        state_batch(model, classifier.fixed_batch)
    manifest = make_manifest(
        facts,
        head=head_location,
        num_classes=classifier.num_classes,
        feature_dim=feature_dim,
        activation=classifier.activation,
    )
    return verify_and_write(
        model, manifest, output=output, reference=reference, images=images, steps=steps
    )


def _head(classifier: Classifier, reference: Reference) -> tuple[Head | None, str]:
    """The composed head, or why there is none."""
    if classifier.activation == "probabilities":
        return None, "the model gives probabilities whose logits are not in the graph"
    graph = Graph(classifier.model)
    rows = classifier.fixed_batch or _PROBED_BATCH
    try:
        values = run_values(
            classifier.model,
            affine_values(graph, classifier.logits),
            reference.pixel_values[:rows].repeat(-(-rows // len(reference.pixel_values)), axis=0)[
                :rows
            ],
        )
        return compose_head(graph, classifier.logits, values=values), ""
    except (NotLinearError, EngineError) as err:
        return None, str(err)


def _folded(head: Head) -> list[str]:
    """What became one layer, where it was not one before."""
    notes = []
    if len(head.nodes) > 1:
        notes.append(f"folded into one linear layer: {_listed(head.nodes)}")
    if len(head.parts) > 1:
        values = _listed([f"'{part.value}'" for part in head.parts])
        notes.append(f"features: {values}, one after the other")
    if any(part.mean_axes for part in head.parts):
        notes.append("features: averaged over their places before the head, not after it")
    return notes


def _warnings(classifier: Classifier) -> list[str]:
    notes = []
    foreign = foreign_operators(classifier.model)
    if foreign:
        notes.append(
            f"operators outside the ONNX standard ({_listed(foreign)}): ONNX Runtime runs them, "
            "TensorRT does not; export the model before it is optimised"
        )
    if classifier.activation == "sigmoid":
        notes.append(
            "the model ends in Sigmoid, a score for each class on its own: taken as one class per "
            "image; a model of several labels per image cannot be adapted"
        )
    return notes


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
