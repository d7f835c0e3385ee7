"""Files that need no lowering: one that lies there already, and a float32 artifact itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from gain_core.errors import ArtifactError, EngineError, ParityError
from gain_export.precision.bars import BARS, Drift, Precision
from gain_export.precision.convert import MARK, PrecisionReport, precision_path
from gain_export.precision.lower import precision_of
from gain_export.precision.quantise import CalibrationMethod
from gain_runtime.files.artifact import Artifact, load_artifact, read_model

__all__ = ["existing_precision", "float32_artifact"]


def existing_precision(
    artifact_path: str | Path,
    precision: Precision,
    /,
    *,
    calibration_images: str | Path | None = None,
    calibration: CalibrationMethod | None = None,
    verify_images: str | Path | None = None,
    allow_drift: bool = False,
) -> PrecisionReport:
    """The file in lower precision that lies beside an artifact, if it is what is asked for.

    Parameters
    ----------
    artifact_path : str or Path
        In float32.
    precision : {"fp16", "bf16", "int8"}
    calibration_images, calibration, verify_images, allow_drift
        As of `convert_precision`; of folders the names are compared, and only where they are given.

    Returns
    -------
    PrecisionReport
        With what the file records; nothing is run.

    Raises
    ------
    ArtifactError
        If one of the files is missing or damaged, or the one in lower precision was made of
        another artifact, in another precision, or on other images; the message names the field.
    EngineError
        If it was never verified, and `allow_drift` is not given.
    ParityError
        If it misses its bar, and `allow_drift` is not given.
    """
    reference = load_artifact(artifact_path)
    found = load_artifact(precision_path(artifact_path, precision))
    wanted: dict[str, object] = {MARK: precision, "reference_sha256": reference.sha256}
    if precision == "int8":
        if calibration is not None:
            wanted["calibration"] = calibration
        if calibration_images is not None:
            wanted["calibration_source"] = Path(calibration_images).name
    images = verify_images or calibration_images
    if images is not None:
        wanted["image_source"] = Path(images).name or str(images)
    _refuse_other(found, wanted)
    drift, accepted = _recorded_drift(found, precision, allow_drift=allow_drift)
    numbers = found.manifest.verification
    return PrecisionReport(
        path=found.path,
        sha256=found.sha256,
        precision=precision,
        size_bytes=found.path.stat().st_size,
        float32_bytes=reference.path.stat().st_size,
        image_source=str(numbers.get("image_source", "")),
        images_drawn=numbers.get("images_drawn") == "yes",
        emulated="arithmetic" in numbers,
        drift=drift,
        accepted=accepted,
        written=False,
    )


def float32_artifact(artifact_path: str | Path, /) -> PrecisionReport:
    """An artifact as it is, if it is in float32.

    Parameters
    ----------
    artifact_path : str or Path

    Returns
    -------
    PrecisionReport
        Of the artifact itself.

    Raises
    ------
    ArtifactError
        If it is missing or damaged, or in lower precision.
    """
    artifact = load_artifact(artifact_path)
    low = artifact.manifest.verification.get(MARK)
    if low is not None:
        raise ArtifactError(
            f"{artifact.path}: expected a float32 artifact, got one in {low}; "
            "name the artifact it was made from"
        )
    if precision_of(read_model(artifact.path)[0]) != "fp32":
        raise ArtifactError(
            f"{artifact.path}: expected a float32 artifact, got one whose network came with values "
            "in lower precision; leave --precision out, or export it from float32 weights"
        )
    size_bytes = artifact.path.stat().st_size
    return PrecisionReport(
        path=artifact.path,
        sha256=artifact.sha256,
        precision="fp32",
        size_bytes=size_bytes,
        float32_bytes=size_bytes,
        image_source="",
        images_drawn=False,
        emulated=False,
        drift=None,
        accepted=(),
        written=False,
    )


def _refuse_other(found: Artifact, wanted: Mapping[str, object]) -> None:
    """The file records what is wanted, or the error names the first field that differs."""
    recorded = found.manifest.verification
    for name, value in wanted.items():
        if recorded.get(name) != value:
            raise ArtifactError(
                f"{found.path}: exists already and does not fit: {name}: made with "
                f"{recorded.get(name, 'none recorded')}, expected {value}; --force makes it again"
            )


def _recorded_drift(
    found: Artifact, precision: Precision, *, allow_drift: bool
) -> tuple[Drift | None, tuple[str, ...]]:
    """The drift that was measured, and what of it has to be accepted."""
    recorded = found.manifest.verification
    names = [item.name for item in fields(Drift)]
    if not all(isinstance(recorded.get(name), int | float) for name in names):
        if not allow_drift:
            raise EngineError(
                f"{found.path}: exists already and was never verified; --allow-drift takes it, "
                "--force makes it again"
            )
        return None, ("not verified when it was written",)
    drift = Drift(**{name: recorded[name] for name in names})  # type: ignore[arg-type]
    missed = drift.misses(BARS[precision])
    if missed and not allow_drift:
        raise ParityError(
            f"{found.path}: exists already and is too far from float32: {'; '.join(missed)}; "
            "--allow-drift accepts it, --force makes it again"
        )
    return drift, tuple(missed)
