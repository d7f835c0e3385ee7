"""The part of gain-export that writes an artifact again in fp16, bf16 or int8."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gain_apps.exporting.settings import flag
from gain_apps.exporting.target import refuse_existing
from gain_core.errors import ConfigError
from gain_runtime.files.paths import exists, is_file

if TYPE_CHECKING:
    from gain_export.precision import PrecisionReport

__all__ = [
    "add_precision_arguments",
    "check_precision_arguments",
    "check_precision_source",
    "precision_rows",
    "precision_target",
    "write_precision",
]

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

    Raises
    ------
    ArtifactError
        If the file exists and --force is not given, or is a folder.
    ConfigError
        If a flag needs another one.
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
            "--precision int8: expected calibration images; add --calibrate DIR with clean images "
            "of the classes the network knows"
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
    refuse_existing(path, force=args.force or taken)


def check_precision_source(args: argparse.Namespace) -> None:
    """Refuse an artifact that cannot be lowered, before anything is done with it.

    Raises
    ------
    ArtifactError
        As `gain_export.precision.check_float32`, and `float32_artifact` for fp32.
    """
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

    Raises
    ------
    ArtifactError, ConfigError, EngineError, ParityError
        As `gain_export.precision.convert_precision`, `existing_precision`, `float32_artifact`.
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
