"""The part every export shares: from a graph and its logits to a verified artifact, reported."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from gain_core import __version__
from gain_core.errors import ArtifactError, EngineError, ParityError
from gain_export.graph import Graph, all_nodes, attribute
from gain_export.head import Head, NotLinearError, affine_values, compose_head
from gain_export.images import read_photographs, synthetic_images
from gain_export.labels import Labels
from gain_export.onnx_file import MAX_BYTES, foreign_operators, opset_of
from gain_export.outputs import Activation, run_values
from gain_export.preprocessing import PIXEL_VALUES, state_batch
from gain_export.surgery import FEATURES, LOGITS, attach_head, attach_logits
from gain_export.verify import BATCH_SIZES, Numbers, Reference, verify
from gain_runtime.files.artifact import load_artifact, write_metadata
from gain_runtime.files.manifest import HeadLocation, Manifest, Preprocess
from gain_runtime.files.paths import write_atomically
from gain_runtime.preprocess import preprocess_batch

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """An artifact that was written, and what its verification measured.

    `source`, `weights_sha256`, `preprocess`, `verification`, `activation`, `labels_source` and
    `notes` are those of `gain_runtime.files.manifest.Manifest`.

    Attributes
    ----------
    path : Path
        The artifact.
    sha256 : str
        SHA-256 of the artifact's bytes, hexadecimal.
    source, weights_sha256 : str
        Name and hash of the exported model.
    num_classes : int
        K.
    feature_dim : int or None
        D; None if the artifact has logits only.
    preprocess : Preprocess
        How a frame becomes the network's input.
    opset, ir_version, size_bytes : int
        Of the file.
    verification : mapping
        The numbers that the verification measured.
    activation, labels_source : str
        What the model computes from the logits, and where the class names come from.
    notes : tuple of str
        What the export read from the model, changed and folded.
    seconds : mapping of str to float
        Wall-clock time of each step, in seconds.
    """

    path: Path
    sha256: str
    source: str
    weights_sha256: str
    num_classes: int
    feature_dim: int | None
    preprocess: Preprocess
    opset: int
    ir_version: int
    size_bytes: int
    verification: Mapping[str, float | int | str]
    activation: str
    labels_source: str
    notes: tuple[str, ...]
    seconds: Mapping[str, float]

    def to_dict(self) -> dict[str, object]:
        """The report as plain values for JSON."""
        values = asdict(self)
        values["path"] = str(self.path)
        return values


class Steps:
    """Times the steps of an export and announces each by its name as it begins."""

    def __init__(self, on_step: OnStep | None = None, /) -> None:
        self._on_step = on_step
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str, /) -> Iterator[None]:
        """Run one step inside the context."""
        if self._on_step is not None:
            self._on_step(name)
        started = time.perf_counter()
        yield
        spent = time.perf_counter() - started
        self.seconds[name] = round(self.seconds.get(name, 0.0) + spent, 3)


_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerifyImages:
    """Images to verify on, (H, W, 3) uint8 RGB each, and where they came from."""

    images: Sequence[npt.NDArray[np.uint8]]
    source: str
    drawn: bool  # here, because no photographs were given


def choose_images(folder: str | Path | None, /) -> VerifyImages:
    """Photographs from a folder, or drawn images without one."""
    if folder is not None:
        images, source = read_photographs(Path(folder)), Path(folder).name or str(folder)
        return VerifyImages(images=images, source=source, drawn=False)
    images = synthetic_images(sum(BATCH_SIZES), seed=_SEED)
    return VerifyImages(images=images, source=f"synthetic, seed {_SEED}", drawn=True)


def verification_pixels(images: VerifyImages, spec: Preprocess, /) -> npt.NDArray[np.float32]:
    """The images as a network takes them, repeated to at least one round of batch sizes."""
    rounds = -(-sum(BATCH_SIZES) // len(images.images))
    return preprocess_batch(list(images.images) * rounds, spec)


_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# Distinct from every axis of one, where the graph takes any batch size.
_PROBED_BATCH = 3
_MAX_LISTED = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classifier:
    """A graph on `pixel_values`, the value in it that holds the logits, and what is said of it.

    What has no comment is as in `Manifest`.
    """

    model: onnx.ModelProto  # of a version that devices read
    logits: str  # a value with K numbers per image; probabilities where `activation` says so
    num_classes: int
    activation: Activation
    fixed_batch: int | None  # the only batch size it takes
    source: str
    weights_sha256: str
    labels: Labels
    preprocess: Preprocess
    tools: Sequence[str]  # modules whose versions are recorded
    notes: tuple[str, ...]


def write_classifier(
    classifier: Classifier, reference: Reference, /, *, output: Path, steps: Steps
) -> ExportReport:
    """Expose the features where the logits are linear in some, verify, and write the artifact.

    The classifier's model is changed in place. Raises ArtifactError if the file would exceed 2 GB
    or cannot be written, EngineError if ONNX Runtime cannot run the graph, and ParityError if the
    graph and the model's own output disagree. Nothing is left behind.
    """
    with steps("surgery"):
        head, reason = _head(classifier, reference)
    notes = (*classifier.notes, *_warnings(classifier))
    if head is not None:
        exact = onnx.ModelProto()
        exact.CopyFrom(classifier.model)
        location = attach_head(exact, head)
        folded = replace(classifier, model=exact, notes=(*notes, *_folded(head)))
        try:
            return _verify_and_write(
                folded,
                reference,
                head=location,
                feature_dim=head.weight.shape[1],
                output=output,
                steps=steps,
            )
        except ParityError as err:
            # A head that rounds, in half precision or quantised, is kept as it is instead.
            reason = str(err).partition(": ")[2].removesuffix("; nothing was written")
        del exact, folded
    attach_logits(
        classifier.model,
        classifier.logits,
        num_classes=classifier.num_classes,
        logarithm=classifier.activation == "probabilities",
    )
    bare = replace(classifier, notes=(*notes, f"no features: {reason}"))
    return _verify_and_write(
        bare, reference, head=None, feature_dim=None, output=output, steps=steps
    )


def is_half(model: onnx.ModelProto, /) -> bool:
    """Whether a graph computes in half precision anywhere."""
    if any(tensor.data_type in _HALVES for tensor in model.graph.initializer):
        return True
    casts = (node for node in all_nodes(model.graph) if node.op_type == "Cast")
    return any(attribute(node, "to", 0) in _HALVES for node in casts)


def _head(classifier: Classifier, reference: Reference) -> tuple[Head | None, str]:
    """The composed head, or why there is none."""
    if classifier.activation == "probabilities":
        return None, "the model gives probabilities whose logits are not in the graph"
    graph = Graph(classifier.model)
    size = classifier.fixed_batch or _PROBED_BATCH
    few = reference.pixel_values[:size]
    try:
        values = run_values(
            classifier.model,
            affine_values(graph, classifier.logits),
            few.repeat(-(-size // len(reference.pixel_values)), axis=0)[:size],
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


def _verify_and_write(
    classifier: Classifier,
    reference: Reference,
    /,
    *,
    head: HeadLocation | None,
    feature_dim: int | None,
    output: Path,
    steps: Steps,
) -> ExportReport:
    """Verify a finished graph and write it with the numbers measured; no head, no features."""
    model = classifier.model
    if classifier.fixed_batch is not None:
        state_batch(model, classifier.fixed_batch)
    manifest = Manifest(
        source=classifier.source,
        weights_sha256=classifier.weights_sha256,
        input_name=PIXEL_VALUES,
        features_name=None if head is None else FEATURES,
        logits_name=LOGITS,
        num_classes=classifier.num_classes,
        feature_dim=feature_dim,
        labels=classifier.labels.names,
        head=head,
        preprocess=classifier.preprocess,
        tool_versions={tool: _tool_version(tool) for tool in classifier.tools},
        labels_source=classifier.labels.source,
        activation=classifier.activation,
        notes=classifier.notes,
    )
    size_bytes = model.ByteSize()
    if size_bytes > MAX_BYTES:
        raise ArtifactError(
            f"{output}: expected at most 2 GB, the limit of one ONNX file, "
            f"got {size_bytes / 2**30:.1f} GB; choose a smaller model"
        )
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as err:
        raise ArtifactError(
            f"{manifest.source}: its graph breaks the ONNX rules ({' '.join(str(err).split())}); "
            "export the model again"
        ) from err
    try:
        with steps("verify"):
            write_metadata(model, manifest)
            numbers = _verify_candidate(model, reference, output=output)
        with steps("write"):
            manifest = replace(manifest, verification=numbers)
            write_metadata(model, manifest)
            data = model.SerializeToString()
            write_atomically(output, data)
    except OSError as err:
        if isinstance(err, ArtifactError):
            raise
        raise ArtifactError(f"{output}: cannot be written ({err.strerror or err})") from err
    return ExportReport(
        path=output,
        sha256=hashlib.sha256(data).hexdigest(),
        source=manifest.source,
        weights_sha256=manifest.weights_sha256,
        num_classes=manifest.num_classes,
        feature_dim=manifest.feature_dim,
        preprocess=manifest.preprocess,
        opset=opset_of(model),
        ir_version=model.ir_version,
        size_bytes=len(data),
        verification=manifest.verification,
        activation=manifest.activation,
        labels_source=manifest.labels_source,
        notes=manifest.notes,
        seconds=steps.seconds,
    )


def _tool_version(tool: str) -> str:
    """As its module says: several distributions bring ONNX Runtime's, and ours may be a folder."""
    return __version__ if tool == "gain-edge" else str(import_module(tool).__version__)


def _verify_candidate(model: onnx.ModelProto, reference: Reference, *, output: Path) -> Numbers:
    """Verify the graph as a file of its own, which is gone afterwards."""
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".gain-export-") as folder:
        candidate = Path(folder) / output.name
        candidate.write_bytes(model.SerializeToString())
        try:
            return verify(load_artifact(candidate), reference)
        except (ArtifactError, EngineError) as err:
            # The user knows the file by the name it was to get.
            raise type(err)(str(err).replace(str(candidate), str(output))) from err
