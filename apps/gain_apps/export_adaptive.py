"""The part of gain-export that puts GAIN behind the network, in the same ONNX file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gain_apps.defaults import UPDATE_EVERY
from gain_core.config import GainConfig
from gain_core.errors import ArtifactError, ConfigError

if TYPE_CHECKING:
    from gain_export.adaptive import AdaptiveReport

__all__ = ["add_adaptive_arguments", "check_adaptive_arguments", "write_adaptive"]

_NEEDS_ADAPTIVE = ("preset", "update_every", "features_only")


def add_adaptive_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the flags."""
    group.add_argument(
        "--adaptive",
        action="store_true",
        help="write NAME.adaptive.onnx too: the network with GAIN's step behind it, its state as "
        "inputs and outputs (docs/adaptive-onnx.md); of an artifact, write only that",
    )
    group.add_argument("--preset", metavar="NAME", help="baked in (default: tracked)")
    group.add_argument(
        "--update-every",
        type=int,
        metavar="N",
        help=f"frames between two updates (default: {UPDATE_EVERY})",
    )
    group.add_argument(
        "--features-only",
        action="store_true",
        default=None,
        help="leave the network out: features and logits in",
    )


def check_adaptive_arguments(args: argparse.Namespace) -> None:
    """Refuse what cannot be written, before anything is exported.

    Raises
    ------
    ArtifactError
        If the adaptive file exists and --force is not given.
    ConfigError
        If a flag needs --adaptive, or names no preset.
    """
    if not args.adaptive:
        for name in _NEEDS_ADAPTIVE:
            if getattr(args, name) is not None:
                flag = name.replace("_", "-")
                raise ConfigError(
                    f"--{flag}: is a setting of --adaptive; add that, or leave it out"
                )
        return
    GainConfig.preset(args.preset or "tracked")
    path = _target(args.output or args.target)
    if path.exists() and not args.force:
        raise ArtifactError(f"{path}: exists already; --force replaces it")


def write_adaptive(args: argparse.Namespace, artifact_path: Path, /) -> AdaptiveReport:
    """Write the adaptive file beside an artifact.

    Raises
    ------
    ArtifactError, ConfigError
        As `gain_export.adaptive.add_adaptation`.
    """
    from gain_export.adaptive import add_adaptation

    return add_adaptation(
        artifact_path,
        _target(artifact_path),
        config=GainConfig.preset(args.preset or "tracked"),
        update_every=UPDATE_EVERY if args.update_every is None else args.update_every,
        features_only=bool(args.features_only),
    )


def _target(artifact_path: Path) -> Path:
    from gain_export.adaptive import adaptive_path

    return adaptive_path(artifact_path)
