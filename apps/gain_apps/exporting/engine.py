"""The part of gain-export that builds the TensorRT engine beside the artifact."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gain_apps.exporting.precision import precision_target
from gain_apps.exporting.settings import flag
from gain_apps.exporting.target import progress_line
from gain_apps.flags import STDOUT
from gain_core.errors import ConfigError
from gain_runtime.files.paths import exists

if TYPE_CHECKING:
    from gain_export.engine import EngineOptions, EngineReport

__all__ = [
    "add_engine_arguments",
    "check_engine_arguments",
    "check_engine_settings",
    "engine_rows",
    "write_engine",
]

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

    Raises
    ------
    BackendUnavailableError
        If no TensorRT library is installed.
    ConfigError
        If a flag needs --engine or is out of range.
    """
    if not args.engine:
        for name in _NEEDS_ENGINE:
            if getattr(args, name) is not None:
                raise ConfigError(
                    f"{flag(name)}: is a setting of --engine; add that, or leave it out"
                )
        return
    from gain_runtime.sessions.tensorrt_library import installed_library

    _options(args)
    installed_library()


def check_engine_settings(args: argparse.Namespace) -> None:
    """Refuse what the library cannot build, before the work that comes before the build.

    Where an engine lies already nothing is refused: if it fits, none is built.

    Raises
    ------
    BackendUnavailableError, ConfigError, EngineError
        As `gain_export.engine.check_engine_options`.
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

    Raises
    ------
    ArtifactError, BackendUnavailableError, ConfigError, EngineError, ParityError
        As `gain_export.engine.build_engine`.
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
    rows.append(
        (
            "agreement",
            f"with {record['reference']} ({record['reference_precision']}, on the CPU), batches of "
            f"{record['batch_sizes']}, on {record['images']} {_images_in_words(record)}: top-1 "
            f"{record['top1_agreement']:.1%}, smallest cosine of features "
            f"{record['features_cosine_min']:.5f}, of logits {record['logits_cosine_min']:.5f}",
        )
    )
    if record["accepted"]:
        rows.append(("accepted", str(record["accepted"])))
    return rows


def _images_in_words(record: Mapping[str, object]) -> str:
    """Whose images an engine was verified on."""
    if record["images_drawn"] == "yes":
        return (
            f"images drawn here ({record['image_source']}), no photographs: --verify-images DIR "
            "takes some"
        )
    return f"images of {record['image_source']}"


def _options(args: argparse.Namespace) -> EngineOptions:
    from gain_export.engine.options import DEFAULT_MAX_BATCH, EngineOptions

    return EngineOptions(
        compute_capabilities=tuple(args.compute_capability or ()),
        max_batch=DEFAULT_MAX_BATCH if args.max_batch is None else args.max_batch,
        builder_level=args.builder_level,
        hardware_compatible=bool(args.hardware_compatible),
        version_compatible=bool(args.version_compatible),
    )
