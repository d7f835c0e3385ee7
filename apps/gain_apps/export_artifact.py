"""The part of gain-export for a target that is an artifact: only something made of it is wanted."""

from __future__ import annotations

import argparse

from gain_apps.export_adaptive import check_adaptive_source
from gain_apps.export_engine import check_engine_settings
from gain_apps.export_precision import check_precision_source
from gain_runtime.file_kind import is_file

__all__ = ["check_artifact", "is_finished"]


def is_finished(args: argparse.Namespace) -> bool:
    """Whether the target is an artifact already and only what is made from it is wanted.

    Raises
    ------
    ArtifactError
        If it is no ONNX model.
    """
    wanted = args.adaptive or args.engine or args.precision or args.calibrate is not None
    if not wanted or args.output is not None or not is_file(args.target):
        return False
    from gain_export.onnx_file import is_artifact

    return is_artifact(args.target)


def check_artifact(args: argparse.Namespace) -> None:
    """Refuse what a later step could not take, before an earlier one works on the artifact.

    Raises
    ------
    ArtifactError
        If its folder cannot be written, it cannot be lowered or made adaptive as it is, or there
        is no photograph to verify on.
    BackendUnavailableError, ConfigError, EngineError
        If no engine can be built as it is wanted.
    """
    if args.calibrate is None and args.precision is None:
        # The only step there is finds it out itself, as soon.
        return
    from gain_export.photographs import read_photographs
    from gain_export.write import check_output

    check_output(args.target, force=True)
    if args.precision is not None:
        check_precision_source(args)
    if args.adaptive:
        check_adaptive_source(args)
    if args.verify_images is not None:
        read_photographs(args.verify_images)
    check_engine_settings(args)
