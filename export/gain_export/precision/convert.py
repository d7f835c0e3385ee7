"""An artifact in lower precision: written again and verified, or taken where it lies already."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from gain_core.errors import ArtifactError, ConfigError, EngineError, ParityError, one_line
from gain_export.images import read_photographs
from gain_export.precision.bars import BARS, PRECISIONS, Drift, Precision, measure_drift
from gain_export.precision.lower import LARGEST, emulated, lower, lowered_values, precision_of
from gain_export.precision.quantise import CalibrationMethod, find_layers, measure_ranges, quantise
from gain_export.write import VerifyImages, choose_images
from gain_runtime.files.adaptive import ADAPTIVE_PREFIX
from gain_runtime.files.artifact import Artifact, load_artifact, read_model, write_metadata
from gain_runtime.files.paths import check_output, write_atomically
from gain_runtime.preprocess import preprocess_batch

_LOW_TYPES = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
# The key of a manifest's verification that says what its network was lowered to.
MARK = "precision"
# The drift, and what of it misses the bar.
Checked = tuple[Drift | None, tuple[str, ...]]
_CALIBRATIONS: tuple[CalibrationMethod, ...] = ("minmax", "percentile")
_EMULATED = "emulated: float32 on values rounded to bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionReport:
    """An artifact in lower precision that was written, and how far it is from float32.

    With fp32 it is the artifact itself: there was nothing to lower.
    """

    path: Path
    sha256: str  # of the file's bytes, hexadecimal
    precision: Precision | Literal["fp32"]
    size_bytes: int
    float32_bytes: int  # of the artifact it was made from
    image_source: str = ""  # what it was verified on
    images_drawn: bool = False  # here, because no photographs were given
    emulated: bool = False  # verified in float32 on rounded values
    drift: Drift | None = None  # None, too, where it could not be run here and was accepted
    accepted: tuple[str, ...] = ()  # what missed the bar, accepted by --allow-drift
    written: bool = False  # by this call, or the one there was taken

    def to_dict(self) -> dict[str, object]:
        """The report as plain values for JSON."""
        return asdict(self) | {"path": str(self.path)}


def precision_path(artifact_path: str | Path, precision: Precision, /) -> Path:
    """Where an artifact's copy in lower precision goes: `NAME.PRECISION.gain.onnx` beside it."""
    path = Path(artifact_path)
    name = path.name.removesuffix(".onnx").removesuffix(".gain")
    return path.with_name(f"{name}.{precision}.gain.onnx")


def convert_precision(
    artifact_path: str | Path,
    precision: Precision,
    /,
    *,
    calibration_images: str | Path | None = None,
    calibration: CalibrationMethod | None = None,
    verify_images: str | Path | None = None,
    allow_drift: bool = False,
    force: bool = False,
) -> PrecisionReport:
    """Write an artifact's network in lower precision beside it; the artifact is not changed.

    `int8` needs a folder of `calibration_images`; without `calibration` its ranges are minmax, and
    percentile where that misses the bar, or the nearer of the two where both do. It is verified on
    `verify_images`, else on the calibration images, else on drawn ones. `allow_drift` writes a file
    that misses the bar, or cannot be run on this machine; `force` replaces an existing one.

    Nothing is written where it raises: ArtifactError if a file or folder cannot be read or written,
    nothing in the graph can be lowered, or the artifact is in lower precision or adaptive already;
    ConfigError if the precision is unknown, or int8 has no images; EngineError if ONNX Runtime
    cannot run the result, or the float32 network; ParityError if it misses its bar.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision: expected one of {', '.join(PRECISIONS)}, got {precision}")
    if precision == "int8" and calibration_images is None:
        raise ConfigError(
            "precision int8: expected calibration images, got none; add --calibrate DIR with "
            "clean images of the classes the network knows"
        )
    source, output = Path(artifact_path), precision_path(artifact_path, precision)
    check_output(output, force=force)
    model, reference = _read_float32(source)
    images = choose_images(verify_images or calibration_images)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".gain-export-") as scratch:
        check = partial(
            _verified,
            candidate=Path(scratch) / output.name,
            reference=reference,
            images=images,
            precision=precision,
            allow_drift=allow_drift,
        )
        if precision == "int8":
            assert calibration_images is not None
            model, calibration, (drift, missed) = _calibrated(
                model,
                reference,
                read_photographs(Path(calibration_images)),
                methods=_CALIBRATIONS if calibration is None else (calibration,),
                check=check,
                scratch=Path(scratch),
            )
        else:
            if precision == "fp16":
                _check_overflow(model, reference, images, scratch=Path(scratch))
            lower(model, _LOW_TYPES[precision])
            drift, missed = check(model)
    if missed and drift is not None and not allow_drift:
        raise ParityError(
            f"{output.name}: {precision} is too far from float32 on {drift.images} images "
            f"({images.source}): {'; '.join(missed)}; it was not written; --allow-drift accepts it"
        )
    numbers: dict[str, float | int | str] = {
        MARK: precision,
        "reference": reference.path.name,
        "reference_sha256": reference.sha256,
        "image_source": images.source,
    }
    if drift is None:
        numbers["verified"] = "no"
    else:
        if precision == "bf16":
            numbers["arithmetic"] = _EMULATED
        numbers |= asdict(drift)
    numbers["images_drawn"] = "yes" if images.drawn else "no"
    if precision == "int8":
        assert calibration_images is not None
        numbers["calibration"] = str(calibration)
        numbers["calibration_source"] = Path(calibration_images).name
    write_metadata(model, replace(reference.manifest, verification=numbers))
    data = bytes(model.SerializeToString())
    write_atomically(output, data, error=ArtifactError)
    return PrecisionReport(
        path=output,
        sha256=hashlib.sha256(data).hexdigest(),
        precision=precision,
        size_bytes=len(data),
        float32_bytes=source.stat().st_size,
        image_source=images.source,
        images_drawn=images.drawn,
        emulated=precision == "bf16" and drift is not None,
        drift=drift,
        accepted=missed,
        written=True,
    )


def check_float32(artifact_path: str | Path, /) -> None:
    """Refuse what `convert_precision` would refuse of an artifact at sight; writes nothing."""
    _read_float32(Path(artifact_path))


def _read_float32(path: Path) -> tuple[onnx.ModelProto, Artifact]:
    """Rounding twice, or rounding GAIN's own arithmetic, is never what is meant."""
    model, _ = read_model(path)
    if any(item.key.startswith(ADAPTIVE_PREFIX) for item in model.metadata_props):
        raise ArtifactError(
            f"{path}: expected an artifact, got an adaptive file; name the artifact it was made "
            "from, and make that adaptive afterwards"
        )
    artifact = load_artifact(path)
    _refuse_lowered(artifact)
    return model, artifact


def _refuse_lowered(artifact: Artifact) -> None:
    """The network was not lowered here before."""
    low = artifact.manifest.verification.get(MARK)
    if low is not None:
        raise ArtifactError(
            f"{artifact.path}: expected a float32 artifact, got one in {low}; "
            "name the artifact it was made from"
        )


def _check_overflow(
    model: onnx.ModelProto, artifact: Artifact, images: VerifyImages, /, *, scratch: Path
) -> None:
    """Refuse values that float16 cannot hold.

    ONNX Runtime's CPU provider computes float16 products in float32 and drops the casts between
    them, so that running the result here would not show what overflows on a device.
    """
    ranges = measure_ranges(
        model,
        lowered_values(model, TensorProto.FLOAT16),
        preprocess_batch(list(images.images), artifact.manifest.preprocess),
        method="minmax",
        folder=scratch,
    )
    name = max(ranges, key=ranges.__getitem__, default="")
    largest = LARGEST[TensorProto.FLOAT16]
    if name and ranges[name] > largest:
        raise ParityError(
            f"{artifact.path}: {name}: expected at most {largest:g}, the largest "
            f"fp16 number, got {ranges[name]:.3g} on {images.source}; "
            "choose bf16, or stay with float32"
        )


def _calibrated(
    model: onnx.ModelProto,
    artifact: Artifact,
    images: Sequence[npt.NDArray[np.uint8]],
    /,
    *,
    methods: Sequence[CalibrationMethod],
    check: Callable[[onnx.ModelProto], Checked],
    scratch: Path,
) -> tuple[onnx.ModelProto, CalibrationMethod, Checked]:
    """The int8 model of the first method that passes, or else comes nearest, with that."""
    head = artifact.manifest.head
    pixel_values = preprocess_batch(list(images), artifact.manifest.preprocess)
    found = []
    for method in methods:
        lowered = onnx.ModelProto()
        lowered.CopyFrom(model)
        layers = find_layers(lowered, head_weight=None if head is None else head.weight)
        values = sorted({layer.value for layer in layers})
        ranges = measure_ranges(lowered, values, pixel_values, method=method, folder=scratch)
        quantise(lowered, layers, ranges)
        drift, missed = check(lowered)
        if not missed:
            return lowered, method, (drift, missed)
        found.append((lowered, method, (drift, missed)))
    return max(found, key=lambda each: _nearness(each[2][0]))


def _nearness(drift: Drift | None) -> tuple[float, float]:
    """What orders the methods that miss the bar: the classes first, then the smallest cosine."""
    if drift is None:
        return 0.0, 0.0
    return drift.top1_agreement, min(drift.features_cosine_min, drift.logits_cosine_min)


def _verified(
    model: onnx.ModelProto,
    /,
    *,
    candidate: Path,
    reference: Artifact,
    images: VerifyImages,
    precision: Precision,
    allow_drift: bool,
) -> Checked:
    """The drift measured, and what of it misses the bar."""
    # ONNX Runtime's CPU provider has no bfloat16 products.
    runnable = emulated(model, TensorProto.BFLOAT16) if precision == "bf16" else model
    candidate.write_bytes(runnable.SerializeToString())
    try:
        drift = measure_drift(load_artifact(candidate), reference, images.images)
    except EngineError as err:
        reason = one_line(err).replace(str(candidate), candidate.name)
        if not allow_drift:
            raise EngineError(
                f"{candidate.name}: {precision} cannot be verified, because ONNX Runtime's CPU "
                f"provider cannot run it ({reason[:200]}); it was not written; --allow-drift "
                "writes it unverified for a device that can"
            ) from err
        return None, (f"not verified: {reason[:200]}",)
    return drift, tuple(drift.misses(BARS[precision]))


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

    Takes the settings of `convert_precision`: of folders the names are compared, and only where
    they are given. Nothing is run. Raises ArtifactError if a file is missing or damaged, or was
    made of another artifact, in another precision or on other images, with the field that differs;
    and without `allow_drift` EngineError if it was never verified, ParityError if it misses its
    bar.
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
    numbers = found.manifest.verification
    for name, value in wanted.items():
        if numbers.get(name) != value:
            raise ArtifactError(
                f"{found.path}: exists already and does not fit: {name}: made with "
                f"{numbers.get(name, 'none recorded')}, expected {value}; --force makes it again"
            )
    drift, accepted = _recorded_drift(found, precision, allow_drift=allow_drift)
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


def float32_artifact(artifact_path: str | Path, /) -> PrecisionReport:
    """An artifact as it is; ArtifactError if it is damaged, missing or not in float32."""
    artifact = load_artifact(artifact_path)
    _refuse_lowered(artifact)
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
    )
