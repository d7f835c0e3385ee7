"""What a device runs instead of the float32 artifact: a file in lower precision, an engine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gain_apps.exporting.settings import flag, progress_line, refuse_without
from gain_apps.flags import STDOUT
from gain_core.errors import ConfigError
from gain_runtime.files.paths import check_output, exists, is_file

if TYPE_CHECKING:
    from gain_export.engine import EngineOptions, EngineReport
    from gain_export.precision import PrecisionReport

# As gain_export.precision has them; spelt out because --help imports neither onnx nor onnxruntime.
_PRECISIONS = ("fp32", "fp16", "bf16", "int8")


def add_precision_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the flags."""
    group.add_argument(
        "--precision",
        choices=_PRECISIONS,
        help="write NAME.PRECISION.gain.onnx too, verified against float32 on the images of "
        "--verify-images or --calibrate; of an artifact, write only that; with --engine the one "
        "that is there is taken if it still fits; fp32 lowers nothing",
    )
    group.add_argument(
        "--allow-drift",
        action="store_true",
        default=None,
        help="write it, and the engine of --engine, although it differs from float32 by more than "
        "the bar",
    )


def check_precision_arguments(args: argparse.Namespace) -> None:
    """Refuse what cannot be written, before anything is exported.

    Raises ArtifactError if the file exists and --force is not given, or is a folder, and
    ConfigError if a flag needs another one.
    """
    if args.allow_drift is not None and args.precision in (None, "fp32") and not args.engine:
        raise ConfigError(
            "--allow-drift: is a setting of --precision fp16, bf16 or int8, and of --engine; add "
            "one of them"
        )
    if args.precision is None:
        if args.int8_ranges is not None:
            raise ConfigError(f"{flag('int8_ranges')}: is a setting of --precision int8; add that")
        return
    if args.precision == "int8" and args.calibrate is None:
        raise ConfigError(
            "--precision int8: expected calibration images, got none; add --calibrate DIR with "
            "clean images of the classes the network knows"
        )
    if args.precision != "int8" and args.int8_ranges is not None:
        raise ConfigError(
            f"{flag('int8_ranges')}: is a setting of --precision int8, got {args.precision}; "
            "leave it out"
        )
    if args.precision == "fp32":
        return
    path = precision_target(args)
    taken = exists(path) and not args.force and _takes_existing(args)
    check_output(path, force=args.force or taken)


def check_precision_source(args: argparse.Namespace) -> None:
    """Refuse an artifact that cannot be lowered, before anything is done with it."""
    from gain_export.precision import check_float32, float32_artifact

    if args.precision == "fp32":
        float32_artifact(args.target)
    else:
        check_float32(args.target)


def precision_target(args: argparse.Namespace) -> Path:
    """Where --precision writes."""
    from gain_export.precision import precision_path

    return precision_path(args.output or args.target, args.precision)


def _takes_existing(args: argparse.Namespace) -> bool:
    """Whether a file that is there may be what is wanted: its artifact must be there, too."""
    if not args.engine or args.output is not None or not is_file(args.target):
        return False
    from gain_export.onnx_file import is_artifact

    return is_artifact(args.target)


def write_precision(
    args: argparse.Namespace, artifact_path: Path, /, *, calibration_images: Path | None
) -> PrecisionReport:
    """Write an artifact in lower precision beside it, on the images that --calibrate stands for.

    With --engine the file that is there is taken if it still fits; fp32 is the artifact itself.
    """
    from gain_export.precision import (
        convert_precision,
        existing_precision,
        float32_artifact,
        precision_path,
    )

    if args.precision == "fp32":
        return float32_artifact(artifact_path)
    if args.engine and not args.force and exists(precision_path(artifact_path, args.precision)):
        return existing_precision(
            artifact_path,
            args.precision,
            calibration_images=calibration_images,
            calibration=args.int8_ranges,
            verify_images=args.verify_images,
            allow_drift=bool(args.allow_drift),
        )
    return convert_precision(
        artifact_path,
        args.precision,
        calibration_images=calibration_images,
        calibration=args.int8_ranges,
        verify_images=args.verify_images,
        allow_drift=bool(args.allow_drift),
        force=args.force,
    )


def precision_rows(report: PrecisionReport) -> list[tuple[str, str]]:
    """What a person wants to know about the file: a name and a text a line."""
    if report.precision == "fp32":
        return [("fp32", f"{report.path} is float32 already; nothing was lowered")]
    share = report.size_bytes / report.float32_bytes
    kept = "" if report.written else "still fits, "
    rows: list[tuple[str, str]] = [
        (
            report.precision,
            f"{report.path} ({kept}{report.size_bytes / 1e6:.1f} MB, {share:.0%} of float32, "
            f"sha256 {report.sha256[:12]})",
        )
    ]
    drift = report.drift
    if drift is not None:
        how = ", emulated in float32" if report.emulated else ""
        drawn = " drawn here, no photographs" if report.images_drawn else ""
        rows.append(
            (
                "agreement",
                f"with float32 on {drift.images} images{drawn} ({report.image_source}){how}: "
                f"top-1 {drift.top1_agreement:.1%}, smallest cosine of features "
                f"{drift.features_cosine_min:.5f}, of logits {drift.logits_cosine_min:.5f}",
            )
        )
    rows.extend(("accepted", text) for text in report.accepted)
    return rows


_NEEDS_ENGINE = (
    "compute_capability",
    "max_batch",
    "builder_level",
    "hardware_compatible",
    "version_compatible",
    "build",
)


def add_engine_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the flag."""
    group.add_argument(
        "--engine",
        action="store_true",
        help="build NAME.engine beside the artifact with TensorRT or TensorRT-RTX, unless the one "
        "there still fits (docs/how-to/tensorrt.md); of an artifact, only that",
    )


def check_engine_arguments(args: argparse.Namespace) -> None:
    """Refuse what cannot be built, before anything is exported.

    Raises BackendUnavailableError if no TensorRT library is installed, and ConfigError if a flag
    needs --engine or is out of range.
    """
    if not args.engine:
        refuse_without("--engine", args, _NEEDS_ENGINE)
        return
    from gain_runtime.sessions.tensorrt_library import installed_library

    _options(args)
    installed_library()


def check_engine_settings(args: argparse.Namespace) -> None:
    """Refuse what the library cannot build, before the work that comes before the build.

    Where an engine lies already nothing is refused: if it fits, none is built.
    """
    if not args.engine or args.build is False or (_lies_there(args) and not args.force):
        return
    from gain_export.engine import check_engine_options

    check_engine_options(_options(args))


def _lies_there(args: argparse.Namespace) -> bool:
    """Whether there is an engine of the file that it is wanted of, which may not be written yet."""
    from gain_runtime.files.engine import engine_path

    path = args.output or args.target
    if args.precision not in (None, "fp32"):
        return exists(engine_path(precision_target(args)))
    candidates = (path, path.with_suffix(".gain.onnx"))
    return any(exists(engine_path(candidate)) for candidate in candidates)


def write_engine(
    args: argparse.Namespace, artifact_path: Path, /, *, calibration_images: Path | None
) -> EngineReport:
    """Build or check the engine beside an artifact.

    It is verified on the images of --verify-images, else on those that --calibrate stands for.
    """
    from gain_export.engine import build_engine, check_engine

    if args.build is False:
        return check_engine(artifact_path, options=_options(args))
    with progress_line(enabled=args.json != STDOUT) as on_step:
        return build_engine(
            artifact_path,
            options=_options(args),
            verify_images=args.verify_images or calibration_images,
            allow_drift=bool(args.allow_drift),
            force=args.force,
            on_step=on_step,
        )


def engine_rows(report: EngineReport, /) -> list[tuple[str, str]]:
    """What a person wants to know about an engine: a name and a text a line."""
    header = report.header
    targets = " ".join(str(capability) for capability in header.compute_capabilities)
    how = f"built in {report.seconds:.1f} s" if report.built else "still fits"
    rows = [
        (
            "engine",
            f"{report.path} ({report.size_bytes / 1e6:.1f} MB, {how}, {header.library} "
            f"{header.version}, {header.precision or 'unknown precision'}, compute capability "
            f"{targets}, batches to {header.profile[-1]})",
        )
    ]
    record = header.verification
    if record["verified"] == "no":
        rows.append(("", f"NOT VERIFIED: {record['reason']}"))
        return rows
    images = f"images of {record['image_source']}"
    if record["images_drawn"] == "yes":
        images = f"images drawn here ({record['image_source']}), no photographs: "
        images += "--verify-images DIR takes some"
    rows.append(
        (
            "agreement",
            f"with {record['reference']} ({record['reference_precision']}, on the CPU), batches of "
            f"{record['batch_sizes']}, on {record['images']} {images}: top-1 "
            f"{record['top1_agreement']:.1%}, smallest cosine of features "
            f"{record['features_cosine_min']:.5f}, of logits {record['logits_cosine_min']:.5f}",
        )
    )
    if record["accepted"]:
        rows.append(("accepted", str(record["accepted"])))
    return rows


def _options(args: argparse.Namespace) -> EngineOptions:
    from gain_export.engine.compile import DEFAULT_MAX_BATCH, EngineOptions

    return EngineOptions(
        compute_capabilities=tuple(args.compute_capability or ()),
        max_batch=DEFAULT_MAX_BATCH if args.max_batch is None else args.max_batch,
        builder_level=args.builder_level,
        hardware_compatible=bool(args.hardware_compatible),
        version_compatible=bool(args.version_compatible),
    )
