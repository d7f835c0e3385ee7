"""The last steps every export shares: check the candidate, write the artifact whole, report."""

from __future__ import annotations

import hashlib
import os
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

from gain_core import __version__
from gain_core.errors import ArtifactError, EngineError
from gain_export.labels import Labels
from gain_export.onnx_file import MAX_BYTES, opset_of
from gain_export.preprocessing import PIXEL_VALUES
from gain_export.surgery import FEATURES, LOGITS
from gain_export.verify import (
    BATCH_SIZES,
    Numbers,
    Reference,
    read_photographs,
    synthetic_images,
    verify,
)
from gain_runtime.files.artifact import load_artifact, write_metadata
from gain_runtime.files.manifest import HeadLocation, Manifest, Preprocess
from gain_runtime.files.paths import exists, is_folder, write_atomically
from gain_runtime.preprocess import preprocess_batch

__all__ = [
    "ExportReport",
    "Facts",
    "OnStep",
    "Steps",
    "VerifyImages",
    "check_output",
    "choose_images",
    "make_manifest",
    "verification_pixels",
    "verify_and_write",
]

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
    """Times the steps of an export and announces each as it begins.

    Parameters
    ----------
    on_step : callable, optional
        Called with the step's name.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an artifact says of itself besides its graph; see `Manifest`.

    Attributes
    ----------
    source, weights_sha256 : str
    labels : Labels
    preprocess : Preprocess
    tools : sequence of str
        Modules whose versions are recorded.
    notes : tuple of str
        What was read off the model, changed and folded, one line each.
    """

    source: str
    weights_sha256: str
    labels: Labels
    preprocess: Preprocess
    tools: Sequence[str]
    notes: tuple[str, ...] = ()


def choose_images(folder: Path | None, /) -> VerifyImages:
    """Photographs from a folder, or drawn images without one."""
    if folder is not None:
        return VerifyImages(images=read_photographs(folder), source=folder.name or str(folder))
    images = synthetic_images(sum(BATCH_SIZES), seed=_SEED)
    return VerifyImages(images=images, source=f"synthetic, seed {_SEED}")


def check_output(path: Path, /, *, force: bool) -> None:
    """Find out before the work whether its result can be written.

    Raises
    ------
    ArtifactError
        If the file exists and `force` is not given, or its folder is missing or not writable.
    """
    if is_folder(path, error=ArtifactError):
        raise ArtifactError(f"{path}: expected a file to write, got a folder; name a file in it")
    if exists(path, error=ArtifactError) and not force:
        raise ArtifactError(f"{path}: exists already; use --force to replace it, or --output")
    if not is_folder(path.parent, error=ArtifactError):
        raise ArtifactError(f"{path}: expected its folder to exist, found none; create it first")
    if not os.access(path.parent, os.W_OK):
        raise ArtifactError(f"{path}: its folder cannot be written; allow it, or choose another")


def verification_pixels(images: VerifyImages, spec: Preprocess, /) -> npt.NDArray[np.float32]:
    """The images as a network takes them, repeated to at least one round of batch sizes."""
    rounds = -(-sum(BATCH_SIZES) // len(images.images))
    return preprocess_batch(list(images.images) * rounds, spec)


def make_manifest(
    facts: Facts,
    /,
    *,
    head: HeadLocation | None,
    num_classes: int,
    feature_dim: int | None,
    activation: str,
) -> Manifest:
    """The manifest of a graph with this package's names; without a head it has no features."""
    return Manifest(
        source=facts.source,
        weights_sha256=facts.weights_sha256,
        input_name=PIXEL_VALUES,
        features_name=None if head is None else FEATURES,
        logits_name=LOGITS,
        num_classes=num_classes,
        feature_dim=feature_dim,
        labels=facts.labels.names,
        head=head,
        preprocess=facts.preprocess,
        tool_versions={tool: _tool_version(tool) for tool in facts.tools},
        labels_source=facts.labels.source,
        activation=activation,
        notes=facts.notes,
    )


def _tool_version(tool: str) -> str:
    """The version of a tool, as its module says it.

    Several distributions bring ONNX Runtime's module, and this project may run from its folder.
    """
    return __version__ if tool == "gain-edge" else str(import_module(tool).__version__)


def verify_and_write(
    model: onnx.ModelProto,
    manifest: Manifest,
    /,
    *,
    output: Path,
    reference: Reference,
    images: VerifyImages,
    steps: Steps,
) -> ExportReport:
    """Verify a finished graph against its reference and write it with the numbers measured.

    Parameters
    ----------
    model : onnx.ModelProto
        Its metadata is changed in place.
    manifest : Manifest
        Without `verification`.
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
        If the file would exceed 2 GB or cannot be written, or the graph breaks the rules of ONNX.
    EngineError
        If ONNX Runtime cannot run the graph.
    ParityError
        If the graph and its reference disagree. Nothing is left behind in any of these cases.
    """
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
            numbers = _verify_candidate(model, output=output, reference=reference, images=images)
        with steps("write"):
            manifest = replace(manifest, verification=numbers)
            write_metadata(model, manifest)
            data = model.SerializeToString()
            write_atomically(output, data)
    except OSError as err:
        if isinstance(err, ArtifactError):
            raise
        raise ArtifactError(f"{output}: cannot be written ({err.strerror or err})") from err
    return _report(model, manifest, data, output=output, seconds=steps.seconds)


def _verify_candidate(
    model: onnx.ModelProto, *, output: Path, reference: Reference, images: VerifyImages
) -> Numbers:
    """Verify the graph as a file of its own, which is gone afterwards."""
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".gain-export-") as folder:
        candidate = Path(folder) / output.name
        candidate.write_bytes(model.SerializeToString())
        try:
            return verify(
                load_artifact(candidate),
                reference,
                images=len(images.images),
                image_source=images.source,
            )
        except (ArtifactError, EngineError) as err:
            # The user knows the file by the name it was to get.
            raise type(err)(str(err).replace(str(candidate), str(output))) from err


def _report(
    model: onnx.ModelProto,
    manifest: Manifest,
    data: bytes,
    *,
    output: Path,
    seconds: Mapping[str, float],
) -> ExportReport:
    """What is known once the artifact is written."""
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
        seconds=seconds,
    )
