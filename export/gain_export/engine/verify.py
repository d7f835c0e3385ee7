"""Verifying a built engine: run where it can be run, against float32 on the CPU."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from gain_core.errors import ArtifactError, BackendUnavailableError, EngineError, ParityError
from gain_export.precision.bars import (
    ENGINE_BARS,
    Drift,
    Floats,
    Outputs,
    compare_outputs,
    run_images,
)
from gain_export.precision.lower import precision_of
from gain_export.write import VerifyImages
from gain_runtime.files.artifact import Artifact, load_artifact, read_model
from gain_runtime.files.engine import EngineHeader, read_engine
from gain_runtime.preprocess import preprocess_batch
from gain_runtime.sessions.onnx import OnnxSession
from gain_runtime.sessions.tensorrt import TensorRTSession
from gain_runtime.sessions.tensorrt_library import current_gpu, expected_header, load_library

Record = dict[str, float | int | str]


class _UnverifiableError(Exception):
    """Why an engine cannot be verified here, in words; it never leaves this module."""


def verify_engine(
    onnx_path: Path,
    engine_file: Path,
    images: VerifyImages,
    /,
    *,
    allow_drift: bool,
    built_here: bool,
) -> Record:
    """Run an engine at its smallest and its largest batch and compare it with float32.

    The reference is the float32 artifact that the file was lowered from, where that lies beside it
    unchanged, else the file itself; ONNX Runtime runs it on the CPU. The engine may lie elsewhere
    than the file it was built of; of a plan that was `built_here` code that it brings may run on
    the host. `allow_drift` records what misses the bar, or an engine that does not run, and refuses
    neither. Returns the record for `EngineHeader.verification`. Raises EngineError if there is a
    GPU that the engine is for and it does not run on it, and ParityError if it misses the bar of
    its precision, or its outputs are not finite.
    """
    header = read_engine(engine_file).header
    batches = sorted({header.profile[0], header.profile[-1]})
    try:
        artifact = _load(onnx_path)
        _check_place(artifact, header, built_here=built_here)
        pixel_values = preprocess_batch(list(images.images), artifact.manifest.preprocess)
        found = _run_engine(artifact, engine_file, pixel_values, batches)
        reference, reference_precision = _find_reference(artifact)
        exact = _run_reference(reference, pixel_values, batches[0])
    except _UnverifiableError as err:
        return _not_verified(str(err))
    except EngineError as err:
        reason = str(err).replace(str(engine_file), engine_file.name)
        if allow_drift:
            return _not_verified(f"it does not run on the GPU that it is for: {reason}")
        raise EngineError(
            f"{engine_file.name}: does not run on the GPU that it is for, so that it cannot be "
            f"verified: {reason}; nothing was written; --allow-drift writes it unverified"
        ) from err
    drift = _compare(found, exact, engine_file.name)
    accepted = "; ".join(drift.misses(ENGINE_BARS[header.precision]))
    if accepted and not allow_drift:
        origin = f"drawn here, {images.source}" if images.drawn else images.source
        raise ParityError(
            f"{engine_file.name}: {header.library} {header.version} is too far from "
            f"{reference.path.name} on the CPU, on {drift.images} images ({origin}): {accepted}; "
            "nothing was written; --allow-drift accepts it"
        )
    return {
        "verified": "yes",
        "reference": _line(reference.path.name),
        "reference_precision": reference_precision,
        "image_source": _line(images.source),
        "images_drawn": "yes" if images.drawn else "no",
        "batch_sizes": ", ".join(map(str, batches)),
        **asdict(drift),
        "accepted": accepted,
    }


def _load(onnx_path: Path) -> Artifact:
    """The artifact, which is the only kind of file that sessions run."""
    try:
        return load_artifact(onnx_path)
    except ArtifactError as err:
        raise _UnverifiableError(
            f"{onnx_path.name} is no artifact, and only those are run"
        ) from err


def _check_place(artifact: Artifact, header: EngineHeader, *, built_here: bool) -> None:
    """The engine is for the GPU here, as far as that can be asked, and may run on this host."""
    if header.carries_host_code and not built_here:
        raise _UnverifiableError(
            "its plan brings code that would run on the host; --force builds and verifies it anew"
        )
    library = load_library(header.library)
    misfit = header.difference(expected_header(artifact.sha256, library, current_gpu()))
    if misfit is not None:
        raise _UnverifiableError(f"it is for another GPU than the one here: {misfit}")


def _run_engine(
    artifact: Artifact, engine_file: Path, pixel_values: Floats, batches: list[int]
) -> list[Outputs]:
    """Its outputs on all images, once for each batch size."""
    try:
        with TensorRTSession(artifact, engine=engine_file, allow_host_code=True) as session:
            return [run_images(session, pixel_values, batch_size=size) for size in batches]
    except BackendUnavailableError as err:
        raise _UnverifiableError(str(err)) from err
    except EngineError as err:
        if current_gpu() is not None:
            raise
        # Nobody knows which GPU is here, so the engine may be for another.
        raise _UnverifiableError(str(err).replace(str(engine_file), engine_file.name)) from err


def _find_reference(artifact: Artifact) -> tuple[Artifact, str]:
    """What the engine is compared with, and its precision."""
    recorded = artifact.manifest.verification
    if "precision" in recorded:
        beside = artifact.path.parent / Path(str(recorded.get("reference"))).name
        try:
            reference = load_artifact(beside)
        except ArtifactError:
            reference = artifact
        if reference.sha256 == recorded.get("reference_sha256"):
            return reference, "fp32"
    return artifact, precision_of(read_model(artifact.path)[0]) or "unknown"


def _run_reference(reference: Artifact, pixel_values: Floats, batch_size: int) -> Outputs:
    """The reference's outputs on the CPU."""
    try:
        with OnnxSession(reference) as session:
            return run_images(session, pixel_values, batch_size=batch_size)
    except EngineError as err:
        raise _UnverifiableError(
            f"ONNX Runtime cannot run {reference.path.name} on the CPU, and a float32 artifact "
            "that it was made from is not beside it"
        ) from err


def _compare(found: list[Outputs], exact: Outputs, name: str) -> Drift:
    """The drift of the worst batch size."""
    features, logits = (np.concatenate(outputs) for outputs in zip(*found, strict=True))
    repeated = (
        np.concatenate([exact[0]] * len(found)),
        np.concatenate([exact[1]] * len(found)),
    )
    try:
        drift = compare_outputs(
            (features, logits), repeated, remedy="nothing was written; choose bf16 or float32"
        )
    except ParityError as err:
        raise ParityError(f"{name}: {err}") from err
    return replace(drift, images=len(exact[0]))


def _not_verified(reason: str) -> Record:
    return {"verified": "no", "reason": _line(reason)}


def _line(text: str) -> str:
    """A text on one line, without what a header must not hold."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
